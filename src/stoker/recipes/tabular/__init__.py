"""Tabular sequences: events of users, and how good synthetic ones are.

    generators          tables whose law is known
    quality_report      `quality`: a report on synthetic events, with scores, noise and verdicts

These are the public names; each is imported when first used.
"""

from typing import TYPE_CHECKING

from stoker._lazy import lazy

_LAZY = {
    "QualityReport": "stoker.recipes.tabular.quality_report:QualityReport",
    "make_bursts": "stoker.recipes.tabular.generators:make_bursts",
    "make_rules": "stoker.recipes.tabular.generators:make_rules",
    "make_shop": "stoker.recipes.tabular.generators:make_shop",
    "quality": "stoker.recipes.tabular.quality_report:quality",
    "rules_log_likelihood": "stoker.recipes.tabular.generators:rules_log_likelihood",
}

if TYPE_CHECKING:
    from stoker.recipes.tabular.generators import make_bursts as make_bursts
    from stoker.recipes.tabular.generators import make_rules as make_rules
    from stoker.recipes.tabular.generators import make_shop as make_shop
    from stoker.recipes.tabular.generators import rules_log_likelihood as rules_log_likelihood
    from stoker.recipes.tabular.quality_report import QualityReport as QualityReport
    from stoker.recipes.tabular.quality_report import quality as quality
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(__name__, _LAZY)
