"""Trainings of all kinds are diagnosed unchanged: the loop is found, the steps are measured, nothing of the user's is touched.

No time is looked at but that there is one, so a busy machine changes nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.diagnose import ecosystem
from tests.diagnose.markup import Markup

from stoker.diagnose import api
from stoker.diagnose.api import diagnose_script
from stoker.diagnose.finding import Finding
from stoker.diagnose.finding import text as shown
from stoker.diagnose.measurements import Measurements
from stoker.diagnose.report import render
from stoker.errors import TrainError

pytestmark = [pytest.mark.slow, pytest.mark.promise("P18")]  # slow: a process for each

Run = Callable[..., Finding]
LEAK = "validation data seen in training: 10 of 192 samples"


BATCH_FLOPS = 2 * 8 * (16 * 32 + 32) * 2 + 2 * 8 * 32  # forward, weights, and the input of the second layer


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(api, "CHECK_SECONDS", 400.0)  # at this pace 20

    def run(text: str, *words: str, module: bool = False) -> Finding:
        Path("train.py").write_text(text)
        return diagnose_script("train" if module else "train.py", words, module=module, quiet=True, pace=0.05)

    return run


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def measured_of(answer: Finding) -> Measurements:
    """What was measured, of which all must be there."""
    measured = answer.measurements
    assert measured is not None
    assert len(measured.loop.seconds) >= 12
    assert measured.work is not None
    assert min(measured.phases.forward, measured.phases.backward, measured.phases.optimizer) > 0
    return measured


@pytest.mark.promise("P20")
@pytest.mark.parametrize(("text", "name"), [(ecosystem.TRAINER, "AdamW"), (ecosystem.LIGHTNING, "AdamW")], ids=["hf", "lightning"])
@pytest.mark.parametrize(("first", "wrong"), [("192", []), ("182", [LEAK])], ids=["clean", "leaks"])
def test_trainers_of_others_with_validation_and_checkpoints(
    run: Run, text: str, name: str, first: str, wrong: list[str], tmp_path: Path
) -> None:
    answer = run(text, first)
    measured = measured_of(answer)
    assert measured.optimizer == name
    assert measured.framework == ("transformers" if text is ecosystem.TRAINER else "lightning")
    assert measured.cached is not None
    assert [sentence[: len(LEAK)] for sentence in answer.correctness] == wrong
    assert files_in(tmp_path) == {"train.py"}


def test_accelerate_with_accumulation(run: Run, tmp_path: Path) -> None:
    answer = run(ecosystem.ACCELERATE)
    measured = measured_of(answer)
    assert measured.framework == "accelerate"
    assert measured.work is not None
    assert measured.work.flops == 4 * BATCH_FLOPS
    assert measured.loader.place is not None
    assert measured.loader.place.file == "train.py"
    assert answer.correctness == []
    assert files_in(tmp_path) == {"train.py"}


def test_a_module_of_a_package_with_imports_of_its_own(run: Run, tmp_path: Path) -> None:
    package = tmp_path / "package" / "inner"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package.parent / "__init__.py").write_text("")
    (package / "loop.py").write_text(
        "def fit(model, loader, loss_of, optimizer):\n    for epoch in range(100000):\n        for a, b in loader:\n"
        "            loss_of(model, a, b).backward(); optimizer.step(); optimizer.zero_grad()\n"
    )
    text = (
        "from .loop import fit\n" + ecosystem.HEAD + "fit(model, loader, loss_of, torch.optim.SGD(model.parameters(), lr=0.01))\n"
    )
    (package / "train.py").write_text(text)
    measured = measured_of(diagnose_script("package.inner.train", module=True, quiet=True, pace=0.05))
    assert measured.loader.place is not None
    assert (measured.loader.place.file, measured.loader.place.line) == ("package/inner/loop.py", 3)


def test_a_compiled_model(run: Run) -> None:
    measured = measured_of(run(ecosystem.COMPILED))
    assert measured.compiled
    assert measured.cached is not None
    assert measured.fewer_threads == {}, "code would be compiled anew for each number of threads"


def test_accumulated_gradients_are_one_step(run: Run) -> None:
    work = measured_of(run(ecosystem.ACCUMULATED)).work
    assert work is not None
    assert work.flops == 3 * BATCH_FLOPS


def test_two_optimizers_are_one_step(run: Run) -> None:
    work = measured_of(run(ecosystem.GAN)).work
    assert work is not None
    assert work.flops > 2 * BATCH_FLOPS


def test_an_iterator_that_is_begun_again(run: Run) -> None:
    answer = run(ecosystem.ITERATOR)
    assert measured_of(answer).loader.kind == "DataLoader"
    assert answer.correctness == []


def test_an_optimizer_that_calls_the_model_itself(run: Run) -> None:
    answer = run(ecosystem.CLOSURE)
    measured = answer.measurements
    assert measured is not None
    assert measured.optimizer == "LBFGS"
    assert len(measured.loop.seconds) >= 12
    assert answer.correctness == [], "a list of batches is the user's own: what is in it twice is meant to be"


def test_workers_that_are_spawned(run: Run) -> None:
    answer = run(ecosystem.SPAWNED)
    assert measured_of(answer).loader.workers == 2
    assert answer.correctness == []


def test_a_dataset_that_works_in_its_workers_only(run: Run) -> None:
    answer = run(ecosystem.IN_WORKERS_ONLY)
    measured = measured_of(answer)
    assert measured.loader.workers == 2
    assert any("works only in its workers (TypeError" in note for note in measured.notes)
    assert answer.correctness == []


def test_arguments_are_those_of_the_script(run: Run) -> None:
    assert len(measured_of(run(ecosystem.ARGUMENTS, "--epochs", "100000")).loop.seconds) >= 12
    with pytest.raises(TrainError, match="exited with code 2"):
        run(ecosystem.ARGUMENTS)


def test_no_file_of_the_users_is_changed(run: Run, tmp_path: Path) -> None:
    mine = {name: f"yesterday's {name}" for name in ("best.pt", "log.csv", "state.json", "old.pt", "runs/0/last.pt")}
    (tmp_path / "runs/0").mkdir(parents=True)
    for name, text in mine.items():
        (tmp_path / name).write_text(text)
    before = files_in(tmp_path)
    answer = run(ecosystem.WRITER)
    assert {name: (tmp_path / name).read_text() for name in mine} == mine
    assert files_in(tmp_path) == before | {"train.py"}
    assert any("Your files are unchanged" in note for note in measured_of(answer).notes)


@pytest.mark.promise("P17")
@pytest.mark.parametrize("end", ["", "raise KeyError('late')"], ids=["ends", "crashes"])
def test_five_steps_are_not_verdict_and_no_error(tmp_path: Path, end: str) -> None:
    short = ecosystem.HEAD.replace("x[:192], y[:192]", "x[:40], y[:40]") + ecosystem.LOOP.replace("EPOCHS", "1") + end
    (tmp_path / "train.py").write_text(short)
    command = [sys.executable, "-m", "stoker", "diagnose", "--json", "--quiet", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 3, done.stderr
    finding = json.loads(done.stdout)
    assert finding["verdict"] == "none"
    assert finding["why"].startswith("only 4 steps were measured, and 12 are needed")
    assert any("KeyError: 'late'" in note for note in finding["measurements"]["notes"]) == bool(end)


@pytest.mark.promise("P21")
def test_a_program_with_names_that_are_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = "<script>alert(1)<script> [bold]\x1b[2J.py"
    Path(name).write_text(ecosystem.PLAIN)
    finding = msgspec.structs.replace(diagnose_script(name, quiet=True, pace=0.05), correctness=["<b>wrong</b>"])
    page = Markup(render(finding, title=name))
    assert page.foreign == []
    told = "".join(page.texts)
    assert "<script>alert(1)<script> [bold]" in told
    assert "<b>wrong</b>" in told
    assert "\x1b" not in told + shown(finding)
