"""The rule: ten programs whose causes are known get their verdicts from what was measured of them; so do a CPU's causes."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.diagnose.measured import COMPUTING, H200, LOG, MOVING, MS, TWO_CORES, around, on_cpu, on_gpu

from stoker.diagnose.attribution import attribute
from stoker.diagnose.measurements import (
    Blame,
    BusyThread,
    Loader,
    Machine,
    Measurements,
    Phases,
    RareSteps,
    Stretch,
    Sync,
    WhatIf,
    Work,
)
from stoker.diagnose.thresholds import RULE
from stoker.diagnose.rule import WORK, conclude, doubt, rank, why_first
from stoker.diagnose.wording import TITLES, WHY_FIRST, percent

# Of one H200: T, D, X, C, H, G in milliseconds, kernels and syncs a step, share of the bf16 peak.
PROGRAMS = {
    "data_python": (
        "data",
        on_gpu(13.49, loader=8.05, copies=0.09, cached=6.05, issue=6.5, device=3.25, kernels=218, syncs=3, reached=0.003),
    ),
    "h2d_pageable": ("transfer", on_gpu(8.56, copies=4.98, cached=0.65, issue=0.8, device=0.08, kernels=21, syncs=2)),
    "launch_tf": ("launch", on_gpu(10.18, cached=10.28, issue=10.2, device=1.40, kernels=281, reached=0.0004)),
    "launch_rnn": ("launch", on_gpu(23.41, cached=22.11, issue=20.3, device=3.09, kernels=973)),
    "compute_bf16": (
        "compute",
        on_gpu(52.28, loader=0.02, cached=53.46, issue=13.3, device=49.93, kernels=459, reached=0.53, precision="bf16"),
    ),
    "compute_fp32": ("precision", on_gpu(63.45, cached=63.51, issue=11.8, device=63.40, kernels=299, reached=0.055)),
    "memory_elem": ("memory", on_gpu(9.41, cached=9.41, issue=3.2, device=9.41, kernels=115)),
    "optimizer_emb": ("optimizer", on_gpu(6.33, cached=6.34, issue=2.3, device=6.33, optimizer=5.92, kernels=120)),
    "sync_item": ("sync", on_gpu(22.10, cached=19.33, issue=12.3, device=19.30, kernels=398, syncs=53, reached=0.029)),
    "host_python": ("host", on_gpu(32.19, cached=19.35, issue=14.3, device=19.32, kernels=281, reached=0.02)),
}
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


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_known_causes_get_their_verdict(name: str) -> None:
    expected, measured = PROGRAMS[name]
    assert doubt(measured) is None
    causes = rank(measured)
    assert causes[0].verdict == expected
    assert len(causes) > 1


@pytest.mark.parametrize(("function", "expected"), [("Layer.forward", "compute"), ("make_batch", "data")])
def test_a_forward_pass_called_as_a_method_is_not_making_a_batch(function: str, expected: str) -> None:
    line = Blame(place=msgspec.structs.replace(LOG, function=function), share=1.0)
    measured = on_cpu(next=0.0, prepare=4.0, forward=1.0, cached=None, blames={"prepare": [line]})
    assert rank(measured)[0].verdict == expected


def test_second_causes_are_those_that_come_next() -> None:
    seconds = {name: rank(measured)[1].verdict for name, (_, measured) in PROGRAMS.items()}
    assert seconds["data_python"] == "launch"
    assert seconds["compute_fp32"] == "compute"


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
        ({"cached": around(9.7 * MS, spread=0.3)}, "steps on cached batches vary too much (30 %)"),
        ({"cached": around(6.0 * MS)}, "a step takes 37 % longer than its parts, measured one by one"),
        ({"cached": around(13.0 * MS)}, "a step takes 34 % shorter than its parts"),
        ({"waited_for_cores": 0.2}, "for 20 % of the time other programs had the cores: run it again while nothing else"),
        ({"loop": at_speeds(1.0, 1.6)}, "the machine changed its speed by 60 % meanwhile"),
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


def test_workers_that_share_cores_with_the_training_explain_what_neither_takes_alone() -> None:
    """Alone a batch takes two workers 1.5 ms, and a step 0.3; together they take 6.7 on two cores."""
    loader = Loader(kind="DataLoader", workers=2)
    crowd = on_cpu(
        next=3.3, forward=2.0, backward=0.9, optimizer=0.4, rest=0.0, prepare=0.1,
        cached=around(0.3 * MS), loader_alone=around(1.5 * MS), loader=loader,
    )  # fmt: skip
    assert doubt(crowd) is None
    assert [cause.verdict for cause in rank(crowd)[:2]] == ["data", "oversubscribed"]
    roomy = msgspec.structs.replace(crowd, machine=msgspec.structs.replace(TWO_CORES, cores=16))
    assert "longer than its parts" in (doubt(roomy) or "")


def test_what_workers_need_alone_is_not_the_crowds() -> None:
    loader = Loader(kind="DataLoader", workers=8)
    measured = on_cpu(
        next=0.1, forward=5.0, backward=5.0, cached=around(5 * MS), loader_alone=around(4.75 * MS), loader=loader,
        machine=msgspec.structs.replace(TWO_CORES, threads=4), fewer_threads={"2": 0.0015, "4": 0.005},
    )  # fmt: skip
    division = attribute(measured)
    assert division.step - division.parts.oversubscribed == pytest.approx(4.75 * MS)
    assert rank(measured, division)[0].verdict == "oversubscribed"


def test_what_workers_compute_on_the_cores_of_the_training_is_data() -> None:
    """Two workers on the two cores of the training (dcgan): a batch takes 5.8 ms alone, so 11.6 ms of the cores."""
    loader = Loader(kind="DataLoader", workers=2)
    options = {"next": 1.7, "forward": 15.0, "backward": 22.0, "cached": around(23.4 * MS), "loader": loader}
    causes = rank(on_cpu(**options, loader_alone=around(5.8 * MS)))
    assert causes[0].verdict == "data"
    light = rank(on_cpu(**options, loader_alone=around(1.0 * MS)))  # batches that cost little cannot be the reason
    assert light[0].verdict == "oversubscribed"


def test_the_reason_names_what_a_step_takes_without_the_workers_that_crowd_it() -> None:
    _, options = ON_CPU["workers"]
    for fewer in ({}, {"1": 0.009, "2": 0.007}):
        why = conclude(on_cpu(**options, fewer_threads=fewer)).why
        assert "2 threads and 12 workers on 2 cores; a step takes 12.7 ms while workers run, and 7 ms on cached batches" in why


def test_a_difference_that_the_loader_cannot_explain_is_not_called_data() -> None:
    measured = on_cpu(cached=around(8.7 * MS))  # a tenth less than the loop, but the loader takes a hundredth
    assert rank(measured)[0].verdict == "compute"
    unsupported = on_cpu(cached=around(8.7 * MS), loader_alone=around(3 * MS))
    assert rank(unsupported)[0].verdict == "data"


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
    few = attribute(on_cpu(ops=10.0, shares=HALF_CALLS, what_ifs=twice(1.2))).parts
    assert few.dispatch <= RULE.issue_cost * 10 * TWO_CORES.dispatch_seconds, "a large table that each step clears is not calls"


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
            "as a whole, 5",
        ),
        (on_cpu(next=8.0, ops=3000.0, shares=CALLS), "data dispatch", "an estimate"),
        (on_cpu(optimizer=6.7, shares={**COMPUTING, "elementwise": 0.0}), "optimizer compute", "from 40 % of the work on"),
        (
            on_gpu(10.0, cached=10.0, issue=10.0, device=7.0, kernels=300, reached=0.9),
            "launch precision",
            "faster kernels gain nothing",
        ),
    ],
)
def test_a_first_cause_with_a_smaller_share_says_why_it_is_first(measured: Measurements, order: str, reason: str) -> None:
    finding = conclude(measured)
    assert " ".join(cause.verdict for cause in finding.causes[:2]) == order
    assert finding.causes[0].share < finding.causes[1].share
    assert reason in finding.why_first
    second = finding.causes[1]
    assert f"then {TITLES[second.verdict]}, {percent(second.share)}: {finding.why_first})" in str(finding)


MIXED = {"gemm": 0.25, "elementwise": 0.25, "optimizer": 0.2, "other": 0.3}


def test_rare_events_come_first_from_a_larger_share_on() -> None:
    rare = RareSteps(share=0.12, every=20.0, seconds=0.03, others=0.01, phase="next", alone=True)
    measured = msgspec.structs.replace(on_cpu(next=1.2, rest=1.6, optimizer=2.5, ops=1000.0, shares=MIXED), rare=rare)
    causes = rank(measured)
    assert [cause.verdict for cause in causes[:2]] == ["host", "data"]
    assert "what some steps wait for" in why_first(causes, attribute(measured))


def test_a_wait_that_was_seen_is_not_a_python_of_the_loop() -> None:
    """A loss is read in each step: the host stands there for most of a step, because the device computes."""
    phases = Phases(next=0.0, prepare=0.0001, forward=0.003, backward=0.004, optimizer=0.001, rest=0.0529)
    measured = msgspec.structs.replace(
        on_gpu(60.9, cached=60.9, issue=60.5, device=60.0, kernels=300, reached=0.5, precision="bf16", syncs=1),
        phases=phases,
        blames={"rest": [Blame(place=LOG, share=0.99)]},
    )
    assert rank(measured)[0].verdict == "compute"
    idle = msgspec.structs.replace(measured, blames={}, syncs=[], blocked_under_sleep=False, device_alone=around(8 * MS))
    assert rank(idle)[0].verdict == "host"  # the same phases, but nothing that is waited for


def test_kernels_far_from_any_peak_are_a_cause_of_their_own() -> None:
    measured = on_gpu(10.0, cached=10.0, issue=2.0, device=10.0, kernels=400)
    work = msgspec.structs.replace(measured.work, flops=1e9, shares={"gemm": 0.5, "elementwise": 0.3, "other": 0.2})
    assert rank(msgspec.structs.replace(measured, work=work))[0].verdict == "kernel"
    moving = msgspec.structs.replace(work, shares=MOVING)
    assert rank(msgspec.structs.replace(measured, work=moving))[0].verdict == "memory"


@pytest.mark.parametrize(("moved_ms", "verdict"), [(8.0, "memory"), (1.0, "kernel")])
def test_kernels_that_move_little_memory_in_much_time_are_far_from_any_peak(moved_ms: float, verdict: str) -> None:
    measured = on_gpu(10.0, cached=10.0, issue=2.0, device=10.0, kernels=400)
    work = msgspec.structs.replace(measured.work, shares=MOVING, moved_bytes=moved_ms * MS * H200.memcpy_bytes)
    causes = rank(msgspec.structs.replace(measured, work=work))
    assert causes[0].verdict == verdict
    assert {cause.verdict for cause in causes[:2]} == {"memory", "kernel"}


def test_waits_within_a_step_are_not_taken_for_issuing() -> None:
    """Each layer is looked at on the host: issuing a step takes as long as the step, and most of that is waiting."""
    phases = Phases(next=0.0, prepare=0.0, forward=0.007, backward=0.005, optimizer=0.001, rest=0.005)
    work = Work(ops=900, kernels=700, flops=1e11, device_seconds=0.008, shares=COMPUTING)
    waiting = msgspec.structs.replace(
        on_gpu(18.0, cached=18.0, issue=20.0, device=21.0, kernels=700, syncs=80, work=work),
        phases=phases,
        blames={"forward": [Blame(place=LOG, share=0.5)], "rest": [Blame(place=LOG, share=0.9)]},
    )
    first = rank(waiting)[0]
    assert first.verdict == "sync"
    assert first.share == pytest.approx((0.5 * 7 + 0.9 * 5) / 18, abs=0.01)


@pytest.mark.parametrize(("device", "first"), [(9.5, "compute"), (6.0, "launch")])
def test_kernels_are_the_bottleneck_of_a_gpu_that_is_idle_for_a_moment(device: float, first: str) -> None:
    """The host issues a step more slowly than the device runs it, but only by one twentieth of the step."""
    work = Work(ops=900, kernels=700, flops=1e12, shares=COMPUTING)
    measured = on_gpu(
        10.0, cached=10.0, issue=10.0, device=device, kernels=700, optimizer=0.08 * device, work=work, precision="bf16"
    )
    causes = rank(measured)
    assert attribute(measured).host_limits
    assert causes[0].verdict == first, [(one.verdict, one.share) for one in causes]


def test_a_cause_with_next_to_nothing_is_not_the_second() -> None:
    work = Work(ops=900, kernels=700, flops=1e9, shares={"search": 0.8, "elementwise": 0.2})
    measured = on_gpu(10.0, cached=10.0, issue=10.0, device=6.0, kernels=700, optimizer=0.001, work=work)
    assert [cause.verdict for cause in rank(measured)[:2]] == ["launch", "kernel"]


def test_products_in_a_short_type_are_not_blamed_for_their_type() -> None:
    work = msgspec.structs.replace(PROGRAMS["compute_fp32"][1].work, shares=COMPUTING)
    measured = msgspec.structs.replace(PROGRAMS["compute_fp32"][1], precision="tf32", work=work)
    assert rank(measured)[0].verdict == "compute"
    short = Machine(**{**msgspec.structs.asdict(H200), "matmul_flops": {"fp32": 5.1e13}})
    assert rank(msgspec.structs.replace(PROGRAMS["compute_fp32"][1], machine=short))[0].verdict == "compute"


times = st.floats(0.0, 50.0)
shares = st.fixed_dictionaries({kind: st.floats(0.0, 1.0) for kind in COMPUTING}).map(
    lambda drawn: {kind: share / max(1e-9, sum(drawn.values())) for kind, share in drawn.items()}
)


@st.composite
def cpu_runs(draw: st.DrawFn) -> Measurements:
    """Any training on a CPU, also such as cannot be."""
    names = ("next", "prepare", "forward", "backward", "optimizer", "rest")
    options: dict[str, Any] = {name: draw(times) for name in names}
    options["backward"] += 0.01
    step = sum(options[name] for name in names)
    options["cached"] = draw(st.none() | st.floats(0.1, 1.2).map(lambda share: around(share * step * MS)))
    options["loader_alone"] = draw(st.none() | times.map(lambda alone: around(alone * MS)))
    options["loader"] = Loader(kind="DataLoader", workers=draw(st.integers(0, 16)))
    options["machine"] = msgspec.structs.replace(TWO_CORES, threads=draw(st.integers(1, 32)))
    options["fewer_threads"] = draw(st.dictionaries(st.sampled_from(["1", "2", "16"]), st.floats(1e-4, 0.1)))
    return on_cpu(**options, ops=draw(st.floats(0, 1e5)), shares=draw(st.just({}) | shares), flops=draw(st.floats(0, 1e12)))


@st.composite
def gpu_runs(draw: st.DrawFn) -> Measurements:
    """Any training on a GPU."""
    step = draw(st.floats(0.1, 50.0))
    part = st.floats(0.0, 1.2).map(lambda share: share * step)
    measured = on_gpu(
        step,
        loader=draw(part),
        copies=draw(st.none() | part),
        cached=draw(part),
        issue=draw(part),
        device=draw(part),
        kernels=draw(st.floats(0, 5000)),
        reached=draw(st.floats(0, 1)),
        syncs=draw(st.sampled_from([0, 0, 2, 50])),
        precision=draw(st.sampled_from(["fp32", "tf32", "bf16"])),
    )
    phases = Phases(**{name: draw(times) * MS for name in ("next", "prepare", "forward", "backward", "optimizer", "rest")})
    work = msgspec.structs.replace(measured.work, shares=draw(st.just({}) | shares))
    blames = {"rest": [Blame(place=LOG, share=draw(st.floats(0, 1)))]}
    return msgspec.structs.replace(
        measured,
        phases=draw(st.sampled_from([measured.phases, phases])),
        work=draw(st.sampled_from([work, None])),
        blames=draw(st.sampled_from([blames, {}])),
    )


@given(cpu_runs() | gpu_runs())
def test_shares_are_shares_and_parts_are_the_step(measured: Measurements) -> None:
    division, causes = attribute(measured), rank(measured)
    assert len(causes) >= 2
    assert len({cause.verdict for cause in causes}) == len(causes)
    assert all(0 <= cause.share <= 1 for cause in causes)
    assert math.fsum(dataclasses.astuple(division.parts)) == pytest.approx(division.step)
    assert all(getattr(division.parts, name) >= -1e-12 for name in division.parts.__slots__)


@given(cpu_runs() | gpu_runs())
def test_the_order_of_two_causes_is_explained_where_their_shares_do_not(measured: Measurements) -> None:
    causes, division = rank(measured), attribute(measured)
    first, second = causes[:2]
    larger = second.share > first.share and percent(second.share) != percent(first.share)
    reason = why_first(causes, division)
    assert bool(reason) == larger
    if reason == WHY_FIRST["optimizer"]:
        assert first.verdict == "optimizer"
    if reason == WHY_FIRST["launch"]:
        assert second.verdict in WORK
    assert reason != WHY_FIRST["each_step"]  # there are no rare steps


@given(cpu_runs() | gpu_runs(), st.floats(0.0, 0.1))
def test_more_time_for_data_never_makes_data_less_likely(measured: Measurements, more: float) -> None:
    assume(measured.cached is None or measured.cached.median <= measured.loop.median)  # else nothing is known of the data
    assume(measured.device == "cuda" or measured.loader.workers == 0)  # else it may be the crowd of workers, not their work
    phases = measured.phases
    total = sum(getattr(phases, name) for name in phases.__struct_fields__)
    if total > 0:  # phases that are the step, as a session measures them
        factor = measured.loop.median / total
        phases = Phases(**{name: getattr(phases, name) * factor for name in phases.__struct_fields__})
    measured = msgspec.structs.replace(measured, phases=phases)
    longer = msgspec.structs.replace(
        measured,
        loop=Stretch(seconds=[one + more for one in measured.loop.seconds]),
        loader_alone=Stretch(seconds=[one + more for one in measured.loader_alone.seconds]) if measured.loader_alone else None,
        phases=msgspec.structs.replace(phases, next=phases.next + more) if total > 0 else phases,
    )
    before, after = attribute(measured), attribute(longer)
    assert after.share("data") >= before.share("data") - 1e-9
    if rank(measured)[0].verdict == "data":
        assert rank(longer)[0].verdict == "data"


@given(gpu_runs())
def test_launch_is_never_called_compute(measured: Measurements) -> None:
    measured = msgspec.structs.replace(measured, syncs=[], blocked_under_sleep=False, phases=on_cpu(rest=0.0, prepare=0.0).phases)
    issue, device = measured.host_issue, measured.device_alone
    assert issue is not None
    assert device is not None
    division = attribute(measured)
    parts = division.parts
    left = division.step - parts.data - parts.transfer - parts.sync - parts.host
    is_idle = left > 1.03 * device.median  # a GPU that is busy all the time does not wait, however slowly a step is issued alone
    if issue.median > device.median * (1 + 1e-9) and is_idle and doubt(measured) is None:
        assert rank(measured, division)[0].verdict not in WORK


def test_negative_control_by_shares_alone_launch_would_be_called_compute() -> None:
    measured = on_gpu(10.0, cached=10.0, issue=10.0, device=7.0, kernels=300, reached=0.9)
    division = attribute(measured)
    assert rank(measured, division)[0].verdict == "launch"
    assert rank(measured, dataclasses.replace(division, host_limits=False))[0].verdict in WORK


@given(st.floats(0.5, 3.0))
def test_a_sync_is_named_only_where_something_waits(ratio: float) -> None:
    measured = on_gpu(10 * ratio, cached=10.0, issue=5.0, device=10.0, kernels=300)
    assert attribute(measured).parts.sync == 0
    waiting = msgspec.structs.replace(measured, syncs=[Sync(place=None, count=1)])
    assert attribute(waiting).parts.host == 0


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
    attribution, finding = attribute(measured), conclude(measured)
    assert attribution.parts.dispatch <= RULE.issue_cost * ops * TWO_CORES.dispatch_seconds
    assert sum(dataclasses.astuple(attribution.parts)) == pytest.approx(attribution.step)
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
    options: dict[str, Any] = {"loop": loop, "rare": rare, "shares": AROUND, "busy_thread": thread, "waited_for_cores": 0.2}
    held = conclude(on_cpu(asleep=0.8, **options))
    assert (held.verdict, held.place, held.confidence) == ("host", LOG, "low")
    assert conclude(on_cpu(asleep=0.5, **options)).verdict == "none", "negative control: it waits for less than half of the time"
    other_core = msgspec.structs.replace(TWO_CORES, threads=1)
    assert "other programs" in conclude(on_cpu(asleep=0.8, machine=other_core, **options)).why
    options["waited_for_cores"] = 0.5
    assert "other programs" in conclude(on_cpu(asleep=1.0, **options)).why, (
        "more than three threads on two cores wait for each other"
    )
