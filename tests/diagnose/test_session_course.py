"""The course of a diagnosis: what comes before what."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stoker.diagnose import session as module
from stoker.diagnose.steps import Training


@pytest.fixture
def stretches(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The names of all stretches in the order in which a device has them."""

    def run(device: Any) -> list[str]:
        names: list[str] = []

        def noted(name: str) -> Any:
            def stretch(*args: Any, **options: Any) -> Any:
                names.append(name + (" safe" if options.get("safe") else ""))
                return iter(())

            return stretch

        for owner, found in (
            (module.loop, ("warm_up", "phases", "as_it_is", "whole_periods", "without_data", "other_threads")),
            (module.step, ("lines", "operations", "times_of_operations")),
            (module.device, ("alone", "copies", "issuing")),
            (module.loader, ("look_into",)),
            (module, ("what_ifs",)),
        ):
            for name in found:
                monkeypatch.setattr(owner, name, noted(name))
        monkeypatch.setattr(module, "find_ranks", lambda: None)
        training = Training()
        training.device = device
        steps: Any = SimpleNamespace(training=training, late=False, begin=lambda: None, patience=1.0)
        for _ in module.course(steps):
            pass
        return names

    return run


def test_a_gpu_is_measured_before_its_kernels_are_profiled(stretches: Any) -> None:
    names = stretches("cuda")
    profile = names.index("times_of_operations")
    assert names[profile - 3 : profile] == ["alone", "copies", "what_ifs safe"]
    assert names[profile + 1] == "issuing", "so that it is known what it left behind"
    assert names[-1] == "what_ifs", "those that may end the program come last"


def test_a_cpu_looks_at_fixes_once(stretches: Any) -> None:
    names = stretches("cpu")
    assert names.index("whole_periods") < names.index("lines"), "whether there are rare steps is known before lines are looked at"
    assert "what_ifs safe" not in names
    assert names[-1] == "what_ifs"
    assert {"alone", "copies"}.isdisjoint(names)
