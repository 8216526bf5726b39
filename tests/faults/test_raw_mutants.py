"""Damaged raw files end in an error of ours that names the file, or in a store; never in another exception or a dead process."""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.harness import Zygote, corrupt

from stoker import _disk, pack, verify
from stoker.errors import StokerError

MUTANTS_A_CHILD = 50
MEMORY_BYTES = 4 << 30

FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "parquet": ("table.parquet", {"series": "key"}),
    "parquet-crc": ("table.parquet", {"series": "key"}),
    "parquet-lists": ("table.parquet", {}),
    "arrow": ("table.arrow", {"series": "key"}),
    "arrow-stream": ("table.arrow", {}),
    "csv": ("table.csv", {"series": "key"}),
    "csv-gz": ("table.csv.gz", {"wide": True}),
    "jsonl": ("table.jsonl", {}),
    "npy": ("table.npy", {}),
    "npz": ("table.npz", {}),
    "ts": ("table.ts", {}),
    "arff": ("table.arff", {}),
}


def table_of(form: str) -> pa.Table:
    rng = np.random.default_rng(5)
    rows = 400
    if form not in ("parquet", "parquet-crc", "arrow", "csv", "csv-gz"):
        lists = [rng.normal(size=n).tolist() for n in rng.integers(0, 9, rows).tolist()]
        return pa.table({"x": lists, "label": rng.integers(0, 9, rows), "note": [f"note {n}" for n in range(rows)]})
    return pa.table(
        {
            "key": [f"series {n}" for n in rng.integers(0, 9, rows).tolist()],
            "when": pa.array(np.arange(rows), pa.timestamp("us", "UTC")),
            "x": pa.array(rng.normal(size=rows), mask=rng.random(rows) < 0.1),
            "n": rng.integers(-9, 9, rows).astype("i4"),
            "flag": rng.random(rows) < 0.5,
            "mood": pa.array([f"mood {n}" for n in rng.integers(0, 4, rows).tolist()]).dictionary_encode(),
        }
    )


def bytes_of(form: str) -> bytes:
    """A healthy file."""
    table, out = table_of(form), io.BytesIO()
    if form.startswith("parquet"):
        pq.write_table(table, out, write_page_checksum=form == "parquet-crc", row_group_size=150, data_page_size=1 << 10)
    elif form.startswith("arrow"):
        with (pa.ipc.new_file if form == "arrow" else pa.ipc.new_stream)(out, table.schema) as writer:
            writer.write_table(table, max_chunksize=150)
    elif form == "jsonl":
        out.write("\n".join(json.dumps(row) for row in table.to_pylist()).encode())
    elif form in ("npy", "npz"):
        values = np.random.default_rng(5).normal(size=(40, 30))
        np.save(out, values) if form == "npy" else np.savez_compressed(out, x=values, y=values.astype("f4"))
    elif form in ("ts", "arff"):
        rows = [",".join(f"{x:.6f}" for x in row) for row in np.random.default_rng(5).normal(size=(40, 30)).tolist()]
        attributes = "".join(f"@attribute a{i} numeric\n" for i in range(30)) + "@attribute target {a,b}\n"
        head = "@problemName p\n@univariate true\n@classLabel true a b\n" if form == "ts" else "@relation p\n" + attributes
        label = ":a" if form == "ts" else ",a"
        out.write((head + "@data\n" + "".join(row + label + "\n" for row in rows)).encode())
    else:
        wide = form == "csv-gz"
        columns = [table[name].to_pylist() for name in (("x", "n") if wide else table.column_names)]
        lines = [",".join("" if value is None else str(value) for value in row) for row in zip(*columns, strict=True)]
        text = "\n".join([",".join(("x", "n") if wide else table.column_names), *lines]) + "\n"
        out.write(gzip.compress(text.encode(), mtime=0) if wide else text.encode())
    return out.getvalue()


def pack_mutants(form: str, seed: int, first: int) -> dict[str, Any]:
    """Pack some mutants; how they ended, and what must not be. The number of each is on disk before it is tried."""
    name, options = FORMS[form]
    path, store = Path(name), Path("store")
    healthy = bytes_of(form)
    path.write_bytes(healthy)
    expected = values(path, store, options)
    ends: Counter[str] = Counter()
    faults: list[str] = []
    for number in range(first, first + MUTANTS_A_CHILD):
        Path("number").write_text(str(number))
        path.write_bytes(healthy)
        damage = corrupt(path, np.random.default_rng([seed, number]))
        try:
            ends["same" if values(path, store, options) == expected else "other"] += 1
        except StokerError as error:
            ends["error"] += 1
            if name.partition(".")[0] not in str(error) or "\n" in str(error):
                faults.append(f"{damage}: unclear: {error}")
        except Exception as error:
            ends["fault"] += 1
            faults.append(f"{damage}: {type(error).__name__}: {error}")
        if store.exists():
            verify(store)
            _disk.remove_folder(store)
    return {"ends": ends, "faults": faults}


def values(path: Path, store: Path, options: dict[str, Any]) -> list[bytes]:
    packed = pack(path, store, **options)
    texts = [repr(list(column.texts)).encode() for column in packed.schema.values() if column.texts is not None]
    numbers = [packed.column(name).tobytes() for name, column in packed.schema.items() if column.dtype is not None]
    return [packed.offsets.tobytes(), *numbers, *texts]


def try_mutants(zygote: Zygote, folder: Path, form: str, seed: int, count: int, function: Any = pack_mutants) -> Counter[str]:
    """Try mutants in children; a death is told with the number of its mutant."""
    ends: Counter[str] = Counter()
    faults: list[str] = []
    for first in range(0, count, MUTANTS_A_CHILD):
        work = folder / str(first)
        work.mkdir()
        outcome = zygote.run(function, form=form, seed=seed, first=first, work_folder=work, memory_bytes=MEMORY_BYTES, seconds=120)
        if outcome.exit != 0:
            ends["death" if outcome.signal else "fault"] += 1
            faults.append(f"mutant {(work / 'number').read_text()}: signal {outcome.signal}, {outcome.trace or outcome.error}")
            continue
        ends.update(outcome.value["ends"])
        faults.extend(outcome.value["faults"])
    print(f"{form}: {dict(ends)}")
    print("\n".join(faults[:20]))
    return ends


@pytest.mark.promise("P6")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "count",
    [100, pytest.param(300, marks=pytest.mark.slow), pytest.param(3000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])],
)
def test_a_mutated_file_is_an_error_of_ours_or_a_store(
    pack_zygote: Zygote, quick_path: Path, seed: int, form: str, count: int
) -> None:
    ends = try_mutants(pack_zygote, quick_path, form, seed, count)
    assert ends["fault"] == ends["death"] == 0
    assert ends["error"] > count // 10
    if form == "parquet-crc":
        assert ends["other"] <= count // 50, "pages with a checksum were believed without it"


# ---- negative controls: without these checks the same mutants go through, or kill ----


def read_mutants_unchecked(form: str, seed: int, first: int) -> dict[str, Any]:
    """Believe what an Arrow file says."""
    healthy, path = bytes_of(form), Path(FORMS[form][0])
    for number in range(first, first + MUTANTS_A_CHILD):
        Path("number").write_text(str(number))
        path.write_bytes(healthy)
        corrupt(path, np.random.default_rng([seed, number]))
        try:
            with pa.memory_map(str(path)) as source:
                pa.ipc.open_file(source).read_all().to_pylist()
        except (pa.ArrowException, ValueError, OSError, IndexError, TypeError, OverflowError, MemoryError):
            continue
    return {"ends": {}, "faults": []}


@pytest.mark.promise("P6", control=True)
def test_negative_control_unvalidated_arrow_files_kill_the_process(pack_zygote: Zygote, quick_path: Path, seed: int) -> None:
    assert try_mutants(pack_zygote, quick_path, "arrow", seed, 500, read_mutants_unchecked)["death"] > 0
