"""IceCube: the direction of neutrinos from ragged events, from the files of the Kaggle competition to predictions.

README.md lists the modules in the order of reading. These are the public names; each is imported when first used.
"""

from typing import TYPE_CHECKING

from stoker.extend import lazy

_LAZY = {
    "Dataset": "stoker_recipes.icecube.dataset:Dataset",
    "EventBatch": "stoker_recipes.icecube.batches:EventBatch",
    "EventFeed": "stoker_recipes.icecube.feed:EventFeed",
    "IceCubeModel": "stoker_recipes.icecube.model:IceCubeModel",
    "IceCubeSize": "stoker_recipes.icecube.model:IceCubeSize",
    "MuonAdamW": "stoker_recipes.icecube.optimizer:MuonAdamW",
    "VmfLoss": "stoker_recipes.icecube.losses:VmfLoss",
    "expand": "stoker_recipes.icecube.tokens:expand",
    "group_pulses": "stoker_recipes.icecube.batches:group_pulses",
    "make_events": "stoker_recipes.icecube.generator:make_events",
    "pack_events": "stoker_recipes.icecube.data:pack_events",
    "read_geometry": "stoker_recipes.icecube.tokens:read_geometry",
    "scale_geometry": "stoker_recipes.icecube.tokens:scale_geometry",
    "score_predictions": "stoker_recipes.icecube.predicting:score_predictions",
    "train": "stoker_recipes.icecube.training:train",
    "tune_batch_size": "stoker_recipes.icecube.tuning:tune_batch_size",
}

if TYPE_CHECKING:
    from stoker_recipes.icecube.batches import EventBatch as EventBatch
    from stoker_recipes.icecube.batches import group_pulses as group_pulses
    from stoker_recipes.icecube.data import pack_events as pack_events
    from stoker_recipes.icecube.dataset import Dataset as Dataset
    from stoker_recipes.icecube.feed import EventFeed as EventFeed
    from stoker_recipes.icecube.generator import make_events as make_events
    from stoker_recipes.icecube.losses import VmfLoss as VmfLoss
    from stoker_recipes.icecube.model import IceCubeModel as IceCubeModel
    from stoker_recipes.icecube.model import IceCubeSize as IceCubeSize
    from stoker_recipes.icecube.optimizer import MuonAdamW as MuonAdamW
    from stoker_recipes.icecube.predicting import score_predictions as score_predictions
    from stoker_recipes.icecube.tokens import expand as expand
    from stoker_recipes.icecube.tokens import read_geometry as read_geometry
    from stoker_recipes.icecube.tokens import scale_geometry as scale_geometry
    from stoker_recipes.icecube.training import train as train
    from stoker_recipes.icecube.tuning import tune_batch_size as tune_batch_size
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(__name__, _LAZY)
