"""State trees: taken apart and put together they are the same to the bit; what could not be is refused with its path."""

from __future__ import annotations

import struct
from collections import OrderedDict, namedtuple
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from tests.train.trees import is_same
from torch import nn

from stoker.errors import CheckpointError
from stoker.train import state_dict as states
from stoker.train.state_dict import MAX_DEPTH, flatten, unflatten

DTYPES = sorted(
    {
        dtype
        for dtype in vars(torch).values()
        if isinstance(dtype, torch.dtype) and not str(dtype).startswith(("torch.q", "torch.complex32"))
    },
    key=str,
)
NAN_WITH_PAYLOAD = struct.unpack(">d", bytes.fromhex("fff8dead0000beef"))[0]


def through_json(tree: Any) -> Any:
    tensors, skeleton = flatten(tree)
    return unflatten(tensors, msgspec.json.decode(msgspec.json.encode(skeleton)))


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    size = int(np.prod(shape, dtype=int)) * dtype.itemsize
    data = bytearray(draw(st.binary(min_size=size, max_size=size)))
    if dtype is torch.bool:
        data = bytearray(byte & 1 for byte in data)
    tensor = torch.frombuffer(data, dtype=torch.uint8).view(dtype).view(shape) if size else torch.empty(shape, dtype=dtype)
    if draw(st.booleans()):
        tensor = tensor.mT if tensor.ndim >= 2 else tensor
    return tensor


leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(exclude_categories=["Cs"])), st.binary()
)
keys = st.one_of(
    st.integers(), st.text(st.characters(exclude_categories=["Cs"])), st.sampled_from(["$tensor", "$", "a.b", "__metadata__"])
)
trees = st.recursive(
    st.one_of(leaves, tensors()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.lists(inner, max_size=4).map(tuple), st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)


@given(trees)
def test_a_tree_comes_back_to_the_bit(tree: Any) -> None:
    assert is_same(tree, through_json(tree))


def test_the_bits_of_a_nan_are_kept() -> None:
    assert struct.pack(">d", through_json([NAN_WITH_PAYLOAD])[0]).hex() == "fff8dead0000beef"


def test_tied_weights_are_one_tensor_and_stay_tied() -> None:
    weight = nn.Parameter(torch.randn(3, 2))
    tensors, skeleton = flatten({"a": weight, "b": weight.data, "part": weight.data[:2], "turned": weight.data.mT})
    assert list(tensors) == ["a", "part", "turned"]
    loaded = unflatten(tensors, skeleton)
    assert loaded["a"] is loaded["b"]
    assert not loaded["a"].requires_grad


def test_views_that_torch_resolves_late_are_resolved() -> None:
    number = torch.tensor([1 + 2j, 3 - 4j])
    loaded = through_json({"conj": number.conj(), "imag of it": number.conj().imag, "number": number})
    assert loaded["conj"].tolist() == [1 - 2j, 3 + 4j]
    assert loaded["imag of it"].tolist() == [-2.0, 4.0]
    assert loaded["number"].tolist() == [1 + 2j, 3 - 4j]


def test_state_dicts_of_torch_pass() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    for tree in (model.state_dict(), optimizer.state_dict()):
        assert is_same(tree, through_json(tree))
    assert isinstance(model.state_dict(), OrderedDict)
    optimizer.load_state_dict(through_json(optimizer.state_dict()))


Pair = namedtuple("Pair", "a b")
CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.float64(1.0), "x.0 is a numpy.float64"),
        (np.zeros(2), "x.0 is a numpy.ndarray"),
        ({1, 2}, "x.0 is a builtins.set"),
        (Pair(1, 2), "x.0 is a .*Pair"),
        (lambda: 0, "x.0 is a builtins.function"),
        ({1.5: 0}, "x.0 has the key 1.5"),
        ({True: 0}, "x.0 has the key True"),
        ({(1,): 0}, r"x.0 has the key \(1,\)"),
        ("\ud800", "x.0 has the text"),
        ({"\ud800": 0}, "x.0 has the text"),
        (torch.zeros(2).to_sparse(), "x.0 is a tensor on cpu with layout torch.sparse_coo"),
        (torch.zeros(2, device="meta"), "x.0 is a tensor on meta"),
        (CYCLE, "deeper than"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_path(value: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        flatten({"x": [value]})
    assert "\n" not in str(caught.value)


DEEP: Any = 0
for _ in range(MAX_DEPTH + 1):
    DEEP = [DEEP]


def test_negative_control_without_the_mark_for_dicts_a_name_would_be_taken_for_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = {"t": torch.ones(2), "x": {"$tensor": "t"}}
    assert is_same(tree, through_json(tree))
    monkeypatch.setattr(
        states._Flattening, "_encode_dict", lambda self, value, path, depth: {k: self.encode(v, k, 1) for k, v in value.items()}
    )
    assert not is_same(tree, through_json(tree))
