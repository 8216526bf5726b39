"""Tables as subjects and events: their order, kinds of columns, contexts, and keys of any type."""

from __future__ import annotations

import decimal
import uuid

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from stoker.errors import BadValueError, OptionError
from stoker.recipes.tabular.quality_tables import join, read_events


@pytest.mark.parametrize("kind", ["int", "text", "uuid", "category"])
def test_subjects_are_numbered_by_key_and_events_keep_the_order_of_rows(kind: str, rng: np.random.Generator) -> None:
    keys = rng.integers(0, 9, 60)
    names = {"int": lambda i: int(i), "uuid": lambda i: str(uuid.UUID(int=int(i)))}.get(kind, lambda i: f"k{i}")
    frame = pd.DataFrame({"key": [names(i) for i in keys], "x": np.arange(60.0)})
    if kind == "category":
        frame["key"] = frame["key"].astype(pd.CategoricalDtype(["unused", *(f"k{i}" for i in range(8, -1, -1))]))
    events = read_events({"real": frame}, {}, key="key")["real"]
    for number, i in enumerate(sorted(set(keys))):
        rows = events.order[events.offsets[number] : events.offsets[number + 1]]
        assert events.columns["x"].data[rows].tolist() == np.flatnonzero(keys == i).tolist()
    first = list(dict.fromkeys(keys))
    assert events.first_rows.tolist() == [sorted(set(keys)).index(i) for i in first]


def test_columns_have_kinds() -> None:
    table = pa.table({
        "int": pa.array([1, None, 3]),
        "bool": pa.array([True, None, False]),
        "money": pa.array([decimal.Decimal("19.99"), None, decimal.Decimal("0.10")]),
        "day": pa.array([1, None, 2], type=pa.date32()),
        "zone": pa.array([0, None, 5], type=pa.timestamp("s", "Europe/Vienna")),
        "text": pa.array(["b", None, "a"]),
        "coded": pa.array(["b", None, "a"]).dictionary_encode(),
        "span": pa.array([1, None, 2], type=pa.duration("s")),
    })  # fmt: skip
    columns = read_events({"real": table}, {}, key=None)["real"].columns
    kinds = {name: one.kind for name, one in columns.items()}
    assert kinds == {
        "int": "number", "bool": "number", "money": "number", "span": "number",
        "day": "time", "zone": "time", "text": "category", "coded": "category",
    }  # fmt: skip
    assert all(one.missing.tolist() == [False, True, False] for one in columns.values())
    assert columns["money"].data[0] == 19.99
    assert columns["day"].data[0] == 86_400 * 10**9
    assert columns["text"].data.tolist() == columns["coded"].data.tolist() == [1, -1, 0]


def test_categories_of_two_tables_share_their_codes() -> None:
    both = read_events({"real": {"x": ["a", "c"]}, "synthetic": {"x": ["c", "b"]}}, {}, key=None)
    texts = both["real"].columns["x"].texts
    assert [[texts[i] for i in one.columns["x"].data] for one in both.values()] == [["a", "c"], ["c", "b"]]


def test_contexts_keep_subjects_without_events_and_drop_events_without_context() -> None:
    events = {"key": [3, 1, 1, 9], "x": [0.0, 1.0, 2.0, 3.0]}
    users = {"key": [4, 3, 1], "age": [40.0, 30.0, 10.0]}
    found = read_events({"real": events}, {"real": users}, key="key")["real"]
    assert found.lengths.tolist() == [2, 1, 0]  # subjects 1, 3, 4
    assert found.context["age"].data.tolist() == [10, 30, 40]
    assert found.columns["x"].data.tolist() == [0, 1, 2]
    assert found.first_rows.tolist() == [2, 1, 0]


def test_some_subjects_and_joined_tables() -> None:
    events = read_events({"real": {"key": [2, 0, 2, 1], "x": [1.0, 2.0, 3.0, 4.0]}}, {}, key="key")["real"]
    few = events.select(np.array([0, 2]))
    assert few.owner.tolist() == [1, 0, 1]
    assert few.columns["x"].data.tolist() == [1, 2, 3]
    both = join([few, events])
    assert both.num_subjects == 5
    assert both.owner.tolist() == [1, 0, 1, 4, 2, 4, 3]


def test_events_without_a_key_are_left_out_and_times_out_of_range_are_an_error() -> None:
    assert read_events({"real": {"key": pa.array([1, None, 1]), "x": [1.0, 2.0, 3.0]}}, {}, key="key")["real"].num_rows == 2
    late = pa.table({"t": pa.array([10**12], type=pa.timestamp("s"))})
    with pytest.raises(OptionError, match="a time is outside of the years 1678 to 2261"):
        read_events({"real": late}, {}, key=None)


def test_an_infinite_number_is_named() -> None:
    real, other = pd.DataFrame({"x": [1.0, 2.0]}), pd.DataFrame({"x": [1.0, -np.inf]})
    with pytest.raises(
        BadValueError, match=r"column 'x' of synthetic, row 1: found -inf; expected a finite number. Replace or drop it"
    ):
        read_events({"real": real, "synthetic": other}, {}, key=None)
