"""A folder with files of a user, and all that there is to know of it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Any


def make_home(folder: Path) -> None:
    """Files of the user's: a model, a log, a run with checkpoints, links."""
    (folder / "run" / "deep").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "model.pt").write_bytes(b"precious")
    (folder / "log.txt").write_text("one\ntwo\n")
    (folder / "run" / "last.pt").write_bytes(b"last")
    (folder / "run" / "deep" / "best.pt").write_bytes(b"best")
    (folder / "latest").symlink_to("run")
    (folder / "log.link").symlink_to("log.txt")
    (folder / "read-only.txt").write_text("fixed")
    (folder / "read-only.txt").chmod(0o444)
    with contextlib.closing(sqlite3.connect(folder / "base.db")) as base:
        base.execute("create table losses (step, loss)")
        base.commit()
    for path in folder.rglob("*"):
        os.utime(path, (1e9, 1e9), follow_symlinks=False)


def state(folder: Path) -> dict[str, Any]:
    """All that there is to know of the files of a folder."""
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        known = path.lstat()
        content: Any = str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        when = known.st_mtime_ns if not path.is_dir() else None  # of folders it changes when something is made in them and goes
        attributes = {name: os.getxattr(path, name, follow_symlinks=False) for name in os.listxattr(path, follow_symlinks=False)}
        found[str(path.relative_to(folder))] = (known.st_mode, known.st_ino, known.st_nlink, when, attributes, content)
    return found
