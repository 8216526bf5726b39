"""Files that are small and take much memory once they are parsed: ever new keys, endless lines, dimensions without number.

Each is packed within `--memory 192MB`, or refused in one short line, and so quickly that the parser never sees it whole.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.faults.conftest import READERS
from tests.harness import Zygote

import stoker
from stoker import pack
from stoker.errors import MAX_MESSAGE, StokerError
from stoker.store import PackOptions
from stoker.store.formats.base import ReadLimits
from stoker.store.pack.options import MIN_MEMORY_BYTES

pytestmark = pytest.mark.promise("P4")

FORMATS = [f"stoker.store.formats.{name}" for name in ("jsonl", "ucr", "numpy")]
BASE_BYTES = 72 << 20
"""What an interpreter takes that has imported all that a pack needs, before it packs."""


@pytest.fixture(scope="module")
def narrow_zygote() -> Iterator[Zygote]:
    imports = ["pandas", "pyarrow.pandas_compat", *READERS, *FORMATS, "tests.faults.test_raw_widths"]
    with mock.patch.dict(os.environ, {"ARROW_DEFAULT_MEMORY_POOL": "system"}), Zygote(imports=imports) as zygote:
        yield zygote


def memory(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) << 10 if found else 0


def pack_and_measure(source: str, store: str, options: dict[str, Any]) -> dict[str, Any]:
    """Pack with the least memory there is; the error, and by how much the process grew at most."""
    before, error = memory("VmRSS"), None
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
    try:
        pack(source, store, resources=stoker.Resources(memory=MIN_MEMORY_BYTES, threads=2), **options)
    except StokerError as caught:
        error = caught
    name = None if error is None else type(error).__name__
    return {"error": name, "message": str(error), "grown": memory("VmHWM") - before}


def pack_without_limits(source: str, store: str, options: dict[str, Any]) -> dict[str, Any]:
    with mock.patch.object(PackOptions, "limits", ReadLimits(line_bytes=1 << 30, columns=1 << 30)):
        return pack_and_measure(source, store, options)


def rows(text: str, count: int) -> str:
    return "".join(text.replace("#", f"{i:06}") for i in range(count))


def write(text: Callable[[], str]) -> Callable[[Path], Any]:
    return lambda path: path.write_text(text())


def hole(start: str, num_bytes: int) -> Callable[[Path], Any]:
    """A text that goes on with zeros, which take no space on the disk."""

    def make(path: Path) -> None:
        path.write_text(start)
        os.truncate(path, num_bytes)

    return make


def wide_parquet(path: Path) -> None:
    table = pa.table({f"c{i}": [1.0] for i in range(25_000)})
    pq.write_table(table, path, compression="none", use_dictionary=False, write_statistics=False)


def wide_npz(path: Path) -> None:
    np.savez_compressed(path, **{f"c{i}": np.zeros(1) for i in range(2000)})


KEYS = "{" + ",".join(f'"k{i}":0.5' for i in range(1400)) + "}\n"

BOMBS: dict[str, tuple[str, Callable[[Path], Any], dict[str, Any], str | None]] = {
    "ever new keys": ("a.jsonl", write(lambda: rows('{"key#":1}\n', 80_000)), {}, "different keys"),
    "ever new keys within": ("a.jsonl", write(lambda: rows('{"a":{"key#":1}}\n', 90_000)), {}, "different keys"),
    "ever new keys in the end": (
        "a.jsonl",
        write(lambda: '{"a":1,"b":2}\n' * 90_000 + rows('{"key#":1}\n', 90_000)),
        {},
        "has the key",
    ),
    "ever new keys beside those asked for": (
        "a.jsonl",
        write(lambda: '{"a":1,"b":2}\n' * 90_000 + rows('{"key#":1}\n', 90_000)),
        {"columns": "a"},
        "has the key 'key000000'",
    ),
    "a row of many keys": ("a.jsonl", write(lambda: "{" + rows('"key#":1,', 90_000) + '"z":1}\n'), {}, "different keys"),
    "a long row of keys": ("a.jsonl", write(lambda: "{" + rows('"key#":1,', 250_000) + '"z":1}\n'), {}, "a line of more than"),
    "deep keys": ("a.jsonl", write(lambda: rows('{"a":' * 50 + '{"k#":1}' + "}" * 50 + "\n", 4000)), {}, "different keys"),
    "deep lists": ("a.jsonl", write(lambda: '{"a":' + "[" * 100_000 + "]" * 100_000 + "}\n"), {}, "nested too deeply"),
    "few keys of many": ("a.jsonl", write(lambda: KEYS + '{"k7":1.5}\n' * 400), {}, None),
    "long lists": ("a.jsonl", write(lambda: ('{"a":[' + "1," * 900_000 + "1]}\n") * 4), {}, None),
    "a line of a gigabyte": ("a.csv", hole("a,b\n1,", 1 << 30), {}, "line of more than"),
    "a first line of a gigabyte": ("a.csv", hole("", 1 << 30), {}, "line of more than"),
    "a later line of a gigabyte": ("a.csv", hole("a,b\n" + "1,2\n" * 400_000, 1 << 30), {}, "a line of more than"),
    "a quote that is never closed": ("a.csv", write(lambda: 'a,b\n1,"' + "x\n" * 2_000_000), {}, "a quote that is never closed"),
    **{
        f"a line of a gigabyte in {name}": (name, hole(start, 1 << 30), {}, "")
        for name, start in (
            ("a.tsv", "1\t2\n1\t"),
            ("a.jsonl", '{"x": 1}\n{"x": "'),
        )
    },
    "many columns": ("a.csv", write(lambda: rows("c#,", 65_000) + "z\n" + "1," * 65_000 + "1\n"), {}, "65,001 columns"),
    "columns of parquet": ("a.parquet", wide_parquet, {}, "a footer of"),
    "arrays of an archive": ("a.npz", wide_npz, {}, "2,000 arrays"),
    "values of UCR": ("a.tsv", write(lambda: "1" + "\t1" * 900_000 + "\n"), {}, None),
    "short rows of UCR": ("a.tsv", write(lambda: "1\t1\n" * 150_000), {}, None),
}


@pytest.mark.promise("P6")
@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if i % 3 == 0 else pytest.mark.slow) for i, name in enumerate(BOMBS)])
def test_a_small_file_takes_no_more_than_the_memory_given(narrow_zygote: Zygote, tmp_path: Path, name: str) -> None:
    file, make, options, message = BOMBS[name]
    make(tmp_path / file)
    assert (tmp_path / file).stat().st_blocks * 512 < 20 << 20
    outcome = narrow_zygote.run(
        pack_and_measure, source=tmp_path / file, store=tmp_path / "store", options=options, memory_bytes=1 << 30, seconds=280
    )
    found = outcome.check()
    print(name, found)
    assert found["grown"] < MIN_MEMORY_BYTES - BASE_BYTES
    assert (found["error"] is None) == (message is None)
    assert message is None or message in found["message"]
    assert len(found["message"]) <= MAX_MESSAGE
    assert (found["error"] is None) == (tmp_path / "store").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["many columns"])
def test_negative_control_without_limits_a_small_file_takes_more(narrow_zygote: Zygote, tmp_path: Path, name: str) -> None:
    file, make, options, _ = BOMBS[name]
    make(tmp_path / file)
    outcome = narrow_zygote.run(
        without_counts, source=tmp_path / file, store=tmp_path / "store", options=options, memory_bytes=4 << 30, seconds=280
    )
    print(name, outcome)
    assert outcome.exit != 0 or outcome.value["grown"] > MIN_MEMORY_BYTES - BASE_BYTES


def without_counts(source: str, store: str, options: dict[str, Any]) -> dict[str, Any]:
    """With the limits that do not depend on the memory lifted too."""
    formats = "stoker.store.formats"
    with (
        mock.patch(f"{formats}.ucr.MAX_DIMENSIONS", 1 << 30),
        mock.patch(f"{formats}.ucr.MAX_ATTRIBUTES", 1 << 30),
        mock.patch(f"{formats}.csv.MAX_FIELDS", 1 << 30),
    ):
        return pack_without_limits(source, store, options)


@pytest.mark.slow
def test_negative_control_ever_new_keys_take_all_memory(narrow_zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(rows('{"key#":1}\n', 6_000))
    outcome = narrow_zygote.run(
        pack_without_limits, source=tmp_path / "a.jsonl", store=tmp_path / "store", options={}, memory_bytes=1 << 30, seconds=280
    )
    print(outcome)
    assert outcome.signal in (None, signal.SIGABRT)
    assert outcome.exit != 0 or outcome.value["grown"] > MIN_MEMORY_BYTES - BASE_BYTES


@pytest.mark.parametrize("threads", [1, 2, 16, 1024])
def test_limits_follow_from_the_memory_alone(threads: int) -> None:
    """So that a file is packed or refused whatever the number of threads."""
    assert PackOptions(memory_bytes=256 << 20, threads=threads).limits == PackOptions(memory_bytes=256 << 20).limits
    assert PackOptions(memory_bytes=256 << 20, threads=threads).num_readers <= 64
