"""What tests of experiments have in common: the number of a step, and values that are read one step late."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.diagnose.experiments.samples import StepNumber

from stoker.diagnose.experiments.reads import WithoutReads


@pytest.fixture
def clock() -> StepNumber:
    return StepNumber()


@pytest.fixture
def reads(clock: StepNumber, monkeypatch: pytest.MonkeyPatch) -> Iterator[WithoutReads]:
    """WithoutReads of the CPU's tensors, as there may be no GPU."""
    monkeypatch.setattr(WithoutReads, "device", "cpu")
    experiment = WithoutReads(clock)
    yield experiment
    experiment.remove()
