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
from benchmarks.verdicts.needs import PACKAGES, data_for
from benchmarks.verdicts.neighbour import noisy_neighbours
from benchmarks.verdicts.table import OTHERS, PROGRAMS, SINGLES, Program

from stoker.diagnose.api import measure_script
from stoker.diagnose.finding import Finding
from stoker.diagnose.verdict import conclude

OTHERS_FOLDER = FOLDER.parent / "others"
BY_NAME = {program.name: program for program in PROGRAMS}
PACE = 0.4
TIMED = pytest.mark.slow  # times of real programs, which a busy machine changes


def find(program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch, *extra: str) -> Finding:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent / "processor_time"))
    return conclude(measure_script(program.path, [*program.words, *extra], quiet=True, pace=PACE))


def test_there_are_enough_programs_and_each_has_a_name_of_its_own() -> None:
    assert len(BY_NAME) == len(PROGRAMS)
    kinds = Counter(program.kind for program in PROGRAMS)
    assert kinds["single"] >= 40
    assert kinds["mixed"] >= 10
    assert kinds["other"] >= 30
    causes = Counter(program.verdict for program in SINGLES if program.processes == 1)
    assert len(causes) >= 10
    assert min(causes.values()) >= 4
    assert {program.verdict for program in SINGLES if program.processes > 1} == {"straggler", "communication"}


def test_every_program_of_ours_can_be_run_without_its_cause() -> None:
    for program in PROGRAMS:
        assert program.path.is_file()
        assert (program.clean is None) == (program.kind in ("sabotaged", "other")), program.name
        assert (program.second is None) == (program.second_clean is None), program.name


def test_no_script_names_its_cause() -> None:
    tells = re.compile(r"\b(bound|bottleneck|inject\w*|verdict|slow|oversubscri\w*|sabotage\w*)\b", re.IGNORECASE)
    told = {path.name: tells.findall(path.read_text()) for folder in (FOLDER, OTHERS_FOLDER) for path in folder.glob("*.py")}
    assert {name: words for name, words in told.items() if words} == {}


def test_every_script_held_out_compiles_and_is_in_the_table() -> None:
    scripts = {path.name for path in OTHERS_FOLDER.glob("*.py")} - {"make_data.py"}
    assert scripts == {program.script for program in OTHERS}
    for name in scripts:
        compile((OTHERS_FOLDER / name).read_text(), name, "exec")


def test_a_script_held_out_gets_no_argument_that_it_does_not_know() -> None:
    assert all(program.name.startswith("other-") and program.words == [] for program in OTHERS)


def test_packages_are_those_that_scripts_import() -> None:
    paths = {program.script: program.path for program in PROGRAMS}
    for script, package in PACKAGES.items():
        assert re.search(rf"^(import|from) {package}\b", paths[script].read_text(), re.MULTILINE), script


def test_scripts_held_out_find_all_that_they_read() -> None:
    with data_for(OTHERS) as data:
        assert data is not None
        made = {path.name for path in data.iterdir()}
    assert not data.exists()
    read = {name for program in OTHERS for name in re.findall(r"\bdata/([\w.]+)", program.path.read_text())}
    assert made == read


def test_no_data_is_made_for_programs_that_read_none() -> None:
    with data_for(SINGLES) as data:
        assert data is None


def test_the_score_reports_wrong_from_none() -> None:
    row = {"kind": "single", "put_in": "data", "put_in_second": None}
    rows = [
        row | {"verdict": verdict, "second": second} for verdict, second in (("data", "host"), ("host", "data"), ("none", None))
    ]
    scored = score(rows)
    assert scored["by_kind"]["single"] == {"programs": 3, "top_1": 1, "top_2": 2, "no_verdict": 1, "wrong": 1}
    assert scored["confused"] == {"data called host": 1}


@TIMED
@pytest.mark.parametrize("name", ["data-mlp", "host-tabular", "optimizer-mlp", "compute-mlp", "dispatch-mlp"])
def test_a_large_cause_gets_no_wrong_verdict(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = BY_NAME[name]
    finding = find(program, tmp_path, monkeypatch)
    if finding.verdict == "none":
        pytest.skip(f"the machine is too busy: {finding.why}")
    assert finding.verdict == program.verdict, finding.why


@TIMED
def test_five_steps_give_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = find(BY_NAME["few-steps-data-mlp"], tmp_path, monkeypatch)
    assert finding.verdict == "none"
    assert finding.causes == []


def test_neighbours_are_gone_afterwards() -> None:
    with noisy_neighbours(2) as processes:
        assert all(process.poll() is None for process in processes)
    assert all(process.poll() is not None for process in processes)
