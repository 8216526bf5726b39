"""Laws of appending: whatever the tables, a store that grew equals a pack of all rows, and a plain dictionary of rows."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness import num_examples
from tests.store.appending import assert_same_content

import stoker
from stoker.errors import TimeOrderError

pytestmark = pytest.mark.promise("P26")

KEYS = {
    "int": ([-(2**63), -1, 0, 7, 2**63 - 1], pa.int64()),
    "str": (["a", "B", "aa", "ü", "\uffff", "z\U0001f600"], pa.string()),
    "date": ([dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2020, 2, 29)], pa.date32()),
}
WORDS = ["red", "blue", "ü", "two words", None]
FLOATS = [0.0, -0.0, 1.5, float("inf"), float("nan"), None]


@st.composite
def tables(draw: st.DrawFn) -> list[pa.Table]:
    """Tables whose keys come and go; times rise from table to table."""
    keys, kind = KEYS[draw(st.sampled_from(sorted(KEYS)))]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    out = []
    for number in range(draw(st.integers(2, 5))):
        size = draw(st.integers(1, 20))
        some = [keys[i] for i in rng.integers(0, len(keys), draw(st.integers(1, len(keys))))]
        columns = {
            "key": pa.array([some[i] for i in rng.integers(0, len(some), size)], kind),
            "t": pa.array(np.arange(size) + 100 * number),
            "x": pa.array([FLOATS[i] for i in rng.integers(0, len(FLOATS), size)], pa.float64()),
            "word": pa.array([WORDS[i] for i in rng.integers(0, len(WORDS), size)], pa.string()),
            "n": pa.array(rng.integers(0, 9, size).astype(np.int16)),
        }
        out.append(pa.table(columns))
    return out


@contextlib.contextmanager
def quick_folder() -> Iterator[Path]:
    """A folder in memory where there is one: these tests do not depend on syncs."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


def check_full_pack(parts: list[pa.Table], timed: bool) -> None:
    options: dict[str, Any] = {"series": "key", **({"time": "t"} if timed else {})}
    with quick_folder() as folder:
        stoker.pack(parts[0], folder / "store", **options)
        for number, part in enumerate(parts[1:], start=2):
            grown = stoker.append(folder / "store", part)
            assert_same_content(grown, stoker.pack(pa.concat_tables(parts[:number]), folder / f"full{number}", **options))
        full = stoker.pack(pa.concat_tables(parts), folder / "full", **options)
        assert_same_content(stoker.open(folder / "store"), full)
        compacted = stoker.compact(folder / "store").manifest
        assert compacted is not None
        assert full.manifest is not None
        assert compacted.columns == full.manifest.columns


@given(tables(), st.booleans())
@settings(max_examples=4, deadline=None)
def test_appended_tables_make_the_store_of_a_full_pack(parts: list[pa.Table], timed: bool) -> None:
    check_full_pack(parts, timed)


@pytest.mark.slow
@given(tables(), st.booleans())
@settings(max_examples=num_examples(60), deadline=None)
def test_any_appended_tables_make_the_store_of_a_full_pack(parts: list[pa.Table], timed: bool) -> None:
    check_full_pack(parts, timed)


Rows = dict[int, dict[int, float]]


def slow_append(rows: Rows, new: list[tuple[int, int, float]], overlap: str) -> Rows | None:
    """The twin: series as dictionaries from time to value; None where the append must be refused."""
    last = {key: max(times) for key, times in rows.items()}
    if overlap == "error" and any(key in last and time <= last[key] for key, time, _ in new):
        return None
    merged = {key: dict(times) for key, times in rows.items()}
    for key, time, value in new:
        if overlap != "keep" or time not in rows.get(key, {}):
            merged.setdefault(key, {})[time] = value
    return merged


Batches = list[tuple[str, dict[tuple[int, int], float]]]
BATCHES = st.lists(
    st.tuples(
        st.sampled_from(["error", "replace", "keep"]),
        st.dictionaries(st.tuples(st.integers(0, 3), st.integers(0, 12)), st.floats(-9, 9), min_size=1, max_size=12),
    ),
    min_size=1,
    max_size=4,
)


def check_overlap(batches: Batches) -> None:
    with quick_folder() as folder:
        path = folder / "store"
        rows: Rows = {}
        for overlap, batch in batches:
            new = [(key, time, value) for (key, time), value in sorted(batch.items())]
            table = {"id": [one[0] for one in new], "t": [one[1] for one in new], "x": [one[2] for one in new]}
            expected = slow_append(rows, new, overlap)
            if not rows:
                stoker.pack(table, path, series="id", time="t")
                expected = slow_append(rows, new, "replace")
            else:
                try:
                    stoker.append(path, table, overlap=overlap)  # type: ignore[arg-type]
                except TimeOrderError:
                    assert expected is None
            rows = rows if expected is None else expected
            store = stoker.open(path)
            found = {int(one["id"]): dict(zip(one["t"].tolist(), one["x"].tolist(), strict=True)) for one in store}
            assert found == rows
            assert all((np.diff(one["t"]) > 0).all() for one in store)
            assert store.num_steps == sum(map(len, rows.values()))
        before = stoker.open(path)
        assert_same_content(stoker.compact(path, folder / "plain"), before)


@given(BATCHES)
@settings(max_examples=5, deadline=None)
def test_overlapping_times_are_merged_as_by_a_dictionary(batches: Batches) -> None:
    check_overlap(batches)


@pytest.mark.slow
@given(BATCHES)
@settings(max_examples=num_examples(100), deadline=None)
def test_any_overlapping_times_are_merged_as_by_a_dictionary(batches: Batches) -> None:
    check_overlap(batches)
