"""Where the processes of one pack leave their results for each other: a folder that all of them see, or one in object storage.

    open_exchange    the exchange of a target: `events.stoker.parts` beside `events.stoker`, on disk or in a bucket
    Attempt          the files of one task while it runs: published all together, or never

A result is some files and a mark that names them. The mark is created once, by the attempt that ends first: with a hard link on disk,
with a conditional put in object storage. So a task may run twice, at the same time or after a kill, and readers see the files of one
attempt only.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stoker import _disk
from stoker._text import is_url, printable
from stoker.errors import DiskError, OptionError, StoreDamagedError, StoreExistsError, StoreLockedError, StoreNotFoundError
from stoker.store.object_storage import Bucket, check_url, open_bucket

MAX_MARK_BYTES = 1 << 30
_MARKER = ".stoker-parts"
_PROGRESS = "progress"
_AGAIN = "Run all parts and the join again: what is damaged is made again."
_ATTEMPT = re.compile(r"(?P<task>[\w.-]+)~[0-9a-f]{16}")


@dataclass(frozen=True)
class Attempt:
    """One attempt at a task: it writes to `folder`, and others read it under `name`."""

    name: str
    folder: Path


class Exchange(Protocol):
    """Small objects by name, and the files of attempts."""

    label: str

    def get(self, name: str) -> bytes | None:
        """A small object; None where there is none."""

    def create(self, name: str, data: bytes) -> bool:
        """Write an object, if there is none; False if there is one."""

    def remove(self, name: str) -> None:
        """Remove a small object."""

    def attempt(self, task: str) -> contextlib.AbstractContextManager[Attempt]:
        """A new attempt at a task. What it has not published at the end of the block is removed."""

    def publish(self, attempt: Attempt, mark: bytes) -> bool:
        """Make the files of an attempt the result of its task; False if another attempt was faster."""

    def read_range(self, name: str, start: int, stop: int, is_right: Callable[[Any], bool]) -> Any:
        """Bytes of a file of an attempt, as a buffer that `is_right` has accepted."""

    def report(self, attempt: Attempt, data: bytes) -> None:
        """Say how far an attempt is."""

    def reports(self) -> dict[str, bytes]:
        """How far attempts are, by their tasks."""

    def clear(self, *last: str) -> None:
        """Remove everything, objects named `last` after all others and in their order."""


def open_exchange(target: str | os.PathLike[str]) -> Exchange:
    """The exchange of a pack to `target`."""
    if is_url(target):
        return _BucketExchange(open_bucket(check_url(str(target)) + ".parts"))
    return _FolderExchange(_disk.beside(_disk.check_path(target), "{}.parts"))


def attempt_of(mark: bytes) -> tuple[str, bytes]:
    """The attempt that a mark names, and the content of the mark.

    Raises:
        StoreDamagedError: the name is not that of an attempt.
    """
    name, _, body = mark.partition(b"\n")
    shown = name.decode("ascii", "replace")
    if not _ATTEMPT.fullmatch(shown):
        raise StoreDamagedError(f"a mark names {printable(shown)[:80]!r}, which is not an attempt. {_AGAIN}")
    return shown, body


def mark_name(task: str) -> str:
    """The name of the mark of a task."""
    return f"{task}.mark"


class _FolderExchange:
    """A folder on a disk that all processes see."""

    def __init__(self, folder: Path) -> None:
        self.label = str(folder)
        self._folder = folder

    def _make(self) -> None:
        if (self._folder / _MARKER).is_file():
            return
        if os.path.lexists(self._folder) and (not self._folder.is_dir() or self._foreign()):
            raise OptionError(f"{self._folder} is needed for the parts of the pack, but Stoker did not make it. Move it away.")
        _disk.make_folder(self._folder)
        _disk.create_file(self._folder / _MARKER, b"parts of a pack of Stoker\n")

    def _foreign(self) -> bool:
        return (
            any(not entry.name.startswith(_MARKER) for entry in self._folder.iterdir()) and not (self._folder / _MARKER).is_file()
        )

    def get(self, name: str) -> bytes | None:
        with _disk.naming(self._folder / name):
            try:
                return (self._folder / name).read_bytes()
            except FileNotFoundError:
                return None

    def create(self, name: str, data: bytes) -> bool:
        self._make()
        return _disk.create_file(self._folder / name, data)

    def remove(self, name: str) -> None:
        _disk.remove_file(self._folder / name)

    @contextlib.contextmanager
    def attempt(self, task: str) -> Iterator[Attempt]:
        self._make()
        self._remove_dead(task)
        with contextlib.ExitStack() as stack:
            one = self._locked_attempt(task, stack)
            try:
                yield one
            except Exception:
                with contextlib.suppress(OSError):  # the first error is the one to report
                    self._remove_unless_published(one)
                raise
            self._remove_unless_published(one)

    def _locked_attempt(self, task: str, stack: contextlib.ExitStack) -> Attempt:
        """A new folder with a lock. Another process may take it for a dead one before it is locked: then the next folder is tried."""
        while True:
            name = f"{task}~{os.urandom(8).hex()}"
            folder = self._folder / name
            _disk.make_folder(folder)
            try:
                stack.enter_context(_disk.Lock(folder))
            except (StoreLockedError, DiskError):
                if folder.exists() and not _disk.is_locked(folder):
                    raise
                continue
            return Attempt(name, folder)

    def _remove_unless_published(self, attempt: Attempt) -> None:
        if not self._is_published(attempt.name):
            _disk.remove_folder(attempt.folder)

    def _is_published(self, name: str) -> bool:
        found = self.get(mark_name(name.partition("~")[0]))
        return found is not None and found.startswith(name.encode() + b"\n")

    def _remove_dead(self, task: str) -> None:
        """Remove what killed attempts have left. Their locks are free; a mark is checked under the lock, as it is made under it."""
        for folder in sorted(self._folder.glob(f"{task}~*")):
            if _ATTEMPT.fullmatch(folder.name) and (folder / ".lock").is_file():
                with contextlib.suppress(StoreLockedError, OSError), _disk.Lock(folder):
                    if not self._is_published(folder.name):
                        _disk.remove_folder(folder)

    def publish(self, attempt: Attempt, mark: bytes) -> bool:
        _disk.remove_file(attempt.folder / _PROGRESS)
        return self.create(mark_name(attempt.name.partition("~")[0]), attempt.name.encode() + b"\n" + mark)

    def read_range(self, name: str, start: int, stop: int, is_right: Callable[[Any], bool]) -> Any:
        path = f"{self.label}/{name}"  # not a Path: a merge reads thousands of slices
        buffer = bytearray(stop - start)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise StoreDamagedError(f"{path} is missing. {_AGAIN}") from None
        try:
            done = 0
            while done < len(buffer) and (count := os.preadv(fd, [memoryview(buffer)[done:]], start + done)):
                done += count
        finally:
            os.close(fd)
        if done < len(buffer) or not is_right(buffer):
            raise StoreDamagedError(f"{path} is damaged (bytes {start:,} to {stop:,}). {_AGAIN}")
        return buffer

    def report(self, attempt: Attempt, data: bytes) -> None:
        _disk.write_file(attempt.folder / _PROGRESS, data, durable=False)

    def reports(self) -> dict[str, bytes]:
        found = {}
        for path in self._folder.glob(f"*~*/{_PROGRESS}"):
            with contextlib.suppress(OSError):  # ended meanwhile
                if _disk.is_locked(path.parent):
                    found[path.parent.name.partition("~")[0]] = path.read_bytes()
        return found

    def clear(self, *last: str) -> None:
        if not (self._folder / _MARKER).is_file():
            return
        for entry in sorted(self._folder.iterdir()):
            if entry.name not in (_MARKER, *last):
                _disk.remove_folder(entry)
        for name in last:
            _disk.remove_file(self._folder / name)
        _disk.remove_folder(self._folder)


class _BucketExchange:
    """A folder in object storage. Attempts write to a local temporary folder, which is uploaded."""

    def __init__(self, bucket: Bucket) -> None:
        self.label = bucket.url
        self._bucket = bucket

    def get(self, name: str) -> bytes | None:
        try:
            return self._bucket.get(name, MAX_MARK_BYTES)[0]
        except StoreNotFoundError:
            return None

    def create(self, name: str, data: bytes) -> bool:
        try:
            self._bucket.put(name, data, is_new=True)
        except StoreExistsError:
            return False
        return True

    def remove(self, name: str) -> None:
        self._bucket.remove(name)

    @contextlib.contextmanager
    def attempt(self, task: str) -> Iterator[Attempt]:
        name = f"{task}~{os.urandom(8).hex()}"
        with _disk.temporary_folder() as folder:
            yield Attempt(name, folder)

    def publish(self, attempt: Attempt, mark: bytes) -> bool:
        for path in sorted(attempt.folder.iterdir()):
            self._bucket.put(f"{attempt.name}/{path.name}", path.read_bytes())
        self._bucket.remove(f"{attempt.name}/{_PROGRESS}")
        return self.create(mark_name(attempt.name.partition("~")[0]), attempt.name.encode() + b"\n" + mark)

    def read_range(self, name: str, start: int, stop: int, is_right: Callable[[Any], bool]) -> Any:
        if start == stop:
            return b""
        try:
            return self._bucket.get_range(name, start, stop, is_right)
        except StoreNotFoundError:
            raise StoreDamagedError(f"{self.label}/{printable(name)} is missing. {_AGAIN}") from None

    def report(self, attempt: Attempt, data: bytes) -> None:
        self._bucket.put(f"{attempt.name}/{_PROGRESS}", data)

    def reports(self) -> dict[str, bytes]:
        found = {}
        for name in (one.name for one in self._bucket.find()):
            if name.endswith(f"/{_PROGRESS}"):
                with contextlib.suppress(StoreNotFoundError):
                    found[name.partition("~")[0]] = self._bucket.get(name, MAX_MARK_BYTES)[0]
        return found

    def clear(self, *last: str) -> None:
        for one in self._bucket.find():
            if one.name not in last:
                self._bucket.remove(one.name)
        for name in last:
            self._bucket.remove(name)
