"""A Parquet file of some hundred kilobytes that unfolds to 400 MB, although its footer claims to be small."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from attempt import Survived, main

import stoker
from stoker.store.pack.api import pack

UNFOLDED_BYTES = 400_000_000


def attempts(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """One attempt: to make a pack take as much memory as the file unfolds to."""
    path = folder / "bomb.parquet"
    part = pa.table({"x": np.full(UNFOLDED_BYTES // 80, 7.0)})
    with pq.ParquetWriter(path, part.schema) as writer:
        for _ in range(10):
            writer.write_table(part)
    claimed = sum(pq.read_metadata(path).row_group(i).total_byte_size for i in range(10))
    sizes = f"{path.stat().st_size:,} bytes that claim to be {claimed:,} and are {UNFOLDED_BYTES:,}"

    def attempt() -> str:
        before = _peak_bytes()
        store = pack(path, folder / "store", resources=stoker.Resources(memory="192MB"))
        taken = _peak_bytes() - before
        if taken < UNFOLDED_BYTES // 2 and store.num_steps == UNFOLDED_BYTES // 8:
            raise Survived(f"it was packed right with {taken:,} bytes of memory")
        return f"{taken:,} bytes of memory were taken"

    yield sizes, attempt


def _peak_bytes() -> int:
    """The most memory of this process; what `getrusage` says also counts the parent's, before it started this one."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))


if __name__ == "__main__":
    main(attempts)
