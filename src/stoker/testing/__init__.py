"""Tools for tests, stoker's own and those of its users: disks that fail, power that is lost, files that rot, processes that die.

    FaultyFiles    kill, fail, shorten or record any single operation on the disk
    crash_states   what a disk may hold after a power loss, from a record of operations
    Zygote         run a function in a forked child that may die, hang or exhaust memory
    corrupt        damage a file in one of the ways that files get damaged
    tiny_store     a small valid store without a pack; seal_manifest and write_shard are its parts

All randomness comes from the generator that is passed in, so a failure is replayed by its seed.
"""

from stoker.testing.corruption import CORRUPTIONS, corrupt
from stoker.testing.faulty import FaultyFiles, Operation
from stoker.testing.powerloss import crash_states
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
    "corrupt",
    "crash_states",
    "seal_manifest",
    "take_snapshot",
    "tiny_store",
    "write_shard",
]
