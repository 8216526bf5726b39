"""State trees: taken apart and put together they are the same to the bit; what could not be is refused with its path."""

from __future__ import annotations

import random
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

from stoker.errors import CheckpointError, CheckpointInvalidError, OptionError
from stoker.train import state_dict as rngs
from stoker.train import state_dict as states
from stoker.train.state_dict import MAX_DEPTH, check_facts, differences, flatten, unflatten

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


# Facts of a run: each field that differs is named with both values, and refused unless it is allowed


SAVED: dict[str, Any] = {
    "config": {"batch_size": 256, "clip": float("nan"), "optimizer": {"name": "adam", "betas": (0.9, 0.999)}, "ema": None},
    "data": {"train": "ab12"},
    "versions": {"torch": "2.13.0", "stoker": "0.1"},
    "step": 100,
    "epoch": 3,
}
NOW = {key: SAVED[key] for key in ("config", "data", "versions")}


def changed(path: str, value: Any) -> dict[str, Any]:
    group, *keys = path.split(".")

    def put(tree: dict[str, Any], keys: list[str]) -> dict[str, Any]:
        return {**tree, keys[0]: value if len(keys) == 1 else put(tree[keys[0]], keys[1:])}

    return put(NOW, [group, *keys])


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        ("config.batch_size", 512, "config.batch_size: 256 saved, 512 now"),
        ("config.batch_size", True, "config.batch_size: 256 saved, True now"),
        ("config.ema", 0.9, "config.ema: None saved, 0.9 now"),
        ("config.optimizer.betas", (0.9, 0.99), "config.optimizer.betas: (0.9, 0.999) saved, (0.9, 0.99) now"),
        ("config.new", 1, "config.new: absent saved, 1 now"),
        ("config.optimizer", None, "config.optimizer: {'name': 'adam', 'betas': (0.9, 0.999)} saved, None now"),
        ("data.train", "cd34", "data.train: 'ab12' saved, 'cd34' now"),
        ("versions.torch", "2.14.0", "versions.torch: '2.13.0' saved, '2.14.0' now"),
    ],
)
def test_a_field_that_differs_is_named_and_can_be_allowed(path: str, value: Any, line: str) -> None:
    now = changed(path, value)
    assert differences(SAVED, now) == [line]
    with pytest.raises(CheckpointInvalidError, match="step-7 is of another run") as caught:
        check_facts(SAVED, now, where="step-7")
    assert line in str(caught.value)
    for allowed in (path, path.split(".")[0]):
        assert differences(SAVED, now, allow=[allowed]) == []
    check_facts(SAVED, now, where="step-7", allow=path)


def test_allowing_what_is_not_there_names_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"'config.batchsize': there is no such field. Did you mean 'config.batch_size'\?"):
        differences(SAVED, NOW, allow=["config.batchsize"])


# Random numbers go on as if nothing had happened, through JSON and back


def draw() -> list[Any]:
    """Some numbers of every generator; an odd count of normal ones, of which a generator may keep a second half."""
    numbers = [random.random(), random.gauss(0, 1), random.getrandbits(70)]
    numbers += [float(np.random.rand()), float(np.random.normal()), int(np.random.randint(1 << 30))]
    numbers += [torch.rand(3).tolist(), torch.randn(17).tolist(), torch.randperm(20).tolist()]
    if torch.cuda.is_available():
        numbers += [torch.rand(3, device="cuda").tolist(), torch.randn(1001, device="cuda").tolist()]
    return numbers


def text_through_json(state: dict[str, Any]) -> Any:
    tensors, skeleton = flatten(state)
    assert not tensors, "all of it is text, so it needs no file of its own"
    return unflatten({}, msgspec.json.decode(msgspec.json.encode(skeleton)))


@pytest.mark.parametrize("burn", [0, 1, 7])
def test_restored_generators_continue_with_the_same_numbers(burn: int) -> None:
    for _ in range(burn):
        draw()
    state = text_through_json(rngs.capture())
    expected = draw()
    assert draw() != expected
    rngs.restore(state)
    assert draw() == expected


@pytest.mark.parametrize("name", ["PCG64", "Philox", "SFC64", "PCG64DXSM"])
def test_another_bit_generator_of_numpy_is_captured_too(name: str) -> None:
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(getattr(np.random, name)(7))
        state = text_through_json(rngs.capture())
        expected = np.random.rand(5).tolist()
        np.random.rand(3)
        rngs.restore(state)
        assert np.random.rand(5).tolist() == expected
    finally:
        np.random.set_bit_generator(before)


def test_capturing_changes_no_generator() -> None:
    state = rngs.capture()
    assert rngs.capture() == state


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("torch", b"short"),
        ("torch", None),
        ("numpy", {"bit_generator": "PCG65"}),
        ("numpy", 3),
        ("python", {"version": 3, "numbers": b"1234", "gauss": None}),
        ("python", {"version": 9, "numbers": b"1234", "gauss": None}),
        ("cuda", 7),
    ],
)
def test_a_state_that_fits_no_generator_is_refused_and_changes_nothing(field: str, value: Any) -> None:
    state = rngs.capture()
    draw()
    before = rngs.capture()
    with pytest.raises(CheckpointInvalidError, match="random numbers cannot be put back"):
        rngs.restore({**state, field: value})
    assert rngs.capture() == before


@pytest.mark.parametrize("left_out", ["python", "numpy", "torch"])
def test_negative_control_a_generator_that_is_left_out_gives_other_numbers(left_out: str) -> None:
    state = rngs.capture()
    expected = draw()
    draw()
    rngs.restore({**state, left_out: rngs.capture()[left_out]})
    assert draw() != expected


def test_the_random_numbers_of_a_batch_follow_from_its_number() -> None:
    """Of every global generator, and different for each seed, update and batch."""

    def drawn(*numbers: int) -> tuple[float, float, float]:
        rngs.seed_batch(*numbers)
        return float(torch.rand(())), float(np.random.rand()), random.random()

    assert drawn(1, 2, 3) == drawn(1, 2, 3)
    found = [drawn(*numbers) for numbers in ((1, 2, 3), (0, 2, 3), (1, 0, 3), (1, 2, 0), (12, 3, 0))]
    for values in zip(*found, strict=True):
        assert len(set(values)) == len(found)
