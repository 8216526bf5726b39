"""On a GPU sequences have the same bits as on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.encode.sequences.test_pad_device import check_same, make_table

from stoker.encode import pad_sequences
from stoker.errors import OptionError

pytestmark = pytest.mark.gpu


def upload(table: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.cuda() for name, tensor in table.items()}


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("max_length", [None, 1, 9, 100])
@pytest.mark.parametrize("contexts", [None, [3, -2, 40, 0], []])
def test_every_type_by_key(rng: np.random.Generator, layout: str, max_length: int | None, contexts: list[int] | None) -> None:
    table = make_table(rng, 20_000, 300)
    listed = None if contexts is None else torch.tensor(contexts, dtype=torch.int64) * 2**33
    options: dict[str, Any] = {"key": "k", "max_length": max_length, "layout": layout, "contexts": listed}
    found, expected = pad_sequences(upload(table), **options), pad_sequences(table, **options)
    assert all(tensor.is_cuda for tensor in (*found.values(), found.lengths, found.contexts))
    check_same(found, expected)
    assert found.contexts.tolist() == expected.contexts.tolist()


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("max_length", [3, 40, 120])
def test_positions(rng: np.random.Generator, layout: str, max_length: int) -> None:
    table = {"k": torch.from_numpy(rng.integers(0, 900, 50_000)), "a": torch.from_numpy(rng.normal(size=50_000) * 50)}
    options: dict[str, Any] = {"key": "k", "max_length": max_length, "layout": layout, "compat": "mostlyai"}
    check_same(pad_sequences(upload(table), **options), pad_sequences(table, **options))


def test_a_packed_batch_becomes_padded_there(rng: np.random.Generator) -> None:
    table = make_table(rng, 20_000, 300)
    packed = pad_sequences(table, key="k", layout="packed")
    padded = pad_sequences(upload(dict(packed)), lengths=packed.lengths, max_length=50)
    expected = pad_sequences(dict(packed), lengths=packed.lengths, max_length=50)
    check_same(padded, expected)


def test_tensors_of_two_devices_are_refused() -> None:
    with pytest.raises(OptionError, match="Move all to one device"):
        pad_sequences({"k": torch.arange(3).cuda(), "v": torch.zeros(3)}, key="k")
