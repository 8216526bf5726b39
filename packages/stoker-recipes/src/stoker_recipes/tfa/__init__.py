"""TFA: the direction of market bars, from CSV files to a model that predicts bar by bar.

README.md lists the modules in the order of reading. These are the public names; each is imported when first used.
"""

from typing import TYPE_CHECKING

from stoker.extend import lazy

_LAZY = {
    "BarPredictor": "stoker_recipes.tfa.bundle:BarPredictor",
    "FeatureFrame": "stoker_recipes.tfa.indicators.bars:FeatureFrame",
    "FeatureStream": "stoker_recipes.tfa.indicators.engine:FeatureStream",
    "Settings": "stoker_recipes.tfa.settings:Settings",
    "build_model": "stoker_recipes.tfa.model:build_model",
    "features": "stoker_recipes.tfa.indicators.engine:features",
    "label_bars": "stoker_recipes.tfa.data:label_bars",
    "read_settings": "stoker_recipes.tfa.settings:read_settings",
    "train": "stoker_recipes.tfa.training:train",
    "verify_bundle": "stoker_recipes.tfa.bundle:verify_bundle",
    "write_bundle": "stoker_recipes.tfa.bundle:write_bundle",
}

if TYPE_CHECKING:
    from stoker_recipes.tfa.bundle import BarPredictor as BarPredictor
    from stoker_recipes.tfa.bundle import verify_bundle as verify_bundle
    from stoker_recipes.tfa.bundle import write_bundle as write_bundle
    from stoker_recipes.tfa.data import label_bars as label_bars
    from stoker_recipes.tfa.indicators.bars import FeatureFrame as FeatureFrame
    from stoker_recipes.tfa.indicators.engine import FeatureStream as FeatureStream
    from stoker_recipes.tfa.indicators.engine import features as features
    from stoker_recipes.tfa.model import build_model as build_model
    from stoker_recipes.tfa.settings import Settings as Settings
    from stoker_recipes.tfa.settings import read_settings as read_settings
    from stoker_recipes.tfa.training import train as train
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(__name__, _LAZY)
