"""Batches that the trainer takes: named tuples, dataclasses and nested ones train like tuples, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from tests.train.training import network, pairs, same_weights, trainer_of
from torch import nn

from stoker._batch import tensors_of
from stoker.errors import TrainError
from stoker.train import supervised
from stoker.train.engine import Stream
from stoker.train.loss import as_loss


class PairBatch(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@dataclass
class DataBatch:
    x: torch.Tensor
    y: torch.Tensor
    name: str = "some rows"


@dataclass(frozen=True, slots=True)
class FrozenBatch:
    x: torch.Tensor
    y: torch.Tensor
    valid: torch.Tensor | None = None


@dataclass(frozen=True)
class NestedBatch:
    inputs: dict[str, Any]
    targets: tuple[PairBatch, None]


def nested(x: torch.Tensor, y: torch.Tensor) -> NestedBatch:
    return NestedBatch({"x": [x], "id": 3}, (PairBatch(x, y), None))


def nested_loss(model: nn.Module, batch: NestedBatch) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch.inputs["x"][0]), batch.targets[0].y)


@pytest.mark.parametrize(
    ("make", "loss"),
    [(PairBatch, None), (DataBatch, None), (FrozenBatch, None), (nested, nested_loss)],
    ids=["NamedTuple", "dataclass", "frozen dataclass", "nested"],
)
def test_training_on_named_tuples_and_dataclasses_equals_tuples(make: Any, loss: Any) -> None:
    batches = pairs()
    expected, model = network(), network()
    trainer_of(expected).fit(batches, valid=batches[:2], epochs=2)
    trained = trainer_of(model, loss)
    trained.fit([make(*pair) for pair in batches], valid=[make(*pair) for pair in batches[:2]], epochs=2)
    assert same_weights(model, expected)
    assert trained.evaluate([make(*pair) for pair in batches]) == trainer_of(expected).evaluate(batches)


def test_rows_that_a_dataclass_marks_as_invalid_are_left_out() -> None:
    valid = torch.tensor([True] * 12 + [False] * 4)
    batches = pairs()
    expected, model = network(), network()
    trainer_of(expected).fit([{"x": x, "y": y, "valid": valid} for x, y in batches], epochs=1)
    trainer_of(model).fit([FrozenBatch(x, y, valid) for x, y in batches], epochs=1)
    assert same_weights(model, expected)


def test_batches_read_ahead_for_measurements_are_copies_of_the_same_type() -> None:
    batches = [nested(*pair) for pair in pairs(3)]
    (first,) = Stream(batches, torch.device("cpu")).peek(1)
    assert type(first) is NestedBatch
    assert first.targets[1] is None
    assert first.inputs["id"] == 3
    for one, other in zip(tensors_of(first), tensors_of(batches[0]), strict=True):
        assert torch.equal(one, other)
        assert one.data_ptr() != other.data_ptr()


@pytest.mark.parametrize("name", ["target_mask", "y_target_observed"])
@pytest.mark.parametrize("with_valid", [False, True])
def test_supervised_leaves_out_padded_and_missing_targets(name: str, with_valid: bool) -> None:
    counted = torch.tensor([[True, True], [True, False], [False, False]])
    batch = {"x": torch.zeros(3, 2), "y_target": torch.tensor([[1.0, 3.0], [2.0, 50.0], [50.0, 50.0]]), name: counted}
    if with_valid:
        batch["valid"] = torch.tensor([True, True, False])
    given = supervised(nn.MSELoss(), y="y_target")(nn.Identity(), batch)
    assert float(given["loss"]) == pytest.approx((5 + 4) / (2 if with_valid else 3)), "per sample the mean over its targets"
    assert torch.equal(given["valid"], counted)


def test_supervised_combines_the_masks_of_wide_targets() -> None:
    observed = torch.tensor([[[True, False], [True, True]]])
    batch = {"x": torch.zeros(1, 2, 2), "y_target": torch.tensor([[[1.0, 9.0], [9.0, 9.0]]]), "y_target_observed": observed}
    batch["target_mask"] = torch.tensor([[True, False]])
    assert float(supervised(nn.MSELoss(), y="y_target")(nn.Identity(), batch)["loss"]) == 1.0


def fed() -> dict[str, torch.Tensor]:
    return {"load": torch.ones(4, 6), "load_target": torch.zeros(4, 1), "valid": torch.tensor([True, True, True, False])}


def test_a_criterion_finds_the_input_and_the_target_of_a_feed() -> None:
    """`nn.MSELoss()` is enough for one column with a target; rows that are no samples do not count."""
    model = nn.Linear(6, 1)
    found = as_loss(nn.MSELoss())(model, fed())
    expected = model(torch.ones(3, 6)).square().mean()
    assert torch.allclose(found["loss"], expected)


def test_times_of_a_feed_do_not_hide_the_input() -> None:
    batch = {"ts": torch.arange(24).reshape(4, 6), "ts_target": torch.arange(4).reshape(4, 1), **fed()}
    model = nn.Linear(6, 1)
    assert as_loss(nn.MSELoss())(model, batch)["loss"] == as_loss(nn.MSELoss())(model, fed())["loss"]


@pytest.mark.parametrize(
    "batch", [{**fed(), "temp": torch.ones(4, 6), "temp_target": torch.ones(4, 1)}, {"load": torch.ones(4, 6)}, torch.ones(3)]
)
def test_a_batch_without_a_single_pair_is_refused_with_what_to_do(batch: Any) -> None:
    with pytest.raises(TrainError, match=r"stoker\.train\.supervised\(criterion, x=…, y=…\)"):
        as_loss(nn.MSELoss())(nn.Linear(6, 1), batch)
    if isinstance(batch, dict) and "temp" in batch:
        assert "loss" in supervised(nn.MSELoss(), x="load", y="load_target")(nn.Linear(6, 1), batch)
