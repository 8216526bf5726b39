"""The operations of torch give the same bits as the kernels; here on tensors of the CPU, in test_sequences_gpu.py on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from stoker.encode import PackedSequences, PaddedSequences, pad_sequences
from stoker.encode.sequences.pad import Options, pad_tensors
from stoker.errors import BadValueError, OptionError, StokerError

TYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]


def on_tensors(
    table: dict[str, Any],
    *,
    key: str | None = None,
    lengths: Any = None,
    columns: list[str] | None = None,
    contexts: Any = None,
    max_length: int | None = None,
    layout: Any = "padded",
    dtype: str | None = None,
    compat: Any = None,
) -> PaddedSequences | PackedSequences:
    options = Options(max_length=max_length, layout=layout, dtype=dtype, compat=compat)
    return pad_tensors(table, key=key, lengths=lengths, columns=columns, contexts=contexts, options=options)


def bits(tensor: torch.Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    return tensor.dtype, tensor.shape, tensor.cpu().numpy().tobytes()


def check_same(found: PaddedSequences | PackedSequences, expected: PaddedSequences | PackedSequences) -> None:
    assert type(found) is type(expected)
    assert list(found) == list(expected)
    for name in expected:
        assert bits(found[name]) == bits(expected[name]), name
    assert bits(found.lengths) == bits(expected.lengths)
    assert found.num_left_out == expected.num_left_out
    if isinstance(found, PackedSequences) and isinstance(expected, PackedSequences):
        assert bits(found.cu_seqlens) == bits(expected.cu_seqlens)


def make_table(rng: np.random.Generator, num_rows: int = 300, num_keys: int = 20) -> dict[str, torch.Tensor]:
    table = {"k": torch.from_numpy(rng.integers(-5, num_keys - 5, num_rows) * 2**33)}
    for dtype in TYPES:
        raw = rng.integers(0, 256, num_rows * 8, dtype=np.uint8)
        values = (raw[:num_rows] % 2).astype(bool) if dtype == "bool" else raw.view(dtype)[:num_rows].copy()
        table[dtype] = torch.from_numpy(values)
    return table


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("max_length", [None, 1, 9, 100])
@pytest.mark.parametrize("contexts", [None, [3, -2, 40, 0], []])
def test_every_type_by_key(rng: np.random.Generator, layout: str, max_length: int | None, contexts: list[int] | None) -> None:
    table = make_table(rng)
    listed = None if contexts is None else torch.tensor(contexts, dtype=torch.int64) * 2**33
    options: dict[str, Any] = {"key": "k", "max_length": max_length, "layout": layout, "contexts": listed}
    found, expected = on_tensors(table, **options), pad_sequences(table, **options)
    check_same(found, expected)
    assert found.contexts.tolist() == expected.contexts.tolist()


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_by_lengths(rng: np.random.Generator, layout: str) -> None:
    table = make_table(rng)
    lengths = torch.tensor([100, 0, 150, 0, 49, 1])
    for max_length in (None, 30, 120):
        options: dict[str, Any] = {"lengths": lengths, "max_length": max_length, "layout": layout}
        check_same(on_tensors(table, **options), pad_sequences(table, **options))


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("max_length", [3, 40, 120])
def test_positions(rng: np.random.Generator, layout: str, max_length: int) -> None:
    table = {
        "k": torch.from_numpy(rng.integers(0, 9, 400)),
        "a": torch.from_numpy(rng.integers(0, 99, 400).astype(np.int8)),
        "b": torch.from_numpy(rng.normal(size=400) * 50),
    }
    listed = torch.tensor([5, 77, 3, 1])
    for contexts in (None, listed):
        options: dict[str, Any] = {
            "key": "k", "max_length": max_length, "layout": layout, "contexts": contexts, "compat": "mostlyai",
        }  # fmt: skip
        check_same(on_tensors(table, **options), pad_sequences(table, **options))


def test_bfloat16_is_moved_as_it_is() -> None:
    table = {"k": torch.tensor([1, 0, 1]), "v": torch.tensor([1.5, float("nan"), -0.0], dtype=torch.bfloat16)}
    found = on_tensors(table, key="k")
    assert found["v"].dtype == torch.bfloat16
    assert found["v"][0, :, 0].view(torch.int16).tolist() == table["v"][[0, 2]].view(torch.int16).tolist()
    chosen = pad_sequences(table, key="k")["v"]  # on the CPU too, though NumPy has no such type
    assert torch.equal(chosen.view(torch.int16), found["v"].view(torch.int16))


@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("target", TYPES)
def test_a_type_for_all_columns(source: str, target: str) -> None:
    values = torch.tensor([0, 1, 1, 0], dtype=torch.int64).to(getattr(torch, source))
    table = {"k": torch.tensor([2, 1, 2, 2]), "v": values}
    if "uint64" in (source, target) and source != target:
        with pytest.raises(OptionError, match="cannot be converted from"):
            on_tensors(table, key="k", dtype=target)
        return
    check_same(on_tensors(table, key="k", dtype=target), pad_sequences(table, key="k", dtype=target))


def test_no_rows_and_no_contexts() -> None:
    empty = {"k": torch.empty(0, dtype=torch.int64), "v": torch.empty(0)}
    for layout in ("padded", "packed"):
        for contexts in (None, torch.tensor([3, 1]), torch.empty(0, dtype=torch.int64)):
            options: dict[str, Any] = {"key": "k", "max_length": 4, "layout": layout, "contexts": contexts}
            check_same(on_tensors(empty, **options), pad_sequences(empty, **options))


def test_a_packed_batch_becomes_padded(rng: np.random.Generator) -> None:
    table = make_table(rng)
    packed = pad_sequences(table, key="k", layout="packed")
    padded = on_tensors(dict(packed), lengths=packed.lengths, max_length=11)
    for name, tensor in pad_sequences(table, key="k", max_length=11).items():
        assert bits(padded[name]) == bits(tensor)


@pytest.mark.parametrize(
    ("table", "options", "expected"),
    [
        ({"v": torch.zeros(3)}, {"key": "k"}, "the table has no column 'k'; it has v."),
        ({"k": torch.zeros(3)}, {"key": "k"}, "the table has no column to pad besides 'k'. Add some, or name them with columns=."),
        ({"k": torch.zeros(3), "v": torch.zeros(3)}, {"key": "k"}, "column 'k' is torch.float32 of shape (3,); expected integer keys"),
        ({"k": torch.arange(3), "v": torch.zeros(3, 2)}, {"key": "k"}, "column 'v' is torch.float32 of shape (3, 2); expected"),
        ({"k": torch.arange(3), "v": torch.zeros(2)}, {"key": "k"}, "column 'v' has 2 rows, but 'k' has 3."),
        ({"k": torch.arange(3), "v": [1, 2, 3]}, {"key": "k"}, "column 'v' is a list, not a tensor, but 'k' is on cpu."),
        ({"v": torch.zeros(3)}, {"lengths": [1, 1]}, "lengths sum to 2, but column 'v' has 3 rows."),
        ({"v": torch.zeros(3)}, {"lengths": [4, -1]}, "column 'lengths' holds -1 (int) in row 2, expected 0 or more rows"),
        ({"v": torch.zeros(3)}, {"lengths": [1.5, 1.5]}, "lengths is torch.float32 of shape (2,); expected integers"),
    ],
)  # fmt: skip
def test_invalid_options(table: dict[str, Any], options: dict[str, Any], expected: str) -> None:
    with pytest.raises(StokerError) as caught:
        on_tensors(table, **options)
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        (torch.tensor([1.0, 2.5]), "int64", "column 'v' holds 2.5 (float) in row 2, which int64 cannot hold."),
        (torch.tensor([300, 1]), "uint8", "column 'v' holds 300 (int) in row 1, which uint8 cannot hold."),
        (torch.tensor([1, -1]), "uint32", "column 'v' holds -1 (int) in row 2, which uint32 cannot hold."),
        (torch.tensor([1, 2**63 - 1]), "float64", "column 'v' holds 9223372036854775807 (int) in row 2, which float64"),
        (torch.tensor([1.0, 1e300], dtype=torch.float64), "float32", "column 'v' holds 1e+300 (float) in row 2, which float32"),
        (torch.tensor([1, 2]), "bool", "column 'v' holds 2 (int) in row 2, which bool cannot hold."),
    ],
)
def test_a_type_that_cannot_hold_a_value(values: torch.Tensor, dtype: str, expected: str) -> None:
    with pytest.raises(BadValueError) as caught:
        on_tensors({"k": torch.tensor([0, 0]), "v": values}, key="k", dtype=dtype)
    assert str(caught.value).startswith(expected)


def test_repeated_contexts() -> None:
    with pytest.raises(BadValueError, match=r"column 'contexts' holds 4 \(int\) in row 3, as in row 2. List each context once."):
        on_tensors({"k": torch.tensor([4]), "v": torch.tensor([1])}, key="k", contexts=torch.tensor([1, 4, 4]))
