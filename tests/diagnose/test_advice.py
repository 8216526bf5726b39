"""Advice: what is advised for which cause, and how sure a prediction is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.diagnose.measured import COMPUTING, LOG, MOVING, MS, TWO_CORES, around, changed, on_cpu, on_gpu

from stoker.diagnose.advice import by_trial, ratio_with_error, refuted
from stoker.diagnose.division import divide
from stoker.diagnose.measurements import (
    Advice,
    Blame,
    BusyThread,
    Loader,
    Losses,
    Measurements,
    SourceLine,
    Stretch,
    Sync,
    TrialResult,
    WhatIf,
    Work,
)
from stoker.diagnose.rule import conclude

IN_MODEL = SourceLine(file="model.py", line=9, function="forward")


def advised(measured: Measurements, name: str) -> Advice | None:
    return next((step for step in conclude(measured).next if step.name == name), None)


def names(measured: Measurements) -> list[str]:
    return [step.name for step in conclude(measured).next]


def rounds(*medians: float) -> Stretch:
    """Windows of six steps each."""
    return Stretch(seconds=[milliseconds * MS for milliseconds in medians for _ in range(6)], pieces=[6] * len(medians))


def switched_on(now: Stretch, then: Stretch) -> WhatIf:
    return WhatIf(as_it_is=now, with_fix=then)


# ---- what is advised ----


@pytest.mark.parametrize(("starting", "advised"), [(0.4, True), (0.05, True), (0.0, False)])
def test_workers_that_start_in_each_epoch_are_to_persist(starting: float, advised: bool) -> None:
    loader = Loader(kind="DataLoader", workers=1, persistent=False)
    measured = on_cpu(next=8.0, forward=1.0, backward=1.0, loader=loader, between_epochs={"loader": starting})
    assert ("persistent" in names(measured)) == advised


@pytest.mark.promise("P17")
@pytest.mark.parametrize(("phase", "less_often"), [("forward", False), ("rest", True)])
def test_code_of_a_model_is_never_to_be_done_less_often(phase: str, less_often: bool) -> None:
    measured = on_cpu(rest=9.0, forward=9.0, backward=1.0, blames={phase: [Blame(place=IN_MODEL, share=0.9)]})
    step = advised(measured, "host")
    assert step is not None
    assert str(IN_MODEL) in step.sentence
    assert ("less often" in step.sentence) == less_often


@pytest.mark.parametrize(("rows", "used", "advised"), [(1e6, 512.0, True), (1e3, 512.0, False), (0.0, 0.0, False)])
def test_sparse_gradients_are_advised_for_large_tables(rows: float, used: float, advised: bool) -> None:
    work = Work(ops=100.0, flops=1e6, shares=MOVING, table_rows=rows, table_rows_used=used)
    measured = on_cpu(optimizer=60.0, work=work)
    assert conclude(measured).verdict == "optimizer"
    assert (names(measured)[:1] == ["sparse"]) == advised


@pytest.mark.parametrize("shares", [COMPUTING, MOVING])
def test_float64_on_a_cpu_is_named(shares: dict[str, float]) -> None:
    finding = conclude(on_cpu(shares=shares, precision="fp64", what_ifs={"float32": changed(9.0, 4.6)}))
    assert finding.verdict == "precision"
    assert "float64" in finding.causes[0].sentence
    assert finding.next[0].name == "float32"
    assert finding.next[0].predicted_low is not None
    assert conclude(on_cpu(shares=shares)).verdict in ("compute", "memory")
    assert conclude(on_cpu(shares=shares, precision="fp64", optimizer=7.0)).verdict == "precision"


@pytest.mark.parametrize(("share", "asleep", "named"), [(0.9, 0.7, True), (0.9, 0.02, False), (0.05, 0.7, False)])
def test_a_thread_that_holds_the_interpreter_lock_is_named(share: float, asleep: float, named: bool) -> None:
    thread = BusyThread(name="Thread-1", share=share, place=IN_MODEL)
    finding = conclude(on_cpu(busy_thread=thread, asleep=asleep))
    assert (finding.verdict == "host") == named
    assert ("Thread-1" in finding.why) == named
    assert any("interpreter lock" in step.sentence for step in finding.next) == named
    if named:
        assert finding.place == IN_MODEL
        assert conclude(on_cpu(busy_thread=thread, asleep=0.9, optimizer=20.0)).verdict == "host"


@pytest.mark.promise("P17")
def test_a_fix_that_has_nothing_to_change_is_not_advised() -> None:
    assert "fused" in names(on_cpu(optimizer=9.0))
    assert "fused" not in names(on_cpu(optimizer=9.0, unused_fixes={"fused": "the optimizer has no fused implementation"}))


@pytest.mark.promise("P17")
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
    division = divide(measured)
    joined = division.share("memory", "dispatch")
    assert (joined >= max(0.5, division.share("compute", "optimizer"))) == advised
    assert ("compile" in names(measured)) == advised
    step = next((step for step in conclude(measured).next if step.name == "compile"), None)
    assert step is None or (step.predicted, step.predicted_high) == (None, None), "nothing was compiled"


def test_on_a_cpu_autocast_and_malloc_are_advised_where_steps_gained_by_them_alone() -> None:
    pages: dict[str, Any] = {"machine": msgspec.structs.replace(TWO_CORES, page_seconds=1e-6), "pages": {"loop": [2000.0]}}
    for name, given in (("autocast", {}), ("malloc", pages)):
        assert name not in names(on_cpu(**given))
        for after, advised in ((5.0, True), (12.0, False)):
            what_ifs = {name: switched_on(rounds(*[10] * 5), rounds(*[after] * 5))}
            assert (name in names(on_cpu(**given, what_ifs=what_ifs))) == advised


@pytest.mark.parametrize(("wanted", "now"), [(0, 2), (1, 0)])
def test_workers_are_advised_with_the_number_that_gained(wanted: int, now: int) -> None:
    loader = Loader(kind="DataLoader", workers=now)
    measured = on_cpu(next=9.0, loader=loader, what_ifs={"workers": changed(18.7, 12.0)}, fix_values={"workers": wanted})
    step = advised(measured, "workers")
    assert step is not None
    assert f"num_workers={wanted}" in step.sentence
    assert step.predicted == pytest.approx(18.7 / 12.0, rel=0.01)


def test_workers_gain_no_more_than_making_batches_beside_the_steps() -> None:
    """A batch takes 9 ms and the rest of a step 3 ms: with one worker a step takes 9 ms, whatever loading costs now."""
    measured = on_cpu(next=9.0, forward=1.0, backward=1.0, optimizer=1.0, cached=around(3 * MS), loader_alone=around(9 * MS))
    measured = msgspec.structs.replace(measured, machine=msgspec.structs.replace(TWO_CORES, threads=1))
    step = advised(measured, "workers")
    assert step is not None
    assert step.predicted_high == pytest.approx(12 / 9, rel=0.05)


# ---- what is predicted ----


def test_a_window_with_a_fix_is_compared_with_those_around_it() -> None:
    """The machine is half as fast in the last three rounds of five; the fix always leaves half of a step."""
    before, after = rounds(10, 10, 20, 20, 20), rounds(5, 5, 7.5, 10, 10)
    assert ratio_with_error(switched_on(before, after))[0] == pytest.approx(0.5)
    assert before.median / after.median > 2.5, "the control: medians of all steps"


def test_rounds_that_differ_make_a_range() -> None:
    steady = rounds(10, 10, 10, 10, 10)
    assert ratio_with_error(switched_on(steady, rounds(5, 5, 5, 5, 5))) == pytest.approx((0.5, 0.0))
    assert ratio_with_error(switched_on(steady, rounds(3, 5, 7, 4, 6)))[1] > 0.1
    two = ratio_with_error(switched_on(rounds(10, 10), rounds(5, 6)))
    assert two == pytest.approx((0.55, 0.1)), "twice the standard error of a mean of two: their difference"
    assert ratio_with_error(switched_on(steady, rounds(5, 5, 9, 5, 5)))[1] == pytest.approx(0.0), "one round does not matter"


@pytest.mark.promise("P17")
@pytest.mark.parametrize(("then", "advised"), [(rounds(9, 11, 10, 12, 9), False), (rounds(7, 9, 8, 10, 7), True)])
def test_a_fix_that_gained_nothing_is_not_advised_however_wide_its_range_is(then: Stretch, advised: bool) -> None:
    what_if = switched_on(rounds(10, 10, 10, 10, 10), then)
    assert ("autocast" in names(on_cpu(what_ifs={"autocast": what_if}))) == advised
    assert ratio_with_error(what_if)[1] > 0.05, "both vary so much that the range has two sides"


def test_a_fix_that_may_be_slower_is_advised_only_where_its_gain_is_clear() -> None:
    for spread, expected in ((0.9, False), (0.2, True)):
        wild = {"fused": WhatIf(as_it_is=around(5.0 * MS), with_fix=around(4.2 * MS, spread=spread, number=24))}
        assert (advised(on_cpu(forward=1.9, backward=1.0, optimizer=5.0, what_ifs=wild), "fused") is not None) == expected


@pytest.mark.promise("P17")
def test_what_failed_in_this_program_or_reads_values_back_gets_no_graph() -> None:
    launch = on_gpu(10.2, device=1.4, kernels=2000)
    assert "graph" in names(launch)
    assert "graph" not in names(msgspec.structs.replace(launch, unused_fixes={"graph": "AcceleratorError: capture"}))
    assert "graph" not in names(msgspec.structs.replace(launch, syncs=[Sync(place=LOG, count=1.0)]))


@pytest.mark.promise("P17")
@pytest.mark.parametrize(("framework", "what"), [(None, "capture the step"), ("lightning", "CUDA graphs of forward and backward")])
def test_of_a_framework_s_loop_the_passes_of_the_model_are_captured(framework: str | None, what: str) -> None:
    launch = msgspec.structs.replace(on_gpu(10.2, device=1.4, kernels=2000), framework=framework)
    [step] = [step for step in conclude(launch).next if step.name == "graph"]
    assert step.sentence.startswith(what)


@pytest.mark.promise("P17")
def test_faster_kernels_are_not_advised_on_a_gpu_that_waits_for_its_host() -> None:
    computing = on_gpu(10.0, device=9.9, reached=0.3, shares=COMPUTING)
    assert "autocast" in names(computing)
    assert "autocast" not in names(on_gpu(10.0, device=6.0, reached=0.3, shares=COMPUTING))


def tried(name: str, speedup: float, losses: Losses = "equal", predicted: float = 2.0) -> Advice:
    result = TrialResult(speedup=speedup, low=speedup * 0.95, high=speedup * 1.05, losses=losses)
    return Advice(name=name, sentence=name, predicted=predicted, tried=result)


@pytest.mark.promise("P17")
def test_trials_decide_the_order_and_what_is_refuted() -> None:
    untried = Advice(name="batch", sentence="", predicted=1.5)
    bound = Advice(name="graph", sentence="", predicted=None, predicted_high=4.0)
    steps = [
        tried("fused", 0.9, predicted=3.0),
        untried,
        bound,
        tried("tf32", 2.0, "changed"),
        tried("feed", 1.5),
        tried("workers", 2.5),
    ]
    assert [step.name for step in by_trial(steps)] == ["workers", "feed", "batch", "graph", "tf32", "fused"]
    assert [step.name for step in steps if refuted(step)] == ["fused", "tf32"]
    assert [step.name for step in by_trial([tried("feed", 2.0), tried("cached", 1.99)])] == ["cached", "feed"], "own code first"


@pytest.mark.promise("P17")
def test_a_range_ends_at_the_share_of_its_cause() -> None:
    measured = on_cpu(rest=10.0, forward=4.0, backward=5.0, spread=0.08, blames={"rest": [Blame(place=LOG, share=0.9)]})
    step = advised(measured, "host")
    assert step is not None
    assert step.predicted_high is not None
    assert step.predicted_high <= 1 / (1 - conclude(measured).causes[0].share) + 1e-9


@pytest.mark.promise("P17")
@pytest.mark.parametrize(
    ("name", "given", "causes", "of_them"),
    [
        ("batch", {"ops": 6000.0}, ("dispatch", "optimizer", "host", "oversubscribed", "kernel"), 0.5),
        ("fused", {"optimizer": 9.0}, ("optimizer",), 1.0),
        ("float32", {"precision": "fp64"}, ("precision",), 1.0),
        ("threads", {"machine": msgspec.structs.replace(TWO_CORES, threads=4), "fewer_threads": {"1": 0.005, "4": 0.0097}},
         ("oversubscribed",), 1.0),
    ],
)  # fmt: skip
def test_a_fix_that_was_not_measured_has_the_bound_of_its_causes(
    name: str, given: dict[str, Any], causes: tuple[str, ...], of_them: float
) -> None:
    measured = on_cpu(**given)
    step = advised(measured, name)
    assert step is not None
    assert (step.predicted, step.predicted_low) == (None, None)
    assert step.predicted_high == pytest.approx(1 / (1 - of_them * divide(measured).share(*causes)))


def test_a_fix_changes_all_of_a_step_but_its_data() -> None:
    what_ifs = {"fused": switched_on(rounds(*[13] * 5), rounds(*[13 / 3] * 5))}
    measured = on_cpu(optimizer=5.0, next=0.5, what_ifs=what_ifs)
    division, step = divide(measured), advised(measured, "fused")
    assert step is not None
    data = division.seconds("data")
    assert step.predicted == pytest.approx(division.step / (data + (division.step - data) / 3))


@pytest.mark.parametrize(
    ("framework", "words"),
    [
        (None, "1 worker process instead of 0 (num_workers=1)"),
        ("transformers", "1 worker process instead of 0 (TrainingArguments(dataloader_num_workers=1))"),
        ("lightning", "1 worker process instead of 0 (DataLoader(num_workers=1))"),
    ],
)
def test_advice_names_the_switch_of_the_framework_that_runs_the_loop(framework: str | None, words: str) -> None:
    measured = on_cpu(
        next=8.0, framework=framework, what_ifs={"workers": switched_on(rounds(20.0), rounds(11.0))}, fix_values={"workers": 1}
    )
    workers = advised(measured, "workers")
    assert workers is not None
    assert workers.sentence == words


def test_advice_on_code_of_a_framework_names_the_line_and_the_switch() -> None:
    line = Blame(place=SourceLine(file="train.py", line=7, function="Logger.on_step"), share=0.9)
    sentences = {}
    for blames in ({}, {"rest": [line]}):
        host = advised(on_cpu(rest=8.0, framework="lightning", blames=blames), "host")
        assert host is not None
        sentences[len(blames)] = host.sentence
    assert sentences[0].endswith("; or Trainer(log_every_n_steps=500): each log reads values and calls the loggers")
    assert sentences[1].startswith(
        "do it less often, or outside of the loop: Logger.on_step (train.py:7); or Trainer(log_every_n_steps"
    )


def test_a_line_that_only_calls_the_loop_is_not_said_to_make_batches() -> None:
    call, own = (
        SourceLine(file="train.py", line=45, function="<module>"),
        SourceLine(file="train.py", line=9, function="Rows.__getitem__"),
    )
    sentences = []
    for place in (own, call):
        loader = Loader(kind="DataLoader", functions=[Blame(place=place, share=1.0)])
        step = advised(on_cpu(next=20.0, loader=loader, blames={"optimizer": [Blame(place=call, share=1.0)]}), "cached")
        assert step is not None
        sentences.append(step.sentence)
    assert sentences[0].startswith("do the work of Rows.__getitem__ (train.py:9) once")
    assert sentences[1].startswith("make batches once and keep them")


def test_a_line_that_makes_batches_in_the_loop_is_to_do_it_once() -> None:
    own = SourceLine(file="train.py", line=9, function="window.<locals>.<listcomp>")
    measured = on_cpu(prepare=20.0, cached=None, loader=Loader(kind="loop"), blames={"prepare": [Blame(place=own, share=1.0)]})
    step = advised(measured, "once")
    assert step is not None
    assert step.sentence.startswith("do the work of window (train.py:9) once")
    assert step.predicted is None
    assert step.predicted_high == pytest.approx(29.7 / 9.7, rel=0.1)


@pytest.mark.parametrize(("left", "gain"), [(11.0, 18.0 / 11.0), (17.0, 18.0 / 10.1)])
def test_a_callback_gains_no_more_than_steps_without_callbacks(left: float, gain: float) -> None:
    blames = {"rest": [Blame(place=SourceLine(file="train.py", line=7, function="Stats.on_batch"), share=1.0)]}
    host = advised(on_cpu(rest=8.0, blames=blames, removed={"callbacks": changed(18.0, left)}), "host")
    assert host is not None
    assert host.predicted == pytest.approx(gain, rel=0.08)


@pytest.mark.promise("P17")
def test_a_line_that_only_calls_a_framework_has_no_python_of_the_model() -> None:
    """All phases have the line of `Trainer.train()`; a line of the user's model is one of the forward pass alone."""
    call = Blame(place=SourceLine(file="train.py", line=16, function="main"), share=1.0)
    of_model = Blame(place=IN_MODEL, share=1.0)
    phases = {"forward": 14.0, "rest": 3.0, "shares": {"gemm": 0.2, "python": 0.5, "other": 0.1}}
    for blame, is_model in ((call, False), (of_model, True)):
        measured = on_cpu(**phases, framework="transformers", blames={"forward": [blame], "backward": [call], "optimizer": [call]})
        [step] = [step for step in conclude(measured).next if step.name == "host"]
        assert ("Python in the model" in step.sentence) == is_model
