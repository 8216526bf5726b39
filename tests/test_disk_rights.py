"""What the system refuses or asks for: the umask, disks without inodes, quotas, paths that are none; and folders of our own."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from tests.harness import FaultyFiles, Zygote

from stoker import _disk
from stoker.errors import DiskFullError, OptionError
from stoker.store.opening import open_store
from stoker.store.pack.api import pack
from stoker.store.store import Store

pytestmark = pytest.mark.promise("P1")

# ---- the umask ----


def modes_with(umask: int, folder: str) -> dict[str, int]:
    os.umask(umask)
    pack({"k": ["a", "b"], "x": [1.0, 2.0]}, Path(folder) / "packed", series="k")
    Store.from_arrays(x=np.arange(3)).save(Path(folder) / "saved")
    _disk.write_file(Path(folder) / "file", b"x")
    return {str(path): stat.S_IMODE(path.lstat().st_mode) for path in Path(folder).rglob("*")}


@pytest.mark.parametrize("umask", [0o077, 0o027, 0o022, 0o002])
def test_what_is_published_has_no_right_that_the_umask_takes(tmp_path: Path, zygote: Zygote, umask: int) -> None:
    modes = zygote.run(modes_with, umask=umask, folder=tmp_path).check()
    assert len(modes) > 8
    for path, mode in modes.items():
        allowed = 0o777 if Path(path).is_dir() else 0o666 if path.endswith(".lock") else 0o444
        assert mode == allowed & ~umask, path


def publish_for_all(folder: str) -> int:
    """As it was: a mode that knows no umask."""
    os.umask(0o077)
    with mock.patch.object(_disk.Disk, "publish", lambda self, fd: os.fchmod(fd, 0o444)):
        _disk.write_file(Path(folder) / "file", b"x")
    return stat.S_IMODE((Path(folder) / "file").stat().st_mode)


def test_negative_control_a_fixed_mode_ignores_the_umask(tmp_path: Path, zygote: Zygote) -> None:
    assert zygote.run(publish_for_all, folder=tmp_path).check() == 0o444


# ---- which limit of the disk was reached ----


@pytest.fixture
def few_inodes(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 inodes and a free megabyte, where this process may mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    options = "size=1m,nr_inodes=8"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, check=False).returncode:
        pytest.skip("may not mount")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_without_inodes_is_said_to_have_none(few_inodes: Path) -> None:
    with pytest.raises(
        DiskFullError, match=r"the disk has no inodes left, so no file can be made on it although [\d,]+ bytes are free"
    ):
        pack({f"c{i}": [1.0] for i in range(20)}, few_inodes / "store")
    assert list(few_inodes.iterdir()) == []


def fail_with(code: int, path: Path, *, inodes: int, free: int, all_inodes: int = 100) -> str:
    """The message for an error of the system while the disk is in this state."""
    state = mock.Mock(f_files=all_inodes, f_favail=inodes)
    with (
        mock.patch("os.statvfs", return_value=state),
        mock.patch("stoker._disk.free_bytes", return_value=free),
        FaultyFiles(error_at=(0, code)),
        pytest.raises(DiskFullError) as caught,
    ):
        _disk.write_file(path, b"12345")
    return str(caught.value)


def test_the_limit_that_was_reached_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert "has no inodes left" in fail_with(errno.ENOSPC, path, inodes=0, free=1000)
    assert "the disk is full: 1,000 bytes free" in fail_with(errno.ENOSPC, path, inodes=5, free=1000)
    assert "the disk is full: 0 bytes free" in fail_with(errno.ENOSPC, path, inodes=0, free=0)
    unlimited = fail_with(errno.ENOSPC, path, inodes=0, free=1000, all_inodes=0)  # as on btrfs, which makes inodes as it goes
    assert "the disk is full: 1,000 bytes free" in unlimited
    quota = fail_with(errno.EDQUOT, path, inodes=5, free=1000)
    assert "the disk quota of this user is used up, in bytes or in files (the disk itself has 1,000 bytes free)" in quota
    assert "0 bytes needed" not in unlimited + quota


# ---- paths ----


@pytest.mark.promise("P6")
@pytest.mark.parametrize("given", ["", "\0", "a\0b", "s3://b/k", "gs://b/k", "https://h/x", "file:///etc/hosts", "hdfs://n:1/x"])
def test_what_is_not_a_path_here_is_refused_by_every_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("x\n1\n")
    before = sorted(tmp_path.iterdir())
    store = Store.from_arrays(x=np.arange(3))
    # Where a URL is accepted it would be asked for: see tests/store/test_object_storage.py, with servers of their own.
    object_storage = [
        lambda: pack("a.csv", given),
        lambda: open_store(given),
        lambda: pack(given, "out"),
        lambda: pack(["a.csv", given], "out"),
    ]
    calls: list[Callable[[], object]] = [
        *([] if "://" in given else object_storage),
        lambda: store.save(given),
        lambda: _disk.make_folder(Path(given)) if given else _disk.check_path(given),
        lambda: _disk.write_file(Path(given), b"x") if given else _disk.check_path(given),
    ]
    for call in calls:
        with pytest.raises(OptionError) as caught:
            call()
        assert len(str(caught.value).splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before


# ---- scratch folders ----


def test_a_scratch_folder_goes_after_an_error_with_what_was_made_for_it(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), _disk.scratch_folder(tmp_path / "new" / "scratch"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["empty folder", "full folder", "file", "link"])
def test_what_stoker_did_not_make_is_not_a_scratch_folder(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "scratch"
    if kind == "file":
        path.write_text("mine")
    elif kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.mkdir()
        if kind == "full folder":
            (path / "thesis.txt").write_text("years of work")
    message = "scratch is needed for intermediate results, but Stoker did not make"
    with pytest.raises(OptionError, match=message), _disk.scratch_folder(path):
        pytest.fail("it was taken")
    assert os.path.lexists(path)
    assert kind != "full folder" or (path / "thesis.txt").read_text() == "years of work"


def test_negative_control_a_folder_that_is_taken_for_a_scratch_folder_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    monkeypatch.setattr(_disk, "SCRATCH_MARK", "thesis.txt")
    with _disk.scratch_folder(tmp_path / "mine"):
        pass
    assert not (tmp_path / "mine").exists()
