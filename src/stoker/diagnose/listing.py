"""Listings: a folder as the program has left it, though what it wrote is elsewhere and what it removed is still there.

It stands before `os.listdir` and `os.scandir`, by which `glob`, `os.walk` and `pathlib` list folders, too.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self


class Entry:
    """A file or folder of the view, as `os.DirEntry` shows it."""

    def __init__(self, name: str | bytes, path: str | bytes, full: str) -> None:
        self.name = name
        self.path = path
        self._full = full

    def __fspath__(self) -> str | bytes:
        """Its path, as the program has it."""
        return self.path

    def __repr__(self) -> str:
        """As that of an `os.DirEntry`."""
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """What there is to know of it."""
        return os.stat(self._full, follow_symlinks=follow_symlinks)  # noqa: PTH116 (the one of the view)

    def inode(self) -> int:
        """The number of the file."""
        return self.stat(follow_symlinks=False).st_ino

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a file, or a link to one that is followed."""
        return stat.S_ISREG(self._mode(follow_symlinks))

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a folder, or a link to one that is followed."""
        return stat.S_ISDIR(self._mode(follow_symlinks))

    def is_symlink(self) -> bool:
        """Whether it is a link."""
        return stat.S_ISLNK(self._mode(False))

    def is_junction(self) -> bool:
        """Never: only Windows has them."""
        return False

    def _mode(self, follow_symlinks: bool) -> int:
        """Its kind; 0 where it has gone meanwhile, or is a link to nothing."""
        try:
            return self.stat(follow_symlinks=follow_symlinks).st_mode
        except FileNotFoundError:
            return 0


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
