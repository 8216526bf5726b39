"""The rule of a GPU by experiments: what the removal of a suspect saved is its part of a step.

The times of a step in `PROGRAMS` were measured on an H200 by a probe, with programs whose cause was removed from their source or read
from kernel times. Assumed are: the counts of kernels, operations and waits, the last number but that of scikit-learn, and of "reads that
cost" all but 67 and 32. So these tests say what the rule makes of such times, not how well it does on a GPU.
"""

from __future__ import annotations

from dataclasses import asdict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.diagnose.measured import MS, NO_PHASES, around, on_gpu

from stoker.diagnose.attribution import attribute, removal_ratio
from stoker.diagnose.measurements import Measurements, WhatIf
from stoker.diagnose.rule import conclude

# Milliseconds of a step: as it is, without loading, without uploads, without reads, without all of them; kernels; `rest` in the last.
PROGRAMS = {
    "Trainer of Hugging Face, three reads": (24.1, 23.2, 20.5, 22.4, 22.2, 1.65, 1.0, "launch"),
    "causal language model, six reads": (31.2, 31.6, 28.7, 34.0, 31.1, 3.3, 1.0, "launch"),
    "Lightning with callbacks": (6.2, 6.6, 7.0, 8.2, 6.0, 0.42, 0.5, "launch"),
    "Accelerate, four batches per update": (34.1, 33.0, 32.6, 34.6, 35.9, 4.3, 1.0, "launch"),
    "240 reads per step that cost nothing": (62.1, 61.9, 60.7, 63.2, 59.3, 16.4, 2.0, "launch"),
    "a metric of scikit-learn in each step": (18.6, 17.6, 17.1, 18.8, 16.9, 1.9, 9.8, "host"),
    "60 small uploads": (10.1, 10.6, 2.9, 10.4, 3.1, 0.6, 0.2, "transfer"),
    "video in pageable memory": (22.7, 24.8, 1.6, 21.9, 1.5, 0.5, 0.1, "transfer"),
    "slow samples under Lightning": (69.0, 6.9, 15.5, 67.7, 7.5, 1.1, 0.5, "data"),
    "reads that cost": (67.0, 67.0, 67.0, 32.0, 31.0, 27.0, 0.5, "sync"),
}


def removed(
    step: float, data: float, copies: float, reads: float, everything: float, device: float, rest: float, **more: object
) -> Measurements:
    times = {"copies": copies, "reads": reads, "everything": everything}
    measured = on_gpu(step, cached=data, issue=step, device=device, kernels=500, syncs=12)
    return msgspec.structs.replace(
        measured,
        removed={name: WhatIf(as_it_is=around(step * MS), with_fix=around(seconds * MS)) for name, seconds in times.items()},
        phases_alone=msgspec.structs.replace(NO_PHASES, rest=rest * MS, forward=(everything - rest) * MS),
        work=msgspec.structs.replace(measured.work, ops=2000, device_seconds=device * MS) if measured.work is not None else None,
        **more,
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_cause_is_what_gains_when_it_is_removed(name: str) -> None:
    *times, verdict = PROGRAMS[name]
    assert conclude(removed(*times)).verdict == verdict  # type: ignore[arg-type]


def test_negative_control_without_experiments_uploads_are_not_found() -> None:
    *times, verdict = PROGRAMS["60 small uploads"]
    inferred = msgspec.structs.replace(removed(*times), removed={})  # type: ignore[arg-type]
    assert verdict == "transfer" != conclude(inferred).verdict


def test_matmuls_in_float32_are_the_device() -> None:
    measured = removed(125, 133, 133, 133, 133, 124, 0.5)
    assert measured.work is not None
    work = msgspec.structs.replace(measured.work, flops=0.9 * 5.1e13 * 0.125, shares={"gemm": 0.95, "elementwise": 0.05})
    assert conclude(msgspec.structs.replace(measured, work=work)).verdict == "precision"


@given(st.lists(st.floats(0.05, 200), min_size=7, max_size=7))
def test_no_part_exceeds_the_whole_and_the_parts_are_the_step(times: list[float]) -> None:
    attribution = attribute(removed(*times))
    values = asdict(attribution.parts).values()
    assert all(-1e-9 <= value <= attribution.step * (1 + 1e-9) for value in values)
    assert sum(values) == pytest.approx(attribution.step, rel=1e-6)


@given(st.lists(st.floats(0.05, 200), min_size=7, max_size=7))
def test_no_cause_is_larger_than_what_its_removal_saved_together_with_the_others(times: list[float]) -> None:
    measured = removed(*times)
    attribution = attribute(measured)
    together = max(0.0, 1 - (removal_ratio(measured, "everything") or 1.0))
    assert attribution.share("transfer") + attribution.share("sync") <= together + 1e-9


@pytest.mark.parametrize("scale", [0.01, 1000.0])
def test_the_verdict_does_not_depend_on_the_unit_of_time(scale: float) -> None:
    *times, verdict = PROGRAMS["60 small uploads"]
    assert conclude(removed(*(scale * value for value in times))).verdict == verdict  # type: ignore[arg-type, operator]
