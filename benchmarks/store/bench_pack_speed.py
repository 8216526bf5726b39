"""How fast is a pack, next to only reading the same file with pyarrow?

Both sides start with the file in the page cache. Reading throws its table away; packing ends with every byte hashed,
written and synced to the disk. The physical limit is the larger of reading with pyarrow and of writing the same bytes
with one sequential, synced write.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

import stoker
from benchmarks import record
from benchmarks.store import tables

QUESTION = "How fast is a pack, as a share of the speed of only reading the file with pyarrow?"
SETS = {
    "noise": (tables.noise, {}),
    "noise, one series an id": (tables.noise, {"series": "id"}),
    "bars, one series per symbol, times checked": (tables.bars, {"series": "symbol", "time": "ts"}),
    "events, one series per event": (tables.events, {"series": "event_id"}),
}


def main() -> None:
    """Measure all sets in both formats."""
    options = record.arguments(QUESTION)
    rows, rounds = (200_000, 2) if options.small else (8_000_000, options.rounds or 9)
    answer: dict[str, Any] = {"rows": rows, "rounds": rounds, "pack speed over read speed": {}}
    with tempfile.TemporaryDirectory(dir=os.environ.get("STOKER_BENCH_DIR")) as name:
        for title, (make, shape) in SETS.items():
            table = make(rows)
            for suffix in ("parquet", "csv"):
                path = Path(name) / f"table.{suffix}"
                (pq.write_table if suffix == "parquet" else pa_csv.write_csv)(table, path)
                answer["pack speed over read speed"][f"{suffix}: {title}"] = measure(table, path, shape, rounds)
                path.unlink()
    if not options.small:
        record.save("bench_pack_speed", QUESTION, answer)
    else:
        print(answer)


def measure(table: pa.Table, path: Path, shape: dict[str, Any], rounds: int) -> dict[str, Any]:
    """One file: read, pack and raw write, interleaved; and that the store holds what the file holds."""
    target = path.with_name("table.stoker")
    raw = path.with_name("raw")
    read = partial(pq.read_table, path) if path.suffix == ".parquet" else partial(pa_csv.read_csv, path)
    store = stoker.pack(path, target, replace=True, **shape)
    payload = np.random.default_rng(0).integers(0, 255, store.num_bytes, dtype=np.uint8)

    def write() -> None:
        with raw.open("wb") as file:
            file.write(payload.data)
            file.flush()
            os.fsync(file.fileno())

    def clean() -> None:
        shutil.rmtree(target, ignore_errors=True)
        raw.unlink(missing_ok=True)
        os.sync()

    sides = {"read": read, "pack": lambda: stoker.pack(path, target, replace=True, **shape), "write": write}
    seconds = record.interleave(sides, rounds=rounds, before=clean)
    limit = [max(a, b) for a, b in zip(seconds["read"], seconds["write"], strict=True)]
    equal = equal_values(table, stoker.pack(path, target, replace=True, **shape))
    clean()
    return {
        "ratio": record.ratio(seconds["read"], seconds["pack"]),
        "share of the physical limit": record.ratio(limit, seconds["pack"]),
        "pack seconds": record.spread(seconds["pack"]),
        "read seconds": record.spread(seconds["read"]),
        "synced write seconds": record.spread(seconds["write"]),
        "store megabytes": round(store.num_bytes / 1e6, 1),
        "values equal": equal,
    }


def equal_values(table: pa.Table, store: stoker.Store) -> bool:
    """All keys of these tables rise, so the flat columns of the store are the columns of the table."""
    for name, column in store.schema.items():
        if column.level == "step" and column.kind != "category":
            expected = table.column(name).combine_chunks()
            expected = expected.cast(pa.int64()) if pa.types.is_timestamp(expected.type) else expected
            values = expected.to_numpy(zero_copy_only=False)
            if not np.array_equal(store.column(name).astype(values.dtype), values):
                return False
    return True


if __name__ == "__main__":
    main()
