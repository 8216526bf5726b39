"""The laws of sequences: they are the loop's, from any table, in any layout, in memory or on disk; each row is there once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from tests.harness import num_examples
from tests.recipes.tabular import sequences_twin as twin

from stoker_recipes.tabular import pack_sequences, pad_sequences

TYPES = ["bool", "int8", "uint16", "int32", "int64", "uint64", "float16", "float32", "float64"]
KEYS = {
    "whole": st.integers(-3, 6),
    "far": st.integers(-3, 6).map(lambda number: number * 2**55),
    "any": st.integers(-(2**63), 2**63 - 1),
    "text": st.sampled_from(["", "a", "b", "ä", "a\x00", "long " * 9]),
    "float": st.sampled_from([0.5, -2.25, 1e300, 3.0]),
}
CONTEXTS = {
    kind: st.none() | st.lists(keys, unique=True, max_size=8) for kind, keys in KEYS.items()
}  # fmt: skip
TABLES = {
    "mapping": dict,
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "arrow": pa.table,
    "chunks": lambda columns: pa.concat_tables([pa.table(columns)[:3], pa.table(columns)[3:]]),
    "categories": lambda columns: {**columns, "k": pa.array(columns["k"]).dictionary_encode()},
}


@st.composite
def cases(draw: st.DrawFn, kinds: tuple[str, ...] = tuple(KEYS)) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """Keys, columns of random bits, and options."""
    kind = draw(st.sampled_from(kinds))
    keys = draw(st.lists(KEYS[kind], min_size=1, max_size=40))
    columns = {}
    for name in draw(st.lists(st.sampled_from(TYPES), unique=True, min_size=1, max_size=3)):
        raw = np.random.default_rng(draw(st.integers(0, 2**32))).integers(0, 256, len(keys) * 8, dtype=np.uint8)
        columns[name] = (raw[: len(keys)] % 2).astype(bool) if name == "bool" else raw.view(name)[: len(keys)].copy()
    options = {"max_length": draw(st.none() | st.integers(1, 6)), "contexts": draw(CONTEXTS[kind])}
    return keys, columns, options


def key_column(keys: list[Any]) -> Any:
    return pa.array(keys) if isinstance(keys[0], str) else np.array(keys)


@pytest.mark.promise("P11")
@given(cases(), st.sampled_from(list(TABLES)))
@settings(max_examples=num_examples(300))
def test_padded_and_packed_are_those_of_the_loop(case: tuple[Any, Any, Any], kind: str) -> None:
    keys, columns, options = case
    table = TABLES[kind]({"k": key_column(keys), **columns})
    expected, lengths = twin.padded(keys, columns, **options)
    padded = pad_sequences(table, key="k", **options)
    assert padded.lengths.tolist() == lengths
    assert all(twin.same_bits(padded[name], expected[name]) for name in columns)
    expected, bounds = twin.packed(keys, columns, **options)
    packed = pad_sequences(table, key="k", layout="packed", **options)
    assert packed.cu_seqlens.tolist() == bounds
    assert all(twin.same_bits(packed[name], expected[name]) for name in columns)
    chosen = twin.first_keys(keys) if options["contexts"] is None else options["contexts"]
    assert padded.num_left_out == sum(key not in set(chosen) for key in keys)
    found = padded.contexts
    assert list(found.to_pylist() if hasattr(found, "to_pylist") else found.tolist()) == list(chosen)


@pytest.mark.promise("P11", control=True)
def test_negative_control_rows_that_do_not_count_themselves_in_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were all rows of a context put at its begin, the law above would fail."""

    def at_the_begin(contexts: Any, lengths: Any, limit: int, *, starts: Any, steps: int, num_cells: int) -> Any:
        return (starts[contexts] if starts is not None else contexts * steps).astype(np.int32)

    table = {"k": np.array([1, 0, 1]), "row": np.arange(1, 4)}
    assert sorted(pad_sequences(table, key="k", layout="packed")["row"].tolist()) == [1, 2, 3]
    monkeypatch.setattr("stoker_recipes.tabular.sequences.pad.place_rows", at_the_begin)
    assert sorted(pad_sequences(table, key="k", layout="packed")["row"].tolist()) != [1, 2, 3]


@given(cases(("whole", "far", "text")))
@settings(max_examples=num_examples(25))
def test_a_store_on_disk_is_the_packed_layout_in_the_order_of_keys(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[Any, Any, Any]
) -> None:
    keys, columns, options = case
    if "" in keys or "" in (options["contexts"] or ()):
        return  # for a pack an empty text is a missing key
    folder: Path = tmp_path_factory.mktemp("sequences")
    table = pa.table({"k": key_column(keys), **columns})
    contexts = options["contexts"] or None
    store = pack_sequences(table, folder / "store", key="k", contexts=contexts)
    chosen = sorted(set(keys) if contexts is None else contexts, key=lambda key: key.encode() if isinstance(key, str) else key)
    packed = pad_sequences(table, key="k", contexts=chosen, layout="packed")
    assert store.offsets.tolist() == packed.cu_seqlens.tolist()
    assert all(store.column(name).tobytes() == packed[name].numpy().tobytes() for name in columns)
    assert [store.find(key) for key in chosen] == list(range(len(chosen)))
