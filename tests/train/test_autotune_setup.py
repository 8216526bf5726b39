"""The same config gives the same weights: the setup of a run is what was asked for, recorded before its first step, and taken from
there when the run is resumed."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.harness import Zygote
from tests.train.hog import hog
from tests.train.runs import bits, make_store
from tests.train.training import grouped, network, pairs, same_weights
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stoker
from stoker import Trainer
from stoker._clock import RunQueueDelay
from stoker.errors import CheckpointInvalidError, OptionError, TrainError
from stoker.train import Execution, Setup, autotune
from stoker.train import engine as engine_module
from stoker.train.autotune import Timed
from stoker.train.engine import Engine, Snapshot, Stream
from stoker.train.run import read_record, recorded_setup

LONG = 600
"""Epochs of 12 batches that are long enough for measurements."""
SHORT = 8
"""Epochs of 12 batches that are enough for measurements where `pace` lets all updates go into them."""


def trainer_of(model: nn.Module, loss: Any = None, **options: Any) -> Trainer:
    """With an optimizer as people make it, and nothing said about how steps are computed."""
    given = grouped({"progress": False, **options})
    return Trainer(model, loss or nn.MSELoss(), torch.optim.AdamW(model.parameters(), lr=1e-2), **given)


@pytest.fixture
def pace(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Setup], float]], None]:
    """Lets steps be done as ever, but take what a function of their setup says, on a machine that is calm.

    Short runs are measured too: all of their updates may go into a choice.
    """

    def set_pace(seconds: Callable[[Setup], float]) -> None:
        original = Engine._measure

        def measure(self: Engine, setup: Setup, *given: Any, **options: Any) -> Timed:
            return original(self, setup, *given, **options)._replace(seconds=seconds(setup))

        monkeypatch.setattr(Engine, "_measure", measure)
        monkeypatch.setattr(RunQueueDelay, "end", lambda self: (0, 1))
        monkeypatch.setattr(autotune, "WORTH_MEASURING", 1)
        monkeypatch.setattr(autotune, "LARGEST_SHARE", 1.0)

    return set_pace


def faster_with_all(setup: Setup) -> float:
    return 1.0 / (1 + setup.fused) / (4 if setup.precision == "bf16" else 1)


@pytest.mark.promise("P23")
def test_by_default_nothing_is_measured_and_steps_are_those_of_the_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stream, "peek", lambda *given: pytest.fail("a batch was asked for"))
    result = trainer_of(network(), progress=True).fit(pairs(), epochs=LONG, max_seconds=1e-9)
    assert result.setup == Setup()
    assert result.trials == ()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, Setup(precision="bf16", fused=True)),
        ({"precision": "fp32"}, Setup(fused=True)),
        ({"fused": False}, Setup(precision="bf16")),
        ({"precision": "fp32", "fused": False}, Setup()),
    ],
    ids=str,
)
def test_measured_takes_what_is_faster_but_no_value_that_was_given(options: Any, expected: Setup, pace: Any) -> None:
    pace(faster_with_all)
    result = trainer_of(network(), measured=True, **options).fit(pairs(), epochs=LONG, max_seconds=1e-9)
    assert result.setup == expected


def test_what_is_asked_for_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stream, "peek", lambda *given: pytest.fail("a batch was asked for"))
    model = network()
    trainer = trainer_of(model, precision="bf16", fused=True)
    result = trainer.fit(pairs(), epochs=3)
    assert result.setup == Setup(precision="bf16", fused=True)
    assert not trainer.optimizer.param_groups[0]["fused"], "the optimizer is given back as it was"
    fused = network()
    optimizer = torch.optim.AdamW(fused.parameters(), lr=1e-2, fused=True)
    Trainer(fused, nn.MSELoss(), optimizer, precision="bf16", progress=False).fit(pairs(), epochs=3)
    assert same_weights(model, fused)


def test_a_fused_optimizer_that_cannot_be_is_refused() -> None:
    model = network()
    with pytest.raises(OptionError, match="RMSprop has no fused implementation; Adam, AdamW"):
        Trainer(model, nn.MSELoss(), torch.optim.RMSprop(model.parameters()), execution=Execution(fused=True))
    with pytest.raises(OptionError, match="made with foreach=True"):
        Trainer(model, nn.MSELoss(), torch.optim.AdamW(model.parameters(), foreach=True), execution=Execution(fused=True))


# ---- measuring leaves no trace ----


class Drawn(torch.utils.data.Dataset[Any]):
    """Samples with random numbers of its own and of everybody."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return 40

    def __getitem__(self, number: int) -> Any:
        x = torch.randn(6) + float(self.rng.random())
        return x, x[:1]


def generated() -> Iterator[Any]:
    for _ in range(60):
        x = torch.randn(8, 6)
        yield x, x[:, :1]


SOURCES: dict[str, Callable[[], Any]] = {
    "list": pairs,
    "shuffled": lambda: DataLoader(TensorDataset(*pairs(1, rows=64)[0]), batch_size=4, shuffle=True),
    "own generator": lambda: DataLoader(
        TensorDataset(*pairs(1, rows=64)[0]), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3)
    ),
    "drawn": lambda: DataLoader(Drawn(), batch_size=4, shuffle=True),
    "generator": generated,
    "feed": lambda: stoker.Feed(make_store(), stoker.Windows(6, horizon=1), batch_size=16, order=stoker.Shuffle(7)),
}


ALIKE = dict.fromkeys(("shuffled", "own generator"), pytest.mark.slow)
"""Loaders like "drawn"."""


def fitted(kind: str, **options: Any) -> tuple[nn.Module, torch.Tensor]:
    model = network(dropout=0.3)
    torch.manual_seed(2)
    loss = stoker.train.supervised(nn.MSELoss(), x="x", y="x_target") if kind == "feed" else nn.MSELoss()
    batches = SOURCES[kind]()
    epochs = 1 if kind == "generator" else SHORT
    trainer_of(model, loss, precision="fp32", compile=False, **options).fit(batches, epochs=epochs)
    return model, torch.rand(4)


@pytest.mark.promise("P15")
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=ALIKE.get(kind, ())) for kind in SOURCES])
def test_measuring_leaves_no_trace_in_data_or_random_numbers(kind: str, pace: Any) -> None:
    pace(lambda setup: 1.0)  # nothing is faster, so nothing is chosen
    measured, after = fitted(kind, measured=True)
    told, expected = fitted(kind)
    assert same_weights(measured, told)
    assert torch.equal(after, expected)


@pytest.mark.promise("P15", control=True)
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=ALIKE.get(kind, ())) for kind in ("shuffled", "own generator", "drawn")])
def test_batches_that_are_read_ahead_would_leave_one(kind: str, pace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: what was done before."""

    def peek(self: Stream, count: int) -> list[Any]:
        iterator = iter(self.batches)
        return [next(iterator) for _ in range(count)]

    monkeypatch.setattr(Stream, "peek", peek)
    pace(lambda setup: 1.0)
    assert not same_weights(fitted(kind, measured=True)[0], fitted(kind)[0])


class Counting(nn.Module):
    """A model, or a loss, that counts its calls in an attribute and in a buffer, and computes with them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.line = nn.Linear(6, 1)
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        self.calls += 1
        self.total += 1
        out: torch.Tensor = self.line(x) if y is None else ((x - y) ** 2).mean()
        return out * (1 + 0.1 * self.calls) + self.total


@pytest.mark.promise("P15")
def test_what_modules_count_is_put_back(pace: Any) -> None:
    pace(lambda setup: 1.0)
    found = []
    for measured in (True, False):
        torch.manual_seed(0)
        model, criterion = Counting(), Counting()
        trainer_of(model, criterion, precision="fp32", compile=False, measured=measured).fit(pairs(), epochs=SHORT)
        found.append((model.calls, criterion.calls, model.line.weight.detach().clone()))
    assert found[0][:2] == found[1][:2] == (12 * SHORT, 12 * SHORT)
    assert torch.equal(found[0][2], found[1][2])


SHARED: list[int] = []


class Keeping(nn.Module):
    """A model that counts its calls in one kind of attribute, and computes with the count."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.line = nn.Linear(6, 1)
        self.tensor, self.table, self.items, self.recent = torch.zeros(()), {"a": {"n": 0}}, [torch.zeros(())], deque([0])
        self.names, self.held = {0}, SHARED

    def count(self) -> int:
        if self.kind == "tensor":
            self.tensor += 1
            return int(self.tensor)
        if self.kind == "other tensor":
            self.tensor = self.tensor + 1
            return int(self.tensor)
        if self.kind == "dict":
            self.table["a"]["n"] += 1
            return self.table["a"]["n"]
        if self.kind == "list":
            self.items[0] += 1
            return int(self.items[0])
        if self.kind == "new":
            self.made = getattr(self, "made", 0) + 1
            return self.made
        kept: Any = {"deque": self.recent, "set": self.names, "shared": SHARED}[self.kind]
        (kept.add if self.kind == "set" else kept.append)(len(kept))
        return len(kept)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.line(x) * (1 + 0.01 * self.count())
        return out


@functools.cache
def weights_of_keeping(kind: str, measured: bool, *, puts_back: bool = True) -> torch.Tensor:
    SHARED.clear()
    torch.manual_seed(0)
    model = Keeping(kind)
    trainer_of(model, precision="fp32", compile=False, measured=measured).fit(pairs(), epochs=SHORT)
    return model.line.weight.detach().clone()


KEPT = ["tensor", "other tensor", "dict", "list", "new", "deque", "set", "shared"]


@pytest.mark.promise("P23")
@pytest.mark.parametrize("kind", KEPT)
def test_what_modules_keep_in_tensors_and_containers_is_put_back(kind: str, pace: Any) -> None:
    pace(lambda setup: 1.0)
    assert torch.equal(weights_of_keeping(kind, True), weights_of_keeping(kind, False))


@pytest.mark.promise("P23", control=True)
@pytest.mark.parametrize("kind", [KEPT[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in KEPT[1:])])
def test_negative_control_what_is_not_put_back_would_be_seen(kind: str, pace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pace(lambda setup: 1.0)
    monkeypatch.setattr(engine_module, "_put_back", lambda layer, attributes: None)
    assert not torch.equal(weights_of_keeping(kind, True, puts_back=False), weights_of_keeping(kind, False))


def test_a_digest_sees_every_bit() -> None:
    model = network(norm=True)
    optimizer = torch.optim.AdamW(model.parameters())
    nn.functional.mse_loss(model(pairs(1)[0][0]), pairs(1)[0][1]).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    snapshot = Snapshot(model, optimizer)
    before = snapshot.digest()
    tensors = [*model.parameters(), *model.buffers(), *(value for state in optimizer.state.values() for value in state.values())]
    assert snapshot.digest() == before
    for tensor in tensors:
        raw = tensor.detach().reshape(-1).view(torch.uint8)
        raw[0] ^= 1
        assert snapshot.digest() != before
        raw[0] ^= 1
    assert snapshot.digest() == before


# ---- recorded, resumed, copied ----


class Stop(Exception):
    """The end of a process, for tests that stay in one."""


def stop_at_call(model: nn.Module, call: int | None, stop: Callable[[], None], counts: Callable[[], bool] = lambda: True) -> None:
    """Let the n-th forward pass, counted from 0, call `stop`. Not the loss: what that closes over is part of what a run is."""
    count = 0

    def hook(*_: Any) -> None:
        nonlocal count
        if counts():
            count += 1
            if count - 1 == call:
                stop()

    model.register_forward_pre_hook(hook)


def raise_stop() -> None:
    raise Stop


def run_in(folder: Path, *, stop_at: int | None = None, resume: bool = False, **options: Any) -> tuple[Setup, nn.Module]:
    model = network(dropout=0.2)
    torch.manual_seed(3)
    stop_at_call(model, stop_at, raise_stop, counts=(folder / "run.json").exists)  # measured steps come before that file
    trainer = trainer_of(model, folder=folder, save_every=20, **options)
    result = trainer.fit(pairs(), epochs=SHORT, resume=resume)
    return result.setup, model


@pytest.mark.promise("P23")
def test_the_setup_is_recorded_before_the_first_step_and_resumed_without_a_checkpoint(tmp_path: Path, pace: Any) -> None:
    pace(faster_with_all)
    with pytest.raises(Stop):
        run_in(tmp_path / "killed", stop_at=0, measured=True)
    chosen = Setup(precision="bf16", fused=True)
    assert recorded_setup(tmp_path / "killed") == chosen
    trials = {trial["name"]: trial for trial in read_record(tmp_path / "killed").last.trials}
    assert trials["fused"]["chosen"]
    assert trials["fused"]["gain_low"] == trials["fused"]["gain_high"] == 2.0
    assert not list((tmp_path / "killed" / "checkpoints").glob("step-*"))
    pace(lambda setup: 1.0)  # now another setup would be chosen
    setup, model = run_in(tmp_path / "killed", resume=True, measured=True)
    assert setup == chosen
    setup, copied = run_in(tmp_path / "copied", **asdict(chosen))
    assert setup == chosen
    assert same_weights(model, copied)


@pytest.mark.promise("P23", control=True)
def test_a_run_that_chose_again_would_be_seen(tmp_path: Path, pace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: resume without looking at what is recorded."""
    pace(faster_with_all)
    _, whole = run_in(tmp_path / "whole", measured=True)
    with pytest.raises(Stop):
        run_in(tmp_path / "killed", stop_at=0, measured=True)
    monkeypatch.setattr(Trainer, "_known_setup", lambda *given, **options: None)
    pace(lambda setup: 1.0)
    setup, model = run_in(tmp_path / "killed", resume=True, measured=True)
    assert setup == Setup()
    assert not same_weights(model, whole)


def test_a_setup_that_cannot_be_had_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        run_in(tmp_path / "run", stop_at=0, fused=True)
    path = tmp_path / "run" / "run.json"
    record = json.loads(path.read_bytes())
    for change, message in (
        ({"precision": "evil"}, r"the setup in .*run\.json is .*which is invalid"),
        ({"graph": True}, r"not possible here: it has a CUDA graph, but the model is on cpu"),
        ({"precision": "fp16"}, r"not possible here: it has fp16, but the model is on cpu"),
    ):
        record["sessions"][-1]["config"]["setup"] = asdict(Setup(fused=True)) | change
        path.chmod(0o644)
        path.write_text(json.dumps(record))
        with pytest.raises((TrainError, OptionError), match=message):
            run_in(tmp_path / "run", resume=True)
    del record["sessions"][-1]["config"]["setup"]
    path.write_text(json.dumps(record))
    with pytest.raises(TrainError, match="has no setup, so none can be taken from it"):
        run_in(tmp_path / "run", resume=True)


@pytest.mark.parametrize("stop_at", [0, 30])
def test_a_resumed_run_refuses_another_setup_unless_allowed(stop_at: int, tmp_path: Path) -> None:
    """With and without a checkpoint."""
    with pytest.raises(Stop):
        run_in(tmp_path / "run", stop_at=stop_at, fused=True)
    with pytest.raises(CheckpointInvalidError, match=r"setup.precision: 'fp32' saved, 'bf16' now"):
        run_in(tmp_path / "run", resume=True, precision="bf16")
    with pytest.raises(CheckpointInvalidError, match=r"setup.fused: True saved, False now"):
        run_in(tmp_path / "run", resume=True, fused=False)
    model = network(dropout=0.2)
    trainer = trainer_of(model, folder=tmp_path / "run", save_every=20, precision="bf16")
    result = trainer.fit(pairs(), epochs=SHORT, resume=True, allow=["setup.precision"])
    assert result.setup == Setup(precision="bf16", fused=True)


# ---- beside a CPU hog ----


class Killed(BaseException):
    """The end of a process, which nothing catches."""


def train(
    folder: str | None,
    *,
    kill_at: int | None = None,
    kill: Callable[[], None],
    epochs: int = 30,
    resume: bool = False,
    **options: Any,
) -> Any:
    """A run that ends at the n-th call of its model, counted from 1: while setups are measured, or later."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
    loss = stoker.train.supervised(nn.MSELoss(), x="x", y="x_target")
    stop_at_call(model, None if kill_at is None else kill_at - 1, kill)
    feed = stoker.Feed(make_store(), stoker.Windows(8, horizon=1), batch_size=16, order=stoker.Shuffle(7))
    trainer = trainer_of(model, loss, folder=folder, save_every=60, max_grad_norm=1.0, **options)
    result = trainer.fit(feed, epochs=epochs, resume=resume)
    return {"setup": asdict(result.setup), "bits": bits(dict(model.state_dict())), "step": result.step}


def train_here(folder: Path | None = None, **options: Any) -> Any:
    def kill() -> None:
        raise Killed

    return train(str(folder) if folder is not None else None, kill=kill, **options)


def train_in_child(**options: Any) -> Any:
    """The same in a process that dies."""
    torch.set_num_threads(1)
    return train(kill=lambda: os.kill(os.getpid(), signal.SIGKILL), **options)


MOMENTS = (1, 2, 30, 59, 60, 61, 100, 200, 300, 330)
"""Calls of the model at which a run is killed: its first step, before and after the first checkpoint (60), and its last step."""


@pytest.fixture
def quick_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that do not ask git, which takes most of the time of a small one."""
    monkeypatch.setattr("stoker.train.run.find_commit", lambda folder: None)


# A hog takes all cores from the tests beside it.
@pytest.mark.promise("P23")
@pytest.mark.parametrize(
    ("moments", "epochs", "beside"),
    [((2, 61), 7, contextlib.nullcontext), pytest.param(MOMENTS, 30, hog, marks=pytest.mark.slow)],
)
def test_one_config_gives_one_set_of_bits_beside_a_cpu_hog(
    quick_runs: None, tmp_path: Path, moments: tuple[int, ...], epochs: int, beside: Callable[[], AbstractContextManager[None]]
) -> None:
    """Several times, and ended at several moments: the same weights. By an exception; by kill -9 in the slow test below."""
    with beside():
        found = [train_here(epochs=epochs) for _ in moments]
        for moment in moments:
            with pytest.raises(Killed):
                train_here(tmp_path / f"ended-{moment}", kill_at=moment, epochs=epochs)
            found.append(train_here(tmp_path / f"ended-{moment}", resume=True, epochs=epochs))
    assert found[0]["step"] == 11 * epochs
    assert all(one == found[0] for one in found)


@pytest.mark.promise("P23", control=True)
def test_a_choice_by_the_clock_would_give_several(monkeypatch: pytest.MonkeyPatch, pace: Any) -> None:
    """Negative control: the same run where what is faster at the moment is taken, as was done before."""
    found = []
    for number in range(2):
        monkeypatch.undo()
        pace(lambda setup, number=number: 1.0 if number else faster_with_all(setup))
        found.append(train_here(measured=True, precision="fp32", compile=False, epochs=7)["bits"])
    assert found[0] != found[1]


@pytest.mark.promise("P23")
@pytest.mark.parametrize(
    ("moment", "beside"),
    [(40, contextlib.nullcontext), *(pytest.param(moment, hog, marks=pytest.mark.slow) for moment in (3, 40, 150))],
)
def test_a_measured_setup_stays_that_of_its_run_beside_a_cpu_hog(
    quick_runs: None, tmp_path: Path, moment: int, beside: Callable[[], AbstractContextManager[None]]
) -> None:
    """Ended while setups are measured, or later; a run that copies the setup has the same bits."""
    options: Any = {"precision": "fp32", "compile": False}
    with beside():
        with pytest.raises(Killed):
            train_here(tmp_path / "run", kill_at=moment, measured=True, **options)
        ended = train_here(tmp_path / "run", resume=True, measured=True, **options)
        assert all(one.config["setup"] == ended["setup"] for one in read_record(tmp_path / "run").sessions)
        assert train_here(tmp_path / "copy", **{**options, **ended["setup"]}) == ended


@pytest.mark.promise("P23")
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("options", [{}, {"fused": True, "precision": "bf16"}, {"measured": True}], ids=str)
def test_kill_9_at_ten_moments_leaves_one_set_of_bits(torch_zygote: Zygote, options: dict[str, Any], tmp_path: Path) -> None:
    """A measured run has the bits of one that copies its setup."""
    with hog():
        for moment in MOMENTS:
            folder = str(tmp_path / str(moment))
            outcome = torch_zygote.run(train_in_child, folder=folder, kill_at=moment, **options)
            assert outcome.signal == signal.SIGKILL, outcome
            ended = torch_zygote.run(train_in_child, folder=folder, resume=True, **options).check()
            copied = torch_zygote.run(train_in_child, folder=str(tmp_path / f"copy-{moment}"), **ended["setup"]).check()
            assert copied == ended
            assert "measured" in options or ended["setup"] == {**asdict(Setup()), **options}
