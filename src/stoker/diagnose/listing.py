"""Listings: a folder as the program has left it, though what it wrote is elsewhere and what it removed is still there.

It stands before `os.listdir` and `os.scandir`, by which `glob`, `os.walk` and `pathlib` list folders, too.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

_stat = os.stat


class Entry:
    """A file that the program has written, as `os.DirEntry` shows it."""

    def __init__(self, name: str | bytes, path: str | bytes, place: str) -> None:
        self.name = name
        self.path = path
        self._place = place

    def __fspath__(self) -> str | bytes:
        """Its path, as the program has it."""
        return self.path

    def __repr__(self) -> str:
        """As that of an `os.DirEntry`."""
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """What there is to know of it."""
        return _stat(self._place, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        """The number of the file."""
        return self.stat().st_ino

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a file, as it is unless it has gone meanwhile."""
        return os.access(self._place, os.F_OK) and stat.S_ISREG(self.stat(follow_symlinks=follow_symlinks).st_mode)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Never: folders are made where the program wants them."""
        return False

    def is_symlink(self) -> bool:
        """Never: a link is no file that was written."""
        return False

    def is_junction(self) -> bool:
        """Never."""
        return False


class Listing:
    """What `os.scandir` gives: entries, once, until it is closed."""

    def __init__(self, entries: Iterator[Any]) -> None:
        self._entries = entries

    def __iter__(self) -> Self:
        """Itself."""
        return self

    def __next__(self) -> Any:
        """The next entry."""
        return next(self._entries)

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Give no more entries."""
        self._entries = iter(())
