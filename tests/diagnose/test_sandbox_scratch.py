"""What a program writes while it is looked at: found by itself, and gone afterwards."""

# The ways in which people write files.
# ruff: noqa: PTH101, PTH103, PTH104, PTH105, PTH106, PTH107, PTH110, PTH112, PTH116, PTH118, PTH119, PTH123, PTH208, SIM115
from __future__ import annotations

import glob
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

from stoker.diagnose.file_overlay import _Entry
from stoker.diagnose.sandbox import Scratch


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
    [note] = scratch.notes()
    assert "model.pt, new.pt, weights.safetensors and 2 more" in note


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
    with pytest.raises(FileNotFoundError):
        os.rmdir(home)
    shutil.rmtree(home, ignore_errors=True)
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


def listings(folder: str) -> list[set[str]]:
    """What is in a folder, by all ways to ask."""
    with os.scandir(folder) as entries:
        scanned = {entry.name for entry in entries}
    return [
        set(os.listdir(folder)),
        {os.fsdecode(name) for name in os.listdir(os.fsencode(folder))},
        scanned,
        {path.name for path in Path(folder).iterdir()},
        {path.name for path in Path(folder).glob("*")},
        {path.name for path in Path(folder).rglob("*")},
        {os.path.basename(name) for name in glob.glob(f"{folder}/*")},
        {os.path.basename(name) for name in glob.glob(f"{folder}/**", recursive=True)} - {""},
        {name for _, folders, names in os.walk(folder) for name in folders + names},
    ]


def test_all_listings_show_what_was_written_and_not_what_was_removed(scratch: Scratch, home: Path) -> None:
    torch.save(1, "new.pt")
    torch.save(1, "model.pt")
    assert listings(".") == [{"model.pt", "new.pt", "log.txt"}] * 9
    os.remove("log.txt")
    os.remove("model.pt")
    assert listings(".") == [{"new.pt"}] * 9
    assert listings(str(home)) == [{"new.pt"}] * 9
    assert not any(ask("model.pt") for ask in (os.path.exists, os.path.isfile, os.path.lexists))
    assert not os.access("model.pt", os.F_OK)
    for read in (open, os.stat, os.lstat, os.remove):
        with pytest.raises(FileNotFoundError, match=r"model\.pt"):
            read("model.pt")
    torch.save(2, "model.pt")
    os.rename("new.pt", "newer.pt")
    assert listings(".") == [{"model.pt", "newer.pt"}] * 9
    scratch.remove()
    assert listings(".") == [{"model.pt", "log.txt"}] * 9


def test_the_last_of_the_listed_is_read_again(scratch: Scratch, home: Path) -> None:
    os.makedirs("ck")
    for step in range(5):
        torch.save(step, f"ck/{step}.pt")
        os.utime(f"ck/{step}.pt", (step, step))  # two files may be written within one tick of the clock
        assert torch.load(max(glob.glob("ck/*.pt"), key=os.path.getmtime)) == step
        for old in sorted(os.listdir("ck"))[:-2]:
            os.remove(os.path.join("ck", old))
    assert [path.name for path in sorted(Path("ck").glob("*.pt"))] == ["3.pt", "4.pt"]
    assert glob.glob("ck/4.pt") == ["ck/4.pt"]
    scratch.remove()
    assert state(home) == {"model.pt": b"precious", "log.txt": b"precious"}


def test_entries_are_as_those_of_files(scratch: Scratch) -> None:
    Path("note.txt").write_text("written")
    [entry] = [one for one in os.scandir() if one.name == "note.txt"]
    assert (entry.path, os.fspath(entry)) == ("./note.txt", "./note.txt")
    assert (entry.is_file(), entry.is_dir(), entry.is_symlink(), entry.stat().st_size) == (True, False, False, 7)
    assert entry.inode() == os.stat("note.txt").st_ino
    assert Path(entry).read_text() == "written"
    assert b"./note.txt" in [one.path for one in os.scandir(b".")]
    shutil.copytree(".", "copy")
    assert listings("copy")[0] == {"model.pt", "log.txt", "note.txt"}
    assert Path("copy/note.txt").read_text() == "written"


def test_a_folder_of_the_users_that_is_emptied_and_made_again(home: Path, tmp_path: Path) -> None:
    (home / "runs/0").mkdir(parents=True)
    (home / "runs/0/old.pt").write_bytes(b"precious")
    scratch = Scratch(tmp_path / "scratch")
    scratch.install()
    for _ in range(2):
        shutil.rmtree("runs")
        assert not os.path.isdir("runs")
        with pytest.raises(FileNotFoundError):
            os.listdir("runs")
        with pytest.raises(FileNotFoundError):
            open("runs/new.pt", "w")
        os.makedirs("runs/1")
        assert listings("runs") == [{"1"}] * 9
        torch.save(1, "runs/1/new.pt")
        assert listings("runs/1") == [{"new.pt"}] * 9
        assert not os.path.exists("runs/0/old.pt")
    scratch.remove()
    assert (home / "runs/0/old.pt").read_bytes() == b"precious"
    assert sorted(os.listdir("runs")) == ["0"]


def test_negative_control_other_folders_are_listed_by_python_alone(scratch: Scratch, tmp_path: Path) -> None:
    torch.save(1, "new.pt")
    with os.scandir(tmp_path) as entries:
        assert all(isinstance(entry, os.DirEntry) for entry in entries)
    assert all(type(entry) is _Entry for entry in os.scandir("."))


@pytest.fixture
def outer(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the user's among temporary files, with a file from yesterday."""
    outer = tmp_path / "run"
    outer.mkdir()
    (outer / "best.pt").write_bytes(b"precious")
    time.sleep(0.02)  # longer than the steps in which the times of files go
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    scratch = Scratch(tmp_path / "scratch")
    scratch.install()
    yield outer
    scratch.remove()
    assert (outer / "best.pt").read_bytes() == b"precious"


def test_what_was_among_temporary_files_before_is_not_overwritten(outer: Path) -> None:
    best = outer / "best.pt"
    torch.save(1, best)
    assert torch.load(best) == 1
    with open(best, "wb") as file:
        file.write(b"new")
    assert best.read_bytes() == b"new"
    os.remove(best)
    assert not best.exists()
    torch.save(2, outer / "tmp.pt")
    os.replace(outer / "tmp.pt", best)
    assert torch.load(best) == 2
    shutil.rmtree(outer)
    assert not outer.exists()


def test_what_the_program_makes_among_temporary_files_is_there(outer: Path) -> None:
    """Other processes look for it, and it is removed as it would be."""
    with tempfile.TemporaryDirectory(dir=outer) as folder:
        Path(folder, "a").write_bytes(b"1")
        Path(folder, "a").write_bytes(b"2")
        assert Path(folder, "a").read_bytes() == b"2"
    assert not os.path.exists(folder)
    assert os.listdir(outer) == ["best.pt"]


@pytest.mark.parametrize("mode", ["x", "xb"])
def test_what_must_not_be_there_is_found_to_be(scratch: Scratch, mode: str) -> None:
    with pytest.raises(FileExistsError):
        open("log.txt", mode)


def test_marks_of_the_users_files_stay(scratch: Scratch, home: Path) -> None:
    before = os.stat("log.txt")
    Path("log.txt").touch()
    os.chmod("log.txt", 0o600)
    seen = os.stat("log.txt")
    assert seen.st_mtime_ns > before.st_mtime_ns, "the program sees what it did"
    assert seen.st_mode & 0o777 == 0o600
    scratch.remove()
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


def test_what_others_write_is_reported_beside(scratch: Scratch, home: Path) -> None:
    torch.save(1, "model.pt")
    os.system("echo changed > log.txt")
    written, others = scratch.notes()
    assert "model.pt" in written
    assert "log.txt" not in written
    assert "may have changed your files: `echo changed > log.txt` (" in others
    assert "test_sandbox_scratch.py:" in others
    assert state(home)["log.txt"] == b"changed\n"


def test_negative_control_without_scratch_the_file_is_gone(home: Path) -> None:
    torch.save(1, "model.pt")
    assert state(home)["model.pt"] != b"precious"


def test_all_ways_are_as_before_afterwards(scratch: Scratch, home: Path) -> None:
    scratch.remove()
    safetensors.torch.save_file({"a": torch.ones(1)}, "w.safetensors")
    assert load_file(home / "w.safetensors")["a"].tolist() == [1]
