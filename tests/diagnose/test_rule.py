"""From measurements to a finding: what it says, what it advises, and that it survives the way through JSON."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest
from tests.diagnose.measured import COMPUTING, MOVING, MS, TWO_CORES, around, changed, on_cpu, on_gpu
from tests.diagnose.strategies import NAMES, kept
from tests.diagnose.test_rule_order import OVERSUBSCRIBED

from stoker.diagnose import wording
from stoker.diagnose.finding import Finding
from stoker.diagnose.measurements import Blame, Loader, RareSteps, SourceLine, Stretch
from stoker.diagnose.rule import conclude

DATASET = SourceLine(file="data.py", line=88, function="Rows.__getitem__")


def predicted(finding: Finding) -> dict[str, float | None]:
    return {step.name: step.predicted for step in finding.next}


def test_data_is_reported_with_its_line_and_its_numbers() -> None:
    loader = Loader(
        kind="DataLoader",
        functions=[Blame(place=DATASET, share=0.72)],
    )
    finding = conclude(on_cpu(next=20.0, loader=loader))
    assert finding.verdict == "data"
    assert finding.confidence == "high"
    assert finding.place == DATASET
    assert finding.why == "Rows.__getitem__ (data.py:88): 72 % of the loader's time"
    assert finding.causes[0].sentence == "without loading, a step takes 9.7 ms instead of 29.7 ms (3.06x)"
    assert predicted(finding)["cached"] == pytest.approx(29.7 / 9.7, rel=0.01)
    assert "workers" not in predicted(finding), "two threads and a worker would share two cores"


@pytest.mark.parametrize("name", NAMES)
def test_every_verdict_of_a_program_has_evidence_and_something_to_do(name: str) -> None:
    finding = conclude(kept(name))
    assert finding.why
    # What a CPU gains by another type or number of workers is known of steps with it alone.
    assert finding.next or finding.verdict in ("none", "compute", "oversubscribed")


def test_fixes_are_predicted_from_steps_with_them_alone() -> None:
    measured = on_cpu(optimizer=9.0)
    assert predicted(conclude(measured))["fused"] is None
    finding = conclude(on_cpu(optimizer=9.0, what_ifs={"fused": changed(18.0, 12.0)}))
    assert predicted(finding)["fused"] == pytest.approx(18.3 / (0.1 + 18.2 * 12 / 18), rel=0.01)
    assert "fused" not in predicted(conclude(on_cpu(optimizer=9.0, what_ifs={"fused": changed(18.0, 18.5)})))
    assert "fused" not in predicted(conclude(msgspec.structs.replace(measured, optimizer_fused=True)))
    threads = {"machine": OVERSUBSCRIBED, "fewer_threads": {"2": 0.003, "16": 0.0097}, "what_ifs": {"threads": changed(9.8, 3.1)}}
    assert predicted(conclude(on_cpu(**threads)))["threads"] == pytest.approx(9.8 / 3.1, rel=0.01)


def test_what_is_not_sure_is_reported_as_a_range() -> None:
    finding = conclude(on_cpu(optimizer=9.0, what_ifs={"fused": changed(18.0, 12.0, spread=0.4)}))
    step = next(advice for advice in finding.next if advice.name == "fused")
    assert step.predicted is None
    assert step.predicted_low is not None
    assert step.predicted_high is not None
    assert step.predicted_low < 1.47 < step.predicted_high


def test_memory_lies_elsewhere_in_each_process_and_makes_a_wide_range() -> None:
    what_ifs = {"autocast": changed(9.8, 7.0)}
    moving, computing = (on_cpu(shares=shares, flops=1e6, what_ifs=what_ifs) for shares in (MOVING, COMPUTING))
    assert conclude(moving).verdict == "memory"
    steps = [next(step for step in conclude(measured).next if step.name == "autocast") for measured in (moving, computing)]
    assert [wording.predicted(step) for step in steps] == ["1.39x (1.20-1.66)", "1.39x"]


def test_a_step_that_waits_for_its_host_is_predicted_with_a_wide_range() -> None:
    held_up = on_gpu(30.0, cached=5.0, device=2.0)
    steady = on_gpu(30.0, cached=5.0, device=5.0)
    steps = [next(step for step in conclude(measured).next if step.name == "cached") for measured in (held_up, steady)]
    assert steps[0].predicted_low is not None
    assert steps[1].predicted_low is not None
    assert steps[0].predicted_low < 0.95 * 6.0 < steps[1].predicted_low
    assert steps[0].predicted_high == 6.0  # no more than batches take


def test_a_faster_step_waits_for_workers_that_are_as_slow_as_before() -> None:
    busy = {"loader": Loader(kind="DataLoader", workers=1), "loader_alone": around(17 * MS)}
    finding = conclude(on_cpu(optimizer=9.0, what_ifs={"fused": changed(18.0, 9.0)}, **busy))
    assert predicted(finding)["fused"] == pytest.approx(18.3 / 17.0, rel=0.01)


def test_batches_gathered_at_once_are_predicted_from_a_measurement_window_of_their_own() -> None:
    measured = on_cpu(next=20.0)
    feed = next(step for step in conclude(measured).next if step.name == "feed")
    assert (feed.predicted, feed.predicted_low) == (None, None)
    assert feed.predicted_high == pytest.approx(29.7 / 9.7, rel=0.02)
    finding = conclude(msgspec.structs.replace(measured, what_ifs={"feed": changed(10.6, 11.15)}))  # a little slower
    assert predicted(finding)["feed"] == pytest.approx(29.7 / (9.7 * 11.15 / 10.6), rel=0.01)


def test_shorter_types_are_advised_only_where_the_machine_is_faster_in_them() -> None:
    slow = msgspec.structs.replace(TWO_CORES, matmul_flops={"fp32": 2e11, "bf16": 1e10})
    what_ifs = {"autocast": changed(9.8, 7.0)}
    assert "autocast" in predicted(conclude(on_cpu(what_ifs=what_ifs)))
    assert "autocast" not in predicted(conclude(on_cpu(what_ifs=what_ifs, machine=slow)))


def test_no_verdict_has_a_reason_and_nothing_else() -> None:
    finding = conclude(on_cpu(number=5))
    assert (finding.verdict, finding.confidence, finding.causes, finding.next) == ("none", "low", [], [])
    assert finding.why.startswith("only 5 steps were measured")
    assert finding.measurements is not None


def test_confidence_falls_with_spread_and_with_a_close_second() -> None:
    assert conclude(on_cpu()).confidence == "high"
    assert conclude(on_cpu(spread=0.08)).confidence == "medium"
    assert conclude(on_cpu(rest=1.5, next=1.4)).confidence == "low"


def test_conclusions_need_no_torch() -> None:
    code = "import sys, stoker.diagnose.rule; sys.exit('torch' in sys.modules or 'numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_data_that_hides_behind_a_step_is_not_blamed() -> None:
    loader = Loader(kind="DataLoader", workers=1)
    finding = conclude(on_cpu(loader=loader, loader_alone=around(8 * MS)))
    assert finding.verdict == "compute"


def test_a_busy_machine_gives_the_likely_cause() -> None:
    busy = conclude(on_cpu(next=20.0, waited_for_cores=0.6))
    wild = conclude(
        on_cpu(next=20.0, waited_for_cores=0.6, cached=Stretch(seconds=[8 * MS, 40 * MS, 9 * MS, 45 * MS], pieces=[1] * 4))
    )
    assert [step.name for step in wild.next] == ["cached", "feed"], "also where steps on cached batches vary"
    assert busy.verdict == "none"
    assert busy.likely is not None
    assert busy.likely.verdict == conclude(on_cpu(next=20.0)).verdict == "data"
    assert "LIKELY   data-bound: " in str(busy)
    assert [step.name for step in busy.next] == ["cached", "feed"]
    assert "for 60 % of the time other programs had the cores" in str(busy)


@pytest.mark.promise("P17")
def test_processes_of_the_program_are_not_other_programs() -> None:
    """Samplers that a script starts by itself take cores from its training. Two threads of two cores wait for them."""
    quiet = conclude(on_cpu(waited_for_cores=0.2, own_processes=0.02))
    own = conclude(on_cpu(waited_for_cores=0.2, own_processes=0.4))
    assert (quiet.verdict, own.verdict) == ("none", "compute")


@pytest.mark.parametrize(("taken", "verdict"), [(None, "data"), (0.03, "data"), (0.4, "none")])
def test_a_program_that_crowds_the_cores_itself_is_disturbed_by_what_others_use(taken: float | None, verdict: str) -> None:
    assert conclude(on_cpu(next=60.0, waited_for_cores=0.5, own_processes=0.9, cores_taken=taken)).verdict == verdict


@pytest.mark.promise("P17")
@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        ({"next": 60.0, "waited_for_cores": 0.001}, "data"),
        ({"next": 8.0}, "data"),
    ],
)
def test_steps_of_many_lengths_have_a_verdict_with_low_confidence(options: dict[str, Any], verdict: str) -> None:
    finding = conclude(on_cpu(**options, spread=0.4))
    assert finding.verdict == verdict
    assert finding.confidence == "low"


def test_windows_of_a_busy_machine_that_contradict_each_other_leave_the_phases() -> None:
    """Steps on cached batches were measured while the machine was slower: they took longer than those that load their batches."""
    busy = conclude(on_cpu(next=20.0, waited_for_cores=0.6, cached=around(60 * MS)))
    assert busy.likely is not None
    assert busy.likely.verdict == "data"
    assert busy.next
    assert conclude(on_cpu(next=20.0, cached=around(60 * MS))).verdict != "data", "negative control: on a quiet machine C counts"


@pytest.mark.parametrize(("phase", "likely"), [("rest", "host"), (None, "data")])
def test_rare_steps_are_the_likely_cause_where_it_is_known_what_they_are(phase: str | None, likely: str) -> None:
    rare = RareSteps(share=0.5, every=10.0, seconds=1.0, others=0.03, phase=phase, place=DATASET)
    found = conclude(on_cpu(next=20.0, waited_for_cores=0.6, rare=rare)).likely
    assert found is not None
    assert found.verdict == likely


def test_a_few_steps_have_a_likely_cause() -> None:
    finding = conclude(on_cpu(waited_for_cores=0.6, number=5))
    assert finding.likely is not None
    assert finding.likely.verdict == "compute"


def test_work_that_was_not_counted_has_no_likely_cause() -> None:
    finding = conclude(on_cpu(waited_for_cores=0.6, work=None))
    assert finding.verdict == "none"
    assert finding.likely is None
