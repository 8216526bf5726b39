"""The guards of a folder: one writer at a time, and no name that leads out of it."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.harness import Zygote

from stoker import _disk
from stoker._disk import Lock
from stoker.errors import DiskError, StoreDamagedError, StoreLockedError

OLD = b"old" * 1000


# ---- the lock ----


def take_lock(folder: str) -> None:
    with Lock(Path(folder)):
        pass


def take_lock_and_wait(folder: str) -> None:
    with Lock(Path(folder)):
        Path(folder, "locked").touch()
        signal.pause()


def test_a_second_process_is_refused_and_reported_who_writes(tmp_path: Path, zygote: Zygote) -> None:
    with Lock(tmp_path):
        refused = zygote.run(take_lock, folder=tmp_path)
        assert refused.error is not None
        assert refused.error.startswith("StoreLockedError")
        assert f"process {os.getpid()}." in refused.error
    zygote.run(take_lock, folder=tmp_path).check()


def test_the_lock_is_held_until_its_holder_is_killed(tmp_path: Path, zygote: Zygote) -> None:
    holder = zygote.start(take_lock_and_wait, folder=tmp_path)
    while not (tmp_path / "locked").exists():
        os.sched_yield()
    with pytest.raises(StoreLockedError, match=f"process {holder.pid}"), Lock(tmp_path):
        pass
    holder.kill(signal.SIGKILL)
    assert holder.wait().signal == signal.SIGKILL
    with Lock(tmp_path):
        pass


def remove_lock_file_before_flock(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process, which holds the lock, removes its file between our open and our flock, and yet another makes a new one."""
    flock = fcntl.flock
    removals = iter([True])

    def removing(fd: int, operation: int) -> None:
        if next(removals, False):
            (folder / ".lock").unlink()
            (folder / ".lock").touch()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", removing)


def test_a_lock_file_that_was_replaced_meanwhile_is_not_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove_lock_file_before_flock(tmp_path, monkeypatch)
    with Lock(tmp_path), pytest.raises(StoreLockedError), Lock(tmp_path):
        pass


def test_negative_control_without_the_second_look_two_hold_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove_lock_file_before_flock(tmp_path, monkeypatch)
    monkeypatch.setattr(os.path, "samestat", lambda a, b: True)
    with Lock(tmp_path), Lock(tmp_path):
        pass


def test_a_link_as_lock_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(OLD)
    (tmp_path / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(DiskError, match="ELOOP"), Lock(tmp_path):
        pass
    assert (tmp_path / "precious").read_bytes() == OLD


# ---- the path check ----


SHARD = "0123456789abcdef.npy"


def put_link(path: Path) -> None:
    (path.parent / "target").write_bytes(OLD)
    path.symlink_to(path.parent / "target")


def put_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.parametrize("put", [put_link, lambda path: path.symlink_to("/dev/zero"), os.mkfifo, Path.mkdir, put_socket])
def test_what_is_not_a_plain_file_is_refused(tmp_path_factory: pytest.TempPathFactory, put: Any) -> None:
    folder = tmp_path_factory.mktemp("s")  # short: the name of a socket has at most 107 bytes
    put(folder / SHARD)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(StoreDamagedError, match="plain file"):
        _disk.open_plain(folder / SHARD, StoreDamagedError)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
