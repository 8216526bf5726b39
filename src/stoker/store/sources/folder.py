"""Data sets that are folders: files that a description names are looked for inside the folder and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

from stoker.errors import SourceChanged, SourceInvalid


def inside(folder: Path, name: str, *, named_by: str) -> Path:
    """The plain file `name` of the folder; names with separators, and links that lead out, are refused."""
    if not name or name in (".", "..") or any(mark in name for mark in "/\\\0"):
        raise SourceInvalid(f"{folder / named_by} names the file {name[:80]!r}; expected the plain name of a file in its folder.")
    path = folder / name
    if not path.exists():
        raise SourceInvalid(
            f"{folder / named_by} names the file {name!r}, which is not in {folder}. Fetch or make the folder again."
        )
    if not path.resolve().is_relative_to(folder.resolve()):
        raise SourceInvalid(f"{path} is a link that leads out of its folder. Copy the file into the folder.")
    if not path.is_file():
        raise SourceInvalid(f"{path} is not a plain file. Fetch or make the folder again.")
    return path


def read_fully(fd: int, buffer: memoryview, offset: int, path: Path) -> None:
    """Fill a buffer from a file whose size was checked before."""
    done = 0
    while done < buffer.nbytes:
        count = os.preadv(fd, [buffer[done:]], offset + done)
        if count == 0:
            raise SourceChanged(f"{path} changed while it was read: it now ends at byte {offset + done:,}.")
        done += count
