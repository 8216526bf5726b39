"""The programs with a known cause: that they are what they say, and that a few of them, whose cause is large, get no wrong verdict.

What a busy machine does to a run must not fail a test: the tool is given the clock of the processor, a run that still ends without
a verdict is skipped, and a wrong verdict fails.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from verdicts.run import judged_again, score
from verdicts.table import EVERYDAY, OTHERS, PROGRAMS, SINGLES, Program, fixes
from verdicts.table.program import FOLDERS

from stoker.diagnose.api import diagnose_script
from stoker.diagnose.finding import Finding

OTHERS_FOLDER, EVERYDAY_FOLDER = FOLDERS / "others", FOLDERS / "everyday"
BY_NAME = {program.name: program for program in PROGRAMS}
PACE = 0.4
TIMED = pytest.mark.slow  # times of real programs, which a busy machine changes


def find(program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch, *extra: str) -> Finding:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(FOLDERS / "processor_time"))
    return diagnose_script(program.path, [*program.words, *extra], quiet=True, pace=PACE)


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


@pytest.mark.promise("P17")
def test_every_program_with_a_cause_can_be_run_without_it() -> None:
    for program in PROGRAMS:
        assert program.path.is_file()
        assert program.has_fix == (program.kind not in ("sabotaged", "gpu", "apart")), program.name
        assert program.edited == (program.kind == "other"), program.name
        assert (program.second is None) == (program.second_clean is None), program.name


def test_no_script_names_its_cause() -> None:
    tells = re.compile(r"\b(bound|bottleneck|inject\w*|verdict|slow|oversubscri\w*|sabotage\w*)\b", re.IGNORECASE)
    told = {
        path.name: tells.findall(path.read_text())
        for folder in (FOLDERS / "programs", OTHERS_FOLDER, EVERYDAY_FOLDER, FOLDERS / "gpu")
        for path in folder.glob("*.py")
    }
    assert {name: words for name, words in told.items() if words} == {}


def test_every_script_held_out_compiles_and_is_in_the_table() -> None:
    scripts = {path.name for path in OTHERS_FOLDER.glob("*.py")} - {"make_data.py"}
    assert scripts == {program.script for program in OTHERS}
    for name in scripts:
        compile((OTHERS_FOLDER / name).read_text(), name, "exec")


@pytest.mark.promise("P17")
def test_every_edit_of_a_fix_fits_its_script() -> None:
    assert set(fixes.FIXES) == {program.path.stem for program in OTHERS if program.kind == "other"}
    for name in fixes.FIXES:
        source = (OTHERS_FOLDER / f"{name}.py").read_text()
        fixed = fixes.fixed_source(name, source)
        assert fixed != source
        compile(fixed, name, "exec")


@pytest.mark.promise("P17", control=True)
def test_an_edit_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mlp_list\.py .*occurs 0 times"):
        fixes.fixed_source("mlp_list", "another script")


def test_every_everyday_script_is_in_the_table_and_knows_the_flag() -> None:
    scripts = {path.name for path in EVERYDAY_FOLDER.glob("*.py")}
    assert scripts == {program.script for program in EVERYDAY}
    for program in EVERYDAY:
        assert program.clean == "--fixed"
        assert '"--fixed"' in program.path.read_text(), program.script


def test_the_score_reports_wrong_from_none() -> None:
    row = {"kind": "single", "put_in": "data", "put_in_second": None}
    rows = [
        row | {"verdict": verdict, "second": second} for verdict, second in (("data", "host"), ("host", "data"), ("none", None))
    ]
    scored = score(rows)
    assert scored["by_kind"]["single"] == {"programs": 3, "top_1": 1, "top_2": 2, "no_verdict": 1, "wrong": 1}
    assert scored["confused"] == {"data called host": 1}


def test_a_replay_changes_verdicts_of_known_programs_and_says_by_which_rule() -> None:
    rows = {"a": {"name": "a", "verdict": "none", "gain": 0.5, "of": "measured then; verdict by the rule of commit old"}}
    again = {"a": {"name": "a", "verdict": "data"}, "b": {"name": "b", "verdict": "host"}}
    found = judged_again(rows, again, commit="new")
    assert found == {"a": {"name": "a", "verdict": "data", "gain": 0.5, "of": "measured then; verdict by the rule of commit new"}}


@pytest.mark.promise("P17")
@TIMED
@pytest.mark.parametrize("name", ["data-mlp", "host-tabular", "optimizer-mlp", "compute-mlp", "dispatch-mlp"])
def test_a_large_cause_gets_no_wrong_verdict(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = BY_NAME[name]
    finding = find(program, tmp_path, monkeypatch)
    if finding.verdict == "none":
        pytest.skip(f"the machine is too busy: {finding.why}")
    assert finding.verdict == program.verdict, finding.why


@pytest.mark.promise("P17")
@TIMED
def test_five_steps_give_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = find(BY_NAME["few-steps-data-mlp"], tmp_path, monkeypatch)
    assert finding.verdict == "none"
    assert finding.causes == []
