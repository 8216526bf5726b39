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
from stoker.errors import StokerError
from stoker.watch import watch as watch

__version__ = "0.1.0"

__all__ = [
    "BlockShuffle",
    "ByLength",
    "Csv",
    "EarlyStopping",
    "Feed",
    "Files",
    "Mixture",
    "Resources",
    "Segments",
    "Sequences",
    "Sequential",
    "Shuffle",
    "StokerError",
    "Store",
    "Time",
    "Trainer",
    "Weighted",
    "Windows",
    "append",
    "audit",
    "compact",
    "compare",
    "inspect",
    "load",
    "open",
    "pack",
    "verify",
    "watch",
]

_LAZY = {
    "BlockShuffle": "stoker.sampling.orders:BlockShuffle",
    "ByLength": "stoker.sampling.orders:ByLength",
    "Csv": "stoker.store.formats.csv:Csv",
    "EarlyStopping": "stoker.train.early_stopping:EarlyStopping",
    "Feed": "stoker.feed.feed:Feed",
    "Mixture": "stoker.sampling.mixture:Mixture",
    "Files": "stoker.store.formats.discover:Files",
    "Resources": "stoker.store.pack.options:Resources",
    "Segments": "stoker.sampling.views:Segments",
    "Sequences": "stoker.sampling.views:Sequences",
    "Sequential": "stoker.sampling.orders:Sequential",
    "Shuffle": "stoker.sampling.orders:Shuffle",
    "Store": "stoker.store.store:Store",
    "Time": "stoker.store.pack.options:Time",
    "Trainer": "stoker.train.trainer:Trainer",
    "Weighted": "stoker.sampling.orders:Weighted",
    "Windows": "stoker.sampling.views:Windows",
    "append": "stoker.store.append:append",
    "compact": "stoker.store.append:compact",
    "inspect": "stoker.store.inspect:inspect",
    "load": "stoker.experiment.predict:load",
    "open": "stoker.store.opening:open_store",
    "pack": "stoker.store.pack.api:pack",
    "verify": "stoker.store.inspect:verify",
}

_MODULES = ("diagnose", "errors", "experiment", "feed", "gate", "ray", "split", "testing", "train", "tune")

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
    from stoker.experiment.predict import load
    from stoker.feed.feed import Feed
    from stoker.sampling.mixture import Mixture
    from stoker.sampling.orders import BlockShuffle, ByLength, Sequential, Shuffle, Weighted
    from stoker.sampling.views import Segments, Sequences, Windows
    from stoker.store.append import append, compact
    from stoker.store.formats.csv import Csv
    from stoker.store.formats.discover import Files
    from stoker.store.inspect import inspect, verify
    from stoker.store.opening import open_store as open
    from stoker.store.pack.api import pack
    from stoker.store.pack.options import Resources, Time
    from stoker.store.store import Store
    from stoker.train.early_stopping import EarlyStopping
    from stoker.train.trainer import Trainer
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, _ = lazy(__name__, _LAZY, modules=_MODULES)


def load_ipython_extension(shell: object) -> None:
    """Add `%%stoker` to a notebook. IPython calls it for `%load_ext stoker`."""
    from stoker.notebook import register

    register(shell)
