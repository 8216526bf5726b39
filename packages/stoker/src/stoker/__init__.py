"""Find the bottleneck of a PyTorch training run, fix it, and verify that the results are unchanged.

    store = stoker.pack("prices/*.csv", "prices.stoker", series="symbol", time="ts")
    store = stoker.open("prices.stoker")
    store[7]["close"]

These are all the public names. Those that need NumPy or Arrow are imported when first used, so `import stoker` costs
next to nothing. Train and test splits are in `stoker.split`, optimizers, metrics and schedules in `stoker.train`, helpers for your own
tests in `stoker.testing`. Complete workloads are in the package `stoker_recipes`.
"""

from typing import TYPE_CHECKING

from stoker._lazy import lazy
from stoker.audit import audit as audit
from stoker.compare import compare as compare
from stoker.errors import StokerError as StokerError
from stoker.watch import watch as watch

__version__ = "0.1.0"

if TYPE_CHECKING:
    from stoker import diagnose as diagnose
    from stoker import errors as errors
    from stoker import experiment as experiment
    from stoker import feed as feed
    from stoker import gate as gate
    from stoker import ray as ray
    from stoker import split as split
    from stoker import testing as testing
    from stoker import train as train
    from stoker import tune as tune
    from stoker.experiment.predict import load as load
    from stoker.feed.feed import Feed as Feed
    from stoker.sampling.mixture import Mixture as Mixture
    from stoker.sampling.orders import BlockShuffle as BlockShuffle
    from stoker.sampling.orders import ByLength as ByLength
    from stoker.sampling.orders import Sequential as Sequential
    from stoker.sampling.orders import Shuffle as Shuffle
    from stoker.sampling.orders import Weighted as Weighted
    from stoker.sampling.views import Segments as Segments
    from stoker.sampling.views import Sequences as Sequences
    from stoker.sampling.views import Windows as Windows
    from stoker.store.append import append as append
    from stoker.store.append import compact as compact
    from stoker.store.formats.csv import Csv as Csv
    from stoker.store.formats.discover import Files as Files
    from stoker.store.inspect import inspect as inspect
    from stoker.store.inspect import verify as verify
    from stoker.store.opening import open_store as open
    from stoker.store.pack.api import pack as pack
    from stoker.store.pack.options import Resources as Resources
    from stoker.store.pack.options import Time as Time
    from stoker.store.store import Store as Store
    from stoker.train.early_stopping import EarlyStopping as EarlyStopping
    from stoker.train.trainer import Trainer as Trainer

    __all__ = ["open"]  # for type checkers: each other name is one of this file by its alias
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, _names = lazy(__name__)
    __all__ = sorted([*_names, "StokerError", "audit", "compare", "watch"])


def load_ipython_extension(shell: object) -> None:
    """Add `%%stoker` to a notebook. IPython calls it for `%load_ext stoker`."""
    from stoker.notebook import register

    register(shell)
