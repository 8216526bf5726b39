"""Training runs described by a config: what `stoker train` does, as a library.

load    read and check a config
run     train as a config says, or resume a run
Config  a config with all its values
"""

from typing import TYPE_CHECKING

from stoker._lazy import lazy

_LAZY = {"Config": "stoker.experiment.config:Config", "load": "stoker.experiment.build:load", "run": "stoker.experiment.build:run"}

if TYPE_CHECKING:
    from stoker.experiment.build import load as load
    from stoker.experiment.build import run as run
    from stoker.experiment.config import Config as Config
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(__name__, _LAZY)
