"""The run folder: it says what ran, belongs to one process, and forgets what came after the checkpoint it goes on from."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.harness import NOT_JSON, FaultyFiles
from tests.train.training import network, pairs, trainer_of

import stoker
from stoker._disk import is_locked
from stoker.errors import OptionError, TrainError
from stoker.train import run as machine
from stoker.train.run import Run, read_record


def record_of(folder: Path) -> dict[str, object]:
    found = json.loads((folder / "run.json").read_text())
    assert isinstance(found, dict)
    return found


def test_a_record_says_what_ran_where_and_how_it_ended(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "one"
    config = {"batch_size": 512, "lr": 1e-3, "path": Path("data"), 3: ["a", None, True]}
    run = Run(folder, config=config, stores={"train": "0123abcd"}, command=["stoker", "train", "config.yaml"])
    running = read_record(folder).last
    assert (running.ended, running.how, running.last_step) == (None, None, None)
    run.metrics.write(50, {"loss": 0.5})
    run.end("finished", step=50)
    record = record_of(folder)
    assert (record["format"], record["version"]) == ("stoker-run", 1)
    last = read_record(folder).last
    assert last.config == {"batch_size": 512, "lr": 1e-3, "path": "data", "3": ["a", None, True]}
    assert last.stores == {"train": "0123abcd"}
    assert last.command == ["stoker", "train", "config.yaml"]
    assert last.versions.items() >= {"stoker": stoker.__version__, "torch": str(torch.__version__), "numpy": np.__version__}.items()
    assert (last.machine.cores, last.process, last.folder) == (len(os.sched_getaffinity(0)), os.getpid(), str(Path.cwd()))
    assert (last.how, last.last_step) == ("finished", 50)
    assert last.started <= last.ended
    assert not is_locked(folder)


def test_a_folder_that_holds_a_run_is_refused_unless_it_is_resumed(tmp_path: Path) -> None:
    Run(tmp_path, config={"lr": 1}).end("signal", step=7)
    with pytest.raises(OptionError, match="holds a run already"):
        Run(tmp_path)
    Run(tmp_path, config={"lr": 2}, from_step=5).end("finished", step=20)
    first, second = read_record(tmp_path).sessions
    assert (first.config, first.how, first.from_step) == ({"lr": 1}, "signal", 0)
    assert (second.config, second.how, second.from_step, second.last_step) == ({"lr": 2}, "finished", 5, 20)


def test_two_processes_cannot_train_in_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.train.run.LOCK_SECONDS", 0.0)
    with Run(tmp_path), pytest.raises(TrainError, match=rf"is being trained by process {os.getpid()}\. Wait for it"):
        Run(tmp_path, from_step=0)


def test_a_full_disk_at_any_operation_leaves_the_folder_free(tmp_path: Path) -> None:
    with FaultyFiles() as disk:
        Run(tmp_path / "count").end("finished")
    for k in range(disk.operations):
        folder = tmp_path / str(k)
        with FaultyFiles(error_at=(k, errno.ENOSPC), sticky=True), pytest.raises(OSError, match="the disk is full"):
            Run(folder).end("finished")
        assert not is_locked(folder)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *((data, "") for data in NOT_JSON.values()),
        (b'{"format":"stoker-run","version":1,"sessions":[]}', "Expected `array` of length >= 1 - at `$.sessions`"),
        (b'{"format":"stoker-run","version":1,"more":1,"sessions":[]}', "unknown field `more`"),
        (b'{"format":"stoker-run","version":2,"sessions":{}}', "has version 2, and this stoker reads up to 1"),
        (b'{"format":"other","version":1,"sessions":[]}', "is damaged"),
    ],
    ids=[*NOT_JSON, *"abcd"],
)
def test_a_record_is_read_strictly(tmp_path: Path, text: bytes, reason: str) -> None:
    (tmp_path / "run.json").write_bytes(text)
    for read in (read_record, lambda folder: Run(folder, from_step=3)):
        with pytest.raises(TrainError) as caught:
            read(tmp_path)
        assert reason in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not is_locked(tmp_path)


# ---- what it ran on ----


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_the_commit_and_whether_files_differ_from_it(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("1")
    git(tmp_path, "init", "-q")
    assert machine.find_commit(tmp_path) is None  # no commit yet
    git(tmp_path, "add", "code.py")
    git(tmp_path, "commit", "-q", "-m", "first")
    clean = machine.find_commit(tmp_path)
    assert (len(clean.commit), clean.dirty) == (40, False)
    (tmp_path / "notes.txt").write_text("not git's")
    assert machine.find_commit(tmp_path) == clean
    (tmp_path / "code.py").write_text("2")
    assert machine.find_commit(tmp_path) == machine.Commit(commit=clean.commit, dirty=True)


# The folder of a run is a new one, an empty one, or that of a run: nothing else is written into


def of_a_store(path: Path) -> Path:
    stoker.Store.from_arrays(x=[[1.0, 2.0]]).save(path / "a.stoker")
    return path / "a.stoker"


def with_a_file(path: Path) -> Path:
    (path / "mine").mkdir()
    (path / "mine" / "data.csv").write_text("mine")
    return path / "mine"


def with_a_folder(path: Path) -> Path:
    (path / "mine" / "notes.md").mkdir(parents=True)
    return path / "mine"


def with_a_link(path: Path) -> Path:
    (path / "mine").mkdir()
    (path / "mine" / "run.log").symlink_to("/etc/hostname")
    return path / "mine"


def a_file(path: Path) -> Path:
    (path / "file").write_text("mine")
    return path / "file"


def a_link(path: Path) -> Path:
    (path / "link").symlink_to("/usr/lib")
    return path / "link"


REFUSED: dict[str, Callable[[Path], Path | str]] = {
    "": lambda path: "",
    "/": lambda path: "/",
    "system folder": lambda path: "/usr",
    "link to a system folder": a_link,
    "store": of_a_store,
    "other files": with_a_file,
    "folder named like notes": with_a_folder,
    "link named like a log": with_a_link,
    "file": a_file,
}


@pytest.mark.promise("P13")
@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"resume": True}], ids=str)
def test_a_folder_that_is_not_for_a_run_is_refused_and_stays(kind: str, options: dict[str, bool], tmp_path: Path) -> None:
    folder = REFUSED[kind](tmp_path)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(OptionError) as caught:
        trainer_of(network(), folder=folder).fit(pairs(), **options)
    assert caught.value.parameter == "folder"
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_negative_control_new_and_empty_folders_and_those_of_runs_are_taken(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        assert trainer_of(network(), folder=tmp_path / name).fit(pairs()).step == 12
        assert trainer_of(network(), folder=tmp_path / name).fit(pairs(), overwrite=True).step == 12
        assert trainer_of(network(), folder=tmp_path / name).fit(pairs(), epochs=2, resume=True).step == 24


def test_logs_and_notes_of_the_user_stay_through_a_whole_life_of_a_run(tmp_path: Path) -> None:
    notes = {name: f"mine: {name}" for name in ("notes.md", "train.log", "slurm-12.out", ".gitignore", "metrics.txt")}
    folder = tmp_path / "run"
    folder.mkdir()
    for name, text in notes.items():
        (folder / name).write_text(text)
    assert trainer_of(network(), folder=folder).fit(pairs()).step == 12
    (folder / "plot.png").write_bytes(b"mine")  # in the folder of a run, any file may be added
    (folder / "checkpoints" / "mine.txt").write_text("mine")
    assert trainer_of(network(), folder=folder).fit(pairs(), epochs=2, resume=True).step == 24
    assert trainer_of(network(), folder=folder).fit(pairs(), overwrite=True).step == 12
    assert {name: (folder / name).read_text() for name in notes} == notes
    assert (folder / "plot.png").read_bytes() == (folder / "checkpoints" / "mine.txt").read_bytes() == b"mine"


def test_no_file_of_a_run_is_taken_for_a_note(tmp_path: Path) -> None:
    trainer_of(network(), folder=tmp_path / "run").fit(pairs())
    names = {path.name for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert {name for name in names if Path(name).suffix in machine.NOTES or name.startswith(".")} == {".lock"}
