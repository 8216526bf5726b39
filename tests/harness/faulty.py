"""A disk that fails on purpose: it stands in for `stoker._disk.disk`, the one place through which stoker writes.

    with FaultyFiles() as disk:                      # count
        pack(...)
    for k in range(disk.operations):                 # then try every one of them
        with FaultyFiles(error_at=(k, errno.ENOSPC)):
            pack(...)

The law: an operation that is made to fail has not happened at all, and every operation is counted, on any thread.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, get_args

from stoker import _disk
from stoker._disk import Buffer, Disk

Kind = Literal[
    "create",
    "open_again",
    "write",
    "pwrite",
    "truncate",
    "publish",
    "sync",
    "replace",
    "unlink",
    "mkdir",
    "rmdir",
    "sync_folder",
]
Promise = Literal["publish", "sync", "sync_folder"]

_NEEDS_SPACE = frozenset({"create", "write", "pwrite", "mkdir"})


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation that happened. Writes name the open file by `handle`, as its name may change meanwhile."""

    kind: Kind
    path: Path
    target: Path | None = None
    """Of a replace: the new name."""
    handle: int = -1
    offset: int = 0
    """Where a write begins; of a truncate, the new size."""
    data: bytes = b""

    def __str__(self) -> str:
        new_name = f" -> {self.target.name}" if self.target is not None else ""
        size = f" {len(self.data):,} bytes at {self.offset:,}" if self.data else ""
        return f"{self.kind} {self.path.name}{new_name}{size}"


class FaultyFiles(Disk):
    """A context manager that replaces the disk. Operations are counted from 0; what is not asked for works as always.

    kill_at         the process dies by SIGKILL instead of this operation
    error_at        (operation, errno): it raises instead of happening
    sticky          after that error all that needs space fails as well, as on a disk that is full
    short_write_at  this write stores only half of its bytes (if it is a write); with `kill_at` one higher: a torn write
    skip            kinds that are left out silently: the negative control of a promise about durability
    record          keep a log for `crash_states`; files must be opened while it runs
    """

    def __init__(
        self,
        *,
        kill_at: int | None = None,
        error_at: tuple[int, int] | None = None,
        sticky: bool = False,
        short_write_at: int | None = None,
        skip: Collection[Promise] = (),
        record: bool = False,
    ) -> None:
        unknown = set(skip) - set(get_args(Promise))
        if unknown:
            raise ValueError(f"skip takes {', '.join(get_args(Promise))}; found {', '.join(sorted(unknown))}.")
        self.operations = 0
        self.log: list[Operation] = []
        self._kill_at = kill_at
        self._error_at = error_at
        self._sticky = sticky
        self._full = False
        self._short_write_at = short_write_at
        self._skip = frozenset(skip)
        self._record = record
        self._opened: dict[int, tuple[int, Path]] = {}
        self._num_opened = 0
        self._mutex = threading.Lock()
        self._replaced: list[Disk] = []

    def __enter__(self) -> Self:
        self._replaced.append(_disk.disk)
        _disk.disk = self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _disk.disk = self._replaced.pop()

    def create(self, path: Path) -> int:
        """Make a new file, unless this is the operation to fail."""
        with self._mutex:
            self._begin("create")
            return self._open("create", path, super().create(path))

    def open_again(self, path: Path) -> int:
        """Open a file of an earlier process, unless this is the operation to fail."""
        with self._mutex:
            self._begin("open_again")
            return self._open("open_again", path, super().open_again(path))

    def write(self, fd: int, data: Buffer) -> int:
        """Append, perhaps only half."""
        with self._mutex:
            part = self._shorten(data, self._begin("write"))
            offset = os.lseek(fd, 0, os.SEEK_CUR) if self._record else 0
            count = super().write(fd, part)
            self._note_open("write", fd, offset, part[:count])
            return count

    def pwrite(self, fd: int, data: Buffer, offset: int) -> int:
        """Write at an offset, perhaps only half."""
        with self._mutex:
            part = self._shorten(data, self._begin("pwrite"))
            count = super().pwrite(fd, part, offset)
            self._note_open("pwrite", fd, offset, part[:count])
            return count

    def truncate(self, fd: int, num_bytes: int) -> None:
        """Cut a file, unless this is the operation to fail."""
        with self._mutex:
            self._begin("truncate")
            super().truncate(fd, num_bytes)
            self._note_open("truncate", fd, num_bytes)

    def publish(self, fd: int) -> None:
        """Make a file read-only, unless this is skipped or the operation to fail."""
        with self._mutex:
            self._begin("publish")
            if "publish" not in self._skip:
                super().publish(fd)
                self._note_open("publish", fd)

    def sync(self, fd: int) -> None:
        """Sync a file, unless this is skipped or the operation to fail."""
        with self._mutex:
            self._begin("sync")
            if "sync" not in self._skip:
                super().sync(fd)
                self._note_open("sync", fd)

    def replace(self, source: Path, target: Path) -> None:
        """Rename, unless this is the operation to fail."""
        with self._mutex:
            self._begin("replace")
            super().replace(source, target)
            self._note("replace", source, target)

    def unlink(self, path: Path) -> None:
        """Remove a file, unless this is the operation to fail."""
        with self._mutex:
            self._begin("unlink")
            super().unlink(path)
            self._note("unlink", path)

    def mkdir(self, path: Path, mode: int = 0o777) -> None:
        """Make a folder, unless this is the operation to fail."""
        with self._mutex:
            self._begin("mkdir")
            super().mkdir(path, mode)
            self._note("mkdir", path)

    def rmdir(self, path: Path) -> None:
        """Remove a folder, unless this is the operation to fail."""
        with self._mutex:
            self._begin("rmdir")
            super().rmdir(path)
            self._note("rmdir", path)

    def sync_folder(self, path: Path) -> None:
        """Sync a folder, unless this is skipped or the operation to fail."""
        with self._mutex:
            self._begin("sync_folder")
            if "sync_folder" not in self._skip:
                super().sync_folder(path)
                self._note("sync_folder", path)

    def _begin(self, kind: Kind) -> int:
        """Count an operation and return its number, or do to it what was asked for."""
        number = self.operations
        self.operations += 1
        if number == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._error_at is not None and (number == self._error_at[0] or (self._full and kind in _NEEDS_SPACE)):
            self._full = self._sticky
            raise OSError(self._error_at[1], os.strerror(self._error_at[1]))
        return number

    def _shorten(self, data: Buffer, number: int) -> memoryview:
        view = memoryview(data).cast("B")
        return view[: max(view.nbytes // 2, 1)] if number == self._short_write_at else view

    def _open(self, kind: Kind, path: Path, fd: int) -> int:
        self._opened[fd] = (self._num_opened, path.absolute())
        self._num_opened += 1
        self._note_open(kind, fd)
        return fd

    def _note_open(self, kind: Kind, fd: int, offset: int = 0, data: Buffer = b"") -> None:
        """Log an operation on an open file. Its descriptor was set by the latest open, so it needs no word of closing."""
        if not self._record:
            return
        if fd not in self._opened:
            raise ValueError(f"cannot record: descriptor {fd} was opened before the recording began.")
        handle, path = self._opened[fd]
        self.log.append(Operation(kind, path, handle=handle, offset=offset, data=bytes(data)))

    def _note(self, kind: Kind, path: Path, target: Path | None = None) -> None:
        if self._record:
            self.log.append(Operation(kind, path.absolute(), target.absolute() if target else None))
