"""Held-out files: their copies and other names, and who read them where nothing prevents it."""

from __future__ import annotations

import mmap
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.compare.holdout import ReadWatch, held_out
from stoker.errors import OptionError

READS: dict[str, Callable[[Path], object]] = {
    "open": lambda path: path.read_bytes(),
    "another process": lambda path: subprocess.run(["cat", path], stdout=subprocess.DEVNULL, check=True),
    "link": lambda path: (path.with_name("link").symlink_to(path), path.with_name("link").read_bytes()),
    "hard link": lambda path: (os.link(path, path.with_name("hard")), path.with_name("hard").read_bytes()),
    "map": lambda path: mmap.mmap(os.open(path, os.O_RDONLY), 0, access=mmap.ACCESS_READ)[:4],
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with held-out rows."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "valid.pt").write_bytes(b"held out rows")
    (tmp_path / "data" / "train.pt").write_bytes(b"training rows")
    (tmp_path / "empty").write_bytes(b"")
    return tmp_path


def test_a_copy_in_the_tree_is_held_out_too(project: Path) -> None:
    (project / "cache.bin").write_bytes(b"held out rows")
    (project / "link.bin").symlink_to("data/valid.pt")
    held = held_out([project / "data" / "valid.pt"], project)
    assert (held.paths, held.copies) == ((str(project / "data" / "valid.pt"),), (str(project / "cache.bin"),))


def test_another_name_of_the_file_is_held_out_too(project: Path) -> None:
    os.link(project / "data" / "valid.pt", project / "other.bin")
    assert held_out([project / "data" / "valid.pt"], project).copies == (str(project / "other.bin"),)


def test_another_name_that_cannot_be_found_is_refused(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    os.link(project / "data" / "valid.pt", tmp_path_factory.mktemp("elsewhere") / "other.bin")
    with pytest.raises(OptionError, match=r"2 names .* of which 1 are known") as caught:
        held_out([project / "data" / "valid.pt"], project)
    assert caught.value.parameter == "hold_out"


def test_a_link_is_held_out_as_what_it_leads_to(project: Path) -> None:
    (project / "link.bin").symlink_to("data/valid.pt")
    assert held_out([project / "link.bin"], project).paths == (str(project / "data" / "valid.pt"),)


def test_a_folder_is_held_out_with_its_files(project: Path) -> None:
    held = held_out([project / "data"], project)
    assert held.paths == (str(project / "data"),)
    assert [file.name for file in held.files()] == ["train.pt", "valid.pt"]


@pytest.mark.parametrize(("name", "words"), [("nothing.pt", "does not exist"), (".", "contains the current folder")])
def test_what_cannot_be_held_out_is_refused(project: Path, name: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        held_out([project / name], project)


@pytest.mark.promise("P35")
@pytest.mark.parametrize("name", READS)
def test_a_read_is_recorded(project: Path, name: str) -> None:
    with ReadWatch(held_out([project / "data" / "valid.pt"], project)) as watch:
        READS[name](project / "data" / "valid.pt")
    assert watch.read == {str(project / "data" / "valid.pt")}


@pytest.mark.promise("P35", control=True)
def test_negative_control_reads_of_other_files_are_not(project: Path) -> None:
    with ReadWatch(held_out([project / "data" / "valid.pt"], project)) as watch:
        (project / "data" / "train.pt").read_bytes()
        (project / "data" / "valid.pt").stat()
    assert watch.read == set()
