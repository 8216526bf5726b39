"""Snapshots: a folder as data, so that thousands of them can be made, compared and laid out without a disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All files and folders below `root`, by relative path with forward slashes."""

    root: Path
    files: Mapping[str, bytes]
    folders: frozenset[str]
    label: str = ""
    """Of a crash state: the moment of the crash, for the message of a failing test."""

    def write_to(self, folder: Path) -> None:
        """Lay the snapshot out in a folder that is empty or absent."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in sorted(self.folders):
            (folder / name).mkdir()
        for name, data in self.files.items():
            (folder / name).write_bytes(data)


def take_snapshot(root: Path) -> Snapshot:
    """Read a folder whole. Links are left out."""
    root = root.absolute()
    files: dict[str, bytes] = {}
    folders: set[str] = set()
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            continue
        if path.is_dir():
            folders.add(name)
        elif path.is_file():
            files[name] = path.read_bytes()
    return Snapshot(root, files, frozenset(folders))
