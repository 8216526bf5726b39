"""The law of packing: whatever the rows, their files and the limits, a pack is its slow twin, bit for bit."""

from __future__ import annotations

import csv
import datetime as dt
import itertools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from tests.harness import num_examples
from tests.laws.pack_twin import Refused, Row, assert_equals_twin, slow_pack
from tests.store.shrink import shrunk

import stoker
from stoker.errors import BadValueError, SourceEmptyError, TimeOrderError
from stoker.store.pack.api import pack

TYPES = {
    "int": pa.int64(),
    "str": pa.string(),
    "date": pa.date32(),
}
KEYS: dict[str, st.SearchStrategy[Any]] = {
    "int": st.sampled_from([-(2**63), -1, 0, 1, 2, 10, 2**63 - 1]),
    "str": st.sampled_from(["a", "b", "B", "aa", "ü", "z\U0001f600", "\uffff", "q,u", 'd"q', "x y"]),
    "date": st.dates(dt.date(1969, 12, 30), dt.date(1970, 1, 3)),
}
SCHEMA = {"t": pa.int64(), "x": pa.float64(), "n": pa.int64(), "word": pa.string(), "seen": pa.timestamp("s")}
FLOATS = [0.0, -0.0, 1.5, 1e300, 5e-324, float("inf"), float("-inf"), 0.1]
WORDS = ["red", "blue", "a,b", 'say "no"', "ü", "two words"]


@st.composite
def tables(draw: st.DrawFn, *, nan: bool) -> tuple[str, list[Row]]:
    """A kind of key, and rows: few keys, many rows, times that may rise, fall and repeat."""
    kind = draw(st.sampled_from(sorted(KEYS)))
    size = draw(st.integers(1, 90))
    keys = draw(st.lists(KEYS[kind], min_size=1, max_size=5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rising = draw(st.booleans())
    gaps = draw(st.sampled_from([0.0, 0.2]))
    floats = [*FLOATS, float("nan")] if nan else FLOATS
    stretch = draw(st.sampled_from([1, 4, 40]))
    choice = np.repeat(rng.integers(0, len(keys), size), stretch)[:size].tolist()
    times = range(size) if rising else rng.integers(0, 20, size).tolist()

    def sparse(value: Any) -> Any:
        return None if rng.random() < gaps else value

    rows = [
        {
            "key": keys[choice[i]],
            "t": times[i],
            "x": sparse(floats[rng.integers(len(floats))]),
            "n": sparse(int(rng.integers(-(2**53), 2**53))),
            "word": sparse(WORDS[rng.integers(len(WORDS))]),
            "seen": sparse(dt.datetime(2020, 1, 1) + dt.timedelta(seconds=int(rng.integers(-(10**9), 10**9)))),
        }
        for i in range(size)
    ]
    return kind, rows


OPTIONS = st.fixed_dictionaries(
    {
        "series": st.sampled_from(["key", None]),
        "missing": st.sampled_from(["keep", "ffill", "drop", "error"]),
    }
).flatmap(lambda options: st.sampled_from([{}, {"time": "t"}, {"time": "t", "sort": True}]).map(lambda more: {**options, **more}))
LIMITS = st.fixed_dictionaries(
    {
        "chunk_bytes": st.sampled_from([40, 200, 1 << 20]),
        "run_bytes": st.sampled_from([100, 600, 1 << 20]),
        "fan_in": st.sampled_from([2, 3, 64]),
        "journal_bytes": st.sampled_from([200, 1 << 30]),
        "line_bytes": st.sampled_from([40, 300, 1 << 20]),
    }
)


def to_table(kind: str, rows: Sequence[Row]) -> pa.Table:
    schema = pa.schema({"key": TYPES[kind], **SCHEMA})
    return pa.Table.from_pylist([dict(row) for row in rows], schema=schema)


def split(rows: Sequence[Row], cuts: Sequence[int]) -> list[Sequence[Row]]:
    ends = sorted({min(cut, len(rows)) for cut in cuts} | {0, len(rows)})
    return [rows[a:b] for a, b in itertools.pairwise(ends)]


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(rows[0])
        writer.writerows([["" if value is None else value for value in row.values()] for row in rows])


def check(source: Any, folder: Path, parts: Sequence[Sequence[Row]], options: dict[str, Any], *, key: str | None = None) -> None:
    """Pack, and compare with the twin: the same series, or refused by both. Without a key each part is a series, also one without rows."""
    slow = {name: value for name, value in options.items() if name not in ("wide", "series")}
    try:
        if key is not None:
            expected = slow_pack([row for part in parts for row in part], series=key, **slow)
        else:
            expected = [(0, piece) for part in parts for _, piece in (slow_pack(part, **slow) or [(0, [])])]
    except Refused:
        check_refused(source, folder, options, (TimeOrderError, BadValueError))
        return
    if not any(group for _, group in expected):
        check_refused(source, folder, options, (SourceEmptyError,))
        return
    store = pack(source, folder / "out", resources=stoker.Resources(threads=2), **options)
    assert_equals_twin(store, expected, series=key)


def check_refused(source: Any, folder: Path, options: dict[str, Any], errors: tuple[type[Exception], ...]) -> None:
    with pytest.raises(errors):
        pack(source, folder / "out", resources=stoker.Resources(threads=2), **options)
    assert not (folder / "out").exists()


@pytest.mark.promise("P2")
@settings(max_examples=num_examples(60))
@given(table=tables(nan=True), options=OPTIONS, limits=LIMITS, batch=st.sampled_from([1, 13, 1000]))
def test_a_table_in_memory_is_packed_like_its_twin(
    table: tuple[str, list[Row]], options: dict[str, Any], limits: dict[str, Any], batch: int
) -> None:
    kind, rows = table
    batches = to_table(kind, rows).to_batches(max_chunksize=batch)
    with tempfile.TemporaryDirectory() as folder, shrunk(**limits):
        check(pa.Table.from_batches(batches), Path(folder), [rows], options, key=options["series"])


def written(write: Callable[[Path, Sequence[Row]], None], suffix: str, parts: list[Sequence[Row]], folder: Path) -> str:
    (folder / "in").mkdir()
    for i, part in enumerate(parts):
        write(folder / "in" / f"part{i:02}{suffix}", part)
    return str(folder / "in")


CUTS = st.lists(st.integers(0, 90), max_size=3)


@pytest.mark.promise("P2")
@settings(max_examples=num_examples(60))
@given(table=tables(nan=True), options=OPTIONS, limits=LIMITS, cuts=CUTS, group=st.sampled_from([1, 5, 64]))
def test_parquet_files_are_packed_like_their_twin(
    table: tuple[str, list[Row]], options: dict[str, Any], limits: dict[str, Any], cuts: list[int], group: int
) -> None:
    kind, rows = table
    parts = split(rows, cuts)

    def write(path: Path, part: Sequence[Row]) -> None:
        pq.write_table(to_table(kind, part), path, row_group_size=group)

    with tempfile.TemporaryDirectory() as name, shrunk(**limits):
        folder = Path(name)
        check(written(write, ".parquet", parts, folder), folder, parts, options, key=options["series"])


@pytest.mark.promise("P2")
@settings(max_examples=num_examples(60))
@given(table=tables(nan=False), options=OPTIONS, limits=LIMITS, cuts=CUTS)
def test_csv_files_are_packed_like_their_twin(
    table: tuple[str, list[Row]], options: dict[str, Any], limits: dict[str, Any], cuts: list[int]
) -> None:
    _, rows = table
    first = {"x": 0.5, "n": 7, "word": "red", "seen": dt.datetime(2020, 1, 1)}  # text has no type where all is missing
    rows = [{**rows[0], **first}, *rows[1:]]
    parts = split(rows, cuts)
    with tempfile.TemporaryDirectory() as name, shrunk(**limits):
        folder = Path(name)
        check(written(write_csv, ".csv", parts, folder), folder, parts, options, key=options["series"])


CELLS = st.one_of(st.none(), st.sampled_from([*FLOATS, float("nan")]))
POLICIES = st.fixed_dictionaries({"missing": st.sampled_from(["keep", "ffill", "drop", "error"])})


@settings(max_examples=num_examples(60))
@given(
    rows=st.lists(st.lists(st.tuples(st.integers(0, 9), CELLS), max_size=20), min_size=1, max_size=12),
    options=POLICIES,
    times=st.sampled_from([{}, {"time": "t"}, {"time": "t", "sort": True}]),
    limits=LIMITS,
)
def test_rows_of_lists_are_packed_like_their_twin(
    rows: list[list[tuple[int, Any]]], options: dict[str, Any], times: dict[str, Any], limits: dict[str, Any]
) -> None:
    columns = {"t": [[t for t, _ in row] for row in rows], "x": [[x for _, x in row] for row in rows]}
    table = pa.table(columns, schema=pa.schema({"t": pa.list_(pa.int64()), "x": pa.list_(pa.float64())}))
    groups: list[list[Row]] = [[{"t": t, "x": x} for t, x in row] for row in rows]
    with tempfile.TemporaryDirectory() as name, shrunk(**limits):
        pq.write_table(table, Path(name) / "a.parquet", row_group_size=5)
        check(Path(name) / "a.parquet", Path(name), groups, {**options, **times})


@settings(max_examples=num_examples(60))
@given(
    columns=st.integers(1, 30).flatmap(
        lambda size: st.lists(st.lists(CELLS, min_size=size, max_size=size), min_size=1, max_size=4)
    ),
    options=POLICIES,
    limits=LIMITS,
)
def test_wide_tables_are_packed_like_their_twin(columns: list[list[Any]], options: dict[str, Any], limits: dict[str, Any]) -> None:
    table = pa.table({f"c{i}": pa.array(column, pa.float64()) for i, column in enumerate(columns)})
    groups: list[list[Row]] = [[{"value": value} for value in column] for column in columns]
    with tempfile.TemporaryDirectory() as name, shrunk(**limits):
        pq.write_table(table, Path(name) / "a.parquet", row_group_size=7)
        check(Path(name) / "a.parquet", Path(name), groups, {**options, "wide": True})


@pytest.mark.promise("P2", control=True)
def test_the_twin_can_disagree(tmp_path: Path) -> None:
    table = pa.table({"key": [1, 2], "x": [0.0, 1.0]})
    store = pack(table, tmp_path / "out", series="key")
    rows = [{"key": 1, "x": -0.0}, {"key": 2, "x": 1.0}]
    with pytest.raises(AssertionError, match="x of series 1"):
        assert_equals_twin(store, slow_pack(rows, series="key"), series="key")
