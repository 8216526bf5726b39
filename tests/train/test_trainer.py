"""The trainer: epochs, validation, early stopping, budget, schedule, logs and options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.train.training import Kept, adamw, network, pairs, same_weights, trainer_of
from torch import nn
from torchmetrics import MeanAbsoluteError

import stoker
from stoker import EarlyStopping, Trainer
from stoker.errors import NonFiniteError, OptionError, StokerError, TrainError


def test_trains_validates_and_reports() -> None:
    kept, model = Kept(), network()
    trainer = trainer_of(model, callbacks=[kept], log_every=5, max_grad_norm=1.0)
    before = trainer.evaluate(pairs(4, seed=9))["loss"]
    result = trainer.fit(pairs(), valid=pairs(4, seed=9), epochs=4)
    assert (result.stopped, result.step, result.epoch) == ("finished", 48, 4)
    assert result.metrics["val_loss"] < before / 2
    assert result.best == result.metrics["val_loss"] == pytest.approx(trainer.evaluate(pairs(4, seed=9))["loss"])
    windows = [step for step, values in kept.lines if "rate" in values]
    assert windows == [5, 10, 12, 15, 20, 24, 25, 30, 35, 36, 40, 45, 48]
    assert [step for step, values in kept.lines if "val_loss" in values] == [12, 24, 36, 48]
    assert {"loss", "norm", "skipped", "lr", "rate", "wait", "epoch"} <= kept.lines[0][1].keys()
    assert "finished after 48 steps" in str(result)


def test_the_loss_of_an_epoch_is_the_mean_of_its_updates() -> None:
    seen: list[float] = []

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        value = nn.functional.mse_loss(model(batch[0]), batch[1])
        seen.append(float(value.detach()))
        return value

    result = trainer_of(network(), loss, log_every=5).fit(pairs())
    assert result.metrics["loss"] == pytest.approx(sum(seen) / len(seen), rel=1e-6)


def test_metrics_are_those_of_all_samples() -> None:
    valid = pairs(3, seed=4)
    model = network()
    trainer = trainer_of(model, metrics={"mae": MeanAbsoluteError()})
    found = trainer.evaluate([*valid, (valid[0][0][:3], valid[0][1][:3])])
    x, y = (torch.cat([*(pair[i] for pair in valid), valid[0][i][:3]]) for i in (0, 1))
    with torch.no_grad():
        assert found["mae"] == pytest.approx(float((model(x) - y).abs().mean()), rel=1e-6)
        assert found["loss"] == pytest.approx(float(nn.functional.mse_loss(model(x), y)), rel=1e-6)


def test_early_stopping_stops() -> None:
    model = network()
    stopping = EarlyStopping("val_loss", patience=2)
    result = trainer_of(model, optimizer=adamw(model, lr=0.0), early_stopping=stopping).fit(pairs(), valid=pairs(2), epochs=50)
    assert (result.stopped, result.epoch, result.best_step) == ("early", 3, 12)


def test_a_budget_ends_the_run() -> None:
    result = trainer_of(network()).fit(pairs(), epochs=1_000_000, max_seconds=1e-9)
    assert result.stopped == "budget"
    assert result.step <= 12


def test_a_schedule_moves_the_rate_of_each_group() -> None:
    model, kept = network(), Kept()
    groups = [{"params": model[0].parameters(), "lr": 1.0}, {"params": model[3].parameters(), "lr": 0.5}]
    optimizer = torch.optim.SGD(groups, lr=0.1, fused=False)
    seen: list[tuple[float, float]] = []

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        seen.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"]))
        return 0 * nn.functional.mse_loss(model(batch[0]), batch[1])

    trainer_of(model, loss, optimizer, schedule=lambda step, total: step / total, callbacks=[kept], log_every=6).fit(pairs())
    assert seen == [(k / 12, 0.5 * (k / 12)) for k in range(12)]
    assert [values["lr"] for _, values in kept.lines if "lr" in values] == [5 / 12, 11 / 12]
    assert [group["lr"] for group in optimizer.param_groups] == [1.0, 0.5], "the optimizer is given back as it was"


def test_the_average_is_what_is_evaluated() -> None:
    model = network()
    trainer = trainer_of(model, ema=0.9)
    trainer.fit(pairs(), epochs=2)
    with trainer.ema.applied(), torch.no_grad():
        averaged = float(nn.functional.mse_loss(model(pairs(1)[0][0]), pairs(1)[0][1]))
    assert trainer.evaluate(pairs(1))["loss"] == pytest.approx(averaged)


@pytest.mark.promise("P15")
def test_measured_choices_are_reported_and_leave_no_trace(capsys: pytest.CaptureFixture[str]) -> None:
    """The run is that of a trainer which was told the same setup from the start."""
    ours, told = network(dropout=0.3), network(dropout=0.3)
    torch.manual_seed(5)
    opened = {"precision": "auto", "graph": "auto", "compile": "auto", "measured": True, "progress": True}
    result = trainer_of(ours, optimizer=torch.optim.AdamW(ours.parameters()), **opened).fit(pairs(), epochs=80)
    assert {trial.name for trial in result.trials} == {"fused", "graph", "bf16", "compile"}
    assert "there is no GPU" in capsys.readouterr().out
    torch.manual_seed(5)
    setup = result.setup  # whatever was faster on this machine, at this moment
    optimizer = adamw(told, lr=1e-3, fused=setup.fused or None)
    trainer_of(told, optimizer=optimizer, precision=setup.precision, compile=setup.compile).fit(pairs(), epochs=80)
    assert same_weights(ours, told)


def test_an_iterator_loses_no_batch_to_measurements() -> None:
    seen: list[float] = []

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        seen.append(float(batch[0][0, 0]))
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    batches = pairs(300)
    trainer_of(network(), loss, precision="auto", measured=True).fit(iter(batches))
    assert seen[-300:] == [float(x[0, 0]) for x, _ in batches]


@pytest.mark.promise("P14")
def test_the_guard_names_series_and_step(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    series = [rng.standard_normal(60).astype(np.float32) for _ in range(4)]
    series[2][37] = np.nan
    store = stoker.Store.from_arrays(x=series)
    feed = stoker.Feed(store, stoker.Windows(8, horizon=1), batch_size=16, order=stoker.Shuffle(3))

    class Line(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(8, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.line(x)
            return out

    model = Line()
    loss = stoker.train.supervised(nn.MSELoss(), x="x", y="x_target")
    with pytest.raises(NonFiniteError, match=r"the loss is nan at update \d+ of epoch 0 \(batch .*x of series 2 is nan at step 37"):
        trainer_of(model, loss, folder=tmp_path / "run").fit(feed)
    assert all(torch.isfinite(weight).all() for weight in model.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "fp16"}, "precision 'fp16' needs a GPU"),
        ({"graph": True}, "graph=True needs a GPU"),
        ({"grad_accum_steps": 0}, "grad_accum_steps is 0; expected an integer from 1"),
        ({"max_grad_norm": -1.0}, "max_grad_norm is -1.0; expected a number above 0"),
        ({"metrics": ["mae"]}, "metrics is .*; expected a dict of names and metrics"),
        ({"early_stopping": "loss"}, "early_stopping is 'loss'; expected EarlyStopping"),
    ],
    ids=str,
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="messages of a machine without a GPU")
def test_options_that_is_invalid(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        trainer_of(network(), **options)


def without_predictions(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def test_metrics_are_checked_before_the_first_update(tmp_path: Path) -> None:
    """Not after a whole epoch: a loss of one's own that returns no predictions, and shapes that do not fit."""
    calls = 0

    def loss(model: nn.Module, batch: Any) -> Any:
        nonlocal calls
        calls += model.training
        return without_predictions(model, batch)

    def of_another_shape(model: nn.Module, batch: Any) -> Any:
        nonlocal calls
        calls += model.training
        prediction = model(batch[0])
        return {"loss": prediction.mean(), "prediction": prediction, "target": batch[1].repeat(1, 3)}

    for wrong, line in (
        (loss, r"metrics \(mae\) need what the model"),
        (of_another_shape, "metric 'mae' cannot take these values"),
    ):
        model = network()
        before = [weight.clone() for weight in model.parameters()]
        trainer = trainer_of(model, wrong, metrics={"mae": MeanAbsoluteError()}, folder=tmp_path / wrong.__name__)
        with pytest.raises(StokerError, match=line):
            trainer.fit(pairs(), valid=pairs(2))
        assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
        assert not (tmp_path / wrong.__name__ / "run.json").exists(), "nothing was begun, so the next try is not refused"
    assert calls == 0


@pytest.mark.parametrize("has_valid", [True, False])
def test_what_early_stopping_watches_is_checked_before_the_first_update(has_valid: bool) -> None:
    kept = Kept()
    trainer = trainer_of(network(), early_stopping=EarlyStopping("val_mae"), callbacks=[kept])
    with pytest.raises(OptionError, match="early stopping watches 'val_mae', but an epoch has loss"):
        trainer.fit(pairs(), valid=pairs(2) if has_valid else None)
    assert not kept.lines


def test_the_check_of_metrics_leaves_no_trace() -> None:
    """Neither random numbers nor the metrics themselves know of it."""
    found = []
    for metrics in ({}, {"mae": MeanAbsoluteError()}):
        ours = network(dropout=0.3)
        torch.manual_seed(5)
        result = trainer_of(ours, metrics=metrics).fit(pairs(), valid=pairs(2, seed=3))
        found.append((result.metrics["val_loss"], [weight.clone() for weight in ours.parameters()]))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(one, other) for one, other in zip(found[0][1], found[1][1], strict=True))


def test_negative_control_without_the_check_a_whole_epoch_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "_rehearse", lambda *given: None)
    model = network()
    before = [weight.clone() for weight in model.parameters()]
    with pytest.raises(TrainError, match="need what the model predicts"):
        trainer_of(model, without_predictions, metrics={"mae": MeanAbsoluteError()}).fit(pairs(), valid=pairs(2))
    assert not all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


def test_a_trainer_shows_what_it_trains_and_where(tmp_path: Path) -> None:
    trainer = trainer_of(network(), folder=tmp_path / "run")
    assert repr(trainer).startswith("<Trainer of Sequential with ")
    assert repr(trainer).endswith(f"on cpu, folder {tmp_path / 'run'}>")
    assert "folder" not in repr(trainer_of(network()))
