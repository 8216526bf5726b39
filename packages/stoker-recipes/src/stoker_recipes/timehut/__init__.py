"""TimeHUT: representations of time series, learned without labels, by TimeHUT, TS2Vec or SoftCLT.

README.md lists the modules in the order of reading. These are the public names; each is imported when first used.
"""

from typing import TYPE_CHECKING

from stoker.extend import lazy

_LAZY = {
    "Encoder": "stoker_recipes.timehut.estimator:Encoder",
    "EncoderSettings": "stoker_recipes.timehut.settings:EncoderSettings",
    "METHODS": "stoker_recipes.timehut.settings:METHODS",
    "SPACES": "stoker_recipes.timehut.tuning:SPACES",
    "SearchObjective": "stoker_recipes.timehut.tuning:SearchObjective",
    "dtw_distances": "stoker_recipes.timehut.dtw:dtw_distances",
    "load_encoder": "stoker_recipes.timehut.predicting:load_encoder",
    "make_population": "stoker_recipes.timehut.population:make_population",
    "make_settings": "stoker_recipes.timehut.settings:make_settings",
    "read_series": "stoker_recipes.timehut.data:read_series",
    "train": "stoker_recipes.timehut.training:train",
}

if TYPE_CHECKING:
    from stoker_recipes.timehut.data import read_series as read_series
    from stoker_recipes.timehut.dtw import dtw_distances as dtw_distances
    from stoker_recipes.timehut.estimator import Encoder as Encoder
    from stoker_recipes.timehut.population import make_population as make_population
    from stoker_recipes.timehut.predicting import load_encoder as load_encoder
    from stoker_recipes.timehut.settings import METHODS as METHODS
    from stoker_recipes.timehut.settings import EncoderSettings as EncoderSettings
    from stoker_recipes.timehut.settings import make_settings as make_settings
    from stoker_recipes.timehut.training import train as train
    from stoker_recipes.timehut.tuning import SPACES as SPACES
    from stoker_recipes.timehut.tuning import SearchObjective as SearchObjective
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(__name__, _LAZY)
