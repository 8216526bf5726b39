"""Signals: the first asks, the second Ctrl-C ends at once, and handlers are put back. Children are signalled, not the test."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.harness import Zygote
from tests.train.training import Pair, grouped, network, pairs, trainer_of

import stoker
from stoker._clock import Spans
from stoker.train.fit import SIGNALS, Signals
from stoker.train.run import read_slowdowns
from stoker.watch import loop as watches

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


def exit_code(signals: Signals) -> int:
    """What a command that was asked to end returns to its shell."""
    return 0 if signals.asked is None else 128 + signals.asked


def send(*numbers: int) -> list[Any]:
    """Signal oneself within the loop; what was asked after each."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seen: list[Any] = []
    with Signals() as signals:
        for number in numbers:
            try:
                os.kill(os.getpid(), number)
                seen.append(signals.asked)
            except KeyboardInterrupt:
                seen.append("interrupted")
    return [*seen, exit_code(signals), signal.Signals(signals.asked or 0).name]


def send_in_child(numbers: list[int]) -> list[Any]:
    return send(*numbers)


@pytest.mark.parametrize("first", SIGNALS)
def test_a_ctrl_c_after_any_signal_interrupts_at_once(zygote: Zygote, first: signal.Signals) -> None:
    seen = zygote.run(send_in_child, numbers=[first, signal.SIGINT]).check()
    assert seen == [first, "interrupted", CODES[first], first.name]


def leave_by(number: int) -> None:
    """A loop that is asked to end and leaves as a command does."""
    with Signals() as signals:
        while signals.asked is None:
            os.kill(os.getpid(), number)
    raise SystemExit(exit_code(signals))


@pytest.mark.parametrize("number", SIGNALS)
def test_the_exit_code_is_that_of_the_signal(zygote: Zygote, number: signal.Signals) -> None:
    assert zygote.run(leave_by, number=number).exit == CODES[number]


def die_by(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    with Signals():
        pass
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_negative_control_without_the_handler_a_signal_kills(zygote: Zygote, number: signal.Signals) -> None:
    assert zygote.run(die_by, number=number).signal == number


def test_handlers_of_signals_are_put_back_also_after_an_error() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(ZeroDivisionError), Signals():
        _ = 1 / 0
    assert [signal.getsignal(number) for number in SIGNALS] == before


def ignore_and_send() -> list[Any]:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGHUP)
    return [signals.asked, exit_code(signals), signal.getsignal(signal.SIGHUP) is signal.SIG_IGN]


def test_what_nohup_ignores_stays_ignored(zygote: Zygote) -> None:
    assert zygote.run(ignore_and_send).check() == [None, 0, True]


# The share of waiting is that of the data alone


HOUR = 3_600_000_000_000


class Slow:
    """Batches of which each takes a moment, and after each an hour is noted in a clock: all that it took."""

    def __init__(self, noted: Spans | None) -> None:
        self.noted = noted
        self.pacing = noted

    def note(self) -> None:
        time.sleep(0.05)
        if self.noted is not None:
            self.noted.add(0, HOUR)

    def __iter__(self) -> Iterator[Pair]:
        for pair in pairs(3):
            self.note()
            yield pair
        self.note()


@pytest.mark.parametrize("counts_as", ["compiling", "pacing"])
def test_compiling_and_waiting_for_the_device_do_not_count(counts_as: str, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Spans()
    batches = Slow(noted)
    if counts_as == "compiling":
        batches.pacing = None
        monkeypatch.setattr("stoker.train.fit.compile_ns", lambda: noted.total_ns)
    assert trainer_of(network()).fit(batches, epochs=1).wait < 0.5  # the start of a pass counts, and takes microseconds


def test_waiting_for_batches_counts() -> None:
    result = trainer_of(network()).fit(Slow(None), epochs=1)
    assert result.wait * result.seconds >= 0.004


# The watch of a trainer: slowdowns of updates are in its result and in the folder of its run


BATCH = (torch.ones(2, 3), torch.zeros(2, 1))


class Steps:
    """A clock that advances by a step each time the watch reads it."""

    def __init__(self, rng: np.random.Generator, slow_from: int) -> None:
        self._rng, self._slow_from = rng, slow_from
        self._reads = self._now = 0

    def __call__(self) -> int:
        self._reads += 1
        self._now += int(1e6 * (1.3 if self._reads >= self._slow_from else 1.0) * (1 + 0.02 * self._rng.standard_normal()))
        return self._now


def fit(batches: Any, *, epochs: int = 1, overwrite: bool = False, **options: Any) -> stoker.train.Result:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    options = grouped({"progress": False, **options})
    return stoker.Trainer(model, torch.nn.MSELoss(), optimizer, **options).fit(batches, epochs=epochs, overwrite=overwrite)


@pytest.fixture
def slow_from_720(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> Iterator[None]:
    monkeypatch.setattr(watches, "now_ns", Steps(rng, 720))
    return


@pytest.mark.promise("P22")
@pytest.mark.usefixtures("slow_from_720")
def test_a_slowdown_is_in_the_result_the_folder_and_the_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = fit([BATCH] * 830, folder=tmp_path / "run", progress=True)
    (slowdown,) = result.slowdowns
    assert 700 < slowdown.step <= 820
    assert slowdown.slower == pytest.approx(0.3, abs=0.08)
    assert read_slowdowns(tmp_path / "run") == [slowdown]
    assert str(slowdown) in capsys.readouterr().out


@pytest.mark.promise("P22", control=True)
@pytest.mark.usefixtures("slow_from_720")
def test_negative_control_without_the_watch_nothing_is_found(tmp_path: Path) -> None:
    assert fit([BATCH] * 830, folder=tmp_path / "run", watch=False).slowdowns == ()
    assert not (tmp_path / "run" / "slowdowns.jsonl").exists()


@pytest.mark.usefixtures("slow_from_720")
def test_epochs_continue_and_a_replaced_run_takes_its_slowdowns_along(tmp_path: Path) -> None:
    result = fit([BATCH] * 415, epochs=2, folder=tmp_path / "run")
    assert result.step == 830
    assert len(result.slowdowns) == 1
    assert fit([BATCH] * 4, folder=tmp_path / "run", overwrite=True).slowdowns == ()
    assert read_slowdowns(tmp_path / "run") == []


@pytest.mark.usefixtures("slow_from_720")
def test_a_file_that_cannot_be_written_does_not_end_the_run(tmp_path: Path) -> None:
    class InItsPlace:
        def on_open(self) -> None:
            (tmp_path / "run" / "slowdowns.jsonl").mkdir(parents=True)

    assert len(fit([BATCH] * 830, folder=tmp_path / "run", callbacks=[InItsPlace()]).slowdowns) == 1
