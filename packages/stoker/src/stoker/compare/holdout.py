"""Held-out files: which files a training program must not read, under all of their names, and who opened them where nothing prevents it."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from stoker.compare.checkpoint import copies_of, files_of
from stoker.errors import OptionError

SKIPPED = {".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
MAX_FILES = 200_000  # of a tree that is searched
IN_ACCESS, IN_OPEN, IN_NONBLOCK, IN_ISDIR = 0x1, 0x20, 0o4000, 0x40000000


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Files and folders that are held out, by their real paths."""

    paths: tuple[str, ...]
    copies: tuple[str, ...]
    """Files of the tree with the same bytes, and other names of the same files: they are held out, too."""

    @property
    def hidden(self) -> tuple[str, ...]:
        """All paths that must not be read."""
        return (*self.paths, *self.copies)

    def files(self) -> list[Path]:
        """Return the held-out files, those in folders too."""
        return [file for path in self.paths for file in files_of(Path(path))]


def held_out(paths: Sequence[str | Path], folder: Path) -> HeldOut:
    """Find the held-out files, and their copies in a folder.

    Raises:
        OptionError: A path does not exist, contains the folder, or is a file with another name that cannot be found.
    """
    real = []
    for given in paths:
        path = os.path.realpath(given)
        if not Path(path).exists():
            raise OptionError(f"{given} does not exist; expected a file or folder that is held out.", parameter="hold_out")
        if str(folder.resolve()).startswith(path.rstrip("/") + "/") or str(folder.resolve()) == path:
            raise OptionError(
                f"{given} contains the current folder; expected files that the training program does not need.",
                parameter="hold_out",
            )
        real.append(path)
    files = [file for path in real for file in files_of(Path(path))]
    tree = [path for path in tree_of(folder) if not _is_within(str(path), real)]
    copies = {str(path) for _, path in copies_of([file for file in files if file.stat().st_size], tree)}
    copies |= {str(path) for path in tree if any(_is_same(path, file) for file in files if file.stat().st_nlink > 1)}
    for file in files:
        names = sum(_is_same(path, file) for path in (*map(Path, copies), *files))
        if file.stat().st_nlink > names:
            raise OptionError(
                f"{file} has {file.stat().st_nlink} names (hard links), of which {names} are known: the training program could read it by "
                "another one. Hold out a copy of it.",
                parameter="hold_out",
            )
    return HeldOut(paths=tuple(sorted(set(real))), copies=tuple(sorted(copies)))


def tree_of(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, without links and folders of tools."""
    number = 0
    for place, folders, names in os.walk(folder.resolve()):
        folders[:] = sorted(name for name in folders if name not in SKIPPED)
        for name in sorted(names):
            path = Path(place, name)
            if not path.is_symlink() and path.is_file():
                number += 1
                if number > MAX_FILES:
                    return
                yield path


def _is_within(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def _is_same(path: Path, other: Path) -> bool:
    return os.path.samestat(path.stat(), other.stat())


class ReadWatch:
    """Knows which of some files any process opened or read meanwhile, by the kernel: for where they cannot be made unreadable."""

    def __init__(self, held: HeldOut) -> None:
        self._files = [*held.files(), *map(Path, held.copies)]
        self._names: dict[int, str] = {}
        self._descriptor = -1
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.read: set[str] = set()
        """Paths that were opened or read, after the block."""

    def __enter__(self) -> Self:
        self._descriptor = self._libc.inotify_init1(IN_NONBLOCK)
        for file in self._files:
            number = self._libc.inotify_add_watch(self._descriptor, os.fsencode(file), IN_ACCESS | IN_OPEN)
            if number < 0:
                error = ctypes.get_errno()
                raise OptionError(f"reads of {file} cannot be watched: {os.strerror(error)}.", parameter="hold_out")
            self._names[number] = str(file)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            while data := os.read(self._descriptor, 1 << 16):
                place = 0
                while place < len(data):
                    number, _, _, size = struct.unpack_from("iIII", data, place)
                    self.read.add(self._names.get(number, "a held-out file"))
                    place += 16 + size
        except BlockingIOError:
            pass
        finally:
            os.close(self._descriptor)
