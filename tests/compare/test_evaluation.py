"""Comparisons that an evaluator judges: honest edits, cheats, the ledger, and edits that were kept apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.compare import apart_judged
from tests.compare.judged import CHEATS, COMMAND, DATA, EVALUATE, GAIN, TRAIN, make_project
from tests.compare.traps import edit_text

import stoker
from stoker.compare.evaluation import Evaluation
from stoker.compare.ledger import read_ledger
from stoker.compare.receipt import Receipt
from stoker.compare.sides import Version
from stoker.errors import OptionError, TrainError

FEW = ("validation data read", "evaluator edited")
"""Cheats of the quick tests; the others are slow."""
MINUTES = 1800
"""Seconds for tests that start more than 20 interpreters, each of which imports torch: half a minute alone, much more on a busy machine."""
Judge = Callable[..., Receipt]


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judge:
    """Judge an edit in a new project."""
    project = tmp_path / "project"
    make_project(project, {"evaluate.py": EVALUATE, "train.py": TRAIN}, DATA)
    monkeypatch.chdir(project)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def judged(edit: dict[str, str], files: dict[str, str] | None = None, *, seeds: int = 2, **options: Any) -> Receipt:
        texts = {"train.py": edit_text(TRAIN, edit), **(files or {})}
        after = Version(program="train.py", edits={str(project / name): text.encode() for name, text in texts.items()})
        asked = Evaluation(command=COMMAND, checkpoint="model.pt", hold_out=("valid.pt",), log=tmp_path / "results.jsonl")
        return stoker.compare("train.py", after, evaluation=asked, seeds=seeds, budget=0, **options)

    return judged


@pytest.mark.slow
@pytest.mark.timeout(MINUTES)
@pytest.mark.promise("P35", control=True)
def test_negative_control_a_true_gain_is_accepted_and_recorded(judge: Judge, tmp_path: Path) -> None:
    receipt = judge(GAIN, seeds=6, require="quality=better")
    assert receipt.status == 0, str(receipt)
    assert receipt.judgement is not None
    assert (receipt.judgement.number, receipt.judgement.read) == (1, [])
    (line,) = read_ledger(tmp_path / "results.jsonl")
    assert (line["status"], line["held_out"], line["quality"]["verdict"]) == (0, ["valid.pt"], "better")
    assert {Path(path).name for path in line["files"]} == {"evaluate.py", "valid.pt"}
    assert {Path(path).name for path in Path.cwd().iterdir()} == {"evaluate.py", "train.py", "train.pt", "valid.pt", "best.pt"}


@pytest.mark.promise("P35")
@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in FEW else pytest.mark.slow) for name in CHEATS])
def test_a_cheat_is_said_and_not_accepted(judge: Judge, tmp_path: Path, name: str) -> None:
    cheat = CHEATS[name]
    if cheat.fails:
        with pytest.raises(TrainError, match=cheat.fails):
            judge(cheat.edit, cheat.files)
    else:
        receipt = judge(cheat.edit, cheat.files, require="loss=tolerance", tolerance=1e9)
        wrong = [fact.text for fact in receipt.facts if fact.same is False]
        assert any(cheat.says in text for text in wrong), wrong
        assert receipt.status == 4, str(receipt)
        assert len(json.dumps(receipt.brief())) <= 2048
    (line,) = read_ledger(tmp_path / "results.jsonl")
    assert line["status"] in (2, 4)


@pytest.mark.slow
@pytest.mark.promise("P35")
def test_an_evaluator_that_changed_since_the_last_judgement_is_said(judge: Judge) -> None:
    judge({})
    Path("evaluate.py").write_text(EVALUATE.replace(".item()", ".item() / 2"))
    receipt = judge({})
    assert receipt.status == 4
    assert "evaluate.py changed since judgement 1" in str(receipt)


@pytest.mark.slow
@pytest.mark.promise("P35")
def test_reads_are_reported_where_nothing_prevents_them(judge: Judge, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STOKER_SANDBOX", "off")
    after = tmp_path / "project" / "after.py"
    after.write_text("import subprocess\nsubprocess.run(['cat', 'valid.pt'], stdout=subprocess.DEVNULL)\n" + TRAIN)
    asked = Evaluation(command=COMMAND, checkpoint="model.pt", hold_out=("valid.pt",))
    receipt = stoker.compare("train.py", after, evaluation=asked, seeds=2, budget=0)
    assert receipt.judgement is not None
    assert (receipt.judgement.protected, receipt.judgement.read) == ("watched", ["valid.pt"])
    assert receipt.status == 4
    honest = stoker.compare("train.py", "train.py", evaluation=asked, seeds=2, budget=0)
    assert honest.judgement is not None
    assert honest.judgement.read == []


@pytest.mark.parametrize(
    ("options", "words"),
    [({"log": "nowhere/results.jsonl"}, "its folder does not exist"), ({"hold_out": ("nothing.pt",)}, "does not exist"),
     ({"command": "python evaluate.py"}, "{checkpoint}")],
)  # fmt: skip
def test_a_wrong_argument_is_refused_before_anything_runs(judge: Judge, options: dict[str, Any], words: str) -> None:
    asked = Evaluation(**{"command": COMMAND, "checkpoint": "model.pt", **options})
    with pytest.raises(OptionError, match=words):
        stoker.compare("train.py", "train.py", evaluation=asked)


@pytest.mark.slow
@pytest.mark.timeout(MINUTES)
@pytest.mark.promise("P35")
@pytest.mark.parametrize("name", apart_judged.EDITS)
def test_edits_that_were_kept_apart(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    edit = apart_judged.EDITS[name]
    accepted, reason = apart_judged.judge_edit(edit)
    assert accepted == edit.accepted, reason
    assert edit.reason in reason


ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "research_loop"


def example(folder: Path) -> Path:
    """The project of the example, with its data."""
    project = folder / "loop"
    project.mkdir()
    for path in EXAMPLE.glob("*.py"):
        (project / path.name).write_bytes(path.read_bytes())
    subprocess.run([sys.executable, "make_data.py"], cwd=project, check=True)
    return project


@pytest.mark.slow
@pytest.mark.timeout(MINUTES)
def test_the_loop_of_the_example_keeps_what_is_better(tmp_path: Path) -> None:
    project = example(tmp_path)
    command = [sys.executable, "loop.py", "../results.jsonl"]
    done = subprocess.run(
        command, cwd=project, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True, check=True
    )
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["kept", "reverted", "reverted", "reverted"], done.stdout
    assert "Adam" in (project / "train.py").read_text()
    assert (project / "evaluate.py").read_bytes() == (EXAMPLE / "evaluate.py").read_bytes()
    assert len(read_ledger(tmp_path / "results.jsonl")) == 4


@pytest.mark.slow
@pytest.mark.timeout(MINUTES)
def test_every_command_of_the_guide_for_agents_runs(tmp_path: Path) -> None:
    project = example(tmp_path)
    (project / "candidate.py").write_bytes((project / "train.py").read_bytes())
    guide = (ROOT / "packages" / "stoker" / "src" / "stoker" / "SKILL.md").read_text()
    commands = [line for line in guide.splitlines() if line.startswith("stoker ")]
    assert {command.split()[1] for command in commands} == {"compare", "diagnose", "audit"}
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in commands:
        text = command.replace("--budget 60", "--budget 0")
        done = subprocess.run(["bash", "-c", text], cwd=project, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1, 3, 4), (command, done.stderr)
        assert len(done.stdout) <= 2048
        json.loads(done.stdout)
