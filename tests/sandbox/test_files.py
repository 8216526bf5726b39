"""Files of the sandbox: moves that are copies, and the removal of what a program has made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.sandbox import files


def tree(folder: Path) -> Path:
    """A folder with a file, a link, and a folder without the right to read it."""
    (folder / "closed").mkdir(parents=True)
    (folder / "closed" / "file").write_text("a")
    (folder / "link").symlink_to("/etc/passwd")
    return folder


def test_a_folder_is_moved_with_its_links(tmp_path: Path) -> None:
    source = tree(tmp_path / "source")
    files.move_by_copy(source, tmp_path / "target", os.rename, keeps=False)
    assert not source.exists()
    assert (tmp_path / "target" / "closed" / "file").read_text() == "a"
    assert (tmp_path / "target" / "link").readlink() == Path("/etc/passwd")


def test_a_hard_link_is_a_copy_that_replaces_nothing(tmp_path: Path) -> None:
    (tmp_path / "source").write_text("new")
    (tmp_path / "target").write_text("old")
    with pytest.raises(FileExistsError):
        files.move_by_copy(tmp_path / "source", tmp_path / "target", os.link, keeps=True)
    assert (tmp_path / "target").read_text() == "old"
    (tmp_path / "target").unlink()
    files.move_by_copy(tmp_path / "source", tmp_path / "target", os.link, keeps=True)
    assert (tmp_path / "source").read_text() == (tmp_path / "target").read_text() == "new"


def test_a_move_that_fails_leaves_the_source_and_no_copy(tmp_path: Path) -> None:
    def refused(source: Path, target: Path) -> None:
        raise PermissionError(13, "no")

    source = tree(tmp_path / "source")
    with pytest.raises(PermissionError):
        files.move_by_copy(source, tmp_path / "target", refused, keeps=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]
    assert (source / "closed" / "file").exists()


def test_what_a_program_made_is_removed_whatever_its_modes_and_links_are_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("of the user")
    made = tree(tmp_path / "made")
    (made / "to the user").symlink_to(kept)
    (made / "closed").chmod(0)
    files.remove_tree(made)
    assert not made.exists()
    assert kept.read_text() == "of the user"
    files.remove_tree(made)  # which is not there any more
