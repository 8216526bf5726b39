"""Where the tasks of a pack on several machines leave files for each other: a folder that all of them see, or one in object storage.

    open_exchange    the exchange of a target: `events.stoker.parts` beside `events.stoker`, on disk or in a bucket
    Attempt          the files of one attempt at a task, under a name that no other attempt has

A task may run twice, at the same time or after its node died. Each attempt has a folder of its own, and others read the one that the
task has returned. What is left of others is removed with everything else, when the store is written.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker import _disk
from stoker._text import is_url, printable
from stoker.errors import OptionError, StoreDamagedError, StoreNotFoundError
from stoker.store.object_storage import Bucket, check_url, open_bucket
from stoker.store.shards import read_into

_MARKER = ".stoker-parts"
_MAX_BYTES = 1 << 20
_AGAIN = "Pack again."


@dataclass(frozen=True)
class Attempt:
    """One attempt at a task: it writes to `folder`, and others read it under `name`."""

    name: str
    folder: Path


def open_exchange(target: str | os.PathLike[str]) -> Exchange:
    """The exchange of a pack to `target`."""
    if is_url(target):
        return _BucketExchange(open_bucket(check_url(str(target)) + ".parts"))
    return _FolderExchange(_disk.beside(_disk.check_path(target), "{}.parts"))


def _new_name(task: str) -> str:
    return f"{task}~{os.urandom(8).hex()}"


class _FolderExchange:
    """A folder on a disk that all processes see."""

    def __init__(self, folder: Path) -> None:
        self.label = str(folder)
        self._folder = folder

    def get(self, name: str) -> bytes | None:
        """A small object; None where there is none."""
        with _disk.naming(self._folder / name):
            try:
                return (self._folder / name).read_bytes()
            except FileNotFoundError:
                return None

    def put(self, name: str, data: bytes) -> None:
        """Write a small object."""
        if not (self._folder / _MARKER).is_file():
            if os.path.lexists(self._folder) and (not self._folder.is_dir() or any(self._folder.iterdir())):
                raise OptionError(
                    f"{self._folder} is needed for the parts of the pack, but Stoker did not make it. Move it away.",
                    path=self._folder,
                )
            _disk.make_folder(self._folder)
            _disk.write_file(self._folder / _MARKER, b"parts of a pack of Stoker\n", durable=False)
        _disk.write_file(self._folder / name, data)

    @contextlib.contextmanager
    def attempt(self, task: str) -> Iterator[Attempt]:
        """A new attempt at a task. Others see its files when it is over; after an error they are removed."""
        attempt = Attempt(name := _new_name(task), self._folder / name)
        _disk.make_folder(attempt.folder)
        try:
            yield attempt
        except Exception:
            with contextlib.suppress(OSError):  # the first error is the one to report
                _disk.remove_folder(attempt.folder)
            raise

    def read_range(self, name: str, start: int, stop: int, is_right: Callable[[Any], bool]) -> Any:
        """Bytes of a file of an attempt, as a buffer that `is_right` has accepted."""
        path = f"{self.label}/{name}"  # not a Path: a merge reads thousands of slices
        buffer = bytearray(stop - start)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise StoreDamagedError(f"{path} is missing. {_AGAIN}") from None
        try:
            done = read_into(fd, memoryview(buffer), start)
        finally:
            os.close(fd)
        if done < len(buffer) or not is_right(buffer):
            raise StoreDamagedError(f"{path} is damaged (bytes {start:,} to {stop:,}). {_AGAIN}")
        return buffer

    def clear(self) -> None:
        """Remove everything."""
        if not (self._folder / _MARKER).is_file():
            return
        for entry in sorted(self._folder.iterdir(), key=lambda entry: entry.name == _MARKER):
            _disk.remove_folder(entry)
        _disk.remove_folder(self._folder)


class _BucketExchange:
    """A folder in object storage. Attempts write to a local temporary folder, which is uploaded."""

    def __init__(self, bucket: Bucket) -> None:
        self.label = bucket.url
        self._bucket = bucket

    def get(self, name: str) -> bytes | None:
        try:
            return self._bucket.get(name, _MAX_BYTES)[0]
        except StoreNotFoundError:
            return None

    def put(self, name: str, data: bytes) -> None:
        self._bucket.put(name, data)

    @contextlib.contextmanager
    def attempt(self, task: str) -> Iterator[Attempt]:
        with _disk.temporary_folder() as folder:
            attempt = Attempt(_new_name(task), folder)
            yield attempt
            for path in sorted(folder.iterdir()):
                self._bucket.put(f"{attempt.name}/{path.name}", path.read_bytes())

    def read_range(self, name: str, start: int, stop: int, is_right: Callable[[Any], bool]) -> Any:
        if start == stop:
            return b""
        try:
            return self._bucket.get_range(name, start, stop, is_right)
        except StoreNotFoundError:
            raise StoreDamagedError(f"{self.label}/{printable(name)} is missing. {_AGAIN}") from None

    def clear(self) -> None:
        for entry in self._bucket.find():
            self._bucket.remove(entry.name)


Exchange = _FolderExchange | _BucketExchange
"""The files of attempts, and small objects by name."""
