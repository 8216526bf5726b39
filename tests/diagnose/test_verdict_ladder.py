"""The ladder: it never goes down, and it says what the measured stretches say."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from tests.diagnose.measured import on_cpu, on_gpu
from tests.diagnose.test_verdict_rule import PROGRAMS, cpu_runs, gpu_runs

from stoker.diagnose.attribution import divide
from stoker.diagnose.measurements import Measurements, Stretch
from stoker.diagnose.verdict import RUNGS, climb


def test_the_known_program_has_its_known_ladder() -> None:
    measured = PROGRAMS["data_python"][1]
    ladder = climb(measured, divide(measured))
    assert list(ladder) == ["now", *RUNGS, "roofline"]
    assert ladder["now"] == pytest.approx(74, rel=0.01)
    assert ladder["data_free"] == pytest.approx(165, rel=0.02)
    assert ladder["launch_free"] == pytest.approx(308, rel=0.03)
    assert ladder["roofline"] > 5_000


def test_without_floating_point_work_the_roof_is_the_last_rung() -> None:
    measured = on_gpu(9.41, cached=9.41, issue=3.2, device=9.41, kernels=115)
    ladder = climb(measured, divide(measured))
    assert ladder["roofline"] == ladder["launch_free"]


def test_no_steps_have_no_ladder() -> None:
    measured = on_cpu(loop=Stretch(seconds=[]))
    assert climb(measured, divide(measured)) == {}


@given(cpu_runs() | gpu_runs())
def test_each_rung_is_at_least_the_one_before(measured: Measurements) -> None:
    rates = list(climb(measured, divide(measured)).values())
    assert all(math.isfinite(rate) and rate > 0 for rate in rates)
    assert rates == sorted(rates)
