"""The order of measurement windows."""

from __future__ import annotations

from typing import Any

import pytest
from tests.diagnose.measured import on_cpu

from stoker.diagnose import windows
from stoker.diagnose.division import Division
from stoker.diagnose.session import Session
from stoker.diagnose.windows import measure_all


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The names of all windows in the order in which a device has them."""

    def run(device: Any) -> list[str]:
        names: list[str] = []

        def noted(name: str) -> Any:
            def window(*args: Any, **options: Any) -> Any:
                names.append(name + (" repeats" if session.repeats else ""))
                return iter(())

            return window

        loop = ("warm_up", "phases", "baseline", "rare_steps", "with_core", "without_data", "other_threads")
        for name in (*loop, "lines", "operations", "operation_times", "removals", "device_alone", "profile_batches"):
            monkeypatch.setattr(windows, name, noted(name))
        monkeypatch.setattr(windows, "measure_fixes", noted("measure_fixes"))
        monkeypatch.setattr(windows, "find_ranks", lambda: None)
        monkeypatch.setattr(windows, "so_far", lambda session: on_cpu())
        session = Session(measure_all, on_done=lambda: None)
        session.device = device
        try:
            for _ in windows.measure_all(session):
                pass
        finally:
            session.remove()
        return names

    return run


@pytest.mark.parametrize("host_limits", [True, False])
def test_the_kernels_of_a_gpu_that_waits_for_its_host_are_not_profiled(
    order: Any, host_limits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a profile the host starts kernels slower."""
    monkeypatch.setattr(Session, "measurements", lambda session, machine=None: None)
    monkeypatch.setattr(windows, "divide", lambda measured: Division(step=1.0, parts={"launch": 0.5 * host_limits}))
    names = order("cuda")
    profiled = [] if host_limits else ["operation_times"]
    assert names[names.index("removals") :] == ["removals", "device_alone", "profile_batches", *profiled, "measure_fixes"]


def test_on_a_busy_cpu_the_likely_cause_comes_first(order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calm = order("cpu")
    monkeypatch.setattr(windows, "is_disturbed", lambda session: True)
    busy = order("cpu")
    assert busy.count("baseline") == 1 < calm.count("baseline")
    assert {"with_core", "lines", "operations", "operation_times", "profile_batches"} <= set(busy)
    assert {"other_threads", "measure_fixes"}.isdisjoint(busy)
    assert busy[-1] == "removals" != calm[-1]


def test_a_loop_that_waits_for_the_interpreter_lock_is_not_run_with_other_threads(
    order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "other_threads" in order("cpu")
    monkeypatch.setattr(windows, "waits_for_interpreter", lambda measured: True)
    assert "other_threads" not in order("cpu")
