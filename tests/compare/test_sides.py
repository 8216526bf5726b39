"""Sides: patches, commits, environments and interpreters, with no change of the user's files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import stoker.sandbox
from stoker.compare.sides import WORKING_TREE, Version, prepared
from stoker.errors import OptionError

PROGRAM = """
import os, sys
import torch
from part import number

weight = torch.nn.Parameter(torch.tensor(float(number)))
optimizer = torch.optim.SGD([weight], lr=0.0)
for _ in range(4):
    loss = weight + float(os.environ.get("EXTRA", 0)) + len(sys.argv)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
open("written.txt", "w").write("by the program")
"""
PATCH = """--- a/part.py
+++ b/part.py
@@ -1 +1 @@
-number = 1
+from added import number
--- /dev/null
+++ b/added.py
@@ -0,0 +1 @@
+number = 5
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    (folder / "part.py").write_text("number = 1\n")
    (tmp_path / "fix.patch").write_text(PATCH)
    monkeypatch.chdir(folder)
    return folder


def loss_of(version: Version, *arguments: str) -> float:
    with prepared(version) as side:
        return side.run(list(arguments), whole=True, time_limit=100).losses[0]


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize("mode", ["overlay", "landlock"])
def test_a_patch_is_seen_by_its_run_alone(project: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setenv(stoker.sandbox.VARIABLE, mode)
    before = contents(project)
    assert loss_of(Version(program="train.py", patch="../fix.patch")) == 6.0
    assert contents(project) == before
    assert loss_of(Version(program="train.py")) == 2.0, "negative control: without the patch"


def test_without_a_sandbox_no_other_files_are_written(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(stoker.sandbox.VARIABLE, "off")
    with pytest.raises(OptionError, match="sandbox"):
        loss_of(Version(program="train.py", patch="../fix.patch"))


def test_a_commit_is_run_without_a_checkout(project: Path) -> None:
    git(project, "init", "-q")
    git(project, "add", ".")
    git(project, "commit", "-qm", "first")
    (project / "part.py").write_text("from later import number\n")
    (project / "later.py").write_text("number = 7\n")
    git(project, "add", ".")
    git(project, "commit", "-qm", "second")
    (project / "later.py").write_text("number = 9\n")
    before = contents(project)
    losses = [loss_of(Version(program="train.py", commit=commit)) for commit in ("HEAD~1", "HEAD", WORKING_TREE)]
    assert losses == [2.0, 8.0, 10.0]
    assert contents(project) == before
    with pytest.raises(OptionError, match="git"):
        loss_of(Version(program="train.py", commit="nowhere"))
    with pytest.raises(OptionError, match="does not exist in"):
        loss_of(Version(program="other.py", commit="HEAD"))


def test_environment_interpreter_and_arguments_reach_the_program(project: Path) -> None:
    version = Version(program="train.py", environment={"EXTRA": "0.5"}, python=sys.executable)
    assert loss_of(version, "--lr", "3") == 4.5
    assert version.describe() == f"train.py EXTRA=0.5 by {sys.executable}"


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ("no diff", "changes no file"),
        (PATCH.replace("-number = 1", "-number = 2"), "cannot be applied"),
        (PATCH.replace("part", "gone"), "gone"),
    ],
)
def test_a_patch_that_does_not_fit_is_refused(project: Path, patch: str, words: str) -> None:
    Path("wrong.patch").write_text(patch)
    with pytest.raises(OptionError, match=words) as error:
        loss_of(Version(program="train.py", patch="wrong.patch"))
    assert error.value.parameter == "patch"


def test_an_interpreter_without_stoker_is_refused(project: Path, tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    for python in (str(other), "/nowhere/python"):
        with pytest.raises(OptionError, match="python") as error:
            loss_of(Version(program="train.py", python=python))
        assert error.value.parameter == "python"


def test_versions_are_checked_when_they_are_made(project: Path) -> None:
    for options in (
        {"program": "none.py"},
        {"program": "train.py", "patch": "none"},
        {"program": "train.py", "patch": "part.py", "commit": "a"},
    ):
        with pytest.raises(OptionError):
            Version(**options)


@pytest.mark.parametrize(("folder", "changes"), [("mine", False), ("lib/site-packages/theirs", True)])
def test_whether_a_version_changes_installed_packages_is_known(tmp_path: Path, folder: str, changes: bool) -> None:
    program = tmp_path / "train.py"
    program.write_text("")
    edits = {str(program): b"", str(tmp_path / folder / "model.py"): b"x = 1"}
    with prepared(Version(program=str(program), edits=edits)) as side:
        assert side.changes_packages == changes


def test_edits_replace_files_of_the_user_in_the_run_alone(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("raise SystemExit(3)")
    steps = "w = torch.ones(1, requires_grad=True)\no = torch.optim.SGD([w], lr=0.1)\nfor _ in range(4):\n    (w * w).sum().backward()\n"
    text = f"import torch\n{steps}    o.step()\n"
    with prepared(Version(program=str(program), edits={str(program): text.encode()})) as side:
        assert len(side.run([]).losses) == 4
    assert program.read_text() == "raise SystemExit(3)"
    with pytest.raises(OptionError, match="several of patch, commit and edits"):
        Version(program=str(program), edits={str(program): b""}, commit="HEAD")
