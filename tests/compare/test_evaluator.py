"""The evaluator: its command, its metric, the files it uses, and a sandbox that leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stoker.compare.evaluator import evaluate, hashes_of, metric_of, named_files, words_of
from stoker.compare.observed import RunRequest
from stoker.errors import OptionError, TrainError

BEFORE = RunRequest(program="train.py")
EVALUATE = """
import json, sys, torch
import scale
rows = torch.load("valid.pt")
model = torch.nn.Linear(4, 1)
model.load_state_dict(torch.load(sys.argv[1]))
with torch.no_grad():
    print("evaluating", json.dumps({"loss": 9.0}))
    print(json.dumps({"loss": scale.FACTOR * model(rows).square().mean().item()}))
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with an evaluator, held-out rows and a checkpoint."""
    (tmp_path / "evaluate.py").write_text(EVALUATE)
    (tmp_path / "scale.py").write_text("FACTOR = 2.0\n")
    (tmp_path / "out").mkdir()
    torch.save(torch.ones(5, 4), tmp_path / "valid.pt")
    torch.save({"weight": torch.zeros(1, 4), "bias": torch.ones(1)}, tmp_path / "out" / "model.pt")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def judge(project: Path, command: str = "python evaluate.py {checkpoint}", version: RunRequest = BEFORE) -> tuple[float, set[str]]:
    done = evaluate(words_of(command), project / "out" / "model.pt", version)
    assert set(done.modules) <= set(done.files)
    return metric_of(done.output, None), {str(Path(path).relative_to(project)) for path in done.files}


def test_the_files_of_the_evaluator_are_known(project: Path) -> None:
    done = evaluate(words_of("python evaluate.py {checkpoint}"), project / "out" / "model.pt", BEFORE)
    assert metric_of(done.output, None) == 2.0
    assert done.files == hashes_of(str(project / name) for name in ("evaluate.py", "scale.py", "valid.pt"))
    assert {Path(path).name for path in done.modules} == {"evaluate.py", "scale.py"}
    assert len(done.rows.exact) == 5


@pytest.mark.promise("P35")
def test_it_runs_from_the_files_of_before(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    files = tmp_path_factory.mktemp("files")
    changed = Path(f"{files}{project}/scale.py")
    changed.parent.mkdir(parents=True)
    changed.write_text("FACTOR = 7.0\n")
    assert judge(project, version=RunRequest(program="train.py", files=str(files)))[0] == 7.0
    assert judge(project)[0] == 2.0


def test_any_command_can_judge(project: Path) -> None:
    (project / "judge.sh").write_text("test -f $1 && echo 0.25")
    assert judge(project, "sh judge.sh {checkpoint}") == (0.25, {"judge.sh"})


@pytest.mark.promise("P35")
def test_a_checkpoint_that_runs_code_is_not_loaded(project: Path) -> None:
    torch.save(torch.nn.Linear(4, 1), project / "out" / "model.pt")
    with pytest.raises(TrainError, match=r"model.pt is not only tensors and plain values"):
        judge(project)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise SystemExit(3)", "ended with exit code 3"),
        ("1 / 0", r"raised ZeroDivisionError \(evaluate.py:\d+\): division by zero"),
    ],
)
def test_an_evaluator_that_fails_says_why(project: Path, text: str, words: str) -> None:
    (project / "evaluate.py").write_text(text)
    with pytest.raises(TrainError, match=words):
        judge(project)


@pytest.mark.parametrize(
    ("output", "pattern", "metric"),
    [
        ("0.5\n", None, 0.5),
        ('{"loss": 1}\n{"loss": 0.25}\nbye\n', None, 0.25),
        ('{"loss": 0.25, "name": "x", "ok": true}\n', None, 0.25),
        ("loss 0.5 accuracy 0.75\n", "accuracy ([0-9.]+)", 0.75),
    ],
)
def test_the_metric_is_what_it_printed_last(output: str, pattern: str | None, metric: float) -> None:
    assert metric_of(output, pattern) == metric


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("", "printed no JSON"),
        ("loss: 0.5\n", "printed no JSON"),
        ('{"loss": 0.5, "error": 0.1}\n', r"printed 2 numbers \(loss, error\)"),
        ("NaN\n", "printed nan, which is not a metric"),
        ('{"loss": Infinity}\n', "printed inf"),
    ],
)
def test_what_cannot_be_a_metric_is_refused(output: str, words: str) -> None:
    with pytest.raises(TrainError, match=words):
        metric_of(output, None)


@pytest.mark.parametrize("command", ["", "python evaluate.py", "python evaluate.py checkpoint"])
def test_a_command_without_a_place_for_the_checkpoint_is_refused(command: str) -> None:
    with pytest.raises(OptionError, match="checkpoint") as caught:
        words_of(command)
    assert caught.value.parameter == "evaluate"


def test_files_that_a_command_names(project: Path) -> None:
    assert named_files(["/bin/sh", "evaluate.py", "valid.pt", "nothing"]) == [
        str(project / "evaluate.py"),
        str(project / "valid.pt"),
    ]
