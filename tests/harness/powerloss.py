"""The power-loss replayer: from a record of operations, the states that a disk may be in when the power fails.

The model is the worst that POSIX allows, not what one file system happens to do. Only `sync` makes bytes durable and
only `sync_folder` makes names durable. Of the rest anything may be lost, in any order: writes as a whole, from some
byte on, or by sectors (which then hold what was there before, or zeros), with or without the growth of the file; and
every creation, renaming and removal on its own. A renaming within one folder happens whole or not at all; one between
folders is a new name there and a removal here, each made durable by its own folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.harness.faulty import Operation
from tests.harness.snapshot import Snapshot

_SECTORS = (512, 4096)
_KEEP_SHARES = (0.1, 0.5, 0.9)


def crash_states(
    log: Sequence[Operation], before: Snapshot, rng: np.random.Generator, *, count: int, after_return: bool = False
) -> Iterator[Snapshot]:
    """Yield `count` states after a crash: at all moments of the log in turn, or `after_return`, when all of it was done.

    `before` is a snapshot of a folder that contains all paths of the log, taken before the first operation. At each
    moment the first two states are the extremes, nothing lost and all lost that may be; the others are random.
    """
    disk = _Replay(before)
    done = 0
    repeats = 0
    for i in range(count):
        moment = len(log) if after_return else i * (len(log) + 1) // count
        repeats = repeats + 1 if moment == done and i else 0
        while done < moment:
            disk.apply(log[done])
            done += 1
        last = f" ({log[done - 1]})" if done else ""
        yield disk.crash(rng, repeats, f"power lost after {done} of {len(log)} operations{last}")


def count_states(
    log: Sequence[Operation],
    before: Snapshot,
    rng: np.random.Generator,
    judge: Callable[[Snapshot], Any],
    *,
    count: int,
    after_return: bool = False,
) -> Counter[Any]:
    """What `judge` says of each of these states; the moment of the first that is "torn" is printed."""
    seen: Counter[Any] = Counter()
    for state in crash_states(log, before, rng, count=count, after_return=after_return):
        verdict = judge(state)
        if verdict == "torn" and not seen["torn"]:
            print(state.label)
        seen[verdict] += 1
    return seen


class _File:
    """The bytes of a file: those that are safe, those that a reader sees now, and the changes that lie between."""

    __slots__ = ("now", "safe", "unsafe")

    def __init__(self, data: bytes) -> None:
        self.safe = data
        self.now = bytearray(data)
        self.unsafe: list[tuple[int, bytes | None]] = []

    def change(self, offset: int, data: bytes | None) -> None:
        """Write `data` at `offset`, or cut there if it is None."""
        _change(self.now, offset, data)
        self.unsafe.append((offset, data))

    def sync(self) -> None:
        self.safe = bytes(self.now)
        self.unsafe.clear()

    def lossy(self, rng: np.random.Generator) -> bytes:
        """What is left of the file after a crash."""
        if not self.unsafe:
            return self.safe
        way = rng.integers(8)
        if way == 0:
            return bytes(self.now)
        if way == 1:
            return self.safe
        if way <= 3:
            return self._some_changes(rng, ordered=way == 2)
        if way <= 5:
            return self._some_sectors(rng)
        size = len(self.safe) if way == 6 else int(rng.integers(len(self.now) + 1))
        return bytes(self.now[:size])

    def _some_changes(self, rng: np.random.Generator, *, ordered: bool) -> bytes:
        """The first changes and a part of the next, or any of them in part."""
        left = bytearray(self.safe)
        first_lost = int(rng.integers(len(self.unsafe)))
        for i, (offset, data) in enumerate(self.unsafe):
            lost = i > first_lost if ordered else rng.random() < 0.5
            if lost:
                continue
            if data is not None and (i == first_lost or not ordered):
                data = data[: int(rng.integers(len(data) + 1))]
            _change(left, offset, data)
        return bytes(left)

    def _some_sectors(self, rng: np.random.Generator) -> bytes:
        """The size of now, but some sectors, or all, as they were or zero."""
        left = bytearray(self.now)
        sector = _SECTORS[int(rng.integers(2))]
        old = self.safe if rng.random() < 0.5 else b""
        share = (0.1, 0.5, 1.0)[int(rng.integers(3))]
        for offset, data in self.unsafe:
            first, end = offset // sector, -(-(offset + len(data or b"")) // sector)
            if end <= first:
                continue
            lost = np.flatnonzero(rng.random(end - first) < share)
            if not len(lost):
                lost = rng.integers(end - first, size=1)
            for number in (lost + first).tolist():
                begin, stop = max(number * sector, offset), min((number + 1) * sector, offset + len(data or b""), len(left))
                if begin < stop:
                    left[begin:stop] = old[begin:stop].ljust(stop - begin, b"\0")
        return bytes(left)


def _change(target: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del target[offset:]
    if len(target) < offset:
        target.extend(bytes(offset - len(target)))
    if data:
        target[offset : offset + len(data)] = data


class _Folder:
    """What a name stands for if it is not a file."""


_Entry = _File | _Folder | None


class _Replay:
    """A disk in memory that knows what is safe and what is not."""

    def __init__(self, before: Snapshot) -> None:
        self._root = before.root
        self._safe: dict[str, _Entry] = {name: _Folder() for name in before.folders}
        self._safe.update((name, _File(data)) for name, data in before.files.items())
        self._now = dict(self._safe)
        self._unsafe: list[tuple[str, dict[str, _Entry]]] = []
        self._open: dict[int, _File] = {}

    def apply(self, operation: Operation) -> None:
        name = self._name(operation.path)
        kind = operation.kind
        if kind == "create":
            self._open[operation.handle] = file = _File(b"")
            self._rename({name: file})
        elif kind == "open_again":
            self._open[operation.handle] = self._file(name)
        elif kind in ("write", "pwrite"):
            self._open[operation.handle].change(operation.offset, operation.data)
        elif kind == "truncate":
            self._open[operation.handle].change(operation.offset, None)
        elif kind == "sync":
            self._open[operation.handle].sync()
        elif kind == "replace" and operation.target is not None:
            self._rename({self._name(operation.target): self._file(name), name: None})
        elif kind == "mkdir":
            self._rename({name: _Folder()})
        elif kind in ("unlink", "rmdir"):
            self._rename({name: None})
        elif kind == "sync_folder":
            self._sync_folder(name)

    def crash(self, rng: np.random.Generator, repeats: int, label: str) -> Snapshot:
        """A state after a crash now. `repeats` 0 loses nothing, 1 loses all that is not safe."""
        names = dict(self._safe)
        share = 1.0 if repeats == 0 else 0.0 if repeats == 1 else _KEEP_SHARES[int(rng.integers(3))]
        for _, entries in self._unsafe:
            if share == 1.0 or (share and rng.random() < share):
                names.update(entries)
        files: dict[str, bytes] = {}
        left: dict[int, bytes] = {}
        for name, entry in names.items():
            if not isinstance(entry, _File) or not self._reachable(name, names):
                continue
            if id(entry) not in left:
                left[id(entry)] = bytes(entry.now) if repeats == 0 else entry.safe if repeats == 1 else entry.lossy(rng)
            files[name] = left[id(entry)]
        folders = (name for name, entry in names.items() if isinstance(entry, _Folder) and self._reachable(name, names))
        return Snapshot(self._root, files, frozenset(folders), label)

    @staticmethod
    def _reachable(name: str, names: dict[str, _Entry]) -> bool:
        """A name is found only if all folders above it are."""
        end = name.rfind("/")
        while end > 0:
            if not isinstance(names.get(name[:end]), _Folder):
                return False
            end = name.rfind("/", 0, end)
        return True

    def _rename(self, entries: dict[str, _Entry]) -> None:
        self._now.update(entries)
        for folder in dict.fromkeys(name.rpartition("/")[0] for name in entries):
            self._unsafe.append((folder, {name: entry for name, entry in entries.items() if name.rpartition("/")[0] == folder}))

    def _sync_folder(self, folder: str) -> None:
        folder = "" if folder == "." else folder
        for changed, entries in self._unsafe:
            if changed == folder:
                self._safe.update(entries)
        self._unsafe = [change for change in self._unsafe if change[0] != folder]

    def _file(self, name: str) -> _File:
        entry = self._now.get(name)
        if not isinstance(entry, _File):
            raise ValueError(f"cannot replay: {name!r} is not a file at this point; was the snapshot taken before the recording?")
        return entry

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()
