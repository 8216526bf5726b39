"""The step: equal to the plain loop bit for bit, weighted by samples, and never updated by what is not finite."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.train.training import Kept, adamw, network, pairs, plain_loop, same_weights, trainer_of
from torch import nn

from stoker.errors import NonFinite, TrainError
from stoker.train import step as step_module


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize(
    "make",
    [
        lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True),
        lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True),
        lambda model: torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, fused=False),
        lambda model: torch.optim.RMSprop(model.parameters(), lr=1e-3),
    ],
    ids=["fused", "foreach", "sgd", "rmsprop"],
)
def test_equals_the_plain_loop_bit_for_bit(make: Any, clip: float | None) -> None:
    ours, plain = network(norm=True, dropout=0.2), network(norm=True, dropout=0.2)
    plain_loop(plain, make(plain), pairs(), epochs=3, clip=clip)
    torch.manual_seed(0)
    ours = network(norm=True, dropout=0.2)
    trainer_of(ours, optimizer=make(ours), clip=clip).fit(pairs(), epochs=3)
    assert same_weights(ours, plain)


def test_unequal_micro_batches_make_the_update_of_all_their_samples() -> None:
    """3 micro-batches of 16, 16 and 4 samples are one batch of 36; the last update has what is left of the epoch."""
    parts = [*pairs(2), *pairs(1, rows=4, seed=1), *pairs(1, rows=16, seed=2)]
    whole = [(torch.cat([x for x, _ in parts[:3]]), torch.cat([y for _, y in parts[:3]])), parts[3]]
    ours, plain = network(), network()
    plain_loop(plain, torch.optim.SGD(plain.parameters(), lr=0.1), whole, epochs=3)
    trainer_of(ours, optimizer=torch.optim.SGD(ours.parameters(), lr=0.1, fused=False), accumulate=3).fit(parts, epochs=3)
    for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_left_over_micro_batch_never_leaks_into_the_next_epoch() -> None:
    """5 micro-batches, 2 an update: the twin updates after 2, 4 and 5, with fresh gradients each time."""
    batches, ours, twin = pairs(5), network(), network()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(2):
        for group in (batches[:2], batches[2:4], batches[4:]):
            optimizer.zero_grad()
            for x, y in group:
                (nn.functional.mse_loss(twin(x), y) / len(group)).backward()
            optimizer.step()
    result = trainer_of(ours, optimizer=torch.optim.SGD(ours.parameters(), lr=0.1, fused=False), accumulate=2).fit(
        batches, epochs=2
    )
    assert result.step == 6
    for a, b in zip(ours.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_rows_that_are_no_samples_do_not_count() -> None:
    x, y = pairs(1)[0]
    batch = {"x": x, "y": y.clone(), "valid": torch.arange(16) < 5}
    batch["y"][5:] = 1e6
    ours, plain = network(), network()
    plain_loop(plain, torch.optim.SGD(plain.parameters(), lr=0.1), [(x[:5], y[:5])], epochs=1)
    trainer_of(ours, optimizer=torch.optim.SGD(ours.parameters(), lr=0.1, fused=False)).fit([batch])
    for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b)


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
    trainer_of(good, optimizer=adamw(good, fused=fused), accumulate=accumulate).fit(pairs()[: 3 * accumulate])
    trainer = trainer_of(ours, poisoned(place, 3 * accumulate), adamw(ours, fused=fused), accumulate=accumulate, ema=0.9)
    with pytest.raises(NonFinite, match=r"at update 3 of epoch 0 \(batch.* 3|6.*weights are those before it"):
        trainer.fit(pairs())
    assert same_weights(good, ours)
    assert trainer.ema is not None
    assert all(torch.isfinite(one).all() for one in trainer.ema.tensors())


def test_without_the_guard_the_weights_would_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the test above."""
    monkeypatch.setattr(step_module.torch, "_amp_foreach_non_finite_check_and_unscale_", lambda *given: None)
    ours = network()
    trainer_of(ours, poisoned("data", 3)).fit(pairs())
    assert not all(torch.isfinite(one).all() for one in ours.parameters())


def test_bad_updates_are_skipped_where_that_is_asked_for() -> None:
    ours, kept = network(norm=True), Kept()
    trainer = trainer_of(ours, poisoned("data", 3), guard="skip", writers=[kept])
    with pytest.warns(UserWarning, match="at update 3 of epoch 0 .* The update was skipped"):
        result = trainer.fit(pairs())
    assert (result.step, result.skipped) == (12, 1)
    assert all(torch.isfinite(one).all() for one in ours.state_dict().values())
    twin = network(norm=True)
    batches = pairs()
    trainer_of(twin).fit(batches[:3] + batches[4:])
    assert same_weights(ours, twin)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda model, batch: model(batch[0]), r"the loss is of shape \(16, 1\); expected a scalar tensor"),
        (lambda model, batch: 1.0, "returned a float; expected a scalar tensor, or a dict"),
        (lambda model, batch: {"a": 1}, "returned a dict with 'a'; expected"),
        (lambda model, batch: torch.zeros((), requires_grad=True), "no weight has a gradient"),
    ],
)
def test_a_loss_that_is_none_is_told(loss: Any, message: str) -> None:
    with pytest.raises(TrainError, match=message):
        trainer_of(network(), loss).fit(pairs())


def test_further_scalars_of_the_loss_are_logged() -> None:
    def loss(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
        prediction = model(batch[0])
        return {"loss": nn.functional.mse_loss(prediction, batch[1]), "mae": nn.functional.l1_loss(prediction, batch[1])}

    kept = Kept()
    trainer_of(network(), loss, writers=[kept], log_every=4).fit(pairs())
    assert [step for step, values in kept.lines if "mae" in values] == [4, 8, 12]
