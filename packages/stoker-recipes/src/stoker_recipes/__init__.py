"""Recipes: whole workloads, from raw files to a trained model. They use only public names of stoker.

icecube     the direction of neutrinos, from ragged events of pulses
time_moe    forecasting of any time series with a mixture of experts
tabular     new sequences of events like those of a table, and how good they are
tfa         the direction of market bars, from CSV files to a model that predicts bar by bar
timehut     representations of time series, learned without labels, and classifiers on them
"""

from typing import TYPE_CHECKING

from stoker.extend import lazy

if TYPE_CHECKING:
    from stoker_recipes import icecube as icecube
    from stoker_recipes import tabular as tabular
    from stoker_recipes import tfa as tfa
    from stoker_recipes import time_moe as time_moe
    from stoker_recipes import timehut as timehut
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, _ = lazy(__name__, {}, modules=("icecube", "tabular", "tfa", "time_moe", "timehut"))
