"""Published runs: every byte that is read is verified."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from stoker.errors import StoreDamagedError
from stoker.store.pack.blocks import RowBlock
from stoker.store.pack.exchange import open_exchange
from stoker.store.pack.sorted_runs import BackgroundWriter, RunLayout, SortedRun
from stoker.store.pack.stored_runs import HASH_BYTES, stored_run

pytestmark = pytest.mark.promise("P3")

LAYOUT = RunLayout(
    key=np.dtype("<i8"),
    step=[np.dtype("<i8"), np.dtype("<i8")],
    series=[],
    time_index=None,
    strict_time=False,
    block_bytes=HASH_BYTES,
)


@pytest.mark.promise("P3", control=True)
def test_every_byte_that_is_read_is_verified(tmp_path: Path) -> None:
    count = 40_000
    rows = np.stack([np.arange(count) // 7, np.arange(count), np.arange(count)], axis=1)
    exchange = open_exchange(tmp_path / "a.stoker")
    exchange.put("begun", b"")
    with exchange.attempt("read-0") as attempt, BackgroundWriter(1 << 20) as writer:
        written = SortedRun.create(attempt.folder, 0, LAYOUT, writer)
        written.add(RowBlock(pa.array(rows[:, 0]), np.ones(count, dtype=np.int64), [rows[:, 1], rows[:, 2]], []))
        written.finish()
        mark = written.mark()()
        written.close()
    run = stored_run(exchange, attempt.name, mark, LAYOUT, {})
    path = next((tmp_path / "a.stoker.parts").rglob("run0.c1"))
    data = bytearray(path.read_bytes())
    data[128 + 3 * HASH_BYTES + 5] ^= 1
    path.write_bytes(data)
    first_bad = 3 * HASH_BYTES // 8
    assert np.array_equal(run.step[1].read(0, first_bad), np.arange(first_bad))
    with pytest.raises(StoreDamagedError, match=r"run0.c1 is damaged \(bytes 196,736 to 262,272\)"):
        run.step[1].read(first_bad + 100, first_bad + 101)
    path.write_bytes(data[: 128 + HASH_BYTES])
    with pytest.raises(StoreDamagedError):
        run.step[1].read(first_bad - 1, first_bad)
    path.unlink()
    with pytest.raises(StoreDamagedError, match="is missing"):
        run.step[1].read(0, 1)
    assert exchange.label.endswith(".parts")
