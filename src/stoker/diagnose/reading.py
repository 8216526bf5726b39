"""Reading of files while batches are made: which files, how often, for how many samples, and how many bytes from where.

Bytes are those that the system has counted for this process, whoever asked for them. Names of files come from what Python opens,
from arguments of functions that read, and from open files that are read on; libraries that open files by themselves name none.
"""

from __future__ import annotations

import io
import os
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import PurePath
from types import FrameType
from typing import Any, NamedTuple, Self

from stoker.diagnose.measurements import Reads
from stoker.diagnose.stages import stage_of

COUNTS = "/proc/self/io"
MOST_FILES = 1000
"""Of a list that a function is given: it may as well be a list of texts."""
NO_FILES = ("/proc/", "/sys/", "/dev/")


class Counted(NamedTuple):
    """Bytes so far: asked of files, cached or not, and fetched from a disk."""

    asked: int
    fetched: int

    def since(self, before: Counted) -> Counted:
        """Bytes between two counts."""
        return Counted(self.asked - before.asked, self.fetched - before.fetched)


class Reading:
    """Counts while it is entered. A file counts once for a sample, however many calls read it."""

    def __init__(self) -> None:
        self._counts: int | None = None
        self._samples = 0
        self._without = 0
        self._files: Counter[tuple[int, int]] = Counter()
        self._seen: set[tuple[int, int]] = set()
        self._bytes = Counted(0, 0)
        self._own = 0
        """Bytes that reading the counts took."""

    def __enter__(self) -> Self:
        global _listening
        try:
            self._counts = os.open(COUNTS, os.O_RDONLY)
        except OSError:  # not on this system: what is read by calls is known all the same
            self._counts = None
        self._bytes = self._counted()
        _listen()
        _listening = self
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        global _listening
        sys.setprofile(None)
        _listening = None
        self._count_files()
        self._bytes = self._counted().since(self._bytes)
        if self._counts is not None:
            os.close(self._counts)

    def ask(self, give: Callable[..., Any], *arguments: Any) -> Any:
        """Ask for a sample, and look at what it reads."""
        self._count_files()  # that collating has read
        before = self._counted()
        sample = give(*arguments)
        self._samples += 1
        self._without += not (self._counted().since(before).asked or self._seen)
        self._count_files()
        return sample

    def _count_files(self) -> None:
        self._files.update(self._seen)
        self._seen.clear()

    def opened(self, file: Any) -> None:
        """A file is being read, if this names one or is one that is open."""
        # By their types: objects that are half made may have no class to ask for.
        path: Any = getattr(file, "name", None) if issubclass(type(file), io.IOBase) else file
        if not issubclass(type(path), str | bytes | PurePath) or os.fsdecode(path).startswith(NO_FILES):
            return
        try:
            state = os.stat(path)  # noqa: PTH116  # may be a text that is no path at all
        except (OSError, ValueError):
            return
        if stat.S_ISREG(state.st_mode):
            self._seen.add((state.st_dev, state.st_ino))  # whatever it is called by

    def found(self, batches: int) -> Reads:
        """What so many batches took."""
        reads = sum(self._files.values())
        known = self._counts is not None
        return Reads(
            batches=batches,
            samples=self._samples,
            cache_hits=self._without / self._samples if self._without < self._samples else None,
            files=len(self._files),
            reads=reads / batches,
            reads_a_file=reads / len(self._files) if self._files else None,
            bytes_read=self._bytes.asked / batches if known else None,
            bytes_from_disk=self._bytes.fetched / batches if known else None,
        )

    def _counted(self) -> Counted:
        if self._counts is None:
            return Counted(0, 0)
        text = os.pread(self._counts, 512, 0)
        numbers = dict(line.split(b": ") for line in text.splitlines())
        count = Counted(int(numbers[b"rchar"]) - self._own, int(numbers[b"read_bytes"]))
        self._own += len(text)  # the next count has them
        return count

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "c_call") or stage_of(frame, event, argument) != "read":
            return
        for value in _arguments(frame) if event == "call" else [getattr(argument, "__self__", None)]:
            self.opened(value)


def _arguments(frame: FrameType) -> Iterator[object]:
    """Those by position and by name, and what lists of them have."""
    code = frame.f_code
    for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        value: Any = frame.f_locals.get(name)
        if issubclass(type(value), list | tuple):
            yield from value[:MOST_FILES]
        else:
            yield value


_listening: Reading | None = None
_is_listening_set_up = False


def _listen() -> None:
    """Python calls a hook whenever it opens a file; a hook stays for good, so there is one."""
    global _is_listening_set_up
    if not _is_listening_set_up:
        _is_listening_set_up = True
        sys.addaudithook(_heard)


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or _listening is None:
        return
    path, mode, flags = arguments
    if flags & (os.O_WRONLY | os.O_RDWR) == 0 and not set(mode or "") & set("wax+"):
        _listening.opened(path)
