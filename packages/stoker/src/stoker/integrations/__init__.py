"""Feeds and stores in the form that other libraries expect. A name imports its library when it is first used.

hugging_face           FeedTrainer: transformers.Trainer with the batches of a feed, exact resume
lightning              FeedDataModule: feeds for training, validation and test, made for each rank
pytorch_forecasting    ForecastBatches: batches as a TimeSeriesDataSet makes them
neuralforecast         WindowBatches: batches for the models of NeuralForecast
gluonts                StoreEntries: the series of a store as a dataset of GluonTS
pairs                  PairDataset, to_arrays: (x, y) for skorch and scikit-learn
"""

from __future__ import annotations

from stoker._lazy import lazy

_LAZY = {
    "FeedDataModule": "stoker.integrations.lightning:FeedDataModule",
    "FeedTrainer": "stoker.integrations.hugging_face:FeedTrainer",
    "ForecastBatches": "stoker.integrations.pytorch_forecasting:ForecastBatches",
    "PairDataset": "stoker.integrations.pairs:PairDataset",
    "StoreEntries": "stoker.integrations.gluonts:StoreEntries",
    "WindowBatches": "stoker.integrations.neuralforecast:WindowBatches",
    "to_arrays": "stoker.integrations.pairs:to_arrays",
}

__getattr__, __dir__, __all__ = lazy(__name__, _LAZY)
