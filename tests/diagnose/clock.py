"""A clock that ticks only when a test says so, for a whole diagnosis."""

from __future__ import annotations

import pytest

from stoker.diagnose import api, hooks, loops, profilers, rare, recorder, session, windows
from stoker.diagnose.measurements import Machine

MS = 1_000_000
MACHINE = Machine(cores=2, threads=1, matmul_flops={"fp32": 1e9}, dispatch_seconds=1e-6)


class Clock:
    """Takes the place of `now_ns`."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now

    def tick(self, milliseconds: int) -> None:
        self.now += milliseconds * MS


def install_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """All of a diagnosis looks at this clock, on a machine that is known."""
    clock = Clock()
    for module in (api, hooks, loops, profilers, rare, session, windows):
        monkeypatch.setattr(module, "now_ns", clock)
    monkeypatch.setattr(recorder, "measure_machine", lambda device: MACHINE)
    return clock
