"""Logs: whatever happens to the process or the disk, every line that was written whole is read whole."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest
from tests.harness import FaultyFiles, Zygote

from stoker._disk import LogFile
from stoker.errors import DiskError, DiskFullError

LINES = [b"%d %s\n" % (number, b"x" * number) for number in range(8)]


def write_log(path: str, kill_at: int | None = None, short_write_at: int | None = None) -> None:
    with FaultyFiles(kill_at=kill_at, short_write_at=short_write_at):
        log = LogFile(Path(path))
        for line in LINES:
            log.append(line)
        log.close()


@pytest.mark.parametrize("torn", [False, True])
def test_kill_at_every_operation_leaves_whole_lines_and_one_torn_at_most(tmp_path: Path, zygote: Zygote, torn: bool) -> None:
    for k in range(1, 2 + len(LINES)):
        path = tmp_path / str(k)
        done = zygote.run(write_log, path=path, kill_at=k, short_write_at=k - 1 if torn else None)
        assert done.signal == signal.SIGKILL
        left = path.read_bytes()
        assert b"".join(LINES).startswith(left)
        whole = left[: left.rfind(b"\n") + 1]
        log = LogFile(path)
        assert path.read_bytes() == whole
        log.append(b"next\n")
        log.close()
        assert path.read_bytes() == whole + b"next\n"


def test_negative_control_a_torn_line_that_is_not_cut_spoils_the_next(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo")
    with path.open("ab") as file:
        file.write(b"three\n")
    assert path.read_bytes().splitlines()[1] == b"twothree"


def test_a_full_disk_costs_the_line_and_not_those_after_it(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log")
    log.append(b"first\n")
    with FaultyFiles(short_write_at=0, error_at=(1, errno.ENOSPC)), pytest.raises(DiskFullError):
        log.append(b"second\n")
    assert (tmp_path / "log").read_bytes() == b"first\nsec"
    log.append(b"x\n")
    assert (tmp_path / "log").read_bytes() == b"first\nx\n"
    with FaultyFiles(short_write_at=0, error_at=(1, errno.ENOSPC)), pytest.raises(DiskFullError):
        log.append(b"third\n")
    log.close()
    assert (tmp_path / "log").read_bytes() == b"first\nx\n"


def test_a_log_is_synced_when_asked_and_its_name_when_made(tmp_path: Path) -> None:
    with FaultyFiles(record=True) as disk:
        log = LogFile(tmp_path / "log")
        log.append(b"1\n")
        log.sync()
        log.close()
    assert [operation.kind for operation in disk.log] == ["create", "sync_folder", "write", "sync"]


def test_a_fifo_in_place_of_a_log_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "log"
    os.mkfifo(path)
    with pytest.raises(DiskError, match="not a plain file"):
        LogFile(path)
