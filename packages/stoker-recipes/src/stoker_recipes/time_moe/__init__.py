"""Time-MoE: forecasts of any time series by a mixture of experts.

README.md lists the modules in the order of reading. These are the public names; each is imported when first used.
"""

from typing import TYPE_CHECKING

from stoker.extend import lazy

_LAZY = {
    "Corpus": "stoker_recipes.time_moe.data:Corpus",
    "TimeMoeDataset": "stoker_recipes.time_moe.dataset:TimeMoeDataset",
    "SIZES": "stoker_recipes.time_moe.layers:SIZES",
    "Size": "stoker_recipes.time_moe.layers:Size",
    "TimeMoe": "stoker_recipes.time_moe.model:TimeMoe",
    "evaluate": "stoker_recipes.time_moe.predicting:evaluate",
    "load_weights": "stoker_recipes.time_moe.model:load_weights",
    "open_corpus": "stoker_recipes.time_moe.data:open_corpus",
    "read_size": "stoker_recipes.time_moe.model:read_size",
    "save_weights": "stoker_recipes.time_moe.model:save_weights",
    "time_moe_loss": "stoker_recipes.time_moe.model:time_moe_loss",
    "train": "stoker_recipes.time_moe.training:train",
}

if TYPE_CHECKING:
    from stoker_recipes.time_moe.data import Corpus as Corpus
    from stoker_recipes.time_moe.data import open_corpus as open_corpus
    from stoker_recipes.time_moe.dataset import TimeMoeDataset as TimeMoeDataset
    from stoker_recipes.time_moe.layers import SIZES as SIZES
    from stoker_recipes.time_moe.layers import Size as Size
    from stoker_recipes.time_moe.model import TimeMoe as TimeMoe
    from stoker_recipes.time_moe.model import load_weights as load_weights
    from stoker_recipes.time_moe.model import read_size as read_size
    from stoker_recipes.time_moe.model import save_weights as save_weights
    from stoker_recipes.time_moe.model import time_moe_loss as time_moe_loss
    from stoker_recipes.time_moe.predicting import evaluate as evaluate
    from stoker_recipes.time_moe.training import train as train
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(__name__, _LAZY)
