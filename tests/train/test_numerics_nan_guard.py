"""NaN guard: nothing that is not finite reaches the weights, their average or the buffers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.training import Kept, adamw, network, pairs, same_weights, trainer_of
from torch import nn

from stoker.errors import NonFiniteError
from stoker.train.numerics import RunningStatistics

pytestmark = pytest.mark.promise("P14")


class Poison(torch.autograd.Function):
    """Passes values on, and makes their gradient nan."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * float("nan")


def poisoned(place: str, at: int) -> Any:
    """A loss that is poisoned in one place in the batch number `at`."""
    count = 0

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        nonlocal count
        x, y = batch
        is_now, count = count == at, count + 1
        if is_now and place == "data":
            x = x.clone()
            x[3, 2] = float("inf")
        prediction = model(x)
        if is_now and place == "gradient":
            prediction = Poison.apply(prediction)
        value = nn.functional.mse_loss(prediction, y)
        return value + float("inf") if is_now and place == "loss" else value

    return loss


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("place", ["data", "loss", "gradient"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_nothing_that_is_not_finite_reaches_the_weights(place: str, fused: bool, accumulate: int) -> None:
    """The run stops with the weights, statistics and average of the last good update."""
    good, ours = network(norm=True), network(norm=True)
    trainer_of(good, optimizer=adamw(good, fused=fused), grad_accum_steps=accumulate).fit(pairs()[: 3 * accumulate])
    trainer = trainer_of(ours, poisoned(place, 3 * accumulate), adamw(ours, fused=fused), grad_accum_steps=accumulate, ema=0.9)
    with pytest.raises(NonFiniteError, match=r"at update 3 of epoch 0 \(batch.* 3|6.*weights are those before it"):
        trainer.fit(pairs())
    assert same_weights(good, ours)
    assert all(torch.isfinite(one).all() for one in trainer.ema.tensors())


@pytest.mark.promise("P14", control=True)
def test_without_the_guard_the_weights_would_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the test above."""
    monkeypatch.setattr(torch, "_amp_foreach_non_finite_check_and_unscale_", lambda *given: None)
    ours = network()
    trainer_of(ours, poisoned("data", 3)).fit(pairs())
    assert not all(torch.isfinite(one).all() for one in ours.parameters())


class Remembering(nn.Module):
    """Has buffers of every kind beside its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 1)
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
        self.register_buffer("largest", torch.zeros(()))
        self.register_buffer("least", torch.full((3,), torch.inf))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("cache", torch.zeros(()), persistent=False)
        self.changes_from = 0
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.training and self.calls > self.changes_from:
            with torch.no_grad():
                self.largest += (x.abs().max() / 1e10) ** 2  # finite values, whose square is not
                self.least[0] = torch.minimum(self.least[0], x.min())
                self.seen += len(x)
                self.cache.copy_(self.largest)
        out: torch.Tensor = self.layer(x / x.abs().max().clamp(min=10.0))
        return out


def with_a_large_value(at: int, value: float) -> list[Any]:
    batches = pairs()
    batches[at][0][2, 1] = value
    return batches


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_statistics_that_overflow_drop_the_update(fused: bool, accumulate: int) -> None:
    """A finite 1e25 has an infinite variance, while the loss of a normalised value stays finite."""
    good, ours = network(norm=True), network(norm=True)
    trainer_of(good, optimizer=adamw(good, fused=fused), grad_accum_steps=accumulate).fit(pairs()[: 3 * accumulate])
    batches = with_a_large_value(3 * accumulate, 1e25)
    with pytest.raises(NonFiniteError, match=r"a gradient or a buffer of the model .* is not finite at update 3"):
        trainer_of(ours, optimizer=adamw(ours, fused=fused), grad_accum_steps=accumulate).fit(batches)
    assert same_weights(good, ours)


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("changes_from", [0, 3])
def test_any_buffer_that_a_step_changes_is_guarded(at: int, changes_from: int) -> None:
    """Also one that is bad in the first update that changes it. One that begins with an infinity may keep it."""
    if at < changes_from:
        return
    torch.manual_seed(0)
    good, ours = Remembering(), Remembering()
    ours.load_state_dict(good.state_dict())
    good.changes_from = ours.changes_from = changes_from
    if at:
        trainer_of(good).fit(pairs()[:at])
    with pytest.raises(NonFiniteError, match=f"at update {at} of epoch 0"):
        trainer_of(ours).fit(with_a_large_value(at, 3e38))
    for name, tensor in {**good.state_dict(), "cache": good.cache}.items():
        assert torch.equal(tensor, {**ours.state_dict(), "cache": ours.cache}[name]), name


def test_a_state_that_was_loaded_is_what_a_bad_update_goes_back_to(tmp_path: Path) -> None:
    torch.manual_seed(0)
    first = Remembering()
    trainer_of(first, folder=tmp_path / "run").fit(pairs())
    again = Remembering()
    trainer = trainer_of(again, folder=tmp_path / "run")
    with pytest.raises(NonFiniteError):
        trainer.fit(with_a_large_value(0, 3e38), epochs=2, resume=True, allow=["data"])
    assert torch.equal(again.largest, first.largest)
    assert int(again.seen) == int(first.seen)


def test_infinities_that_were_there_before_do_not_stop_a_run() -> None:
    ours = Remembering()
    assert trainer_of(ours).fit(pairs()).step == 12
    assert ours.least.isinf().sum() == 2
    assert ours.mask.isinf().sum() == 1


def test_negative_control_without_the_check_of_buffers_statistics_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunningStatistics, "checked", lambda self: [])
    ours = network(norm=True)
    trainer_of(ours).fit(with_a_large_value(3, 1e25))
    assert not torch.isfinite(ours.state_dict()["0.running_var"]).all()


def test_bad_updates_are_skipped_where_that_is_asked_for() -> None:
    ours, kept = network(norm=True), Kept()
    trainer = trainer_of(ours, poisoned("data", 3), guard="skip", callbacks=[kept])
    with pytest.warns(UserWarning, match="at update 3 of epoch 0 .* The update was skipped"):
        result = trainer.fit(pairs())
    assert (result.step, result.skipped) == (12, 1)
    assert all(torch.isfinite(one).all() for one in ours.state_dict().values())
    twin = network(norm=True)
    batches = pairs()
    trainer_of(twin).fit(batches[:3] + batches[4:])
    assert same_weights(ours, twin)
