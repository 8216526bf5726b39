"""Tabular sequences: learn the events of users, and generate new ones.

    files                       one file, or partitions         tables        files and frames <-> codes, also on Ray
    values, encodings, dates    columns <-> classes
    compat                      split, analyze and encode of mostlyai-engine; compat_*: its statistics, codes and files
    intervals                   kernels over numbers            privacy       differentially private training
    subjects                    settings; tables -> subjects    layout        sub-columns and widths of a model
    model                       all heads in one matmul         batches       which subjects an update sees
    training                    the folder of a run             generation    codes of new subjects
    synthesizer                 `Synthesizer`: fit, sample      report        `quality`: metrics by mostlyai-qa

These are the public names; each is imported when first used.
"""

from typing import TYPE_CHECKING

from stoker._lazy import lazy

_LAZY = {
    "Synthesizer": "stoker_recipes.tabular.synthesizer:Synthesizer",
    "TabularSettings": "stoker_recipes.tabular.subjects:TabularSettings",
    "load_model": "stoker_recipes.tabular.training:load_model",
    "quality": "stoker_recipes.tabular.report:quality",
    "train": "stoker_recipes.tabular.training:train",
}

if TYPE_CHECKING:
    from stoker_recipes.tabular.report import quality as quality
    from stoker_recipes.tabular.subjects import TabularSettings as TabularSettings
    from stoker_recipes.tabular.synthesizer import Synthesizer as Synthesizer
    from stoker_recipes.tabular.training import load_model as load_model
    from stoker_recipes.tabular.training import train as train
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(__name__, _LAZY)
