"""Feeds and stores in the form that other libraries expect. A name imports its library when it is first used.

hugging_face           FeedTrainer: transformers.Trainer with the batches of a feed, exact resume
lightning              FeedDataModule: feeds for training, validation and test, made for each rank
pytorch_forecasting    ForecastBatches: batches as a TimeSeriesDataSet makes them
neuralforecast         WindowBatches: batches for the models of NeuralForecast
gluonts                StoreEntries: the series of a store as a dataset of GluonTS
pairs                  PairDataset, to_arrays: (x, y) for skorch and scikit-learn
"""

from typing import TYPE_CHECKING

from stoker._lazy import lazy

if TYPE_CHECKING:
    from stoker.integrations.gluonts import StoreEntries as StoreEntries
    from stoker.integrations.hugging_face import FeedTrainer as FeedTrainer
    from stoker.integrations.lightning import FeedDataModule as FeedDataModule
    from stoker.integrations.neuralforecast import WindowBatches as WindowBatches
    from stoker.integrations.pairs import PairDataset as PairDataset
    from stoker.integrations.pairs import to_arrays as to_arrays
    from stoker.integrations.pytorch_forecasting import ForecastBatches as ForecastBatches
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(__name__)
