"""Graphs, as far as they can be seen without a GPU: a graph that runs its body again stands in for one that is replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from unittest import mock

import pytest
import torch
from tests.train.runs import make_store
from tests.train.syncs import Asked
from tests.train.training import adamw, network, pairs, same_weights, trainer_of
from torch import nn

import stoker
from stoker.train import Setup
from stoker.train.callbacks import writers_of
from stoker.train.engine import Engine, Stream
from stoker.train.fit import Fit, Signals
from stoker.train.graph import Gathering, Graphs, eager_steps
from stoker.train.loggers import Log
from stoker.train.optimizer import LearningRate
from stoker.train.step import EagerStep


class Replay:
    """Runs its body again."""

    def __init__(self, body: Callable[[], Any]) -> None:
        self.replay = body


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Graphs on the CPU: recorded by running the body as a capture does, put back, and run again as a replay."""
    recorded: list[int] = []

    def record(self: Graphs, body: Callable[[], Any]) -> Replay:
        restore = self._preserve()
        for _ in range(2):
            body()
            restore()
        recorded.append(1)
        return Replay(body)

    monkeypatch.setattr(Graphs, "_record", record)
    monkeypatch.setattr(Engine, "_refuses_graph", lambda self, step: None)
    original = EagerStep.__init__

    def gated(self: EagerStep, *given: Any, **options: Any) -> None:
        original(self, *given, **options)
        self.guard.gated = True
        self.guard.bind()

    monkeypatch.setattr(EagerStep, "__init__", gated)
    return recorded


def fit_in_graphs(trainer: Any, batches: Any, *, epochs: int = 1) -> Any:
    """What `Trainer.fit` does with a graph, which needs a GPU there."""
    trainer.setup = Setup(fused=True, graph=True)
    stream = Stream(batches, trainer.device)
    parts = trainer._parts
    with Engine(parts, stream, total_updates=None) as engine, Signals() as signals:
        work = engine.work(trainer.setup)
        log = Log(writers_of(trainer.callbacks))
        fit = Fit(parts, engine, work, stream, setup=trainer.setup, epochs=epochs, log=log, signals=signals)
        fit.run()
    return work


@pytest.mark.promise("P15")
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("ema", [None, 0.9])
def test_replays_are_eager_steps(stand_in: list[int], accumulate: int, ema: float | None) -> None:
    """Also with a short batch at the end, random numbers, and an average of the weights."""
    batches = [*pairs(10), *pairs(1, rows=5, seed=3)]
    eager, replayed = network(dropout=0.3), network(dropout=0.3)
    torch.manual_seed(1)
    trainer_of(eager, grad_accum_steps=accumulate, max_grad_norm=1.0, ema=ema).fit(batches, epochs=3)
    torch.manual_seed(1)
    trainer = trainer_of(replayed, grad_accum_steps=accumulate, max_grad_norm=1.0, ema=ema, schedule=None)
    work = fit_in_graphs(trainer, batches, epochs=3)
    assert len(work.graphs) == 2
    for a, b in zip(eager.parameters(), replayed.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


class EagerInTheMiddle(list[Any]):
    """Batches, some of which are given while steps run without their graphs, as `stoker diagnose` asks for."""

    def __iter__(self) -> Iterator[Any]:
        with ExitStack() as stack:
            for number, batch in enumerate(super().__iter__()):
                if number == 4:
                    stack.enter_context(eager_steps())
                if number == 7:
                    stack.close()
                yield batch


@pytest.mark.parametrize("accumulate", [1, 3])
def test_steps_without_their_graphs_are_the_same(stand_in: list[int], monkeypatch: pytest.MonkeyPatch, accumulate: int) -> None:
    replays: list[int] = []
    original = Graphs._record

    def record(self: Graphs, body: Callable[[], Any]) -> Any:
        original(self, body)
        return Replay(lambda: (replays.append(1), body()))

    monkeypatch.setattr(Graphs, "_record", record)
    eager, replayed = network(), network()
    trainer_of(eager, grad_accum_steps=accumulate).fit(pairs(12), epochs=2)
    fit_in_graphs(trainer_of(replayed, grad_accum_steps=accumulate, schedule=None), EagerInTheMiddle(pairs(12)), epochs=2)
    for a, b in zip(eager.parameters(), replayed.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
    eager_micro, eager_updates = 1 + 2 * 3, 0 if accumulate == 1 else 2 * 1
    assert len(replays) == 24 - eager_micro + (0 if accumulate == 1 else 24 // accumulate - eager_updates)


def test_a_shape_that_comes_once_is_not_captured(stand_in: list[int]) -> None:
    work = fit_in_graphs(trainer_of(network()), [*pairs(4), *pairs(1, rows=5, seed=3)])
    assert (len(work.graphs), len(stand_in)) == (1, 1)


def test_a_feed_on_the_device_is_gathered_within_the_graph(stand_in: list[int]) -> None:
    def feed() -> stoker.Feed:
        return stoker.Feed(
            make_store(),
            stoker.Windows(8, horizon=1),
            batch_size=32,
            order=stoker.Shuffle(7),
            loading=stoker.feed.Loading(residency="device"),
            last_batch="drop",
        )

    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Dropout(0.2), nn.Linear(12, 1))

    loss = stoker.train.supervised(nn.MSELoss(), x="x", y="x_target")
    eager, gathered = net(), net()
    torch.manual_seed(1)
    trainer_of(eager, loss, adamw(eager)).fit(feed(), epochs=3)
    torch.manual_seed(1)
    work = fit_in_graphs(trainer_of(gathered, loss, adamw(gathered)), feed(), epochs=3)
    assert isinstance(work, Gathering)
    for a, b in zip(eager.state_dict().values(), gathered.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.promise("P14")
def test_limited_updates_leave_everything_as_it_was(stand_in: list[int]) -> None:
    """The host learns of it at the end of the window; all updates after the bad one were held back too."""
    batches = pairs()
    batches[6] = (batches[6][0] * float("nan"), batches[6][1])
    good, ours = network(), network()
    fit_in_graphs(trainer_of(good), batches[:6])
    with pytest.raises(stoker.errors.NonFiniteError, match="the loss is nan at update 6 of epoch 0"):
        fit_in_graphs(trainer_of(ours, ema=0.9), batches)
    assert same_weights(good, ours)


def test_statistics_that_overflow_drop_the_update_of_a_graph(stand_in: list[int]) -> None:
    """A finite 1e25 has an infinite variance; the loss of what is normalised by it stays finite."""
    batches = pairs()
    batches[6][0][2, 1] = 1e25
    good, ours = network(norm=True), network(norm=True)
    fit_in_graphs(trainer_of(good), batches[:6])
    with pytest.raises(stoker.errors.NonFiniteError, match="a gradient or a buffer of the model"):
        fit_in_graphs(trainer_of(ours, ema=0.9), batches)
    assert same_weights(good, ours)


@pytest.mark.promise("P15")
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 1.0, "ema": 0.9}, {"grad_accum_steps": 2, "guard": "skip"}], ids=str)
def test_the_host_never_waits_between_windows(stand_in: list[int], options: dict[str, Any], norm: bool) -> None:
    """Structural: no number of a tensor is asked for in any step. On a CPU the readout may ask, as nobody has to wait there."""
    if norm and "grad_accum_steps" in options:
        pytest.skip("a graph of each micro-batch is refused where there are running statistics")
    seen: list[int] = []
    model = network(norm=norm)
    trainer = trainer_of(model, log_every=1000, **options)
    original = EagerStep.update

    def counting(self: EagerStep) -> bool:
        with Asked() as asked:
            is_good = original(self)
        in_readout = 3  # loss, norm and flag
        seen.append(len(asked.seen) - in_readout)
        return is_good

    with mock.patch.object(EagerStep, "update", counting):
        fit_in_graphs(trainer, pairs())
    assert seen
    assert not any(seen)


@pytest.mark.promise("P15", control=True)
def test_a_step_that_the_host_judges_waits_and_is_seen() -> None:
    """Negative control of the test above."""
    model = network()
    trainer = trainer_of(model)
    with Asked() as asked:
        trainer.fit(pairs())
    assert asked.seen.count("item") >= 12


def test_a_graph_finds_the_learning_rate_where_it_was_captured() -> None:
    """Other setups are tried between the capture of a graph and its replays."""
    model = network()
    optimizer = adamw(model)
    rate = LearningRate(optimizer)
    rate.to_device(torch.device("cpu"))
    captured = optimizer.param_groups[0]["lr"]
    rate.set(0.5)
    assert captured.item() == pytest.approx(5e-3)
    rate.restore()
    assert optimizer.param_groups[0]["lr"] == 1e-2
    rate.to_device(torch.device("cpu"))
    assert optimizer.param_groups[0]["lr"] is captured
    assert captured.item() == pytest.approx(1e-2)
