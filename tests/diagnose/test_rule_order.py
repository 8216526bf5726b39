"""The order of causes on a CPU, why a small one may be the first, and when there is no verdict."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.diagnose.measured import COMPUTING, LOG, MOVING, MS, TWO_CORES, around, on_cpu, on_gpu

from stoker.diagnose.division import divide
from stoker.diagnose.measurements import (
    Blame,
    BusyThread,
    Loader,
    Measurements,
    RareSteps,
    Stretch,
    WhatIf,
)
from stoker.diagnose.rule import conclude, doubt, rank
from stoker.diagnose.thresholds import RULE
from stoker.diagnose.wording import TITLES, percent, why_first

OVERSUBSCRIBED = msgspec.structs.replace(TWO_CORES, threads=16)
ON_CPU: dict[str, tuple[str, dict[str, Any]]] = {
    "data, no workers": ("data", {"next": 12.0}),
    "data in the loop": ("data", {"next": 0.0, "prepare": 12.0, "cached": None, "loader": Loader(kind="loop")}),
    "data, two workers": ("data", {"next": 3.0, "loader_alone": around(13 * MS), "loader": Loader(kind="DataLoader", workers=2)}),
    "logging": ("host", {"rest": 6.0}),
    "python in the model": ("host", {"shares": {"gemm": 0.2, "elementwise": 0.1, "optimizer": 0.05, "python": 0.5, "other": 0.15}}),
    "optimizer": ("optimizer", {"optimizer": 9.0}),
    "compute": ("compute", {}),
    "memory": ("memory", {"shares": MOVING, "flops": 1e6}),
    "dispatch": ("dispatch", {"ops": 3500.0, "shares": {"gemm": 0.1, "elementwise": 0.1, "optimizer": 0.05, "other": 0.75}}),
    "threads": ("oversubscribed", {"machine": OVERSUBSCRIBED, "fewer_threads": {"1": 0.004, "2": 0.003, "16": 0.0097}}),
    "workers": (
        "oversubscribed",
        {"next": 3.0, "loader_alone": around(2 * MS), "loader": Loader(kind="DataLoader", workers=12), "cached": around(7 * MS)},
    ),
}  # fmt: skip


def at_speeds(*slower: float, step: float = 9.8 * MS) -> Stretch:
    """Steps in pieces, between which the machine changed its speed."""
    pieces = [around(step * factor).seconds for factor in slower]
    return Stretch(seconds=[one for piece in pieces for one in piece], pieces=[len(piece) for piece in pieces])


@pytest.mark.parametrize(("function", "expected"), [("Layer.forward", "compute"), ("make_batch", "data")])
def test_a_forward_pass_called_as_a_method_is_not_making_a_batch(function: str, expected: str) -> None:
    line = Blame(place=msgspec.structs.replace(LOG, function=function), share=1.0)
    measured = on_cpu(next=0.0, prepare=4.0, forward=1.0, cached=None, blames={"prepare": [line]})
    assert rank(measured)[0].verdict == expected


@pytest.mark.parametrize("name", ON_CPU)
def test_causes_on_a_cpu(name: str) -> None:
    expected, options = ON_CPU[name]
    measured = on_cpu(**options)
    assert doubt(measured) is None
    assert rank(measured)[0].verdict == expected


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"number": 5}, "only 5 steps were measured, and 12 are needed: let the program run longer"),
        ({"number": 1}, "only one step was measured"),
        ({"spread": 0.2}, "steps vary too much (20 %, from 7.84 ms to 11.8 ms): run it again while nothing else uses the machine"),
        ({"waited_for_cores": 0.2}, "for 20 % of the time other programs had the cores: run it again while nothing else"),
        ({"work": None}, "the program ended before its work could be counted"),
        ({"loop": Stretch(seconds=[0.0] * 20)}, "the clock of this machine gave times that are zero, negative or not finite"),
        ({"loop": Stretch(seconds=[])}, "only 0 steps were measured"),
    ],
)
def test_no_verdict_says_why(options: dict[str, Any], reason: str) -> None:
    assert (doubt(on_cpu(**options)) or "").startswith(reason)


def test_a_machine_that_changes_its_speed_while_no_one_else_uses_it_gets_a_verdict() -> None:
    measured = on_cpu(loop=at_speeds(1.0, 1.0, 1.6, 1.6, 1.0), waited_for_cores=0.01)
    assert doubt(measured) is None
    unknown = msgspec.structs.replace(measured, loop=Stretch(seconds=measured.loop.seconds))
    assert "vary too much" in (doubt(unknown) or "")  # as it was, when all steps were taken together


def test_a_crowd_of_its_own_is_not_an_other_program() -> None:
    expected, options = ON_CPU["threads"]
    measured = on_cpu(**options, waited_for_cores=0.8, cached=around(9.7 * MS, spread=0.5))
    assert doubt(measured) is None
    assert rank(measured)[0].verdict == expected


def test_steps_of_which_the_work_is_not_known_can_still_wait_for_data() -> None:
    measured = on_cpu(next=12.0, work=None)
    assert doubt(measured) is None
    assert rank(measured)[0].verdict == "data"


def test_a_training_run_that_broke_off_gets_no_verdict_by_what_little_is_known() -> None:
    measured = on_cpu(next=1.5, forward=2.0, backward=1.0, optimizer=2.0, work=None, cached=None)
    assert max(cause.share for cause in rank(measured)) > 0.25
    assert "ended before its work could be counted" in (doubt(measured) or "")


def test_what_workers_need_alone_is_not_the_crowds() -> None:
    loader = Loader(kind="DataLoader", workers=8)
    measured = on_cpu(
        next=0.1, forward=5.0, backward=5.0, cached=around(5 * MS), loader_alone=around(4.75 * MS), loader=loader,
        machine=msgspec.structs.replace(TWO_CORES, threads=4), fewer_threads={"2": 0.0015, "4": 0.005},
    )  # fmt: skip
    division = divide(measured)
    assert division.step - division.seconds("oversubscribed") == pytest.approx(4.75 * MS)
    assert rank(measured, division)[0].verdict == "oversubscribed"


def test_what_workers_compute_on_the_cores_of_the_training_is_data() -> None:
    """Two workers on the two cores of the training (dcgan): a batch takes 5.8 ms alone, so 11.6 ms of the cores."""
    options = {"next": 1.7, "forward": 15.0, "backward": 22.0, "cached": around(23.4 * MS), "loader_alone": around(5.8 * MS)}
    few, crowd = (on_cpu(**options, loader=Loader(kind="DataLoader", workers=workers)) for workers in (2, 3))
    assert rank(few)[0].verdict == "data"
    assert rank(crowd)[0].verdict == "oversubscribed", "more than two threads and workers per core, each of which keeps up alone"


def test_the_reason_names_what_a_step_takes_without_the_workers_that_crowd_it() -> None:
    _, options = ON_CPU["workers"]
    for fewer in ({}, {"1": 0.009, "2": 0.007}):
        why = conclude(on_cpu(**options, fewer_threads=fewer)).why
        assert "2 threads and 12 workers on 2 cores; a step takes 12.7 ms while workers run, and 7 ms on cached batches" in why


def test_more_threads_that_help_are_not_oversubscription() -> None:
    one = msgspec.structs.replace(TWO_CORES, threads=1)
    causes = rank(on_cpu(machine=one, fewer_threads={"1": 0.0097, "2": 0.005}))
    assert causes[0].verdict == "compute"
    assert "oversubscribed" not in {cause.verdict for cause in causes if cause.share}


def test_threads_that_have_a_core_each_are_not_crowd() -> None:
    causes = rank(on_cpu(machine=TWO_CORES, fewer_threads={"1": 0.007, "2": 0.0097}))
    assert "oversubscribed" not in {cause.verdict for cause in causes if cause.share}
    crowd = rank(on_cpu(machine=msgspec.structs.replace(TWO_CORES, threads=3), fewer_threads={"1": 0.007, "3": 0.0097}))
    assert crowd[0].verdict == "oversubscribed"


def test_threads_that_have_a_core_each_may_wait_for_each_other() -> None:
    """A gain by fewer threads counts if two measurements have it: one on cached batches, one in turn with the baseline."""

    def causes(fewer: float, fixed: float, usual: float = 9.7, waited: float | None = 0.005) -> dict[str, float]:
        tried = WhatIf(as_it_is=around(9.8 * MS), with_fix=around(fixed * MS))
        by_threads = {"1": fewer * MS, "2": usual * MS}
        measured = on_cpu(fewer_threads=by_threads, what_ifs={"threads": tried}, waited_for_cores=waited)
        return {one.verdict: one.share for one in rank(measured)}

    both = causes(7.0, 7.1)
    assert next(iter(both)) == "oversubscribed"
    assert both["oversubscribed"] == pytest.approx(0.26, abs=0.02), "a share of the step, the smaller of both gains"
    assert "oversubscribed" not in causes(7.0, 9.7)
    assert "oversubscribed" not in causes(9.6, 7.1)
    assert "oversubscribed" not in causes(9.7, 7.1, usual=14.0), "two threads were slow once, but not in the loop"
    assert causes(7.0, 7.1, waited=0.09)["oversubscribed"] == pytest.approx(0.17, abs=0.02), "other programs made some of them wait"
    assert "oversubscribed" not in causes(7.0, 7.1, waited=None)


HALF_CALLS = {"gemm": 0.45, "elementwise": 0.15, "reduce": 0.05, "optimizer": 0.05, "other": 0.3}
"""Of a profile: most of a step is within operations, which may be too small all the same."""


def twice(ratio: float) -> dict[str, WhatIf]:
    """A step of two batches in one takes this much longer."""
    return {"batch": WhatIf(as_it_is=around(9.7 * MS), with_fix=around(9.7 * ratio * MS))}


def test_what_does_not_grow_with_the_batch_is_dispatch() -> None:
    options: dict[str, Any] = {"ops": 700.0, "shares": HALF_CALLS}
    plain, small, large = (conclude(on_cpu(**options, what_ifs=ifs)) for ifs in ({}, twice(1.2), twice(1.9)))
    assert (plain.verdict, small.verdict, large.verdict) == ("compute", "dispatch", "compute")
    assert small.causes[0].share == pytest.approx(0.8 * 9.7 / 9.8 - 0.5 / 9.8, abs=0.03), "all that is fixed but the optimizer's"
    assert "twice the batch takes 1.20x as long" in small.why
    few = divide(on_cpu(ops=10.0, shares=HALF_CALLS, what_ifs=twice(1.2)))
    assert few.seconds("dispatch") <= RULE.issue_cost * 10 * TWO_CORES.dispatch_seconds, (
        "a large table that each step clears is not calls"
    )


def test_an_estimate_comes_before_what_was_measured_only_if_it_is_clearly_larger() -> None:
    calls = {"gemm": 0.02, "elementwise": 0.02, "optimizer": 0.05, "other": 0.91}
    for data, first in ((9.2, "data"), (4.0, "dispatch")):
        causes = rank(on_cpu(next=data, ops=3000.0, shares=calls))
        shares = {one.verdict: one.share for one in causes}
        assert (causes[0].verdict, shares["data"] >= RULE.waste_first) == (first, True)
    assert shares["dispatch"] > RULE.close_causes * shares["data"]


def test_calls_come_before_work_from_half_of_it_on() -> None:
    """Three causes of a similar size: the two kinds of work are more than the calls between them."""
    shares = {"gemm": 0.28, "elementwise": 0.26, "optimizer": 0.05, "other": 0.4}
    causes = rank(on_cpu(ops=200.0, shares=shares))
    assert [one.verdict for one in causes[:2]] == ["compute", "dispatch"]
    assert causes[1].share > causes[0].share


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
        (
            on_gpu(10.0, device=7.0, reached=0.9),
            "launch precision",
            "waste comes before work",
        ),
    ],
)
def test_a_first_cause_with_a_smaller_share_says_why_it_is_first(measured: Measurements, order: str, reason: str) -> None:
    finding = conclude(measured)
    assert " ".join(cause.verdict for cause in finding.causes[:2]) == order
    assert finding.causes[0].share < finding.causes[1].share
    assert reason in why_first(finding.causes)
    second = finding.causes[1]
    assert f"then {TITLES[second.verdict]}, {percent(second.share)}: {why_first(finding.causes)})" in str(finding)


MIXED = {"gemm": 0.25, "elementwise": 0.25, "optimizer": 0.2, "other": 0.3}


def test_rare_events_come_first_from_a_larger_share_on() -> None:
    rare = RareSteps(share=0.12, every=20.0, seconds=0.03, others=0.01, phase="next", alone=True)
    measured = msgspec.structs.replace(on_cpu(next=1.2, rest=1.6, optimizer=2.5, ops=1000.0, shares=MIXED), rare=rare)
    causes = rank(measured)
    assert [cause.verdict for cause in causes[:2]] == ["host", "data"]
    assert "what some steps lose" in why_first(causes)


def test_memory_given_back_between_operations_is_not_python() -> None:
    """A large buffer that each forward pass makes and frees: 20,000 pages."""
    shares = {"gemm": 0.2, "elementwise": 0.5, "copy": 0.05, "python": 0.2, "other": 0.05}
    machine = msgspec.structs.replace(TWO_CORES, page_seconds=2.5e-7)
    measured = on_cpu(forward=30.0, shares=shares, machine=machine)
    assert conclude(measured).verdict == "host"
    churning = msgspec.structs.replace(measured, pages={"loop": [24_000.0], "cached": [24_000.0]})
    assert conclude(churning).verdict == "memory"


AROUND = {"gemm": 0.05, "elementwise": 0.05, "other": 0.9}
"""Of a profile in which next to nothing is an operation of torch."""


@pytest.mark.parametrize(("ops", "verdict"), [(0.0, "host"), (20.0, "host"), (3500.0, "dispatch")])
def test_operations_cost_no_more_than_their_number_says(ops: float, verdict: str) -> None:
    measured = on_cpu(ops=ops, shares=AROUND)
    attribution, finding = divide(measured), conclude(measured)
    assert attribution.seconds("dispatch") <= RULE.issue_cost * ops * TWO_CORES.dispatch_seconds
    assert sum(attribution.parts.values()) == pytest.approx(attribution.step)
    assert finding.verdict == verdict, finding.why


def test_what_is_not_counted_has_no_limit() -> None:
    """Operations of compiled code are not counted, and time in which memory comes from the system is not Python."""
    compiled = conclude(on_cpu(ops=0.0, shares=AROUND, compiled=True))
    assert compiled.verdict == "dispatch"
    assert "0 operations" not in compiled.why + compiled.causes[0].sentence
    machine = msgspec.structs.replace(TWO_CORES, page_seconds=1e-6)
    assert conclude(on_cpu(ops=20.0, shares=AROUND, machine=machine, pages={"cached": [9e3]})).verdict != "host"


def test_a_profile_without_operations_leaves_a_thread_that_holds_the_interpreter_lock_its_time() -> None:
    thread = BusyThread(name="statistics", share=0.97, place=LOG)
    held = conclude(on_cpu(ops=150.0, shares=AROUND, busy_thread=thread, asleep=0.9))
    assert (held.verdict, held.place) == ("host", LOG)
    assert "statistics" in held.why
    alone = conclude(on_cpu(ops=150.0, shares=AROUND, busy_thread=thread, asleep=0.0))
    assert "statistics" not in alone.why


def test_steps_are_irregular_beside_a_thread_that_holds_the_interpreter_lock() -> None:
    """Now and then it does not want the lock, and a few steps are as short as they would be without it."""
    pieces = [[9.8 * MS] * 12, *[[0.1 * MS, 2.4 * MS, 9.8 * MS]] * 4]
    loop = Stretch(seconds=[one for piece in pieces for one in piece], pieces=[len(piece) for piece in pieces])
    thread = BusyThread(name="statistics", share=0.97, place=LOG)
    options: dict[str, Any] = {"shares": AROUND, "waited_for_cores": 0.003}
    assert loop.tail > RULE.max_mean_off_median
    assert conclude(on_cpu(loop=loop, busy_thread=thread, asleep=0.95, **options)).verdict == "host"
    assert conclude(on_cpu(loop=loop, **options)).verdict == "none", "negative control"


def test_rare_steps_may_be_those_that_wait_for_the_interpreter_lock() -> None:
    """Most of the time is in each fifth step, which no line explains, and threads of the program share its cores."""
    loop = Stretch(seconds=[*[20 * MS] * 4, 600 * MS] * 6)
    rare = RareSteps(share=0.85, every=5.0, seconds=600 * MS, others=20 * MS)
    thread = BusyThread(name="statistics", share=0.95, place=LOG)
    options: dict[str, Any] = {"loop": loop, "cached": around(19.9 * MS), "rare": rare, "shares": AROUND, "busy_thread": thread}
    options["waited_for_cores"] = 0.2
    held = conclude(on_cpu(asleep=0.8, **options))
    assert (held.verdict, held.place) == ("host", LOG)
    assert conclude(on_cpu(asleep=0.5, **options)).verdict == "none", "negative control: it waits for less than half of the time"
    other_core = msgspec.structs.replace(TWO_CORES, threads=1)
    assert "other programs" in conclude(on_cpu(asleep=0.8, machine=other_core, **options)).why
    options["waited_for_cores"] = 0.5
    assert "other programs" in conclude(on_cpu(asleep=1.0, **options)).why, (
        "more than three threads on two cores wait for each other"
    )
