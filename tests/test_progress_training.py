"""Progress: what it shows, how seldom it draws, and that it stays out of the way elsewhere."""

from __future__ import annotations

import io
import re

import pytest

from stoker import _progress
from stoker._progress import TrainingProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Time that passes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 100.0
        monkeypatch.setattr(_progress, "now_ns", lambda: int(self.seconds * 1e9))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Clock(monkeypatch)


def frames(terminal: Terminal) -> list[str]:
    """What was drawn, each time the line was drawn anew."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    return [frame.strip() for frame in re.split(r"[\r\n]+", plain) if frame.strip()]


def test_a_terminal_sees_epoch_step_rate_loss_wait_and_time_left(clock: Clock) -> None:
    terminal = Terminal()
    with TrainingProgress(10_000, epochs=25, file=terminal) as bar:
        for step in range(0, 1001, 10):
            bar.update(step, loss=0.12345, wait=0.0131, epoch=2)
            clock.seconds += 0.2
    last = frames(terminal)[-1]
    assert re.fullmatch(r"epoch 3/25 [━╺╸]+ step 1,000/10,000  50 it/s  loss 0\.1235  wait 1 %  3 min 0 s left", last), last


def test_a_bar_is_drawn_at_most_ten_times_per_second(clock: Clock) -> None:
    terminal = Terminal()
    with TrainingProgress(100_000, file=terminal) as bar:
        before = len(frames(terminal))
        for step in range(20_000):
            bar.update(step, loss=1.0)
            clock.seconds += 0.0001
        assert 15 <= len(frames(terminal)) - before <= 21


def test_without_a_terminal_there_is_a_plain_line_every_30_seconds_and_a_last_one(clock: Clock) -> None:
    file = io.StringIO()
    with TrainingProgress(1000, epochs=2, file=file) as bar:
        bar.note("precision bf16: 1.9x [measured]")
        for step in range(1, 1001):
            clock.seconds += 0.125
            bar.update(step, loss=1 / step, wait=0.25, epoch=step // 501)
    note, *lines, last = file.getvalue().splitlines()
    assert note == "precision bf16: 1.9x [measured]"
    assert len(lines) == 4
    assert lines[0] == "step 241 of 1,000 · epoch 1 of 2 · 8 it/s · loss 0.004149 · wait 25 % · 1 min 35 s left"
    assert last == "step 1,000 of 1,000 · epoch 2 of 2 · 8 it/s · loss 0.001 · wait 25 %"
