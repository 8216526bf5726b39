"""The journal: what files were before a program changed them, so that they can be restored.

`WriteJournal.save` is called before a path is changed. It keeps a copy of the file, the target of the link, the mode of the folder, or that
there was nothing, once per path. What lies in a folder that was not there needs no record: the folder is removed.

Several processes may share a journal, as those of a distributed run do: the first one that saves a path wins, and the last one that
closes the journal restores the files. A process that is killed leaves its journal, and the next one that finds it restores the files
(`recover`). The system's lock on the journal ends with the process that holds it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from stoker import _disk

Kind = Literal["nothing", "file", "folder", "link", "other"]
LOCK, RECORD = "lock", ".json"
LARGE = 64 << 20  # bytes from which a file that is only renamed or removed is not copied: the journal gets a second name of it


class SavedPath(msgspec.Struct, frozen=True, kw_only=True):
    """What was at a path."""

    path: str
    kind: Kind
    copy: str | None = None  # the name of the copy of a file, in the journal
    target: str | None = None  # of a link
    inode: int = 0
    size: int = 0
    mode: int = 0
    owner: tuple[int, int] = (-1, -1)
    times_ns: tuple[int, int] = (0, 0)
    changed_ns: int = 0  # when the system last changed it, which no program can set
    names: list[str] | None = None  # what was in a folder that was removed, moved or replaced


class WriteJournal:
    """An open journal. Raises `OSError` from `save` if a copy cannot be made; the path must then not be changed."""

    def __init__(self, folder: Path) -> None:
        self.changed: list[str] = []  # paths that this process has saved, in order
        self._folder = folder
        self._known: dict[str, SavedPath] = {}
        self._lock = -1
        while self._lock < 0:
            self._lock = _open_lock(folder, restoring=True)

    def save(self, path: str, *, removes: bool = False, moves: bool = False) -> None:
        """Save what is at a path without following a last link.

        `removes` if the path itself may be removed; `moves` if it may be renamed or replaced, with all that is in it.
        """
        if not (removes or moves):
            self._copy_before_write(path)
        record = self._find(path)
        if record is None and self._is_new(path):
            return
        above = os.path.dirname(path)
        if above != path and self._find(above) is None:
            self._keep(above, self._made(above))  # its time of change is restored, too
        if record is None:
            record = self._keep(path, self._made(path, in_use=not (removes or moves)))
            self.changed.append(path)
        if (removes or moves) and record.kind == "folder":
            names = os.listdir(path) if _is_folder(path) else []
            if moves or not names:  # one that is not empty is not removed
                self._keep(f"{path}/", SavedPath(path=f"{path}/", kind="folder", names=names))
            for name in names if moves else []:
                self.save(os.path.join(path, name), moves=True)

    def save_names(self, folder: str) -> None:
        """Save a folder and the names in it: what is new there at the end is removed."""
        self._keep(folder, self._made(folder))
        self._keep(f"{folder}/", SavedPath(path=f"{folder}/", kind="folder", names=os.listdir(folder)))

    def _is_new(self, path: str) -> bool:
        """Whether a path without a record lies in a folder that was not there before, or that was removed or replaced."""
        while True:
            above, name = os.path.split(path)
            if above == path:
                return False
            inside = self._find(f"{above}/")
            if inside is not None and name not in (inside.names or []):
                return True
            record = self._find(above)
            if record is not None:
                return record.kind == "nothing"
            path = above

    def _find(self, path: str) -> SavedPath | None:
        if path not in self._known:
            with contextlib.suppress(OSError, ValueError):  # saved by another process of the run
                self._known[path] = _read(self._place(path, RECORD))
        return self._known.get(path)

    def _keep(self, path: str, record: SavedPath) -> SavedPath:
        """Write a record, unless there is one."""
        found = self._find(path)
        if found is not None:
            return found
        try:
            fd = _disk.disk.create(self._place(path, RECORD))
        except FileExistsError:  # another process of the run was quicker, and has saved the same
            record = _read(self._place(path, RECORD))
        else:
            _disk.disk.write(fd, json.dumps(msgspec.to_builtins(record)).encode())  # names need not be UTF-8
            os.close(fd)
        self._known[path] = record
        return record

    def _copy_before_write(self, path: str) -> None:
        """Copy a large file that the journal only holds by another name."""
        try:
            found = os.lstat(path)
        except OSError:
            return
        if stat.S_ISREG(found.st_mode) and found.st_nlink > 1 and found.st_size >= LARGE:
            for one in list(self._folder.iterdir()):
                if _is_file(one, found.st_ino, found.st_dev):
                    with open(one, "rb") as file:
                        _disk.restore_file(file, one, in_place=False)

    def _made(self, path: str, *, in_use: bool = True) -> SavedPath:
        """The record of a path, with a copy of a file; one that is not `in_use` may get a second name instead if it is large."""
        try:
            found = os.lstat(path)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
                return SavedPath(path=path, kind="nothing")
            raise
        copy = target = None
        kind: Kind = "other"
        if stat.S_ISDIR(found.st_mode):
            kind = "folder"
        elif stat.S_ISLNK(found.st_mode):
            kind, target = "link", os.readlink(path)
        elif stat.S_ISREG(found.st_mode):
            kind, place = "file", self._place(path, f"-{os.getpid()}-{len(self._known)}")
            if in_use or found.st_size < LARGE or not _linked(Path(path), place):
                with open(path, "rb") as file:
                    _disk.copy_file(file, place)
            copy = place.name
        return SavedPath(
            path=path,
            kind=kind,
            copy=copy,
            target=target,
            inode=found.st_ino,
            size=found.st_size,
            mode=stat.S_IMODE(found.st_mode),
            owner=(found.st_uid, found.st_gid),
            times_ns=(found.st_atime_ns, found.st_mtime_ns),
            changed_ns=found.st_ctime_ns,
        )

    def _place(self, path: str, end: str) -> Path:
        return self._folder / (hashlib.sha256(os.fsencode(path)).hexdigest()[:32] + end)

    def close(self) -> None:
        """Restore all files, unless another process uses the journal: then that one restores them."""
        if self._lock < 0:
            return
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _restore(self._folder)
            _disk.remove_folder(self._folder)
        except BlockingIOError:
            pass
        finally:
            os.close(self._lock)
            self._lock = -1


def recover(folder: Path) -> bool:
    """Restore the files of a process that was killed; False if its journal is in use."""
    try:
        lock = _open_lock(folder, restoring=False)
    except BlockingIOError:
        return False
    try:
        _restore(folder)
        _disk.remove_folder(folder)
    finally:
        os.close(lock)
    return True


def _open_lock(folder: Path, *, restoring: bool) -> int:
    """Lock a journal; -1 if it was removed meanwhile.

    With `restoring` the lock is shared, and what a killed process has left is restored. Without, it is exclusive; raises
    `BlockingIOError` if the journal is in use.
    """
    _disk.make_cache_folder(folder)
    lock = _disk.open_lock(folder / LOCK)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if restoring:
                _restore(folder)
                fcntl.flock(lock, fcntl.LOCK_SH)
        except BlockingIOError:
            if not restoring:
                raise
            fcntl.flock(lock, fcntl.LOCK_SH)
        if os.fstat(lock).st_nlink:
            return lock
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return -1


def _read(path: Path) -> SavedPath:
    return msgspec.convert(json.loads(path.read_bytes()), type=SavedPath)


def _records(folder: Path) -> Iterator[SavedPath]:
    for path in folder.glob(f"*{RECORD}"):
        with contextlib.suppress(ValueError):  # torn: nothing was changed yet
            yield _read(path)


def _restore(folder: Path) -> None:
    """Restore every path that has a record, and remove the records."""
    found = sorted(_records(folder), key=lambda record: len(record.path))
    records = [record for record in found if record.names is None]
    there = {record.path for record in records if record.kind != "nothing"}
    for record in records:
        if record.kind == "folder" and _is_folder(record.path) and not os.access(record.path, os.W_OK):
            _disk.disk.chmod(Path(record.path), 0o700)  # until its own mode is restored
    for record in records:
        if record.kind == "nothing":
            _disk.remove_tree(Path(record.path))
    for record in found:
        for name in os.listdir(record.path) if record.names is not None and _is_folder(record.path) else []:
            if name not in (record.names or []) and record.path + name not in there:
                _disk.remove_tree(Path(record.path, name))  # of another folder that was moved here
    for record in records:
        if record.kind == "folder" and not _is_folder(record.path):
            _disk.remove_file(Path(record.path))
            _disk.disk.mkdir(Path(record.path), 0o700)
        elif record.kind in ("file", "link"):
            _restore_one(record, folder)
    for record in reversed(records):
        if record.kind == "folder":
            _restore_marks(record)
    for path in folder.iterdir():
        if path.name != LOCK:
            _disk.remove_file(path)


def _restore_one(record: SavedPath, folder: Path) -> None:
    path = Path(record.path)
    found = os.lstat(path) if os.path.lexists(path) else None
    if found is not None and (found.st_ino, found.st_ctime_ns) == (record.inode, record.changed_ns):
        return
    if found is not None and stat.S_ISDIR(found.st_mode):
        _disk.remove_tree(path)
    if record.target is not None:
        _disk.remove_file(path)
        _disk.disk.symlink(record.target, path)
    elif (
        record.copy is not None
        and record.size >= LARGE
        and _is_file(folder / record.copy, record.inode, os.stat(path.parent).st_dev)
    ):
        if found is None or found.st_ino != record.inode:
            _disk.remove_file(path)
            _disk.disk.link(folder / record.copy, path)
    elif record.copy is not None:
        with open(folder / record.copy, "rb") as copy:
            # The same file, where it still has its name: it may have other names, and be open elsewhere.
            _disk.restore_file(copy, path, in_place=found is not None and found.st_ino == record.inode)
    _restore_marks(record)


def _restore_marks(record: SavedPath) -> None:
    """Mode, owner and times."""
    path = Path(record.path)
    found = os.lstat(path)
    if (found.st_uid, found.st_gid) != record.owner:
        with contextlib.suppress(PermissionError):
            _disk.disk.chown(path, *record.owner)
    if record.kind != "link":
        _disk.disk.chmod(path, record.mode)
    _disk.disk.utime(path, record.times_ns)


def _linked(path: Path, place: Path) -> bool:
    try:
        _disk.disk.link(path, place)
    except OSError:  # on another disk, or of another user
        return False
    return True


def _is_file(path: Path, inode: int, device: int) -> bool:
    found = os.lstat(path)
    return (found.st_ino, found.st_dev) == (inode, device)


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)
