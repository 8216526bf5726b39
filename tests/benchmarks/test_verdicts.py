"""The programs with a known cause: that they are what they say, and that a few of them, whose cause is large, get no wrong verdict.

What a busy machine does to a run must not fail a test: the tool is given the clock of the processor, a run that still ends without
a verdict is skipped, and a wrong verdict fails.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from pathlib import Path

import pytest
from benchmarks.bench_verdicts import contradicted, judged_again, merged, score
from benchmarks.verdicts.needs import PACKAGES, data_for
from benchmarks.verdicts.neighbour import noisy_neighbours
from benchmarks.verdicts.table import EVERYDAY, OTHERS, PROGRAMS, SINGLES, Program, fixes
from benchmarks.verdicts.table.program import FOLDERS

from stoker.diagnose.api import measure_script
from stoker.diagnose.finding import Finding
from stoker.diagnose.rule import conclude

OTHERS_FOLDER, EVERYDAY_FOLDER = FOLDERS / "others", FOLDERS / "everyday"
BY_NAME = {program.name: program for program in PROGRAMS}
PACE = 0.4
TIMED = pytest.mark.slow  # times of real programs, which a busy machine changes


def find(program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch, *extra: str) -> Finding:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(FOLDERS / "processor_time"))
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


def test_every_program_with_a_cause_can_be_run_without_it() -> None:
    for program in PROGRAMS:
        assert program.path.is_file()
        assert program.has_fix == (program.kind not in ("sabotaged", "gpu")), program.name
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


def test_every_edit_of_a_fix_fits_its_script() -> None:
    assert set(fixes.FIXES) == {program.path.stem for program in OTHERS if program.kind == "other"}
    for name in fixes.FIXES:
        source = (OTHERS_FOLDER / f"{name}.py").read_text()
        fixed = fixes.fixed_source(name, source)
        assert fixed != source
        compile(fixed, name, "exec")


def test_an_edit_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mlp_list\.py .*occurs 0 times"):
        fixes.fixed_source("mlp_list", "another script")


def test_every_everyday_script_is_in_the_table_and_knows_the_flag() -> None:
    scripts = {path.name for path in EVERYDAY_FOLDER.glob("*.py")}
    assert scripts == {program.script for program in EVERYDAY}
    for program in EVERYDAY:
        assert program.clean == "--fixed"
        assert '"--fixed"' in program.path.read_text(), program.script


def test_an_ablation_without_a_gain_contradicts_the_truth() -> None:
    assert contradicted({"gain": 0.03, "gain_cpu": 0.05})
    assert not contradicted({"gain": 0.03, "gain_cpu": 0.5})
    assert not contradicted({"name": "not measured"})


def test_a_script_held_out_gets_no_argument_that_it_does_not_know() -> None:
    assert all(program.name.startswith("other-") and program.words == [] for program in OTHERS)


def test_packages_are_those_that_scripts_import() -> None:
    paths = {program.script: program.path for program in PROGRAMS}
    for script, package in PACKAGES.items():
        assert re.search(rf"^ *(import|from) {package}\b", paths[script].read_text(), re.MULTILINE), script


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


def test_merged_rows_keep_what_they_do_not_measure_and_say_where_they_come_from(tmp_path: Path) -> None:
    machine = {"cpu": "C", "cores": 14}
    verdicts, gains = tmp_path / "verdicts.json", tmp_path / "gains.json"
    head = {"when": "2026-11-17", "machine": machine}
    verdicts.write_text(json.dumps({**head, "commit": "", "programs": [{"name": "a", "verdict": "data", "second": None}]}))
    gains.write_text(json.dumps({**head, "commit": "b2", "programs": [{"name": "a", "gain": 0.5, "gain_cpu": 0.4}, {"name": "b"}]}))
    old = {"a": {"name": "a", "verdict": "host", "second": "data", "ablation_error": "x", "of": "old"}, "c": {"name": "c"}}
    rows = merged(old, [verdicts, gains], commit="a1")
    assert list(rows) == ["a", "c", "b"]
    assert (rows["a"]["verdict"], rows["a"]["second"], rows["a"]["gain"]) == ("data", None, 0.5)
    assert rows["a"]["of"] == "measured 2026-11-17 on C (14 cores), commit a1"
    assert rows["a"]["gain_of"].endswith("commit b2")
    assert "ablation_error" not in rows["a"]
    assert old["a"]["verdict"] == "host"
    both = tmp_path / "both.json"
    both.write_text(json.dumps({**head, "commit": "c3", "programs": [{**rows["a"], "gain": 0.6}]}))
    again = merged({}, [both])["a"]
    assert (again["gain"], again["of"], again["gain_of"]) == (0.6, rows["a"]["of"], rows["a"]["gain_of"]), "merged before"


def test_a_replay_changes_verdicts_of_known_programs_and_says_by_which_rule() -> None:
    rows = {"a": {"name": "a", "verdict": "none", "gain": 0.5, "of": "measured then; verdict by the rule of commit old"}}
    again = {"a": {"name": "a", "verdict": "data"}, "b": {"name": "b", "verdict": "host"}}
    found = judged_again(rows, again, commit="new")
    assert found == {"a": {"name": "a", "verdict": "data", "gain": 0.5, "of": "measured then; verdict by the rule of commit new"}}


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


def test_neighbours_are_on_all_cores_and_gone_afterwards() -> None:
    cores = sorted(os.sched_getaffinity(0))
    with noisy_neighbours(len(cores)) as processes:
        end = time.monotonic() + 60
        while any(len(os.sched_getaffinity(one.pid)) > 1 for one in processes) and len(cores) > 1 and time.monotonic() < end:
            time.sleep(0.02)  # until each has pinned itself
        assert [os.sched_getaffinity(one.pid) for one in processes] == [{core} for core in cores]
        assert all(process.poll() is None for process in processes)
    assert all(process.poll() is not None for process in processes)
