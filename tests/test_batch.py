"""The walker of batches: any nesting of containers is walked in order and rebuilt as it was."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import hypothesis.strategies as st
import torch
from hypothesis import given

from stoker._batch import entries_of, entry_of, map_tensors, num_rows, tensors_of, to_device


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclass
class Plain:
    x: Any
    y: Any


@dataclass(frozen=True, slots=True)
class Frozen:
    x: Any
    y: Any


@dataclass(frozen=True)
class Computed:
    x: Any
    length: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", self.length + 1)


class Encoding(UserDict[str, Any]):
    """Like transformers.BatchEncoding: a mapping with more attributes, whose constructor takes other arguments."""

    def __init__(self, data: dict[str, Any], *, source: str) -> None:
        super().__init__(data)
        self.source = source


plain_leaves = st.one_of(st.none(), st.text(max_size=3), st.integers(), st.floats(allow_nan=False), st.booleans())
tensors = st.integers(0, 5).map(torch.arange)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    two = st.tuples(inner, inner)
    return st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.dictionaries(st.text(max_size=2), inner, max_size=3).map(OrderedDict),
        st.dictionaries(st.text(max_size=2), inner, max_size=3).map(lambda found: Encoding(found, source="s")),
        two.map(lambda found: Pair(*found)),
        two.map(lambda found: Plain(*found)),
        two.map(lambda found: Frozen(*found)),
        inner.map(Computed),
    )


batches = st.recursive(st.one_of(tensors, plain_leaves), containers, max_leaves=12)


def slow_leaves(value: Any) -> list[Any]:
    """All leaves in order, by the plainest recursion."""
    if isinstance(value, Pair | Plain | Frozen):
        return slow_leaves(value.x) + slow_leaves(value.y)
    if isinstance(value, Computed):
        return [*slow_leaves(value.x), value.length]
    if isinstance(value, dict | UserDict):
        return [leaf for key in value for leaf in slow_leaves(value[key])]
    if isinstance(value, list | tuple):
        return [leaf for part in value for leaf in slow_leaves(part)]
    return [value]


def assert_same_structure(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    entries, others = entries_of(one), entries_of(other)
    if entries is None or others is None:
        assert entries is others is None
        assert one is other
        return
    assert [key for key, _ in entries] == [key for key, _ in others]
    for (_, part), (_, expected) in zip(entries, others, strict=True):
        assert_same_structure(part, expected)


@given(batches)
def test_map_by_identity_gives_equal_structure_and_types(batch: Any) -> None:
    assert_same_structure(map_tensors(batch, lambda tensor: tensor), batch)


@given(batches)
def test_tensors_come_in_order_and_none_is_left_out(batch: Any) -> None:
    expected = [leaf for leaf in slow_leaves(batch) if isinstance(leaf, torch.Tensor)]
    found = tensors_of(batch)
    assert len(found) == len(expected)
    assert all(one is other for one, other in zip(found, expected, strict=True))
    assert num_rows(batch) == (len(expected[0]) if expected else None)


def test_a_dataclass_is_copied_without_its_constructor() -> None:
    batch = Computed(torch.ones(2))
    assert map_tensors(batch, torch.neg).length == batch.length == 1


def test_to_device_returns_the_same_batch_where_it_is_there() -> None:
    batch = Frozen(torch.ones(1), [torch.ones(2)])
    assert to_device(batch, torch.device("cpu")) is batch
    there = to_device(batch, torch.device("meta"))
    assert type(there) is Frozen
    assert {tensor.device.type for tensor in tensors_of(there)} == {"meta"}


def test_entries_are_found_by_name() -> None:
    for batch in ({"x": 1, "y": 2}, Pair(1, 2), Plain(1, 2), Frozen(1, 2), Encoding({"x": 1, "y": 2}, source="")):
        assert (entry_of(batch, "y"), entry_of(batch, "valid")) == (2, None)
    assert entry_of((1, 2), "count") is None
    assert entry_of(torch.ones(2), "T") is None
