"""Callbacks are called after updates and epochs, may end a run, and do not change it otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.train.training import adamw, network, pairs, plain_loop, same_weights, trainer_of
from torch.optim import lr_scheduler

from stoker.errors import OptionError
from stoker.train import CallbackReport, trainer

pytestmark = pytest.mark.promise("P13")


class Seen:
    """Keeps what it is called with, and stops at a step."""

    def __init__(self, stop_at: int = -1) -> None:
        self.batches: list[tuple[int, int, float, float]] = []
        self.epochs: list[tuple[int, int, list[str], float]] = []
        self.stop_at = stop_at

    def on_batch_end(self, report: CallbackReport) -> None:
        self.batches.append((report.step, report.epoch, report.loss, report.lr))
        if report.step == self.stop_at:
            report.stop()

    def on_epoch_end(self, report: CallbackReport) -> None:
        self.epochs.append((report.step, report.epoch, sorted(report.metrics), report.loss))


def test_callbacks_are_called_with_the_numbers_of_the_plain_loop() -> None:
    seen, model, batches = Seen(), network(), pairs(5)
    result = trainer_of(model, callbacks=[seen], log_every=2).fit(batches, valid=pairs(1, seed=3), epochs=2)
    assert [(step, epoch) for step, epoch, _, _ in seen.batches] == [(i + 1, i // 5) for i in range(10)]
    twin = network()
    optimizer, losses = adamw(twin), []
    for x, y in batches * 2:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(twin(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert [loss for _, _, loss, _ in seen.batches] == pytest.approx(losses)
    assert {rate for _, _, _, rate in seen.batches} == {1e-2}
    assert [one[:3] for one in seen.epochs] == [(5, 0, ["loss", "val_loss"]), (10, 1, ["loss", "val_loss"])]
    assert seen.epochs[1][3] == result.metrics["loss"]
    assert same_weights(model, twin)
    assert result.stopped == "finished"


def test_a_callback_may_end_the_run_which_is_saved_and_resumes(tmp_path: Path) -> None:
    batches, whole = pairs(6), network()
    trainer_of(whole).fit(batches, epochs=3)
    model = network()
    result = trainer_of(model, folder=tmp_path / "run", callbacks=[Seen(stop_at=8)]).fit(batches, epochs=3)
    assert (result.stopped, result.step, result.epoch) == ("callback", 8, 1)
    other = network(seed=1)
    again = trainer_of(other, folder=tmp_path / "run", callbacks=[Seen()]).fit(batches, epochs=3, resume=True)
    assert (again.stopped, again.step) == ("finished", 18)
    assert same_weights(other, whole), "callbacks are not a part of what must be the same"


def test_an_epoch_may_be_the_last(tmp_path: Path) -> None:
    class Stop:
        def on_epoch_end(self, report: CallbackReport) -> None:
            if report.epoch >= 1:
                report.stop()

    assert trainer_of(network(), callbacks=[Stop()]).fit(pairs(3), epochs=5).stopped == "callback"
    assert trainer_of(network(), callbacks=[Stop()]).fit(pairs(3), epochs=2).stopped == "finished", "it was the last anyway"


def test_what_callbacks_raise_ends_the_run_with_its_checkpoint(tmp_path: Path) -> None:
    class Broken:
        def on_epoch_end(self, report: CallbackReport) -> None:
            raise ZeroDivisionError("of the user")

    with pytest.raises(ZeroDivisionError, match="of the user"):
        trainer_of(network(), folder=tmp_path / "run", callbacks=[Broken()]).fit(pairs(3), epochs=2)
    assert trainer_of(network(), folder=tmp_path / "run").fit(pairs(3), epochs=2, resume=True).step == 6


def test_a_scheduler_of_torch_gives_the_rates_of_the_plain_loop(tmp_path: Path) -> None:
    """It lowers the rate of the optimizer when it is made, which must not count twice."""
    seen, model, twin, batches = Seen(), network(), network(), pairs(6)

    def schedule(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
        return lr_scheduler.LinearLR(optimizer, start_factor=0.25, total_iters=4)

    optimizer = adamw(model)
    made = trainer_of(model, optimizer=optimizer, schedule=schedule(optimizer), callbacks=[seen], folder=tmp_path / "run")
    made.fit(batches)
    theirs, rates = adamw(twin), []
    scheduler = schedule(theirs)
    for batch in batches:
        rates.append(theirs.param_groups[0]["lr"])
        plain_loop(twin, theirs, [batch], epochs=1)
        scheduler.step()
    assert [rate for _, _, _, rate in seen.batches] == pytest.approx(rates)
    torch.testing.assert_close(model.state_dict(), twin.state_dict())
    again = network()
    optimizer = adamw(again)
    made = trainer_of(again, optimizer=optimizer, schedule=schedule(optimizer), folder=tmp_path / "run")
    assert made.fit(batches, epochs=2, resume=True, allow=["schedule"]).step == 12
    with pytest.raises(OptionError, match="a LinearLR of another optimizer"):
        trainer_of(network(), schedule=schedule(adamw(network())))


def test_negative_control_with_the_rate_that_torch_left_it_counts_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "is_torch_scheduler", lambda schedule: False)
    seen, model = Seen(), network()
    optimizer = adamw(model)
    schedule = lr_scheduler.LinearLR(optimizer, start_factor=0.25, total_iters=4)
    trainer_of(model, optimizer=optimizer, schedule=schedule, callbacks=[seen]).fit(pairs(1))
    assert seen.batches[0][3] == pytest.approx(1e-2 * 0.25**2)
