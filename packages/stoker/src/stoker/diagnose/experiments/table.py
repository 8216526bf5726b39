"""The tables of all suspects and fixes by name. A new one is a file of this folder and a row here."""

from __future__ import annotations

from stoker.diagnose.experiments.base import Experiment, Fix
from stoker.diagnose.experiments.batch import Batch
from stoker.diagnose.experiments.between import WithoutBetween
from stoker.diagnose.experiments.callbacks import WithoutCallbacks
from stoker.diagnose.experiments.compile import Compile
from stoker.diagnose.experiments.copies import WithoutCopies
from stoker.diagnose.experiments.data import Cached
from stoker.diagnose.experiments.everything import WithoutAll
from stoker.diagnose.experiments.fused import Fused
from stoker.diagnose.experiments.gather import GatheredLoader
from stoker.diagnose.experiments.graph import Graph
from stoker.diagnose.experiments.memory import Malloc
from stoker.diagnose.experiments.pinned import Pinned
from stoker.diagnose.experiments.precision import Autocast, Float32, Tf32
from stoker.diagnose.experiments.reads import WithoutReads
from stoker.diagnose.experiments.threads import Threads
from stoker.diagnose.experiments.workers import Workers
from stoker.errors import OptionError

EXPERIMENTS: dict[str, type[Experiment]] = {
    "everything": WithoutAll,
    "callbacks": WithoutCallbacks,
    "between": WithoutBetween,
    "reads": WithoutReads,
    "copies": WithoutCopies,
}
"""All suspects, in the order in which they are removed: where removing everything gains nothing, no other one is."""

FIXES: dict[str, type[Fix]] = {
    "cached": Cached,
    "feed": GatheredLoader,
    "fused": Fused,
    "threads": Threads,
    "tf32": Tf32,
    "pinned": Pinned,
    "workers": Workers,
    "autocast": Autocast,
    "batch": Batch,
    "float32": Float32,
    "graph": Graph,
    "compile": Compile,
    "malloc": Malloc,
}
"""All fixes, by the names that advice gives them, in the order in which they are measured in a running program.

The safest come first: a program that raises an error with a fix has ended, and what comes after is not measured.
"""


def fix_named(name: str) -> type[Fix]:
    """Return the fix of this name."""
    if name not in FIXES:
        raise OptionError(f"there is no fix {name!r}; expected one of {', '.join(sorted(FIXES))}.")
    return FIXES[name]
