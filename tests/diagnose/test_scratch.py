"""What a program writes while it is looked at: found by itself, and gone afterwards."""

# The ways in which people write files.
# ruff: noqa: PTH101, PTH104, PTH105, PTH106, PTH107, PTH110, PTH116, PTH123, SIM115
from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file

from stoker.diagnose.scratch import Scratch


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, with files from yesterday."""
    home = tmp_path / "home"
    home.mkdir()
    for name in ("model.pt", "log.txt"):
        (home / name).write_bytes(b"precious")
        os.utime(home / name, (time.time() - 86400,) * 2)
    monkeypatch.chdir(home)
    return home


@pytest.fixture
def scratch(tmp_path: Path, home: Path) -> Iterator[Scratch]:
    scratch = Scratch(tmp_path / "scratch")
    scratch.install()
    yield scratch
    scratch.remove()


def state(home: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in home.iterdir()}


def test_nothing_of_the_users_is_overwritten(scratch: Scratch, home: Path) -> None:
    torch.save({"a": torch.ones(2)}, "model.pt")
    torch.save({"a": torch.ones(2)}, home / "new.pt")
    safetensors.torch.save_file({"a": torch.ones(2)}, "weights.safetensors")
    with open("log.txt", "a") as log:
        log.write(" and more")
    Path("note.txt").write_text("written")
    assert Path("note.txt").read_text() == "written"
    assert Path("log.txt").read_text() == "precious and more"
    assert torch.load("model.pt")["a"].tolist() == [1, 1]
    assert os.path.exists("new.pt")
    scratch.remove()
    assert state(home) == {"model.pt": b"precious", "log.txt": b"precious"}
    assert "model.pt, new.pt, weights.safetensors and 2 more" in scratch.notes()[0]


def test_a_file_that_is_renamed_into_place_is_found_there(scratch: Scratch, home: Path) -> None:
    torch.save(1, "model.pt.tmp")
    os.replace("model.pt.tmp", "model.pt")
    assert not os.path.exists("model.pt.tmp")
    assert torch.load("model.pt") == 1
    os.remove("model.pt")
    scratch.remove()
    assert state(home) == {"model.pt": b"precious", "log.txt": b"precious"}


def test_what_was_there_before_is_not_removed(scratch: Scratch, home: Path) -> None:
    os.remove("model.pt")
    os.rename("log.txt", "old.txt")
    scratch.remove()
    assert state(home) == {"model.pt": b"precious", "log.txt": b"precious"}
    assert "2 files" in scratch.notes()[-1]


def test_a_folder_of_the_users_stays_though_something_was_made_in_it(scratch: Scratch, home: Path) -> None:
    """Then it is as new as the program's own folders."""
    Path("sub").mkdir()
    assert shutil.rmtree("sub") is None
    assert not Path("sub").exists()
    shutil.rmtree(home)
    os.rmdir(home)
    scratch.remove()
    assert state(home) == {"model.pt": b"precious", "log.txt": b"precious"}


def test_folders_of_the_programs_move_with_what_is_in_them(scratch: Scratch, home: Path) -> None:
    Path("tmp-1/deep").mkdir(parents=True)
    torch.save(1, "tmp-1/deep/model.pt")
    os.rename("tmp-1", "last")
    assert torch.load("last/deep/model.pt") == 1
    shutil.rmtree("last")
    assert not os.path.exists("last/deep/model.pt")
    scratch.remove()
    assert state(home) == {"model.pt": b"precious", "log.txt": b"precious"}


def test_what_is_written_elsewhere_and_moved_in_place(scratch: Scratch, home: Path, tmp_path: Path) -> None:
    for name in ("model.pt", "new.pt"):
        descriptor, path = tempfile.mkstemp(dir="/dev/shm")
        os.write(descriptor, b"moved")
        os.close(descriptor)
        shutil.move(path, name)
        assert Path(name).read_bytes() == b"moved"
    os.rename("log.txt", "old.txt")
    assert Path("old.txt").read_bytes() == b"precious"
    scratch.remove()
    assert state(home) == {"model.pt": b"precious", "log.txt": b"precious"}


def test_low_ways_to_write(scratch: Scratch, home: Path) -> None:
    for name in ("model.pt", "log.txt"):
        descriptor = os.open(name, os.O_WRONLY | os.O_APPEND | (os.O_TRUNC if name == "model.pt" else 0))
        os.write(descriptor, b"!")
        os.close(descriptor)
    assert [Path(name).read_bytes() for name in ("model.pt", "log.txt")] == [b"!", b"precious!"]
    Path("model.pt").touch()
    Path("touched").touch()
    os.chmod("touched", 0o600)
    shutil.copy2("log.txt", "copy.txt")
    np.save("a.npy", np.ones(2))
    np.ones(2).tofile("a.bin")
    handler = logging.FileHandler("run.log")
    handler.emit(logging.makeLogRecord({"msg": "told"}))
    handler.close()
    assert Path("run.log").read_text() == "told\n"
    assert np.load("a.npy").tolist() == [1, 1]
    assert Path("touched").exists()
    with pytest.raises(FileExistsError):
        os.open("touched", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    with pytest.raises(FileNotFoundError):
        os.open("nowhere/log.txt", os.O_CREAT | os.O_WRONLY)
    scratch.remove()
    assert state(home) == {"model.pt": b"precious", "log.txt": b"precious"}


@pytest.mark.parametrize("mode", ["x", "xb"])
def test_what_must_not_be_there_is_found_to_be(scratch: Scratch, mode: str) -> None:
    with pytest.raises(FileExistsError):
        open("log.txt", mode)


def test_marks_of_the_users_files_stay(scratch: Scratch, home: Path) -> None:
    before = os.stat("log.txt")
    Path("log.txt").touch()
    os.chmod("log.txt", 0o600)
    after = os.stat("log.txt")
    assert (after.st_mtime_ns, after.st_mode) == (before.st_mtime_ns, before.st_mode)


def test_folders_that_stay_empty_go_again(scratch: Scratch, home: Path) -> None:
    Path("runs/1").mkdir(parents=True)
    torch.save(1, "runs/1/model.pt")
    scratch.remove()
    assert not (home / "runs").exists()


def test_the_error_of_a_missing_folder_is_the_programs_own(scratch: Scratch) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        open("nowhere/log.txt", "w")


def test_negative_control_without_scratch_the_file_is_gone(home: Path) -> None:
    torch.save(1, "model.pt")
    assert state(home)["model.pt"] != b"precious"


def test_all_ways_are_as_before_afterwards(scratch: Scratch, home: Path) -> None:
    scratch.remove()
    safetensors.torch.save_file({"a": torch.ones(1)}, "w.safetensors")
    assert load_file(home / "w.safetensors")["a"].tolist() == [1]
