"""Keys of every kind are grouped alike: by value, as they first appear or as they are listed."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from tests.recipes.tabular import sequences_twin as twin

from stoker_recipes.tabular import pad_sequences

ORDER = [4, 1, 4, 0, 2, 1, 4, 2, 0, 0, 3]
VALUES = {"v": np.arange(11)}
NAMES = ["a", "", "ä", "b" * 40, "B"]
TICKS = np.array([10, -3, 2**40, 0, 7])
IDS = [uuid.UUID(int=(number * 7919) << 60) for number in range(5)]


def given(keys: Any) -> dict[str, Any]:
    return {"k": keys, **VALUES}


def listed(contexts: Any) -> list[Any]:
    return list(contexts.to_pylist() if hasattr(contexts, "to_pylist") else contexts.tolist())


def pick(values: Any) -> list[Any]:
    return [values[number] for number in ORDER]


KINDS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "int64": lambda: (np.array(pick(TICKS)), TICKS),
    "int64, far apart": lambda: (np.array(pick(TICKS * 2**20)), TICKS * 2**20),
    "int8": lambda: (np.array(ORDER, dtype=np.int8), np.arange(5)),
    "uint64": lambda: (np.array(ORDER, dtype=np.uint64) + np.uint64(2**63), np.arange(5, dtype=np.uint64) + np.uint64(2**63)),
    "bool": lambda: (np.array(ORDER) == 4, np.array([False, True])),
    "float": lambda: (np.array(ORDER) / 4, np.arange(5) / 4),
    "float32": lambda: (np.array(ORDER, dtype=np.float32), np.arange(5, dtype=np.float32)),
    "swapped": lambda: (np.array(ORDER, dtype=">i4"), np.arange(5)),
    "strided": lambda: (np.repeat(np.array(ORDER), 2)[::2], np.arange(5)),
    "texts": lambda: (pick(NAMES), NAMES),
    "texts of numpy": lambda: (np.array(pick(NAMES)), np.array(NAMES)),
    "texts of pandas": lambda: (pd.Series(pick(NAMES)), pd.Index(NAMES)),
    "texts of polars": lambda: (pl.Series(pick(NAMES)), pl.Series(NAMES)),
    "texts of arrow": lambda: (pa.chunked_array([pick(NAMES)[:3], pick(NAMES)[3:]]), pa.array(NAMES)),
    "texts as views": lambda: (pa.array(pick(NAMES), pa.string_view()), NAMES),
    "bytes": lambda: (pa.array([name.encode() for name in pick(NAMES)]), pa.array([name.encode() for name in NAMES])),
    "objects": lambda: (np.array(pick(NAMES), dtype=object), np.array(NAMES, dtype=object)),
    "whole objects": lambda: (np.array(pick(TICKS.tolist()), dtype=object), TICKS),
    "categories of pandas": lambda: (pd.Categorical(pick(NAMES), categories=["unused", *NAMES]), NAMES),
    "categories of numbers": lambda: (pd.Series(pd.Categorical(pick(TICKS))), TICKS),
    "categories of polars": lambda: (pl.Series(pick(NAMES), dtype=pl.Categorical), pl.Series(NAMES, dtype=pl.Categorical)),
    "categories in chunks": lambda: (
        pa.chunked_array([pa.array(pick(NAMES)[:4]).dictionary_encode(), pa.array(pick(NAMES)[4:]).dictionary_encode()]),
        NAMES,
    ),
    "categories twice": lambda: (
        pa.DictionaryArray.from_arrays(pa.array([number + 5 * (row % 2) for row, number in enumerate(ORDER)]), pa.array(NAMES * 2)),
        NAMES,
    ),
    "uuids": lambda: (np.array(pick(IDS), dtype=object), IDS),
    "times": lambda: (np.array(pick(TICKS), dtype="datetime64[ms]"), TICKS.astype("datetime64[ms]")),
    "times of pandas": lambda: (pd.Series(np.array(pick(TICKS), dtype="datetime64[us]")), TICKS.astype("datetime64[us]")),
    "times with a zone": lambda: (
        pd.Series(np.array(pick(TICKS), dtype="datetime64[us]")).dt.tz_localize("UTC"),
        pd.Series(TICKS.astype("datetime64[us]")).dt.tz_localize("UTC"),
    ),
    "times of arrow": lambda: (pa.array(pick(TICKS.tolist()), pa.timestamp("us")), pa.array(TICKS.tolist(), pa.timestamp("us"))),
    "days of arrow": lambda: (pa.array(ORDER, pa.date32()), pa.array([0, 1, 2, 3, 4], pa.date32())),
    "nullable": lambda: (pd.array(pick(TICKS), dtype="Int64"), TICKS),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_keys_are_grouped_by_value(kind: str) -> None:
    keys, distinct = KINDS[kind]()
    order = [number == 4 for number in ORDER] if kind == "bool" else ORDER
    contexts = [False, True] if kind == "bool" else [0, 1, 2, 3, 4]
    expected, lengths = twin.padded(order, VALUES)
    found = pad_sequences(given(keys), key="k")
    assert twin.same_bits(found["v"], expected["v"])
    assert found.lengths.tolist() == lengths
    some, lengths = twin.padded(order, VALUES, contexts=contexts[::-1][:4], max_length=2)
    asked = (
        distinct[::-1][:4] if hasattr(distinct, "__getitem__") and not isinstance(distinct, pl.Series) else distinct.reverse()[:4]
    )
    found = pad_sequences(given(keys), key="k", contexts=asked, max_length=2)
    assert twin.same_bits(found["v"], some["v"])
    assert found.lengths.tolist() == lengths
    assert found.num_left_out == (0 if kind == "bool" else ORDER.count(0))


def test_two_zeros_are_one_key() -> None:
    found = pad_sequences({"k": [0.0, -0.0, 1.0], "v": [1, 2, 3]}, key="k")
    assert found["v"][..., 0].tolist() == [[1, 2], [3, 0]]
