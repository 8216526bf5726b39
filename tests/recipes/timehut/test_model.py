"""The encoder: torch's own layers, files in TS2Vec's names, taps that are left out, and errors."""

from __future__ import annotations

import pytest
import torch
from tests.recipes.timehut.plain_methods import PlainEncoder

from stoker_recipes.timehut.model import (
    EncoderSize,
    encode,
    expand,
    from_tensors,
    initial_weights,
    kept_positions,
    make_layout,
    sizes_of,
    to_tensors,
)

SIZE = EncoderSize(channels=2, hidden=5, depth=3, width=7)


def plain_encoder(row: torch.Tensor) -> PlainEncoder:
    encoder = PlainEncoder(2, hidden=5, depth=3, width=7).double()
    encoder.load_state_dict(to_tensors(row, SIZE))
    return encoder


@pytest.mark.promise("P29")
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 9, 40])
def test_outputs_are_those_of_plain_layers_at_every_length(steps: int) -> None:
    row = initial_weights(SIZE, 3).double()
    x = torch.randn(4, steps, 2, dtype=torch.float64)
    expected = plain_encoder(row)(x)
    assert torch.allclose(encode(row[None], make_layout(SIZE), x[None])[0], expected, atol=1e-12)
    layout = make_layout(SIZE, steps)
    kept = row[kept_positions(layout)][None]
    assert torch.allclose(encode(kept, layout, x[None])[0], expected, atol=1e-12)


def test_tensors_and_rows_are_the_same() -> None:
    row = initial_weights(SIZE, 5)
    named = to_tensors(row, SIZE)
    assert named["input_fc.weight"].shape == (5, 2)
    assert named["feature_extractor.net.3.projector.weight"].shape == (7, 5, 1)
    assert torch.equal(from_tensors(named, SIZE), row)
    averaged = {f"module.{name}": value for name, value in named.items()}
    assert sizes_of(averaged) == SIZE
    assert torch.equal(from_tensors(averaged, SIZE), row)


def test_left_out_taps_come_back() -> None:
    row, layout = initial_weights(SIZE, 5)[None], make_layout(SIZE, 3)
    kept = row[:, kept_positions(layout)]
    assert layout.num_values == kept.shape[1] < row.shape[1]
    assert torch.equal(expand(kept, layout, row), row)
