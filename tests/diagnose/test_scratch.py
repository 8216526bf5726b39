"""What a program writes while it is looked at: found by itself, and gone afterwards."""

# The ways in which people write files.
# ruff: noqa: PTH104, PTH105, PTH107, PTH110, PTH123, SIM115
from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

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
