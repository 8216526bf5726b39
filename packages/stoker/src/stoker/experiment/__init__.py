"""Training runs described by a config: what `stoker train` does, as a library.

load        read and check a config
run         train as a config says, or resume a run
Config      a config with all its values
TrainedRun  a trained run for predictions; `stoker.load` returns one
Predicted   predictions of one column, which a recipe returns
"""

from typing import TYPE_CHECKING

from stoker._lazy import lazy

_LAZY = {
    "Config": "stoker.experiment.config:Config",
    "Predicted": "stoker.experiment.prediction_table:Predicted",
    "TrainedRun": "stoker.experiment.predict:TrainedRun",
    "load": "stoker.experiment.prepare:load",
    "run": "stoker.experiment.build:run",
}

if TYPE_CHECKING:
    from stoker.experiment.build import run as run
    from stoker.experiment.config import Config as Config
    from stoker.experiment.predict import TrainedRun as TrainedRun
    from stoker.experiment.prediction_table import Predicted as Predicted
    from stoker.experiment.prepare import load as load
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(__name__, _LAZY)
