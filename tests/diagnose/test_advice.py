"""Advice: what is advised for which cause, and how sure a prediction is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.diagnose.measured import COMPUTING, MOVING, MS, around, on_cpu, on_gpu

from stoker.diagnose.advice import (
    advise_on_rare_steps,
    ratio_of,
    seconds_with,
    thread_wait_variation,
    variation_of_pages,
    waiting_threads,
)
from stoker.diagnose.division import divide
from stoker.diagnose.measurements import Advice, Blame, BusyThread, Loader, RareSteps, SourceLine, Stretch, WhatIf, Work
from stoker.diagnose.rule import conclude
from stoker.diagnose.windows import fixes_wanted


@pytest.mark.parametrize(
    ("by_threads", "cores_used", "expected"),
    [
        ({"1": 2.0, "2": 1.0}, 2.0, 0.0),  # each gains all it can
        ({"1": 1.0, "2": 1.0}, 1.0, 0.0),  # there is only one
        ({"1": 1.0, "2": 1.0}, 2.0, 1.0),
        ({"1": 1.0, "2": 1.7}, 2.0, 1.0),
        ({"1": 1.0, "2": 0.75}, 2.0, 0.5),
        ({"1": 1.0, "2": 1.0}, 1.5, 0.5),
        ({}, 2.0, 1.0),  # nobody knows
        ({"1": 1.0, "2": 1.7}, None, 0.0),
    ],
)
def test_threads_that_gain_nothing_wait(by_threads: dict[str, float], cores_used: float | None, expected: float) -> None:
    measured = on_cpu(fewer_threads=by_threads, cores_used=cores_used)
    assert waiting_threads(measured) == pytest.approx(expected)


def advised(name: str, **more: Any) -> Advice:
    what_ifs = {"fused": WhatIf(as_it_is=around(5.0 * MS), with_fix=around(4.0 * MS))}
    measured = on_cpu(next=20.0, forward=1.9, backward=2.0, optimizer=0.9, what_ifs=what_ifs, **more)
    return next(step for step in conclude(measured).next if step.name == name)


WAITING: dict[str, Any] = {"fewer_threads": {"1": 5.0 * MS, "2": 5.0 * MS}, "cores_used": 2.0}


def test_a_step_of_threads_that_wait_makes_a_range_of_what_is_left_of_it() -> None:
    assert advised("cached").predicted is not None
    step = advised("cached", **WAITING)
    assert step.predicted is None
    assert step.predicted_low is not None
    assert step.predicted_high is not None
    assert step.predicted_high / step.predicted_low > 1.2


def test_a_range_that_says_nothing_is_not_reported() -> None:
    wild = {"fused": WhatIf(as_it_is=around(5.0 * MS), with_fix=around(4.5 * MS, spread=0.9, number=4))}
    measured = on_cpu(next=0.1, forward=1.9, backward=1.0, optimizer=5.0, what_ifs=wild)
    step = next(step for step in conclude(measured).next if step.name == "fused")
    assert (step.predicted, step.predicted_low, step.predicted_high) == (None, None, None)


def test_what_such_a_step_is_with_a_fix_and_without_it_changes_alike() -> None:
    assert advised("fused", **WAITING).predicted == pytest.approx(advised("fused").predicted or 0.0)


def names(measured: Any) -> list[str]:
    return [step.name for step in conclude(measured).next]


@pytest.mark.parametrize(
    ("starting", "order"),
    [(0.4, ["persistent", "feed"]), (0.05, ["feed", "persistent"]), (0.0, ["feed"])],
)
def test_persistent_workers_come_first_where_starting_them_is_the_cost(starting: float, order: list[str]) -> None:
    loader = Loader(kind="DataLoader", workers=1, persistent=False)
    measured = on_cpu(next=8.0, forward=1.0, backward=1.0, loader=loader, between_epochs={"loader": starting})
    assert [name for name in names(measured) if name in ("persistent", "feed")] == order


IN_MODEL = SourceLine(file="model.py", line=9, function="forward")


@pytest.mark.parametrize(("phase", "less_often"), [("forward", False), ("rest", True)])
def test_code_of_a_model_is_never_to_be_done_less_often(phase: str, less_often: bool) -> None:
    measured = on_cpu(rest=9.0, forward=9.0, backward=1.0, blames={phase: [Blame(place=IN_MODEL, share=0.9)]})
    sentence = next(step.sentence for step in conclude(measured).next if step.name == "host")
    assert str(IN_MODEL) in sentence
    assert ("less often" in sentence) == less_often


@pytest.mark.parametrize(("phase", "less_often"), [("forward", False), ("backward", False), ("rest", True)])
def test_rare_steps_of_a_model_are_never_to_be_done_less_often(phase: str, less_often: bool) -> None:
    rare = RareSteps(share=0.5, every=10.0, seconds=1.0, others=0.1, phase=phase, alone=True, place=IN_MODEL)
    assert ("less often" in advise_on_rare_steps(rare)[0].sentence) == less_often


def test_a_range_ends_at_the_share_of_its_cause() -> None:
    measured = on_cpu(rest=10.0, forward=4.0, backward=5.0, spread=0.08, blames={"rest": [Blame(place=IN_MODEL, share=0.9)]})
    finding = conclude(measured)
    step = next(step for step in finding.next if step.name == "host")
    assert step.predicted_high is not None
    assert step.predicted_high <= 1 / (1 - finding.causes[0].share) + 1e-9


def table(rows: float, used: float) -> Work:
    return Work(ops=100.0, flops=1e6, shares=MOVING, table_rows=rows, table_rows_used=used)


@pytest.mark.parametrize(("rows", "used", "advised"), [(1e6, 512.0, True), (1e3, 512.0, False), (0.0, 0.0, False)])
def test_sparse_gradients_are_advised_for_large_tables(rows: float, used: float, advised: bool) -> None:
    measured = on_cpu(optimizer=60.0, work=table(rows, used))
    assert conclude(measured).verdict == "optimizer"
    assert ("sparse" in names(measured)) == advised
    if advised:
        assert names(measured)[0] == "sparse"


@pytest.mark.parametrize("shares", [COMPUTING, MOVING])
def test_float64_on_a_cpu_is_named(shares: dict[str, float]) -> None:
    what_ifs = {"float32": WhatIf(as_it_is=around(9.0 * MS), with_fix=around(4.6 * MS))}
    finding = conclude(on_cpu(shares=shares, precision="fp64", what_ifs=what_ifs))
    assert finding.verdict == "precision"
    assert "float64" in finding.causes[0].sentence
    assert finding.next[0].name == "float32"
    assert finding.next[0].predicted_low is not None
    assert conclude(on_cpu(shares=shares)).verdict in ("compute", "memory")
    assert conclude(on_cpu(shares=shares, precision="fp64", optimizer=7.0)).verdict == "precision"


def test_float64_on_a_gpu_is_named() -> None:
    measured = on_gpu(20.0, cached=20.0, issue=2.0, device=20.0, kernels=100, reached=0.04, precision="fp64")
    finding = conclude(measured)
    assert finding.verdict == "precision"
    assert [step.name for step in finding.next if step.name in ("float32", "tf32", "autocast")] == ["float32"]


@pytest.mark.parametrize(("share", "asleep", "named"), [(0.9, 0.7, True), (0.9, 0.02, False), (0.1, 0.7, False)])
def test_a_thread_that_holds_the_interpreter_lock_is_named(share: float, asleep: float, named: bool) -> None:
    thread = BusyThread(name="Thread-1", share=share, place=IN_MODEL)
    finding = conclude(on_cpu(busy_thread=thread, asleep=asleep))
    assert (finding.verdict == "host") == named
    assert ("Thread-1" in finding.why) == named
    assert any("interpreter lock" in step.sentence for step in finding.next) == named
    if named:
        assert finding.place == IN_MODEL
        assert conclude(on_cpu(busy_thread=thread, asleep=0.9, optimizer=20.0)).verdict == "host"


def rounds(*medians: float) -> Stretch:
    """Windows of six steps each."""
    return Stretch(seconds=[one * MS for one in medians for _ in range(6)], pieces=[6] * len(medians))


def test_a_window_with_a_fix_is_compared_with_those_around_it() -> None:
    """The machine is half as fast in the last three rounds of five; the fix always leaves half of a step."""
    before, after = rounds(10, 10, 20, 20, 20), rounds(5, 5, 7.5, 10, 10)
    assert ratio_of(WhatIf(as_it_is=before, with_fix=after)) == pytest.approx(0.5)
    assert before.median / after.median > 2.5, "the control: medians of all steps"


def test_rounds_that_differ_make_a_range() -> None:
    steady = WhatIf(as_it_is=rounds(10, 10, 10, 10, 10), with_fix=rounds(5, 5, 5, 5, 5))
    varying = WhatIf(as_it_is=rounds(10, 10, 10, 10, 10), with_fix=rounds(3, 5, 7, 4, 6))
    assert seconds_with(steady, 0.010) == pytest.approx((0.005, 0.0))
    assert seconds_with(varying, 0.010)[1] > 0.001
    two = WhatIf(as_it_is=rounds(10, 10), with_fix=rounds(5, 6))
    assert seconds_with(two, 0.010)[1] == pytest.approx(0.001), "twice the standard error of a mean of two: their difference"
    one_off = WhatIf(as_it_is=rounds(10, 10, 10, 10, 10), with_fix=rounds(5, 5, 9, 5, 5))
    assert seconds_with(one_off, 0.010)[1] == pytest.approx(0.0), "one round at another speed does not matter"


def test_a_few_rounds_beside_a_baseline_that_changed_lie_between_the_ratio_and_the_time() -> None:
    """The loop took 10 ms, and steps beside the fix 14: either all steps take longer, or those with the fix took 7 ms before, too."""
    one, several = (WhatIf(as_it_is=rounds(*[14] * number), with_fix=rounds(*[7] * number)) for number in (1, 5))
    assert seconds_with(one, 0.010) == pytest.approx((0.006, 0.001))
    assert seconds_with(several, 0.010) == pytest.approx((0.005, 0.002)), "each is compared with those next to it"
    assert seconds_with(one, 0.014) == pytest.approx((0.007, 0.0)), "the control: nothing has changed"


def test_memory_of_the_loader_does_not_make_steps_without_it_uncertain() -> None:
    machine = msgspec.structs.replace(on_cpu().machine, page_seconds=1e-6)
    of_loader = on_cpu(next=20.0, machine=machine, pages={"loop": [10_000.0], "cached": [0.0]})
    of_step = on_cpu(next=20.0, machine=machine, pages={"loop": [10_000.0], "cached": [10_000.0]})
    found = [next(step for step in conclude(one).next if step.name == "cached") for one in (of_loader, of_step)]
    assert found[0].predicted is not None
    assert found[1].predicted is None


def switched_on(now: Stretch, then: Stretch) -> WhatIf:
    return WhatIf(as_it_is=now, with_fix=then)


@pytest.mark.parametrize(("then", "advised"), [(rounds(9, 11, 10, 12, 9), False), (rounds(7, 9, 8, 10, 7), True)])
def test_a_fix_that_gained_nothing_is_not_advised_however_wide_its_range_is(then: Stretch, advised: bool) -> None:
    measured = on_cpu(what_ifs={"autocast": switched_on(rounds(10, 10, 10, 10, 10), then)})
    steps = [step for step in conclude(measured).next if step.name == "autocast"]
    assert bool(steps) == advised
    assert seconds_with(measured.what_ifs["autocast"], 0.010)[1] > 0.0005, "both vary so much that the range has two sides"


def test_a_fix_that_has_nothing_to_change_is_not_advised() -> None:
    assert "fused" in names(on_cpu(optimizer=9.0))
    assert "fused" not in names(on_cpu(optimizer=9.0, unused_fixes={"fused": "the optimizer has no fused implementation"}))


@pytest.mark.parametrize(
    ("shares", "ops", "advised"),
    [
        (COMPUTING, 100.0, False),  # a tenth: memory traffic
        (COMPUTING, 1000.0, False),  # and a fifth more: small operations, but matmuls and the optimizer take longer
        (COMPUTING, 3000.0, True),
        (MOVING, 100.0, True),
    ],
)
def test_compiling_is_advised_on_a_cpu_where_it_has_something_to_join(shares: dict[str, float], ops: float, advised: bool) -> None:
    measured = on_cpu(shares=shares, ops=ops)
    parts = divide(measured)
    joined = parts.share("memory") + parts.share("dispatch")
    assert (joined >= max(0.5, parts.share("compute") + parts.share("optimizer"))) == advised
    assert (joined >= 0.5) == (ops >= 3000 or shares is MOVING)
    assert ("compile" in names(measured)) == advised
    step = next((step for step in conclude(measured).next if step.name == "compile"), None)
    assert step is None or (step.predicted, step.predicted_high) == (None, None), "nothing was compiled"


def test_compiling_is_advised_for_the_kernels_of_a_gpu() -> None:
    assert "compile" in names(on_gpu(10.18, cached=10.28, issue=10.2, device=1.40, kernels=281))


@pytest.mark.parametrize(
    ("name", "given", "causes", "of_them"),
    [
        ("batch", {"ops": 6000.0}, ("dispatch", "optimizer", "host", "oversubscribed", "kernel"), 0.5),
        ("fused", {"optimizer": 9.0}, ("optimizer",), 1.0),
        ("float32", {"precision": "fp64"}, ("precision",), 1.0),
    ],
)
def test_a_fix_that_was_not_measured_has_the_bound_of_its_causes(
    name: str, given: dict[str, Any], causes: tuple[str, ...], of_them: float
) -> None:
    measured = on_cpu(**given)
    saved = of_them * sum(divide(measured).share(cause) for cause in causes)
    step = next(step for step in conclude(measured).next if step.name == name)
    assert (step.predicted, step.predicted_low) == (None, None)
    assert step.predicted_high == pytest.approx(1 / (1 - saved))


def test_autocast_on_a_cpu_promises_nothing_before_steps_with_it_were_measured() -> None:
    step = next(one for one in conclude(on_cpu()).next if one.name == "autocast")
    assert (step.predicted, step.predicted_high) == (None, None)
    assert "not measured" in step.sentence
    assert "autocast" in fixes_wanted(on_cpu())
    assert not [step for step in conclude(on_cpu(unused_fixes={"autocast": "no time"})).next if step.name == "autocast"]
    for after, advised in ((5, True), (12, False)):
        what_ifs = {"autocast": switched_on(rounds(*[10] * 5), rounds(*[after] * 5))}
        steps = [one for one in conclude(on_cpu(what_ifs=what_ifs)).next if one.name == "autocast"]
        assert [one.predicted is not None and "not measured" not in one.sentence for one in steps] == [True] * advised


def test_a_feed_is_as_unsure_as_the_cached_steps_that_it_is_measured_beside() -> None:
    what_ifs = {"feed": switched_on(rounds(*[10] * 5), rounds(*[11] * 5))}
    steady, unsteady = (on_cpu(next=20.0, cached=rounds(*cached), what_ifs=what_ifs) for cached in ((9.7, 9.7), (8.7, 10.7)))
    found = [next(step for step in conclude(one).next if step.name == "feed") for one in (steady, unsteady)]
    assert [step.predicted is not None for step in found] == [True, False]


@pytest.mark.parametrize(("pages", "is_number"), [([2000.0, 2000.0, 2000.0], True), ([2000.0, 2600.0, 0.0], False)])
def test_memory_that_comes_and_goes_makes_a_range_however_sure_the_rounds_are(pages: list[float], is_number: bool) -> None:
    """Autocast was predicted as 1.95 in a process with pages, and gave 3.08 in one without them."""
    machine = msgspec.structs.replace(on_cpu().machine, page_seconds=1e-6)
    what_ifs = {"autocast": switched_on(rounds(*[10] * 5), rounds(*[5] * 5))}
    measured = on_cpu(machine=machine, pages={"loop": pages, "cached": pages}, what_ifs=what_ifs)
    step = next(step for step in conclude(measured).next if step.name == "autocast")
    assert (step.predicted is not None) == is_number
    assert step.predicted_low is not None


@pytest.mark.parametrize(("beside", "error"), [(10.0, 0.0), (13.0, 0.0), (14.0, 2.0), (6.0, 2.0)])
def test_a_baseline_beside_the_fix_that_is_not_that_of_the_loop_makes_a_range(beside: float, error: float) -> None:
    what_if = switched_on(rounds(*[beside] * 5), rounds(*[beside / 2] * 5))
    assert seconds_with(what_if, 10 * MS) == pytest.approx((5 * MS, error * MS))


def test_a_fix_changes_all_of_a_step_but_its_data() -> None:
    """Steps on cached batches took 1.7 ms less, and data take 0.7 of them: the rest is another reason."""
    what_ifs = {"fused": switched_on(rounds(*[13] * 5), rounds(*[13 / 3] * 5))}
    measured = on_cpu(optimizer=5.0, next=0.5, cached=rounds(*[13] * 5), what_ifs=what_ifs)
    found = divide(measured)
    assert found.step - 13 * MS > 2 * found.parts.data
    step = next(step for step in conclude(measured).next if step.name == "fused")
    assert step.predicted == pytest.approx(found.step / (found.seconds("data") + (found.step - found.seconds("data")) / 3))


@pytest.mark.parametrize(("windows", "most"), [([80.0, 80.0, 80.0], 0.0), ([80.0, 50.0, 70.0], 30.0), ([80.0], 80.0)])
def test_memory_that_is_the_same_in_each_window_is_so_in_the_next_process(windows: list[float], most: float) -> None:
    machine = msgspec.structs.replace(on_cpu().machine, page_seconds=1.0)
    assert variation_of_pages(on_cpu(machine=machine, pages={"loop": windows}), "loop") == pytest.approx(most)


def test_memory_from_the_system_is_advised_on_even_if_the_steps_beside_the_fix_had_none() -> None:
    machine = msgspec.structs.replace(on_cpu().machine, page_seconds=1e-6)
    no_gain = {"malloc": switched_on(rounds(10), rounds(10))}
    much, little = ({"loop": [number, number / 2, number]} for number in (2000.0, 400.0))
    assert "malloc" in names(on_cpu(machine=machine, pages=much, what_ifs=no_gain))
    assert "malloc" not in names(on_cpu(machine=machine, pages=little, what_ifs=no_gain))
    assert "malloc" not in names(on_cpu(machine=machine, pages=little)), "a bound of a few per cent says too little"


def test_threads_that_wait_vary_as_the_loop_does_if_nothing_else_was_measured() -> None:
    steady, unsteady = rounds(10, 10, 10), rounds(10, 13, 10)
    found = [thread_wait_variation(on_cpu(loop=loop, cached=None, **WAITING)) for loop in (steady, unsteady)]
    assert found == pytest.approx([0.1, 0.3])
    assert thread_wait_variation(on_cpu(cached=None, **WAITING)) == pytest.approx(0.3), "one window says nothing"


def test_threads_measured_twice_with_different_results_make_a_wide_range() -> None:
    def step(seconds_before: float) -> Advice:
        by_threads = {"1": seconds_before, "2": 300 * MS}
        measured = on_cpu(
            forward=150.0,
            backward=150.0,
            loader=Loader(kind="DataLoader"),
            machine=msgspec.structs.replace(on_cpu().machine, threads=2),
            fewer_threads=by_threads,
            what_ifs={"threads": switched_on(rounds(300), rounds(8))},
        )
        return next(one for one in conclude(measured).next if one.name == "threads")

    same, other = step(8 * MS), step(12 * MS)
    assert same.predicted_high is not None
    assert same.predicted_low is not None
    assert other.predicted_low is not None
    assert other.predicted is None
    assert other.predicted_low < 0.8 * same.predicted_low
