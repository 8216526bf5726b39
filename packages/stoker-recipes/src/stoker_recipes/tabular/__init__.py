"""Tabular sequences: learn a table of events, and generate others.

README.md lists the modules in the order of reading. These are the public names; each is imported when first used.
"""

from typing import TYPE_CHECKING

from stoker.extend import lazy

_NAMES = {
    "calendar_features": "calendar join_days split_days",
    "digits.split": "Digits join_digits split_digits",
    "report": "quality",
    "sequences.pad": "PackedSequences PaddedSequences pad_sequences",
    "sequences.store": "pack_sequences",
    "settings": "TabularSettings",
    "statistics.analyze": "Statistics analyze parse_dates parse_numbers",
    "synthesizer": "Synthesizer",
    "training": "load_model train",
}

if TYPE_CHECKING:
    from stoker_recipes.tabular.calendar_features import calendar as calendar
    from stoker_recipes.tabular.calendar_features import join_days as join_days
    from stoker_recipes.tabular.calendar_features import split_days as split_days
    from stoker_recipes.tabular.digits.split import Digits as Digits
    from stoker_recipes.tabular.digits.split import join_digits as join_digits
    from stoker_recipes.tabular.digits.split import split_digits as split_digits
    from stoker_recipes.tabular.report import quality as quality
    from stoker_recipes.tabular.sequences.pad import PackedSequences as PackedSequences
    from stoker_recipes.tabular.sequences.pad import PaddedSequences as PaddedSequences
    from stoker_recipes.tabular.sequences.pad import pad_sequences as pad_sequences
    from stoker_recipes.tabular.sequences.store import pack_sequences as pack_sequences
    from stoker_recipes.tabular.settings import TabularSettings as TabularSettings
    from stoker_recipes.tabular.statistics.analyze import Statistics as Statistics
    from stoker_recipes.tabular.statistics.analyze import analyze as analyze
    from stoker_recipes.tabular.statistics.analyze import parse_dates as parse_dates
    from stoker_recipes.tabular.statistics.analyze import parse_numbers as parse_numbers
    from stoker_recipes.tabular.synthesizer import Synthesizer as Synthesizer
    from stoker_recipes.tabular.training import load_model as load_model
    from stoker_recipes.tabular.training import train as train
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(
        __name__, {name: f"{__name__}.{module}:{name}" for module, names in _NAMES.items() for name in names.split()}
    )
