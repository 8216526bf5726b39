"""Training runs described by a config: what `stoker train` does, as a library.

load        read and check a config
run         train as a config says, or resume a run
Config      a config with all its values
TrainedRun  a trained run for predictions; `stoker.load` returns one
Predicted   predictions of one column, which a recipe returns

A recipe with a configuration of its own, a struct, reads it by `read_document`, `override` and `check`, with errors that name file and
line, and writes it by `to_tree` and `to_yaml`.
"""

from typing import TYPE_CHECKING

from stoker._lazy import lazy

_LAZY = {
    "Config": "stoker.experiment.config:Config",
    "Document": "stoker.experiment.parse:Document",
    "Predicted": "stoker.experiment.prediction_table:Predicted",
    "TrainedRun": "stoker.experiment.predict:TrainedRun",
    "check": "stoker.experiment.parse:check",
    "load": "stoker.experiment.prepare:load",
    "override": "stoker.experiment.parse:override",
    "read_document": "stoker.experiment.parse:read_document",
    "run": "stoker.experiment.build:run",
    "to_tree": "stoker.experiment.parse:to_tree",
    "to_yaml": "stoker.experiment.parse:to_yaml",
}

if TYPE_CHECKING:
    from stoker.experiment.build import run as run
    from stoker.experiment.config import Config as Config
    from stoker.experiment.parse import Document as Document
    from stoker.experiment.parse import check as check
    from stoker.experiment.parse import override as override
    from stoker.experiment.parse import read_document as read_document
    from stoker.experiment.parse import to_tree as to_tree
    from stoker.experiment.parse import to_yaml as to_yaml
    from stoker.experiment.predict import TrainedRun as TrainedRun
    from stoker.experiment.prediction_table import Predicted as Predicted
    from stoker.experiment.prepare import load as load
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(__name__, _LAZY)
