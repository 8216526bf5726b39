"""The `journal` mode of the sandbox: each file is copied before the program changes it, and restored when the program has ended.

`WriteWatch` makes the program wait before every system call that changes a file, and `WriteJournal.save` keeps what is at its path:
a copy of the file, the target of the link, the mode of the folder, or that there was nothing. The kernel does the watching (seccomp user
notifications, Linux 5.5), so it covers every library and every process that the program starts, and needs no privileges.

Several processes may share a journal, as those of a distributed run do: the first one that saves a path wins, and the last one that
closes the journal restores the files. A killed process leaves its journal behind, and the next diagnosis restores the files
(`recover`). The kernel releases the lock on a journal when the process that holds it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import itertools
import json
import os
import platform
import select
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from stoker import _cache_files, _disk

Kind = Literal["nothing", "file", "folder", "link", "other"]
LOCK, RECORD = "lock", ".json"
MAX_SEARCHED = 2000  # files of a folder in which other names of a file are looked for
LARGE = 64 << 20  # bytes from which a file that is only renamed or removed is not copied: the journal gets a hard link


class SavedPath(msgspec.Struct, frozen=True, kw_only=True):
    """What was at a path."""

    path: str
    kind: Kind
    copy: str | None = None  # the name of the copy of a file, in the journal
    target: str | None = None  # of a symlink
    inode: int = 0
    mode: int = 0
    owner: tuple[int, int] = (-1, -1)
    times_ns: tuple[int, int] = (0, 0)
    changed_ns: int = 0  # its ctime, which no program can set
    links: list[str] = []  # other paths of the same file, in its folder
    names: list[str] | None = None  # what was in a folder that was removed, moved or replaced


class WriteJournal:
    """An open journal. Raises `OSError` from `save` if a copy cannot be made; the path must then not be changed."""

    def __init__(self, folder: Path) -> None:
        self.changed: list[str] = []  # paths that this process has saved, in order
        self._folder = folder
        self._known: dict[str, SavedPath] = {}
        self._lock = _open_lock(folder, restoring=True)

    def save(self, path: str, *, removes: bool = False, moves: bool = False) -> None:
        """Save what is at a path, once, before it is changed. A symlink at its end is not followed.

        `removes` if the path itself may be removed; `moves` if it may be renamed or replaced, with its contents. What is in a new
        folder needs no record: the folder is removed.
        """
        if not (removes or moves):
            self._copy_before_write(path)
        record = self._record_of(path)
        if record is None and self._is_new(path):
            return
        above = os.path.dirname(path)
        if above != path and self._record_of(above) is None:
            self._write_record(above, self._new_record(above))  # its mtime is restored, too
        if record is None:
            record = self._write_record(path, self._new_record(path, written=not (removes or moves)))
            self.changed.append(path)
        if (removes or moves) and record.kind == "folder":
            names = os.listdir(path) if _is_folder(path) else []
            if moves or not names:  # only an empty folder can be removed
                self._write_record(f"{path}/", SavedPath(path=f"{path}/", kind="folder", names=names))
            for name in names if moves else []:
                self.save(os.path.join(path, name), moves=True)

    def save_names(self, folder: str) -> None:
        """Save a folder and the names in it: what is new in it at the end is removed."""
        self._write_record(folder, self._new_record(folder))
        self._write_record(f"{folder}/", SavedPath(path=f"{folder}/", kind="folder", names=os.listdir(folder)))

    def _is_new(self, path: str) -> bool:
        """Whether a path without a record is in a folder that is new, or that was removed or replaced."""
        while True:
            above, name = os.path.split(path)
            if above == path:
                return False
            inside = self._record_of(f"{above}/")
            if inside is not None and name not in (inside.names or []):
                return True
            record = self._record_of(above)
            if record is not None:
                return record.kind == "nothing"
            path = above

    def _record_of(self, path: str) -> SavedPath | None:
        if path not in self._known:
            with contextlib.suppress(OSError, ValueError):  # a record of another process of the run
                self._known[path] = _read(self._file_of(path, RECORD))
        return self._known.get(path)

    def _write_record(self, path: str, record: SavedPath) -> SavedPath:
        """Write a record, unless there is one."""
        found = self._record_of(path)
        if found is not None:
            return found
        # Linked when it is complete, as other processes of the run may read it at once.
        place, draft = self._file_of(path, RECORD), self._file_of(path, f"-{os.getpid()}-draft")
        file = _disk.AppendFile.create(draft)
        try:
            file.append(json.dumps(msgspec.to_builtins(record)).encode())  # names need not be UTF-8
            if not _linked(draft, place):
                if place.exists():  # another one was faster, and has saved the same
                    record = _read(place)
                else:  # a file system without hard links
                    _disk.disk.replace(draft, place)
        finally:
            file.close()
            _disk.remove_file(draft)
        self._known[path] = record
        return record

    def _copy_before_write(self, path: str) -> None:
        """Copy a large file of which the journal has only a hard link."""
        try:
            found = os.lstat(path)
        except OSError:
            return
        if stat.S_ISREG(found.st_mode) and found.st_nlink > 1 and found.st_size >= LARGE:
            for one in list(self._folder.iterdir()):
                if _is_file(one, found.st_ino, found.st_dev):
                    with open(one, "rb") as file:
                        _disk.restore_file(file, one, in_place=False)

    def _new_record(self, path: str, *, written: bool = True) -> SavedPath:
        """A record of what is at a path now. Files are copied; a large one that will not be `written` to gets a hard link."""
        try:
            found = os.lstat(path)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
                return SavedPath(path=path, kind="nothing")
            raise
        links = _hard_links(path, found.st_ino) if stat.S_ISREG(found.st_mode) and found.st_nlink > 1 else []
        for record in (self._record_of(one) for one in links):
            if record is not None and record.inode == found.st_ino:  # it may have been changed by that name
                return msgspec.structs.replace(record, path=path, links=links)
        copy = target = None
        kind: Kind = "other"
        if stat.S_ISDIR(found.st_mode):
            kind = "folder"
        elif stat.S_ISLNK(found.st_mode):
            kind, target = "link", os.readlink(path)
        elif stat.S_ISREG(found.st_mode):
            kind, place = "file", self._file_of(path, f"-{os.getpid()}-{len(self._known)}")
            if written or found.st_size < LARGE or not _linked(Path(path), place):
                with open(path, "rb") as file:
                    _disk.copy_file(file, place)
            copy = place.name
        return SavedPath(
            path=path,
            links=links,
            kind=kind,
            copy=copy,
            target=target,
            inode=found.st_ino,
            mode=stat.S_IMODE(found.st_mode),
            owner=(found.st_uid, found.st_gid),
            times_ns=(found.st_atime_ns, found.st_mtime_ns),
            changed_ns=found.st_ctime_ns,
        )

    def _file_of(self, path: str, end: str) -> Path:
        return self._folder / (hashlib.sha256(os.fsencode(path)).hexdigest()[:32] + end)

    def close(self) -> None:
        """Restore all files, unless another process uses the journal: then that one restores them."""
        if self._lock < 0:
            return
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _restore_and_remove(self._folder, self._lock)
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
        _restore_and_remove(folder, lock)
    finally:
        os.close(lock)
    return True


def _restore_and_remove(folder: Path, lock: int) -> None:
    """Restore all files and remove the journal, of which this process has the exclusive lock."""
    if os.fstat(lock).st_nlink:  # otherwise another process was faster, and a journal of this name is a new one
        _restore(folder)
        _disk.remove_file(folder / LOCK)
        with contextlib.suppress(OSError):  # another process has just opened it again
            _disk.disk.rmdir(folder)


def _open_lock(folder: Path, *, restoring: bool) -> int:
    """Lock a journal.

    With `restoring` the lock is shared, and files that a killed process has left changed are restored. Without, it is exclusive;
    raises `BlockingIOError` if the journal is in use.
    """
    while True:
        _cache_files.make_cache_folder(folder)
        try:
            lock = _disk.open_lock(folder / LOCK)
        except OSError as error:
            if error.errno != errno.ENOENT or folder.is_symlink():
                raise
            continue  # another process has just removed the journal
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if restoring and os.fstat(lock).st_nlink:
                    _restore(folder)
            except BlockingIOError:
                if not restoring:
                    raise
            if restoring:
                fcntl.flock(lock, fcntl.LOCK_SH)
            if os.fstat(lock).st_nlink:  # otherwise the journal was removed meanwhile
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def _read(path: Path) -> SavedPath:
    return msgspec.convert(json.loads(path.read_bytes()), type=SavedPath)


def _records(folder: Path) -> Iterator[SavedPath]:
    for path in folder.glob(f"*{RECORD}"):
        with contextlib.suppress(ValueError):  # torn: the path was not changed yet
            yield _read(path)


def _restore(folder: Path) -> None:
    """Restore every path that has a record, and remove the records.

    1. Create folders again, parents before their contents, and make them writable. Nothing is removed before: a symlink in place of a
       folder may lead to other files of the user.
    2. Remove what is new, and what was moved into folders that were themselves moved or replaced.
    3. Create files and links again.
    4. Restore the metadata of folders, contents before their parents.
    """
    found = sorted(_records(folder), key=lambda record: len(record.path))
    records = [record for record in found if record.names is None]
    there = {record.path for record in records if record.kind != "nothing"}
    for record in records:
        if record.kind != "folder":
            continue
        if not _is_folder(record.path):
            _disk.remove_file(Path(record.path))
            _disk.disk.mkdir(Path(record.path), 0o700)
        elif not os.access(record.path, os.W_OK):
            _disk.disk.chmod(Path(record.path), 0o700)  # until its own mode is restored
    for record in records:
        if record.kind == "nothing":
            _disk.remove_tree(Path(record.path))
    for record in found:
        for name in os.listdir(record.path) if record.names is not None and _is_folder(record.path) else []:
            if name not in (record.names or []) and record.path + name not in there:
                _disk.remove_tree(Path(record.path, name))
    failures = []
    for record in [one for one in records if one.kind in ("file", "link")]:
        try:
            _restore_one(record, folder)
        except OSError as error:  # the others are restored nevertheless
            failures.append(error)
    for record in reversed(records):
        if record.kind == "folder":
            _restore_metadata(record)
    if failures:
        raise failures[0]
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
    if found is None or found.st_ino != record.inode:
        for other in (one for one in record.links if os.path.lexists(one) and os.lstat(one).st_ino == record.inode):
            _disk.remove_file(path)
            _disk.disk.link(Path(other), path)
            found = os.lstat(path)
            break
    if record.target is not None:
        _disk.remove_file(path)
        _disk.disk.symlink(record.target, path)
    elif record.copy is not None and _is_file(folder / record.copy, record.inode, os.stat(path.parent).st_dev):
        if found is None or found.st_ino != record.inode:
            _disk.remove_file(path)
            _disk.disk.link(folder / record.copy, path)
    elif record.copy is not None:
        with open(folder / record.copy, "rb") as copy:
            # In place where it is still the same file: it may have hard links, and be open in other processes.
            is_same = found is not None and found.st_ino == record.inode and stat.S_ISREG(found.st_mode)
            _disk.restore_file(copy, path, in_place=is_same)
    _restore_metadata(record)


def _restore_metadata(record: SavedPath) -> None:
    """Restore mode, owner and times."""
    path = Path(record.path)
    found = os.lstat(path)
    if (found.st_uid, found.st_gid) != record.owner:
        with contextlib.suppress(PermissionError):
            _disk.disk.chown(path, *record.owner)
    if record.kind != "link":
        _disk.disk.chmod(path, record.mode)
    _disk.disk.utime(path, record.times_ns)


def _hard_links(path: str, inode: int) -> list[str]:
    with os.scandir(os.path.dirname(path)) as entries:
        first = itertools.islice(entries, MAX_SEARCHED)
        return [one.path for one in first if one.inode() == inode and one.path != path]


def _linked(path: Path, place: Path) -> bool:
    try:
        _disk.disk.link(path, place)
    except OSError:  # on another disk, of another user, or there is one
        return False
    return True


def _is_file(path: Path, inode: int, device: int) -> bool:
    found = os.lstat(path)
    return (found.st_ino, found.st_dev) == (inode, device)


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


# ---- watching the system calls of a program ----

# Constants of the kernel and of a seccomp filter (BPF).
AT_FDCWD = -100
AT_SYMLINK_NOFOLLOW = 0x100
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
O_TMPFILE = getattr(os, "O_TMPFILE", 0)
MAX_PATH = 4096
SECCOMP_IOCTL_NOTIF_RECV, SECCOMP_IOCTL_NOTIF_SEND, SECCOMP_USER_NOTIF_FLAG_CONTINUE = 0xC0502100, 0xC0182101, 1
SECCOMP_RET_USER_NOTIF, SECCOMP_RET_ALLOW = 0x7FC00000, 0x7FFF0000
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06


class Call(NamedTuple):
    """A system call that changes files, and which of its arguments are paths."""

    paths: tuple[tuple[int | None, int], ...]  # indices of two arguments: a file descriptor of a folder, and a path
    flags: int | None = None  # index of the argument with the flags of `open`
    at_flags: int | None = None  # index of the argument with the flags of an "at" call
    follows: bool = False  # whether a symlink at the end of the path is followed
    removes: bool = False  # whether it removes a file or folder
    moves: bool = False  # whether it moves a folder with its contents


_AT, _PLAIN = ((0, 1),), ((None, 0),)
CALLS = {
    "open": Call(_PLAIN, flags=1, follows=True),
    "openat": Call(_AT, flags=2, follows=True),
    "creat": Call(_PLAIN, follows=True),
    "truncate": Call(_PLAIN, follows=True),
    "rename": Call(((None, 0), (None, 1)), moves=True),
    "renameat": Call(((0, 1), (2, 3)), moves=True),
    "renameat2": Call(((0, 1), (2, 3)), moves=True),
    "link": Call(((None, 0), (None, 1))),  # the first one, too: what is written to one name changes the other
    "linkat": Call(((0, 1), (2, 3)), at_flags=4),
    "symlink": Call(((None, 1),)),
    "symlinkat": Call(((1, 2),)),
    "unlink": Call(_PLAIN, removes=True),
    "unlinkat": Call(_AT, removes=True),
    "mkdir": Call(_PLAIN),
    "mkdirat": Call(_AT),
    "rmdir": Call(_PLAIN, removes=True),
    "mknod": Call(_PLAIN),
    "mknodat": Call(_AT),
    "chmod": Call(_PLAIN, follows=True),
    "fchmod": Call(((0, -1),)),
    "fchmodat": Call(_AT, follows=True),
    "fchmodat2": Call(_AT, at_flags=3, follows=True),
    "chown": Call(_PLAIN, follows=True),
    "lchown": Call(_PLAIN),
    "fchown": Call(((0, -1),)),
    "fchownat": Call(_AT, at_flags=4, follows=True),
    "utime": Call(_PLAIN, follows=True),
    "utimes": Call(_PLAIN, follows=True),
    "utimensat": Call(_AT, at_flags=3, follows=True),
}
_X86 = {
    **{"open": 2, "creat": 85, "truncate": 76, "rename": 82, "mkdir": 83, "rmdir": 84, "link": 86, "unlink": 87, "symlink": 88},
    **{"chmod": 90, "fchmod": 91, "chown": 92, "fchown": 93, "lchown": 94, "utime": 132, "mknod": 133, "utimes": 235},
    **{"openat": 257, "mkdirat": 258, "mknodat": 259, "fchownat": 260, "unlinkat": 263, "renameat": 264, "linkat": 265},
    **{"symlinkat": 266, "fchmodat": 268, "utimensat": 280, "renameat2": 316, "fchmodat2": 452},
}
_ARM = {
    **{"mknodat": 33, "mkdirat": 34, "unlinkat": 35, "symlinkat": 36, "linkat": 37, "renameat": 38, "truncate": 45, "fchmod": 52},
    **{"fchmodat": 53, "fchownat": 54, "fchown": 55, "openat": 56, "utimensat": 88, "renameat2": 276, "fchmodat2": 452},
}
MACHINES = {"x86_64": (0xC000003E, 317, _X86), "aarch64": (0xC00000B7, 277, _ARM)}
"""By machine: its architecture in seccomp, and the numbers of the system call `seccomp` and of the calls above."""


def install_watch() -> int:
    """Watch this process and all that it starts from now on. Raises `OSError` if not permitted.

    Returns a file descriptor, with which `WriteWatch` answers in another process.
    """
    if platform.machine() not in MACHINES:
        raise OSError(errno.ENOSYS, f"system calls of {platform.machine()} are not known")
    architecture, seccomp, numbers = MACHINES[platform.machine()]
    steps = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, SECCOMP_RET_ALLOW), (LOAD, 0, 0, 0)]
    for name, number in numbers.items():
        flags = CALLS[name].flags
        if flags is None:
            steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, SECCOMP_RET_USER_NOTIF)]
        else:
            writes = [(LOAD, 0, 0, 16 + 8 * flags), (ANY_BIT, 0, 1, WRITING), (RETURN, 0, 0, SECCOMP_RET_USER_NOTIF)]
            steps += [(EQUAL, 0, len(writes) + 1, number), *writes, (RETURN, 0, 0, SECCOMP_RET_ALLOW)]
    code = b"".join(struct.pack("=HBBI", *step) for step in [*steps, (RETURN, 0, 0, SECCOMP_RET_ALLOW)])
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    pr_set_no_new_privs, set_mode_filter, flag_new_listener = 38, 1, 8
    if libc.prctl(pr_set_no_new_privs, 1, 0, 0, 0) == 0:
        listener = int(libc.syscall(seccomp, set_mode_filter, flag_new_listener, program))
        if listener >= 0:
            return listener
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class WriteWatch:
    """A thread that lets each system call of a program continue after `before` was called with the path that it changes.

    `before` has the arguments of `WriteJournal.save`. If it raises `OSError`, the system call fails with this error.
    """

    def __init__(self, listener: int, before: Callable[..., None]) -> None:
        self._listener = listener
        self._before = before
        _, _, numbers = MACHINES[platform.machine()]
        self._calls = {number: CALLS[name] for name, number in numbers.items()}
        self._stopped, self._stop = os.pipe()
        self._thread = threading.Thread(target=self._answer_all, name="stoker-write-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop. Processes of the program that still run can no longer change files."""
        os.close(self._stop)
        self._thread.join()
        os.close(self._stopped)
        os.close(self._listener)

    def _answer_all(self) -> None:
        waiting = select.poll()
        waiting.register(self._listener, select.POLLIN)
        waiting.register(self._stopped, select.POLLIN)
        while True:
            for fd, event in waiting.poll():
                if fd == self._stopped:
                    return
                if event & select.POLLIN:
                    self._answer_one()
                else:
                    waiting.unregister(fd)  # all processes have ended

    def _answer_one(self) -> None:
        message = bytearray(80)
        try:
            fcntl.ioctl(self._listener, SECCOMP_IOCTL_NOTIF_RECV, message)
        except OSError:  # the process was killed meanwhile
            return
        number, task, _, call, _, _, *arguments = struct.unpack("=QIIiIQ6Q", message)
        error, flags = 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE
        try:
            self._before_call(task, self._calls[call], arguments)
        except OSError as failure:
            error, flags = -(failure.errno or errno.EIO), 0
        except Exception:  # never let a program change what could not be saved
            error, flags = -errno.EIO, 0
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._listener, SECCOMP_IOCTL_NOTIF_SEND, bytearray(struct.pack("=QqiI", number, 0, error, flags)))

    def _before_call(self, task: int, call: Call, arguments: list[int]) -> None:
        follows = call.follows
        if call.flags is not None:
            flags = arguments[call.flags]
            follows = not (flags & os.O_NOFOLLOW or (flags & os.O_CREAT and flags & os.O_EXCL))
            if O_TMPFILE and flags & O_TMPFILE == O_TMPFILE:
                return
        if call.at_flags is not None:
            follows = follows and not arguments[call.at_flags] & AT_SYMLINK_NOFOLLOW
        for folder, path in call.paths:
            name = _path_of(
                task, None if folder is None else arguments[folder], arguments[path] if path >= 0 else 0, follows=follows
            )
            if name is not None:
                self._before(name, removes=call.removes, moves=call.moves)


def _path_of(task: int, folder: int | None, address: int, *, follows: bool) -> str | None:
    """The path of a system call, links of its folders resolved; None if it has none."""
    text = b""
    if address:
        with open(f"/proc/{task}/mem", "rb", buffering=0) as memory:
            text = os.pread(memory.fileno(), MAX_PATH, address).partition(b"\0")[0]
    if folder is not None:
        folder = ctypes.c_int32(folder & 0xFFFFFFFF).value
    if text.startswith(b"/dev/shm/"):  # where workers share their batches: answered without delay
        return None
    if not text:  # the file descriptor itself
        if folder is None or folder < 0:
            return None
        with contextlib.suppress(OSError):
            found = os.readlink(f"/proc/{task}/fd/{folder}")
            return found if found.startswith("/") and os.path.lexists(found) else None
        return None
    path = os.fsdecode(text)
    if path.startswith("/proc/self/"):
        path = f"/proc/{task}/{path[len('/proc/self/') :]}"
    if not path.startswith("/"):
        base = f"/proc/{task}/cwd" if folder in (None, AT_FDCWD) else f"/proc/{task}/fd/{folder}"
        try:
            path = os.path.join(os.readlink(base), path)
        except OSError:  # not an open file descriptor: the call fails by itself
            return None
    if follows or path.endswith(("/", "/.", "/..")):
        return os.path.realpath(path)
    head, tail = os.path.split(path)
    return os.path.join(os.path.realpath(head), tail)
