"""Tools for tests, stoker's own and those of its users: disks, files and processes that fail, and the laws that feeds keep.

    FaultyFiles    kill, fail, shorten or record any single operation on the disk
    crash_states   what a disk may hold after a power loss, from a record of operations
    Zygote         run a function in a forked child that may die, hang or exhaust memory
    corrupt        damage a file in one of the ways that files get damaged
    tiny_store     a small valid store without a pack; seal_manifest and write_shard are its parts

    assert_resumes_exactly    a feed (or any loader with a state) goes on where it was stopped, bit for bit
    assert_exactly_once       its epochs have every sample once, in one order, for any number of ranks
    assert_no_future          what is computed for a step (features, predictions) does not change when later steps do

All randomness comes from the generator that is passed in, so a failure is replayed by its seed.
"""

from stoker.testing.corruption import CORRUPTIONS, corrupt
from stoker.testing.faulty import FaultyFiles, Operation
from stoker.testing.future import assert_no_future
from stoker.testing.once import assert_exactly_once
from stoker.testing.powerloss import crash_states
from stoker.testing.resuming import assert_resumes_exactly
from stoker.testing.snapshot import Snapshot, take_snapshot
from stoker.testing.tiny import COLUMNS, TinyStore, seal_manifest, tiny_store, write_shard
from stoker.testing.zygote import Case, Outcome, Zygote

__all__ = [
    "COLUMNS",
    "CORRUPTIONS",
    "Case",
    "FaultyFiles",
    "Operation",
    "Outcome",
    "Snapshot",
    "TinyStore",
    "Zygote",
    "assert_exactly_once",
    "assert_no_future",
    "assert_resumes_exactly",
    "corrupt",
    "crash_states",
    "seal_manifest",
    "take_snapshot",
    "tiny_store",
    "write_shard",
]
