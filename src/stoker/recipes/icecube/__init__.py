"""IceCube: the direction of neutrinos from ragged events, from the Parquet files of the Kaggle competition to predictions.

    generator    files in the layout of the competition, with a signal that can be learned
    packing      the files -> a store with one series per event
    batches      events of a store -> ragged batches, grouped by DOM
    tokens       ragged batches -> the tokens of a model, on the device
    feed         resumable batches for the Trainer, in any order of stoker
    dataset      a map-style `Dataset` for DataLoader, with ragged and padded collate functions
    model        the transformer over DOMs; on a GPU trunk and kernels: its layers
    vmf          the density of directions, losses and angles
    optimizer    Muon beside AdamW, and the cycle of their learning rates
    training     the folder of a run; tuning: its batch size; predicting: directions of new events, and their scores

These are the public names; each is imported when first used.
"""

from typing import TYPE_CHECKING

from stoker._lazy import lazy

_LAZY = {
    "Dataset": "stoker.recipes.icecube.dataset:Dataset",
    "EventBatch": "stoker.recipes.icecube.batches:EventBatch",
    "EventFeed": "stoker.recipes.icecube.feed:EventFeed",
    "IceCubeModel": "stoker.recipes.icecube.model:IceCubeModel",
    "IceCubeSize": "stoker.recipes.icecube.model:IceCubeSize",
    "MuonAdamW": "stoker.recipes.icecube.optimizer:MuonAdamW",
    "VmfLoss": "stoker.recipes.icecube.vmf:VmfLoss",
    "expand": "stoker.recipes.icecube.tokens:expand",
    "group_pulses": "stoker.recipes.icecube.batches:group_pulses",
    "make_events": "stoker.recipes.icecube.generator:make_events",
    "pack_events": "stoker.recipes.icecube.packing:pack_events",
    "read_geometry": "stoker.recipes.icecube.tokens:read_geometry",
    "scale_geometry": "stoker.recipes.icecube.tokens:scale_geometry",
    "score_predictions": "stoker.recipes.icecube.predicting:score_predictions",
    "train": "stoker.recipes.icecube.training:train",
    "tune_batch_size": "stoker.recipes.icecube.tuning:tune_batch_size",
}

if TYPE_CHECKING:
    from stoker.recipes.icecube.batches import EventBatch as EventBatch
    from stoker.recipes.icecube.batches import group_pulses as group_pulses
    from stoker.recipes.icecube.dataset import Dataset as Dataset
    from stoker.recipes.icecube.feed import EventFeed as EventFeed
    from stoker.recipes.icecube.generator import make_events as make_events
    from stoker.recipes.icecube.model import IceCubeModel as IceCubeModel
    from stoker.recipes.icecube.model import IceCubeSize as IceCubeSize
    from stoker.recipes.icecube.optimizer import MuonAdamW as MuonAdamW
    from stoker.recipes.icecube.packing import pack_events as pack_events
    from stoker.recipes.icecube.predicting import score_predictions as score_predictions
    from stoker.recipes.icecube.tokens import expand as expand
    from stoker.recipes.icecube.tokens import read_geometry as read_geometry
    from stoker.recipes.icecube.tokens import scale_geometry as scale_geometry
    from stoker.recipes.icecube.training import train as train
    from stoker.recipes.icecube.tuning import tune_batch_size as tune_batch_size
    from stoker.recipes.icecube.vmf import VmfLoss as VmfLoss
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(__name__, _LAZY)
