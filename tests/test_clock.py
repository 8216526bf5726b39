"""How long threads wait for a core that others have, as the system tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker import _clock
from stoker._clock import RunQueueDelay


def threads(folder: Path, **waited: int) -> None:
    for name, nanoseconds in waited.items():
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "schedstat").write_text(f"123456 {nanoseconds} 7\n")


def test_the_thread_that_waited_most_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_clock, "TASKS", tmp_path)
    threads(tmp_path, t1=100, t2=5000)
    waiting = RunQueueDelay()
    threads(tmp_path, t1=400, t2=5100, t3=250)
    (tmp_path / "t4").mkdir()  # a thread that ends while it is looked at
    assert waiting.end()[0] == 300


def test_a_system_that_does_not_report_gives_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_clock, "TASKS", tmp_path / "nowhere")
    assert RunQueueDelay().end()[0] is None
