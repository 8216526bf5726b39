"""From measurements to a finding: what it says, what it advises, and that it survives the way through JSON."""

from __future__ import annotations

import json
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from tests.diagnose.measured import MS, TWO_CORES, around, on_cpu
from tests.diagnose.test_rule import ON_CPU, PROGRAMS, cpu_runs, gpu_runs

from stoker.diagnose.conclude import conclude
from stoker.diagnose.finding import Finding
from stoker.diagnose.measurements import Blame, Loader, Measurements, Place

DATASET = Place(file="data.py", line=88, function="Rows.__getitem__")


def predicted(finding: Finding) -> dict[str, float | None]:
    return {step.name: step.predicted for step in finding.next}


def test_data_is_told_with_its_line_and_its_numbers() -> None:
    loader = Loader(
        kind="DataLoader",
        functions=[Blame(place=DATASET, share=0.72)],
        stages={"read": 0.2, "decode": 0.8},
        bytes_read=125.0,
        bytes_used=10.0,
    )
    finding = conclude(on_cpu(next=20.0, loader=loader))
    assert finding.verdict == "data"
    assert finding.confidence == "high"
    assert finding.place == DATASET
    assert finding.why == (
        "Rows.__getitem__ (data.py:88): 72 % of the loader's time; decode is 80 % of making a batch; 12.5 bytes are read for each "
        "used; a batch takes 20 ms to make, a step without it 9.7 ms, both together 29.7 ms"
    )
    assert finding.causes[0].sentence == "68 % of each step waits for the loader"
    assert predicted(finding)["cached"] == pytest.approx(29.7 / 9.7, rel=0.01)
    assert predicted(finding)["workers"] is None  # two threads and a worker share two cores


def test_workers_are_predicted_where_there_are_cores_for_them() -> None:
    machine = msgspec.structs.replace(TWO_CORES, cores=16, threads=4)
    finding = conclude(on_cpu(next=20.0, machine=machine))
    assert predicted(finding)["workers"] == pytest.approx(29.7 / 9.9, rel=0.02)
    assert "num_workers=4" in next(step.sentence for step in finding.next if step.name == "workers")


@pytest.mark.parametrize("name", ON_CPU)
def test_every_cause_of_a_cpu_has_a_sentence_and_something_to_do(name: str) -> None:
    expected, options = ON_CPU[name]
    finding = conclude(on_cpu(**options))
    assert finding.verdict == expected
    assert finding.why
    assert finding.second is not None
    assert finding.next


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_cause_of_a_gpu_has_a_sentence_and_something_to_do(name: str) -> None:
    finding = conclude(PROGRAMS[name][1])
    assert finding.why
    assert finding.next
    assert all(step.predicted is None or step.predicted >= 1.02 for step in finding.next)


def test_predictions_are_steps_without_what_was_measured() -> None:
    assert predicted(conclude(PROGRAMS["launch_tf"][1]))["graph"] == pytest.approx(10.18 / 1.40, rel=0.01)
    assert predicted(conclude(PROGRAMS["sync_item"][1]))["sync"] == pytest.approx(22.10 / 19.30, rel=0.01)
    assert predicted(conclude(PROGRAMS["host_python"][1]))["host"] == pytest.approx(32.19 / 19.32, rel=0.01)
    threads = conclude(on_cpu(**ON_CPU["threads"][1]))
    assert predicted(threads)["threads"] == pytest.approx(9.8 / (9.8 - 6.7), rel=0.01)


def test_a_fused_optimizer_is_predicted_from_its_own_measurement_alone() -> None:
    measured = on_cpu(optimizer=9.0)
    assert predicted(conclude(measured))["fused"] is None
    finding = conclude(on_cpu(optimizer=9.0, optimizer_ways={"now": 0.008, "fused": 0.002}))
    assert predicted(finding)["fused"] == pytest.approx(18.3 / (18.3 - 0.75 * 9.0), rel=0.01)
    assert "fused" not in predicted(conclude(on_cpu(optimizer=9.0, optimizer_ways={"now": 0.002, "fused": 0.008})))
    assert "fused" not in predicted(conclude(msgspec.structs.replace(measured, optimizer_fused=True)))


def test_shorter_types_are_advised_only_where_the_machine_is_faster_in_them() -> None:
    slow = msgspec.structs.replace(TWO_CORES, matmul_flops={"fp32": 2e11, "bf16": 1e10})
    assert "autocast" in predicted(conclude(on_cpu()))
    assert "autocast" not in predicted(conclude(on_cpu(machine=slow)))


def test_no_verdict_has_a_reason_and_nothing_else() -> None:
    finding = conclude(on_cpu(number=5))
    assert (finding.verdict, finding.confidence, finding.causes, finding.next, finding.ladder) == ("none", "low", [], [], {})
    assert finding.why.startswith("only 5 steps were measured")
    assert finding.measurements is not None


def test_confidence_falls_with_spread_and_with_a_close_second() -> None:
    assert conclude(on_cpu()).confidence == "high"
    assert conclude(on_cpu(spread=0.08)).confidence == "medium"
    assert conclude(on_cpu(rest=1.5, next=1.4)).confidence == "low"


@given(cpu_runs() | gpu_runs())
def test_findings_survive_json(measured: Measurements) -> None:
    finding = conclude(measured)
    assert msgspec.json.decode(msgspec.json.encode(finding), type=Finding) == finding
    plain = json.loads(json.dumps(finding.as_dict()))
    assert plain["verdict"] == finding.verdict
    assert plain["second"] == (finding.causes[1].verdict if finding.causes else None)


@given(cpu_runs() | gpu_runs())
def test_predictions_are_possible(measured: Measurements) -> None:
    for step in conclude(measured).next:
        assert step.predicted is None or 1 <= step.predicted <= 50


def test_conclusions_need_no_torch() -> None:
    code = "import sys, stoker.diagnose.conclude; sys.exit('torch' in sys.modules or 'numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_data_that_hides_behind_a_step_is_not_blamed() -> None:
    loader = Loader(kind="DataLoader", workers=1)
    finding = conclude(on_cpu(loader=loader, loader_alone=around(8 * MS)))
    assert finding.verdict == "compute"
