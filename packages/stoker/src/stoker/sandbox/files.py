"""Files of the sandbox: links and copies in a mirror, moves between overlays, and the removal of what a program has made.

All of it lies in a scratch folder that is removed as a whole, or is what the program of the user asked for. So nothing is synced, and
errors are those of the system. Files that Stoker keeps are written by `_disk.py` alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path


def link(target: str, path: Path) -> None:
    """Make a symbolic link."""
    os.symlink(target, path)


def make_blocked(scratch: Path) -> tuple[str, str]:
    """Make what is mounted over a file, and over a folder: a socket, which not even root can open, and an empty folder."""
    file, folder = scratch / "blocked", scratch / "blocked_folder"
    os.mknod(file, stat.S_IFSOCK)
    os.mkdir(folder, 0)
    return str(file), str(folder)


def make_temporary(path: Path) -> None:
    """Make a folder that every user can write to, like /tmp."""
    os.mkdir(path)
    os.chmod(path, 0o1777)


def set_state(path: Path, state: os.stat_result, *, mode: bool = True, owner: bool = False) -> None:
    """Set the times, and the mode and owner where asked for, that `state` has."""
    if mode:
        os.chmod(path, stat.S_IMODE(state.st_mode))
    if owner:
        os.chown(path, state.st_uid, state.st_gid, follow_symlinks=False)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns), follow_symlinks=False)


def move_by_copy(source: Path, target: Path, rename: Callable[[Path, Path], None], *, keeps: bool) -> None:
    """Do what `rename` refuses between two disks: copy a file, link or folder into the target's folder, and rename the copy.

    With `keeps` the source stays, and an existing target is an error. Errors of `rename` are raised as they are.
    """
    if keeps and os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(source), None, str(target))
    copy = target.with_name(f".{os.urandom(8).hex()}.tmp")
    is_folder = source.is_dir() and not source.is_symlink()
    try:
        if is_folder:
            shutil.copytree(source, copy, symlinks=True)
        else:
            shutil.copy2(source, copy, follow_symlinks=False)
        (os.replace if keeps else rename)(copy, target)
    except OSError:
        with contextlib.suppress(OSError):
            remove_tree(copy)
        raise
    if not keeps:
        remove_tree(source)


def remove_tree(path: Path) -> None:
    """Remove what a program of the user has made, also where its modes do not permit it. Links are removed, not followed."""
    if not os.path.lexists(path):
        return
    if stat.S_ISDIR(os.lstat(path).st_mode):
        os.chmod(path, 0o700)
        for entry in path.iterdir():
            remove_tree(entry)
        os.rmdir(path)
    else:
        os.unlink(path)


def write_to_kernel(path: Path, text: str) -> None:
    """Write to a file of `/proc`, which takes effect immediately."""
    path.write_text(text)
