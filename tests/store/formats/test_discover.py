"""Finding sources, on a disk and in memory: sorted order, equal data from every library, and what cannot be meant is named."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as dataset
import pyarrow.parquet as pq
import pytest
from benchmarks.time_moe.folder import walks, write_folder

import stoker
from stoker import append, pack
from stoker.errors import OptionError, SourceEmptyError, SourceInvalidError, SourceNotFoundError, TimeOrderError
from stoker.store import find_sources, open_store
from stoker.store.formats.discover import StreamSource, is_table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Names that sort in a way of their own, some of them deep."""
    for name in ("b.csv", "a.csv", "a10.csv", "a9.csv", "deep/z.csv", "deep/er/y.csv", "A.csv", "c.txt", "notes.md", "deep/readme"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"x\n{len(name)}\n")
    return tmp_path


def names(given: Any) -> list[str]:
    return [source.name for source in find_sources(given)]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", "A.csv a.csv a10.csv a9.csv b.csv c.txt deep/er/y.csv deep/z.csv"),
        ("*.csv", "A.csv a.csv a10.csv a9.csv b.csv"),
        ("a?.csv", "a9.csv"),
        ("[ab].csv", "a.csv b.csv"),
        ("**/*.csv", "A.csv a.csv a10.csv a9.csv b.csv deep/er/y.csv deep/z.csv"),
        ("deep/*.csv", "z.csv"),
        ("de*", "er/y.csv z.csv"),
    ],
)
def test_folders_and_patterns_are_read_in_sorted_order(folder: Path, pattern: str, expected: str) -> None:
    assert names(f"{folder}/{pattern}") == expected.split()


def test_inputs_keep_the_order_they_were_given_in_and_a_file_that_is_named_twice_is_read_once(folder: Path) -> None:
    given = [folder / "b.csv", folder / "deep", str(folder / "a*.csv"), folder]
    assert names(given) == ["b.csv", "deep/er/y.csv", "deep/z.csv", "a.csv", "a10.csv", "a9.csv", "A.csv", "c.txt"]


def broken_link(folder: Path) -> None:
    (folder / "a.csv").symlink_to(folder / "gone.csv")


def link_to_folder(folder: Path) -> None:
    (folder / "loop").symlink_to(folder)


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "a.csv")


def unreadable(folder: Path) -> None:
    (folder / "a.csv").write_text("x\n1\n")


def file_of(name: str, content: bytes = b"x\n1\n") -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


@pytest.mark.parametrize(
    ("put", "given", "error", "shown"),
    [
        (file_of("b.txt"), "prices/*.csv", SourceNotFoundError, "prices/*.csv"),
        (lambda folder: None, "", SourceEmptyError, "it is empty"),
        (file_of("readme.md"), "", SourceEmptyError, "readme.md"),
        *((file_of(name), name, SourceInvalidError, ".csv .tsv") for name in ("data.xyz", "data", ".csv", "data.csv.zip")),
        (file_of("a.json", b"[1]"), "a.json", SourceInvalidError, "read_json"),
        (file_of("a.csv", b""), "", SourceEmptyError, "a.csv"),
        (file_of("a.parquet.gz"), "a.parquet.gz", SourceInvalidError, ".parquet"),
        (broken_link, "", SourceInvalidError, "gone.csv"),
        (link_to_folder, "", SourceInvalidError, "loop"),
        (pipe, "", SourceInvalidError, "a.csv"),
        (unreadable, "", SourceInvalidError, "permission denied"),
    ],
)
def test_what_cannot_be_a_source_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put: Any, given: str, error: type[Exception], shown: str
) -> None:
    put(tmp_path)
    if put is unreadable:
        monkeypatch.setattr(os, "access", lambda path, mode: False)  # whoever runs the tests may be allowed everything
    with pytest.raises(error) as caught:
        names(f"{tmp_path}/{given}")
    assert shown in str(caught.value)


def test_a_link_that_is_named_is_followed(folder: Path) -> None:
    link_to_folder(folder)
    assert names(folder / "loop" / "deep") == ["er/y.csv", "z.csv"]


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.csv")).write_text("x\n1\n")
    with pytest.raises(SourceInvalidError, match=r"udcff.csv") as caught:
        pack(tmp_path, tmp_path / "out")
    str(caught.value).encode()


# Names in the manifest


def mixed(tmp_path: Path) -> Path:
    """Two kinds of sources, and what no reader knows, also within a folder that is one data set."""
    data = tmp_path / "data"
    write_folder(data / "set", walks([5, 3]), dtype="float64")
    (data / "x.jsonl").write_text('{"sequence": [1.5, 2, 3]}\n{"sequence": [4, 5.5]}\n')
    (data / "set" / "more.jsonl").write_text('{"sequence": [9.5]}\n')
    (data / "deep").mkdir()
    for name in ("model.pkl", "notes.md", "deep/notes.md"):
        (data / name).write_bytes(b"?")
    (data / os.fsdecode(b"caf\xe9.bak")).write_bytes(b"?")
    return data


@pytest.mark.promise("P2")
def test_what_is_left_out_of_a_folder_is_noted(tmp_path: Path) -> None:
    data = mixed(tmp_path)
    pack(data / "x.jsonl", data / "old.stoker")
    store = pack(data, data / "out.stoker")
    assert sorted(store.lengths.tolist()) == [2, 3, 3, 5], "both kinds of sources"
    left_out = "caf\\udce9.bak, notes.md, model.pkl, notes.md, more.jsonl"
    assert store.manifest.notes == [f"left out 5 other files or folders ({left_out})"]
    assert open_store(data / "out.stoker").manifest == store.manifest, "a name that is not Unicode does no harm"
    again = pack(data, data / "out.stoker", replace=True)
    assert again.manifest.notes == store.manifest.notes, "stores are results, and not among them"


@pytest.mark.promise("P2", control=True)
def test_negative_control_without_the_list_the_pack_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.store.pack.packer._unicode_names", lambda paths: ())
    store = pack(mixed(tmp_path), tmp_path / "x.stoker")
    assert store.manifest.notes == []


def test_a_folder_that_cannot_be_listed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = mixed(tmp_path)
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(SourceInvalidError, match=r"deep cannot be read: Permission denied\. Change its mode, or leave it out"):
        pack(data, tmp_path / "x.stoker")


# Tables in memory: pandas, polars, Arrow, NumPy and stores are the same data, and odd ones are refused by name


COLUMNS: dict[str, list[Any]] = {"k": [2, 1, 2, 1], "x": [0.5, -0.0, 2.5, float("inf")], "w": ["a", "b", "a", "c"]}
MAKERS: dict[str, Callable[[], Any]] = {
    "dict": lambda: {name: np.array(values) for name, values in COLUMNS.items()},
    "dict of lists": lambda: COLUMNS,
    "dict of Arrow": lambda: {name: pa.array(values) for name, values in COLUMNS.items()},
    "Arrow table": lambda: pa.table(COLUMNS),
    "Arrow batch": lambda: pa.RecordBatch.from_pydict(COLUMNS),
    "Arrow reader": lambda: pa.table(COLUMNS).to_reader(max_chunksize=1),
    "pandas": lambda: pd.DataFrame(COLUMNS),
    "pandas Arrow": lambda: pa.table(COLUMNS).to_pandas(types_mapper=pd.ArrowDtype),
    "polars": lambda: pl.DataFrame(COLUMNS),
    "polars lazy": lambda: pl.DataFrame(COLUMNS).lazy(),
    "Arrow stream": lambda: ArrowStream(pa.table(COLUMNS)),
}


class ArrowStream:
    """What any other library gives: the Arrow PyCapsule interface and nothing else."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize("how", MAKERS)
def test_the_same_table_from_every_library(tmp_path: Path, how: str) -> None:
    given = MAKERS[how]()
    assert is_table(given)
    store = pack(given, tmp_path / "out", series="k")
    assert store.column("k").tolist() == [1, 2]
    assert store.column("x").tobytes() == np.array([-0.0, np.inf, 0.5, 2.5]).tobytes()
    assert [store.texts("w")[code] for code in store.column("w").tolist()] == ["b", "c", "a", "a"]


@pytest.mark.parametrize(
    ("given", "lengths", "numbers"),
    [
        (np.arange(5), [5], [0, 1, 2, 3, 4]),
        (np.arange(6.0).reshape(2, 3), [3, 3], [0, 1, 2, 3, 4, 5]),
        (np.arange(6.0).reshape(2, 3).T, [2, 2, 2], [0, 3, 1, 4, 2, 5]),
        (np.arange(3, dtype=">i2"), [3], [0, 1, 2]),
        ([np.arange(2), np.arange(0), np.arange(3)], [2, 0, 3], [0, 1, 0, 1, 2]),
        ([[1, 2], [3]], [2, 1], [1, 2, 3]),
        (pl.Series("value", [1, 2]), [2], [1, 2]),
        (pd.Series([1, 2]), [2], [1, 2]),
    ],
    ids=str,
)
def test_bare_arrays_are_one_column(tmp_path: Path, given: Any, lengths: list[int], numbers: list[float]) -> None:
    store = pack(given, tmp_path / "out")
    assert list(store.schema) == ["value"]
    assert store.lengths.tolist() == lengths
    assert store.column("value").tolist() == numbers


def test_columns_of_series_beside_values_of_series(tmp_path: Path) -> None:
    given = {"x": [np.arange(2.0), np.arange(3.0)], "label": np.array([1, 2]), "name": ["a", "b"]}
    store = pack(given, tmp_path / "out")
    assert {name: column.level for name, column in store.schema.items()} == {"x": "step", "label": "series", "name": "series"}
    assert store[1]["name"] == "b"


@pytest.mark.parametrize(
    ("unit", "label"), [("D", "timestamp[s]"), ("s", "timestamp[s]"), ("us", "timestamp[us]"), ("ns", "timestamp[ns]")]
)
def test_moments_of_numpy_keep_their_unit_and_nat_is_missing(tmp_path: Path, unit: str, label: str) -> None:
    moments = np.array(["2020-01-01", "NaT"], dtype=f"datetime64[{unit}]")
    store = pack({"t": moments}, tmp_path / "out")
    assert store.schema["t"].label == label
    assert store.schema["t"].missing == 1
    assert np.isnat(store.column("t")[1].view("datetime64[s]"))


# pandas


def test_an_index_with_a_name_is_data(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1, 2]}, index=pd.Index(["a", "b"], name="id"))
    assert list(pack(frame, tmp_path / "out").schema) == ["id", "x"]
    levels = pd.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["k", "t"])
    assert list(pack(pd.DataFrame({"x": [1, 2]}, index=levels), tmp_path / "out", replace=True, series="k").schema) == [
        "k",
        "t",
        "x",
    ]


@pytest.mark.parametrize(
    ("values", "label", "missing"),
    [
        (pd.array([1, None], dtype="Int8"), "float64", 1),
        (pd.array([True, None], dtype="boolean"), "float64", 1),
        (pd.array(["a", None], dtype="string"), "category", 1),
        (pd.Categorical(["b", None]), "category", 1),
        (pd.Series(["a", None], dtype=object), "category", 1),
        (pd.to_datetime(["2020-01-01", None]).as_unit("ns"), "timestamp[ns]", 1),
        (pd.to_datetime(["2020-01-01", None]).tz_localize("UTC").as_unit("ns"), "timestamp[ns, UTC]", 1),
        (pd.to_timedelta(["1s", None]).as_unit("ns"), "duration[ns]", 1),
        (pd.Series([dt.date(2020, 1, 1), None], dtype=object), "timestamp[s]", 1),
    ],
    ids=lambda value: str(value.dtype) if hasattr(value, "dtype") else None,
)
def test_types_of_pandas_become_those_of_a_store(tmp_path: Path, values: Any, label: str, missing: int) -> None:
    store = pack(pd.DataFrame({"v": values}), tmp_path / "out")
    assert (store.schema["v"].label, store.schema["v"].missing) == (label, missing)


# polars


# What is no table


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"x": np.array([1, "a"], dtype=object)}, OptionError, "column 'x' is an object array"),
        ({"x": [1, "a"]}, SourceInvalidError, "the dict cannot be read as a table"),
        ({"x": [2**53 + 1, 0.5]}, SourceInvalidError, "the dict cannot be read as a table: Integer value 9007199254740993"),
        ([[1, 2], [[3]]], SourceInvalidError, "the list cannot be read as a table"),
        ({"x": np.zeros((2, 2, 2))}, OptionError, "column 'x' has 3 axes"),
        (np.array(5), OptionError, "column 'value' has 0 axes"),
        ([np.zeros((2, 2))], OptionError, "must be a list of one-dimensional arrays of numbers"),
        ({"x": np.array([1j])}, SourceInvalidError, "the dict cannot be read as a table"),
        ({"x": np.array([b"ab"])}, SourceInvalidError, "is binary, which a store cannot hold"),
        (np.zeros(2, dtype=[("a", "<i4"), ("b", "<f8")]), (SourceInvalidError, OptionError), "cannot"),
        ({}, OptionError, "<dict> has no columns"),
        (object(), OptionError, "object is not data"),
        ([], OptionError, "list is not data"),
        ({"\ud800": [1]}, SourceInvalidError, "the dict cannot be read as a table"),
        ([np.array([2**53 + 1]), np.array([0.5])], OptionError, "9007199254740993.*double"),
    ],
)
def test_what_cannot_be_packed_is_refused(tmp_path: Path, given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        pack(given, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


# Stores


def test_a_store_is_packed_again_bit_for_bit(tmp_path: Path) -> None:
    first = pack(pa.table({**COLUMNS, "t": pa.array([1, 2, 3, None], pa.timestamp("us", "UTC"))}), tmp_path / "a", series="k")
    for given in (first, tmp_path / "a", str(tmp_path / "a")):
        again = pack(given, tmp_path / "b", replace=True, series="k")
        for name in ("k", "x", "t"):
            assert again.column(name).tobytes() == first.column(name).tobytes()
        assert [again.texts("w")[i] for i in again.column("w")] == [first.texts("w")[i] for i in first.column("w")]
        assert again.lengths.tolist() == first.lengths.tolist()


# Streams


def batches(count: int, held: list[int]) -> pa.RecordBatchReader:
    """A stream of `count` megabytes that notes how many bytes Arrow holds when each is made."""
    schema = pa.schema([("k", pa.int64()), ("x", pa.float64())])

    def make() -> Any:
        for i in range(count):
            held.append(pa.total_allocated_bytes())
            rows = pa.array(np.arange(1 << 16) + (i << 16))
            yield pa.record_batch([rows, rows.cast(pa.float64())], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, make())


@pytest.mark.promise("P25")
def test_a_stream_is_never_collected(tmp_path: Path) -> None:
    held: list[int] = []
    store = pack(batches(40, held), tmp_path / "out", series="k", resources=stoker.Resources(memory="192MB"))
    assert len(store) == 40 << 16
    assert max(held) - held[0] < 10 << 20, "a quarter of the stream was in memory"


def test_queries_are_streamed_and_run_again_where_types_need_it(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"k": [1, 1, 2], "x": [1, None, 3]}), tmp_path / "data" / "a.parquet")
    queries = {
        "duckdb": duckdb.sql(f"SELECT * FROM '{tmp_path}/data/a.parquet'"),
        "polars": pl.scan_parquet(tmp_path / "data" / "a.parquet"),
        "pyarrow": dataset.dataset(tmp_path / "data"),
    }
    for name, query in queries.items():
        assert isinstance(find_sources(query)[0], StreamSource)
        store = pack(query, tmp_path / name, series="k")
        np.testing.assert_array_equal(store.column("x"), [1.0, np.nan, 3.0])


def test_a_stream_that_ends_once_says_what_a_second_reading_needs(tmp_path: Path) -> None:
    table = pa.table({"k": [1, 1, 2], "x": [1, None, 3]})
    with pytest.raises(SourceInvalidError, match=r"can be read only once, .* float type with dtype="):
        pack(table.to_reader(), tmp_path / "out", series="k")
    assert pack(table.to_reader(), tmp_path / "out", series="k", dtype="x=float64").column("x")[2] == 3.0
    with pytest.raises(TimeOrderError, match="the times of series 1 do not increase"):
        pack(pa.table({"k": [1, 1], "t": [2, 1], "x": [0, 0]}).to_reader(), tmp_path / "b", series="k", time="t")


def test_an_error_within_a_stream_names_it(tmp_path: Path) -> None:
    schema = pa.schema([("x", pa.int64())])

    def broken() -> Any:
        yield pa.record_batch([[1]], schema=schema)
        raise RuntimeError("the line was cut")

    with pytest.raises(SourceInvalidError, match=r"<RecordBatchReader> cannot be read: the line was cut"):
        pack(pa.RecordBatchReader.from_batches(schema, broken()), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.promise("P25")
def test_a_stream_is_appended_without_being_collected(tmp_path: Path) -> None:
    pack({"k": [-1], "x": [0.5]}, tmp_path / "out", series="k")
    held: list[int] = []  # some chunks of 8 MB wait for the threads that sort and write them
    assert append(tmp_path / "out", batches(120, held)).num_steps == 1 + (120 << 16)
    assert max(held) - held[0] < 30 << 20, "a quarter of the stream was in memory"
