"""Sequences are those of the plain loop over contexts, from every kind of table, for every type of column, in both layouts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from benchmarks.before.mostlyai_sequences import BatchCollator, pad_by_group, pad_by_indices
from tests.harness.flat_feed import flat_feed
from tests.recipes.tabular import sequences_twin as twin

import stoker
from stoker_recipes.tabular import PackedSequences, PaddedSequences, pad_sequences
from stoker_recipes.tabular.sequences import columns as numbers_module
from stoker_recipes.tabular.sequences.pad import LARGE_BYTES

Array = npt.NDArray[Any]

KEYS = [7, 3, 7, 7, 9, 3, 7, 1, 9]
VALUES = {"x": np.array([1.5, 2, np.nan, 4, -0.0, 6, 7, 8, np.inf]), "n": np.arange(10, 19, dtype=np.int16)}


def table() -> dict[str, Array]:
    return {"user": np.array(KEYS), **VALUES}


def check_padded(found: PaddedSequences, keys: list[Any], columns: dict[str, Array], **options: Any) -> None:
    expected, lengths = twin.padded(keys, columns, **options)
    assert list(found) == list(expected)
    for name in expected:
        assert twin.same_bits(found[name], expected[name]), name
    assert (found.lengths.dtype, found.lengths.tolist()) == (torch.int32, lengths)


def check_packed(found: PackedSequences, keys: list[Any], columns: dict[str, Array], **options: Any) -> None:
    expected, bounds = twin.packed(keys, columns, **options)
    assert list(found) == list(expected)
    for name in expected:
        assert twin.same_bits(found[name], expected[name]), name
    assert (found.cu_seqlens.dtype, found.cu_seqlens.tolist()) == (torch.int32, bounds)


@pytest.mark.parametrize("max_length", [None, 1, 2, 4, 50])
@pytest.mark.parametrize("contexts", [None, [9, 7, 3, 1], [3], [5, 7, 4], []])
def test_sequences_are_those_of_a_loop_over_contexts(max_length: int | None, contexts: list[int] | None) -> None:
    options: dict[str, Any] = {"max_length": max_length, "contexts": contexts}
    check_padded(pad_sequences(table(), key="user", **options), KEYS, VALUES, **options)
    check_packed(pad_sequences(table(), key="user", layout="packed", **options), KEYS, VALUES, **options)


TABLES = {
    "numpy": lambda columns: columns,
    "lists": lambda columns: {name: values.tolist() for name, values in columns.items()},
    "tensors": lambda columns: {name: torch.from_numpy(values) for name, values in columns.items()},
    "pandas": pd.DataFrame,
    "pandas, Arrow types": lambda columns: pa.table(columns).to_pandas(types_mapper=pd.ArrowDtype),
    "pandas, a block of rows": lambda columns: pd.DataFrame(np.array(list(columns.values())).T, columns=list(columns)),
    "pandas, an index": lambda columns: pd.DataFrame(columns).set_index("user"),
    "polars": pl.DataFrame,
    "polars, lazy": lambda columns: pl.DataFrame(columns).lazy(),
    "arrow": pa.table,
    "arrow, in chunks": lambda columns: pa.concat_tables([pa.table(columns)[:2], pa.table(columns)[2:2], pa.table(columns)[2:]]),
    "arrow, a batch": lambda columns: pa.RecordBatch.from_pydict({name: pa.array(values) for name, values in columns.items()}),
    "mixed": lambda columns: {"user": pl.Series(columns["user"]), "a": pa.array(columns["a"]), "b": pd.Series(columns["b"])},
}


@pytest.mark.parametrize("kind", TABLES)
def test_every_kind_of_table_gives_the_same_sequences(kind: str) -> None:
    columns = {"a": np.arange(9, dtype=np.float64) - 4.5, "b": np.arange(9, dtype=np.float64) * 1e300}
    given = TABLES[kind]({"user": np.array(KEYS), **columns})  # type: ignore[no-untyped-call]
    check_padded(pad_sequences(given, key="user", max_length=2), KEYS, columns, max_length=2)
    check_packed(pad_sequences(given, key="user", layout="packed", contexts=[9, 2, 7]), KEYS, columns, contexts=[9, 2, 7])


TYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]


@pytest.mark.promise("P11")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", ["numpy", "strided", "swapped", "pandas", "polars", "arrow"])
def test_every_type_keeps_its_bits(dtype: str, kind: str) -> None:
    bits = np.random.default_rng(0).integers(0, 256, 9 * 8, dtype=np.uint8)
    values = (bits[:9] % 2).astype(bool) if dtype == "bool" else bits.view(dtype)[:9].copy()
    given: Any = {"user": np.array(KEYS), "v": values}
    if kind == "strided":
        given["v"] = np.repeat(values, 3)[::3]
    elif kind == "swapped":
        given["v"] = values.astype(values.dtype.newbyteorder(">"))
    else:
        given = TABLES[kind](given)  # type: ignore[no-untyped-call]
    check_padded(pad_sequences(given, key="user", max_length=3), KEYS, {"v": values}, max_length=3)


@pytest.mark.parametrize("unit", ["s", "ns"])
def test_times_are_integers(unit: str) -> None:
    times = np.array([5, 1, "NaT", 7, 8, 9, 3, 2, 1], dtype=f"datetime64[{unit}]")
    given = {"user": np.array(KEYS), "t": times}
    expected = {"t": times.view(np.int64)}
    check_padded(pad_sequences(given, key="user"), KEYS, expected)
    check_padded(pad_sequences(pd.DataFrame(given), key="user"), KEYS, expected)
    check_padded(pad_sequences(pl.DataFrame(given) if unit == "ns" else pa.table(given), key="user"), KEYS, expected)
    zoned = pd.DataFrame(given).assign(t=pd.Series(times).dt.tz_localize("UTC"))
    check_padded(pad_sequences(zoned, key="user"), KEYS, expected)


@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("target", TYPES)
def test_a_type_for_all_columns(source: str, target: str) -> None:
    values = np.array([0, 1, 1, 0, 0, 1, 0, 1, 1], dtype=source)
    found = pad_sequences({"user": KEYS, "v": values}, key="user", dtype=target)
    check_padded(found, KEYS, {"v": values.astype(target)})


def test_blocks_leave_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    keys, values = rng.integers(0, 9, 100), rng.integers(0, 99, 100, dtype=np.int8)
    given = {"user": keys.astype(np.int32), "v": values}
    whole = pad_sequences(given, key="user", dtype="int64")
    for rows in (1, 7, 99, 100):
        monkeypatch.setattr(numbers_module, "BLOCK_ROWS", rows)
        cut = pad_sequences(given, key="user", dtype="int64")
        assert torch.equal(cut["v"], whole["v"])
        assert cut.contexts.tolist() == whole.contexts.tolist()


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_a_table_without_rows(layout: Any) -> None:
    empty = {"user": np.empty(0, dtype=np.int64), "v": np.empty(0, dtype=np.float32)}
    found = pad_sequences(empty, key="user", max_length=5, layout=layout)
    assert found["v"].shape == ((0, 5, 1) if layout == "padded" else (0,))
    some = pad_sequences(empty, key="user", max_length=5, layout=layout, contexts=[4, 2])
    assert some["v"].shape == ((2, 5, 1) if layout == "padded" else (0,))
    assert some.lengths.tolist() == [0, 0]


def test_large_tensors_are_the_same_and_each_is_saved_by_itself() -> None:
    """From 4 MB on memory is asked for in large pages: the values are the same, and a tensor's storage is its own part of it."""
    rng = np.random.default_rng(2)
    keys, values = rng.integers(0, 9000, 100_000), rng.normal(size=100_000)
    found = pad_sequences({"user": keys, "a": values, "b": values.astype(np.float32)}, key="user", max_length=60)
    assert sum(tensor.nbytes for tensor in found.values()) > LARGE_BYTES
    order = np.argsort(keys, kind="stable")
    firsts = np.searchsorted(keys[order], np.arange(9000))
    slots = np.empty(len(keys), dtype=np.int64)
    slots[order] = np.arange(len(keys)) - firsts[keys[order]]
    numbers = np.empty(9000, dtype=np.int64)
    numbers[found.contexts] = np.arange(len(found.contexts))
    kept = slots < 60
    expected = np.zeros((len(found.contexts), 60, 1))
    expected[numbers[keys[kept]], slots[kept], 0] = values[kept]
    assert twin.same_bits(found["a"], expected)
    assert twin.same_bits(found["b"], expected.astype(np.float32))
    for tensor in found.values():
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
    alone = found["b"]
    del found
    assert twin.same_bits(alone, expected.astype(np.float32))


def test_missing_floats_are_nan() -> None:
    values = [1.0, None, 3.0, None, 5.0, 6.0, 7.0, 8.0, 9.0]
    expected = {"v": np.array([np.nan if value is None else value for value in values])}
    for given in (pa.table({"user": KEYS, "v": values}), pl.DataFrame({"user": KEYS, "v": values}), {"user": KEYS, "v": values}):
        check_padded(pad_sequences(given, key="user"), KEYS, expected)
    nullable = pd.DataFrame({"user": KEYS, "v": pd.array(values, dtype="Float64")})
    check_padded(pad_sequences(nullable, key="user"), KEYS, expected)


# With `compat="mostlyai"` the tensors are those of its loops, name by name and number by number


def events(rng: np.random.Generator, num_contexts: int, longest: int) -> pd.DataFrame:
    lengths = rng.integers(1, longest + 1, num_contexts)
    keys = rng.permutation(np.repeat(rng.permutation(10 * num_contexts)[:num_contexts], lengths))
    return pd.DataFrame(
        {
            "user": keys,
            "tgt:/item__cat": rng.integers(0, 100, len(keys)).astype(np.int8),
            "tgt:/price__E1": rng.integers(0, 10, len(keys)),
            "tgt:/score__bin": rng.integers(0, 10, len(keys)) + 0.75,
        }
    )


def check(frame: pd.DataFrame, max_length: int) -> dict[str, torch.Tensor]:
    columns = [column for column in frame.columns if column.startswith("tgt:")]
    found = dict(pad_sequences(frame, key="user", columns=columns, max_length=max_length, compat="mostlyai"))
    for loop in (pad_by_group, pad_by_indices):
        expected = loop(frame, "user", columns, max_length)
        assert list(found) == list(expected)
        for name, tensor in expected.items():
            assert found[name].dtype == torch.int64
            assert torch.equal(found[name], tensor), name
    return found


@pytest.mark.promise("P11")
@pytest.mark.parametrize("max_length", [1, 7, 99, 100, 250])
def test_tensors_are_those_of_the_loops_of_mostlyai(rng: np.random.Generator, max_length: int) -> None:
    found = check(events(rng, 40, 30), max_length)
    assert ("tgt:/__sidx_E0" in found) == (max_length >= 100)


@pytest.mark.parametrize(
    "keys",
    [
        pd.Series(["b", "a", "b", "c", "a"]),
        pd.Series(["b", None, "b", "c", None, "a"]),
        pd.Series([2.5, np.nan, 1.0, 2.5, np.nan]),
        pd.Series([None, None, 1.0]),
        pd.Series([None, None], dtype=object),
        pd.Series(pd.Categorical(["b", "a", "b"], categories=["a", "b", "z"])),
        pd.Series(pd.Categorical(["b", None, "a", "b"])),
        pd.Series(pd.array([5, None, 3, 5], dtype="Int64")),
        pd.Series(pd.to_datetime(["2024-01-02", None, "2024-01-01", "2024-01-02"])),
        pd.Series(np.empty(0, dtype=np.int64)),
    ],
)
def test_keys_of_pandas_and_missing_ones(keys: Any) -> None:
    frame = pd.DataFrame({"user": keys, "tgt:/v__cat": np.arange(1, len(keys) + 1)})
    check(frame, 3)


def test_packed_tensors_are_the_same_without_padding(rng: np.random.Generator) -> None:
    frame = events(rng, 20, 15)
    options: dict[str, Any] = {"key": "user", "max_length": 9, "compat": "mostlyai"}
    padded, packed = pad_sequences(frame, **options), pad_sequences(frame, layout="packed", **options)
    assert list(padded) == list(packed)
    bounds = packed.cu_seqlens.tolist()
    assert np.diff(bounds).tolist() == [length + 1 for length in packed.lengths.tolist()]
    for name in padded:
        for number, (start, stop) in enumerate(pairwise(bounds)):
            assert torch.equal(packed[name][start:stop], padded[name][number, : stop - start, 0]), name


@pytest.mark.promise("P11")
@pytest.mark.parametrize("window", [None, 100])
def test_a_feed_over_the_store_gives_the_batches_of_the_collator(rng: np.random.Generator, window: int | None) -> None:
    """Reshuffled every epoch, and equal for the same order."""
    store = pad_sequences(events(rng, 50, 30), key="user", max_length=60, compat="mostlyai", layout="packed").store()
    columns = [name for name in store.schema if name.startswith("tgt:")]
    lists = [{name: store[number][name].tolist() for name in columns} for number in range(len(store))]
    feed = flat_feed(
        store,
        stoker.Sequences(101),
        batch_size=16,
        order=stoker.Shuffle(3),
        columns=columns,
        return_index=True,
        masks=False,
        last_batch="short",
    )
    collate = BatchCollator(window)
    orders = []
    for _ in range(2):
        numbers: list[int] = []
        for batch in feed:
            chosen = batch["sample"].tolist()
            expected = collate([lists[number] for number in chosen])
            for name, tensor in expected.items():
                assert torch.equal(batch[name].unsqueeze(-1), tensor), name
            numbers += chosen
        assert sorted(numbers) == list(range(50))
        orders.append(numbers)
    assert orders[0] != orders[1]
