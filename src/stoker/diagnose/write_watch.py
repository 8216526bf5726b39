"""A watch on every system call of a program that changes files: `before` is called with the path while the program waits.

The kernel does the watching (seccomp user notifications, Linux 5.5), so it covers every library and every process that the program
starts, and needs no rights. Opening a file to read it is not reported. `install` is called in the process that will
run the program. It returns a descriptor, which another process answers by `WriteWatch`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import select
import struct
import threading
from collections.abc import Callable
from typing import NamedTuple

FOLDER_HERE = -100  # AT_FDCWD
NOFOLLOW_AT = 0x100  # a flag of the calls that end in "at"
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
UNNAMED = getattr(os, "O_TMPFILE", 0)
MAX_PATH = 4096
RECEIVE, SEND, CONTINUE = 0xC0502100, 0xC0182101, 1
NOTIFY, ALLOW = 0x7FC00000, 0x7FFF0000
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06  # instructions of a filter


class Call(NamedTuple):
    """A system call: which of its arguments are paths."""

    paths: tuple[tuple[int | None, int], ...]  # pairs of a folder's descriptor and a path, as numbers of arguments
    flags: int | None = None  # which argument has the flags of `open`
    at_flags: int | None = None  # which argument has the flags of an "at" call
    follows: bool = False  # whether a last link is followed
    removes: bool = False  # whether a file or folder is removed
    moves: bool = False  # whether what is in a folder gets other paths


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
"""By machine: the number of its architecture, that of the call `seccomp`, and those of the calls above."""


def install() -> int:
    """Watch this process and all that it starts from now on; returns the descriptor to answer. Raises `OSError` if not permitted."""
    if platform.machine() not in MACHINES:
        raise OSError(errno.ENOSYS, f"system calls of {platform.machine()} are not known")
    architecture, seccomp, numbers = MACHINES[platform.machine()]
    steps = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, ALLOW), (LOAD, 0, 0, 0)]
    for name, number in numbers.items():
        flags = CALLS[name].flags
        if flags is None:
            steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, NOTIFY)]
        else:
            looks = [(LOAD, 0, 0, 16 + 8 * flags), (ANY_BIT, 0, 1, WRITING), (RETURN, 0, 0, NOTIFY), (RETURN, 0, 0, ALLOW)]
            steps += [(EQUAL, 0, len(looks), number), *looks]
    code = b"".join(struct.pack("=HBBI", *step) for step in [*steps, (RETURN, 0, 0, ALLOW)])
    held = ctypes.create_string_buffer(code)
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(held))
    system = ctypes.CDLL(None, use_errno=True)
    no_new_rights, with_filter, with_listener = 38, 1, 8
    if system.prctl(no_new_rights, 1, 0, 0, 0) == 0:
        listener = int(system.syscall(seccomp, with_filter, with_listener, program))
        if listener >= 0:
            return listener
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class WriteWatch:
    """Answers the system calls of a program in a thread.

    `before` is called as `WriteJournal.save` is; it may raise `OSError`, which is the result of the call.
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
        """Stop. Processes of the program that still run can change no file any more."""
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
            fcntl.ioctl(self._listener, RECEIVE, message)
        except OSError:  # its process was killed meanwhile
            return
        number, task, _, call, _, _, *arguments = struct.unpack("=QIIiIQ6Q", message)
        error, flags = 0, CONTINUE
        try:
            self._report(task, self._calls[call], arguments)
        except OSError as failure:
            error, flags = -(failure.errno or errno.EIO), 0
        except Exception:  # never let a program change what could not be saved
            error, flags = -errno.EIO, 0
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._listener, SEND, bytearray(struct.pack("=QqiI", number, 0, error, flags)))

    def _report(self, task: int, call: Call, arguments: list[int]) -> None:
        follows = call.follows
        if call.flags is not None:
            flags = arguments[call.flags]
            follows = not (flags & os.O_NOFOLLOW or (flags & os.O_CREAT and flags & os.O_EXCL))
            if UNNAMED and flags & UNNAMED == UNNAMED:
                return
        if call.at_flags is not None:
            follows = follows and not arguments[call.at_flags] & NOFOLLOW_AT
        for folder, path in call.paths:
            name = _name(task, None if folder is None else arguments[folder], arguments[path] if path >= 0 else 0, follows=follows)
            if name is not None:
                self._before(name, removes=call.removes, moves=call.moves)


def _name(task: int, folder: int | None, address: int, *, follows: bool) -> str | None:
    """The full path that a call means, links of its folders resolved; None if it has none."""
    text = b""
    if address:
        with open(f"/proc/{task}/mem", "rb", buffering=0) as memory:
            text = os.pread(memory.fileno(), MAX_PATH, address).partition(b"\0")[0]
    if folder is not None:
        folder = ctypes.c_int32(folder & 0xFFFFFFFF).value
    if text.startswith(b"/dev/shm/"):  # where workers share their batches: soonest done
        return None
    if not text:  # the descriptor itself is meant
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
        base = f"/proc/{task}/cwd" if folder in (None, FOLDER_HERE) else f"/proc/{task}/fd/{folder}"
        try:
            path = os.path.join(os.readlink(base), path)
        except OSError:  # not open: the call fails by itself
            return None
    if follows or path.endswith(("/", "/.", "/..")):
        return os.path.realpath(path)
    head, tail = os.path.split(path)
    return os.path.join(os.path.realpath(head), tail)
