"""The ladder: it never goes down, and it says what the measured stretches say."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from tests.diagnose.measured import on_cpu, on_gpu
from tests.diagnose.test_verdict_rule import PROGRAMS, cpu_runs, gpu_runs

from stoker.diagnose.attribution import attribute
from stoker.diagnose.measurements import Measurements, Stretch
from stoker.diagnose.verdict import REMOVED_CAUSES, ladder


def test_the_known_program_has_its_known_ladder() -> None:
    measured = PROGRAMS["data_python"][1]
    levels = ladder(measured, attribute(measured))
    assert list(levels) == ["now", *REMOVED_CAUSES["cuda"], "roofline"]
    assert levels["now"] == pytest.approx(74, rel=0.01)
    assert levels["data_free"] == pytest.approx(165, rel=0.02)
    assert levels["launch_free"] == pytest.approx(308, rel=0.03)
    assert levels["roofline"] > 5_000


def test_next_to_no_floating_point_work_gives_no_roofline() -> None:
    measured = on_gpu(9.41, cached=9.41, issue=3.2, device=9.41, kernels=115)
    assert "roofline" not in ladder(measured, attribute(measured))
    little = on_cpu(flops=1e3)
    assert list(ladder(little, attribute(little))) == ["now", *REMOVED_CAUSES["cpu"]]
    enough = on_cpu(flops=1e9)
    assert "roofline" in ladder(enough, attribute(enough))


def test_a_cpu_has_no_levels_of_a_gpu() -> None:
    measured = on_cpu()
    assert not {"sync_free", "launch_free"} & set(ladder(measured, attribute(measured)))


def test_no_steps_have_no_ladder() -> None:
    measured = on_cpu(loop=Stretch(seconds=[]))
    assert ladder(measured, attribute(measured)) == {}


@given(cpu_runs() | gpu_runs())
def test_each_level_is_at_least_the_one_before(measured: Measurements) -> None:
    rates = list(ladder(measured, attribute(measured)).values())
    assert all(math.isfinite(rate) and rate > 0 for rate in rates)
    assert rates == sorted(rates)
