"""GPU programs whose truth is an ablation: their scripts, the rule of accepted causes, and the timed window."""

from __future__ import annotations

import ast
import fcntl
import re
from collections import Counter
from pathlib import Path

import pytest
from verdicts import ablations, run
from verdicts.ablations import UNCHANGED, accepted, step_seconds
from verdicts.table import APART, ON_GPU, Program
from verdicts.table.program import FOLDERS

CAUSES = {"data", "transfer", "sync", "host", "launch", "optimizer", "precision", "compute", "memory", "kernel"}
TELLS = re.compile(rf"\b({'|'.join(CAUSES)}|bound|bottleneck|slow\w*|verdict|uploads?|synchron\w*|wait\w*)\b", re.IGNORECASE)


def test_every_script_is_in_the_table() -> None:
    assert {path.name for path in (FOLDERS / "gpu").glob("*.py")} == {program.script for program in ON_GPU}
    assert len(ON_GPU) == 32
    assert {path.name for path in (FOLDERS / "apart").glob("*.py")} == {program.script for program in APART}


@pytest.mark.parametrize("program", ON_GPU, ids=lambda program: program.name)
def test_a_script_compiles_and_knows_its_suspects(program: Program) -> None:
    source = program.path.read_text()
    compile(source, program.script, "exec")
    tested = set(re.findall(r'"(\w+)" (?:not )?in OFF', source))
    assert tested == set(program.without)
    assert tested <= CAUSES


@pytest.mark.parametrize("program", [*ON_GPU, *APART], ids=lambda program: program.name)
def test_neither_its_name_nor_its_docstring_names_a_cause(program: Program) -> None:
    told = f"{program.path.stem.replace('_', ' ')} {ast.get_docstring(ast.parse(program.path.read_text()))}"
    assert TELLS.findall(told) == []


def test_negative_control_a_docstring_that_names_a_cause_is_seen() -> None:
    assert TELLS.findall("The optimizer is slow, and the host waits.") == ["optimizer", "slow", "host", "waits"]


def test_the_programs_differ_in_their_causes() -> None:
    causes = Counter(program.verdict for program in ON_GPU)
    assert set(causes) == CAUSES - {"kernel"}
    assert causes["launch"] >= 12
    assert all("sync" in program.without for program in ON_GPU if program.verdict == "launch")


def test_the_suspect_that_saves_most_is_accepted_with_those_that_save_nearly_as_much() -> None:
    assert accepted({UNCHANGED: 10.0, "launch": 4.0, "sync": 9.5, "host": 9.0}, "sync") == ["launch"]
    assert accepted({UNCHANGED: 10.0, "launch": 5.0, "sync": 6.0}, "launch") == ["launch", "sync"]
    assert accepted({UNCHANGED: 10.0, "launch": 6.1, "sync": 5.0}, "launch") == ["sync"]


def test_a_verdict_is_right_if_the_ablation_accepts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"verdict": "launch", "second": "sync", "put_in": "sync", "accepted": ["launch", "host"]}
    assert run.is_right(row)
    assert not run.is_right({**row, "verdict": "sync"})
    assert not run.is_among_two({**row, "verdict": "sync"})
    program = ON_GPU[0]
    monkeypatch.setattr(ablations, "_kept", lambda: {program.name: {"accepted": ["host"]}})
    assert ablations.accepted_causes(program) == ["host"]
    assert ablations.accepted_causes(ON_GPU[1]) == [ON_GPU[1].verdict]


SCRIPT = """
import sys, time, torch
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight])
steps = 0
while True:
    if steps == 1:
        open({mark!r}, "w").close()
    steps += 1
    time.sleep(0.001 if "host" in sys.argv else 0.02)
    weight.sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_side_is_timed_alone_and_without_its_suspect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark, script, lock = tmp_path / "mark", tmp_path / "script.py", tmp_path / "lock"
    script.write_text(SCRIPT.format(mark=str(mark)))
    program = Program(name="gpu-sleep", arguments="", clean=None, verdict="host", folder="gpu", kind="gpu", without=("host",))
    monkeypatch.setattr(Program, "path", script)
    assert step_seconds(program, UNCHANGED, lock) > 0.020
    mark.unlink()
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        monkeypatch.setattr(ablations, "TIMEOUT", 8.0)
        with pytest.raises(RuntimeError, match="more than 8 s"):
            step_seconds(program, "host", lock)
    assert not mark.exists()  # a process that waits does nothing after its first step
    monkeypatch.setattr(ablations, "TIMEOUT", 60.0)
    assert step_seconds(program, "host", lock) < 0.020
