"""The programs with a known cause: that they are what they say, and that a few of them, whose cause is large, get no wrong verdict.

What a busy machine does to a run must not fail a test: the tool is given the clock of the processor, a run that still ends without
a verdict is skipped, and a wrong verdict fails.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from benchmarks.bench_verdicts import score
from benchmarks.verdicts.measure import PROGRAMS as FOLDER
from benchmarks.verdicts.neighbour import noisy_neighbours
from benchmarks.verdicts.table import PROGRAMS, SINGLES, Program

from stoker.diagnose.conclude import conclude
from stoker.diagnose.finding import Finding
from stoker.diagnose.scripts import measure_script

pytestmark = pytest.mark.slow  # times of real programs, which a busy machine changes

BY_NAME = {program.name: program for program in PROGRAMS}
PACE = 0.4


def find(program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch, *extra: str) -> Finding:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent / "processor_time"))
    return conclude(measure_script(FOLDER / program.script, [*program.words, *extra], quiet=True, pace=PACE))


def test_there_are_enough_programs_and_each_has_a_name_of_its_own() -> None:
    assert len(BY_NAME) == len(PROGRAMS)
    kinds = Counter(program.kind for program in PROGRAMS)
    assert kinds["single"] >= 40
    assert kinds["mixed"] >= 10
    causes = Counter(program.verdict for program in SINGLES if program.processes == 1)
    assert len(causes) >= 10
    assert min(causes.values()) >= 4
    assert {program.verdict for program in SINGLES if program.processes > 1} == {"straggler", "communication"}


def test_every_program_can_be_run_without_its_cause() -> None:
    for program in PROGRAMS:
        assert (FOLDER / program.script).is_file()
        assert (program.clean is None) == (program.kind == "sabotaged"), program.name
        assert (program.second is None) == (program.second_clean is None), program.name


def test_no_script_names_its_cause() -> None:
    tells = re.compile(r"\b(bound|bottleneck|inject\w*|verdict|slow|oversubscri\w*|sabotage\w*)\b", re.IGNORECASE)
    told = {path.name: tells.findall(path.read_text()) for path in FOLDER.glob("*.py")}
    assert {name: words for name, words in told.items() if words} == {}


def test_the_score_tells_wrong_from_none() -> None:
    row = {"kind": "single", "put_in": "data", "put_in_second": None}
    rows = [
        row | {"verdict": verdict, "second": second} for verdict, second in (("data", "host"), ("host", "data"), ("none", None))
    ]
    scored = score(rows)
    assert scored["by_kind"]["single"] == {"programs": 3, "top_1": 1, "top_2": 2, "no_verdict": 1, "wrong": 1}
    assert scored["confused"] == {"data called host": 1}


@pytest.mark.parametrize("name", ["data-mlp", "host-tabular", "optimizer-mlp", "compute-mlp", "dispatch-mlp"])
def test_a_large_cause_gets_no_wrong_verdict(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = BY_NAME[name]
    finding = find(program, tmp_path, monkeypatch)
    if finding.verdict == "none":
        pytest.skip(f"the machine is too busy: {finding.why}")
    assert finding.verdict == program.verdict, finding.why


def test_five_steps_give_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = find(BY_NAME["few-steps-data-mlp"], tmp_path, monkeypatch)
    assert finding.verdict == "none"
    assert finding.causes == []


def test_neighbours_are_gone_afterwards() -> None:
    with noisy_neighbours(2) as processes:
        assert all(process.poll() is None for process in processes)
    assert all(process.poll() is not None for process in processes)
