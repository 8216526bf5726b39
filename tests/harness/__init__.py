"""The fault harness: disks, files and processes that fail on purpose.

    FaultyFiles    kill, fail, shorten or record any single operation on the disk
    crash_states   what a disk may hold after a power loss, from a record of operations; count_states judges each of them
    Zygote         run a function in a forked child that may die, hang or exhaust memory
    corrupt        damage a file in one of the ways that files get damaged; NOT_JSON is what may stand in place of a record
    network        nothing contacts another host: refused in this process, and by a closed proxy in others
    num_examples   how many examples a law is tried with, here and with `--explore`
    tiny_store     a small valid store without a pack; seal_manifest, edit_manifest and write_shard are its parts

All randomness comes from the generator that is passed in, so a failure is replayed by its seed.
"""

from tests.harness.corruption import CORRUPTIONS, NOT_JSON, corrupt, flip_byte
from tests.harness.examples import num_examples
from tests.harness.faulty import FaultyFiles, Operation
from tests.harness.powerloss import count_states, crash_states
from tests.harness.snapshot import Snapshot, take_snapshot
from tests.harness.tiny import COLUMNS, TinyStore, edit_manifest, seal_manifest, tiny_store, write_shard
from tests.harness.zygote import Case, Outcome, Zygote

__all__ = [
    "COLUMNS",
    "CORRUPTIONS",
    "NOT_JSON",
    "Case",
    "FaultyFiles",
    "Operation",
    "Outcome",
    "Snapshot",
    "TinyStore",
    "Zygote",
    "corrupt",
    "count_states",
    "crash_states",
    "edit_manifest",
    "flip_byte",
    "num_examples",
    "seal_manifest",
    "take_snapshot",
    "tiny_store",
    "write_shard",
]
