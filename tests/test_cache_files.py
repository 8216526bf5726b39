"""Files of caches: whole or not there, for this user alone, and sparse where only parts of them are known."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from stoker import _cache_files
from stoker.errors import DiskError, DiskFullError


def test_a_folder_and_its_parents_are_this_users_alone(tmp_path: Path) -> None:
    _cache_files.make_cache_folder(tmp_path / "a" / "b")
    _cache_files.make_cache_folder(tmp_path / "a" / "b")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a", tmp_path / "a" / "b")] == [0o700, 0o700]
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match="ENOTDIR"):
        _cache_files.make_cache_folder(tmp_path / "file" / "a")


@pytest.mark.parametrize("operation", ["create", "write", "replace"])
def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    path = tmp_path / "kernel"
    _cache_files.write_cache_file(path, b"old")

    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(_cache_files.disk, operation, full)
        with pytest.raises(DiskFullError, match="kernel: the disk is full"):
            _cache_files.write_cache_file(path, b"new")
        assert ([path.name for path in tmp_path.iterdir()], path.read_bytes()) == (["kernel"], b"old")
    _cache_files.write_cache_file(path, b"new")
    assert ([path.name for path in tmp_path.iterdir()], path.read_bytes()) == (["kernel"], b"new")


def test_the_newest_files_of_a_prefix_are_kept(tmp_path: Path) -> None:
    for number, name in enumerate(("a-1", "a-2", "b-1", "a-3")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, ns=(number, number))
    _cache_files.keep_newest(tmp_path, "a-", 2)
    assert {path.name for path in tmp_path.iterdir()} == {"a-2", "a-3", "b-1"}


def test_parts_of_a_sparse_file_are_written_and_given_back(tmp_path: Path) -> None:
    path, block = tmp_path / "shard", 1 << 16
    _cache_files.make_sparse_file(path, b"head", 8 * block)
    fd = _cache_files.disk.open_again(path)
    try:
        _cache_files.write_into(path, fd, b"x" * block, 4 * block)
        held = path.stat().st_blocks
        content = path.read_bytes()
        assert (len(content), content[:4], content[4 * block : 5 * block]) == (8 * block, b"head", b"x" * block)
        assert not content[4 : 4 * block].strip(b"\0")
        _cache_files.punch_hole(path, fd, 4 * block, block)
    finally:
        os.close(fd)
    assert (path.stat().st_size, path.read_bytes()[4:].strip(b"\0")) == (8 * block, b"")
    assert path.stat().st_blocks < held
