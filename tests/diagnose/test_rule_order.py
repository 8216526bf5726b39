"""The order of causes on a CPU, why a small one may be the first, and when there is no verdict."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.diagnose.measured import COMPUTING, LOG, MS, TWO_CORES, around, on_cpu

from stoker.diagnose.division import divide
from stoker.diagnose.measurements import (
    BusyThread,
    Loader,
    Measurements,
    Stretch,
    WhatIf,
)
from stoker.diagnose.rule import conclude, doubt, rank
from stoker.diagnose.wording import TITLES, percent, why_first

OVERSUBSCRIBED = msgspec.structs.replace(TWO_CORES, threads=16)


@pytest.mark.promise("P17")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"number": 5}, "only 5 steps were measured, and 12 are needed: let the program run longer"),
        ({"number": 1}, "only one step was measured"),
        ({"waited_for_cores": 0.2}, "for 20 % of the time other programs had the cores: run it again while nothing else"),
        ({"work": None}, "the program ended before its work could be counted"),
        ({"loop": Stretch(seconds=[])}, "only 0 steps were measured"),
    ],
)
def test_no_verdict_says_why(options: dict[str, Any], reason: str) -> None:
    assert (doubt(on_cpu(**options)) or "").startswith(reason)


def test_a_crowd_of_its_own_is_not_an_other_program() -> None:
    by_threads = {"1": 0.004, "2": 0.003, "16": 0.0097}
    cached = around(9.7 * MS, spread=0.5)
    measured = on_cpu(machine=OVERSUBSCRIBED, fewer_threads=by_threads, waited_for_cores=0.8, cached=cached)
    assert doubt(measured) is None
    assert rank(measured)[0].verdict == "oversubscribed"


def test_a_training_run_that_broke_off_gets_no_verdict_by_what_little_is_known() -> None:
    measured = on_cpu(next=1.5, forward=2.0, backward=1.0, optimizer=2.0, work=None, cached=None)
    assert max(cause.share for cause in rank(measured)) > 0.25
    assert "ended before its work could be counted" in (doubt(measured) or "")


@pytest.mark.promise("P17")
def test_what_workers_compute_on_the_cores_of_the_training_is_data() -> None:
    """Two workers on the two cores of the training (dcgan): a batch takes 5.8 ms alone, so 11.6 ms of the cores."""
    options = {"next": 1.7, "forward": 15.0, "backward": 22.0, "cached": around(23.4 * MS), "loader_alone": around(5.8 * MS)}
    few, crowd = (on_cpu(**options, loader=Loader(kind="DataLoader", workers=workers)) for workers in (2, 3))
    assert rank(few)[0].verdict == "data"
    assert rank(crowd)[0].verdict == "oversubscribed", "more than two threads and workers per core, each of which keeps up alone"


def test_fewer_threads_gain_no_more_than_steps_with_them_in_turn() -> None:
    """A window of its own may have been a lucky one."""

    def share(fewer: float, in_turn: float) -> float:
        tried = WhatIf(as_it_is=around(9.8 * MS), with_fix=around(in_turn * MS))
        machine = msgspec.structs.replace(TWO_CORES, threads=4)
        measured = on_cpu(machine=machine, fewer_threads={"1": fewer * MS, "4": 9.7 * MS}, what_ifs={"threads": tried})
        return divide(measured).share("oversubscribed")

    assert share(7.0, 7.1) == pytest.approx(0.27, abs=0.02)
    assert share(7.0, 9.8) == pytest.approx(0.0, abs=1e-6)
    assert share(9.8, 7.1) == pytest.approx(0.0, abs=1e-6)


CALLS = {"gemm": 0.02, "elementwise": 0.02, "optimizer": 0.05, "other": 0.91}


@pytest.mark.parametrize(
    ("measured", "order", "reason"),
    [
        (on_cpu(next=2.0), "data compute", "waste comes before work"),
        (
            on_cpu(ops=200.0, shares={"gemm": 0.28, "elementwise": 0.26, "optimizer": 0.05, "other": 0.4}),
            "compute dispatch",
            "the work as a whole takes longer",
        ),
        (on_cpu(next=8.0, ops=3000.0, shares=CALLS), "data dispatch", "waste comes before work"),
        (on_cpu(optimizer=6.7, shares={**COMPUTING, "elementwise": 0.0}), "optimizer compute", "from 40 % of the work on"),
    ],
)
def test_a_first_cause_with_a_smaller_share_says_why_it_is_first(measured: Measurements, order: str, reason: str) -> None:
    finding = conclude(measured)
    assert " ".join(cause.verdict for cause in finding.causes[:2]) == order
    assert finding.causes[0].share < finding.causes[1].share
    assert reason in why_first(finding.causes)
    second = finding.causes[1]
    assert f"then {TITLES[second.verdict]}, {percent(second.share)}: {why_first(finding.causes)})" in str(finding)


AROUND = {"gemm": 0.05, "elementwise": 0.05, "other": 0.9}
"""Of a profile in which next to nothing is an operation of torch."""


def test_a_profile_without_operations_leaves_a_thread_that_holds_the_interpreter_lock_its_time() -> None:
    thread = BusyThread(name="statistics", share=0.97, place=LOG)
    held = conclude(on_cpu(ops=150.0, shares=AROUND, busy_thread=thread, asleep=0.9))
    assert (held.verdict, held.place) == ("host", LOG)
    assert "statistics" in held.why
    alone = conclude(on_cpu(ops=150.0, shares=AROUND, busy_thread=thread, asleep=0.0))
    assert "statistics" not in alone.why
