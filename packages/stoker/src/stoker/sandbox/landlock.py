"""The `landlock` mode of the sandbox: the kernel refuses every write outside a few folders, and the program runs in a mirror of its own.

Landlock (Linux 6.2 and newer, unprivileged) limits this process and all that it starts: files can be changed only below the scratch
folder, the temporary folder, caches and /dev. Landlock does not limit changes of modes, owners, times and attributes, so a filter of
system calls makes these do nothing.

The current folder and the folder of the script get a mirror in the scratch folder, in which the program runs: relative paths and
`__file__` work as before. A path in the mirror is the path of the scratch folder's mirror followed by the original path, so each is
found from the other. Small files are copied; a large one is a link to the original, which the kernel protects.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import stat
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from stoker import _disk
from stoker.sandbox import files, kernel, unreadable

MIRROR = "STOKER_MIRROR"  # the environment variable with the folder of the mirror, for the program and all that it starts
MAX_COPY = 4 << 20  # bytes of a file that is copied: sources, configurations, small tables; a larger one is linked
MAX_COPIES = 256 << 20  # bytes of all copies
MAX_ENTRIES = 20_000  # files and folders of a mirror: with copies of 256 MB they take three seconds; folders beyond that are linked
LINKED = {".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
"""Folders that a training script does not write to and that have many files: linked as a whole."""

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # system calls, with the same numbers on all machines
WRITE_FILE, READ_FILE, REFER, TRUNCATE = 1 << 1, 1 << 2, 1 << 13, 1 << 14
WRITING = WRITE_FILE | sum(1 << bit for bit in range(4, 13)) | REFER | TRUNCATE  # bits 4 to 12: remove and make files of all kinds
OF_FILES = WRITE_FILE | READ_FILE | TRUNCATE  # rights that a rule for a file, not a folder, may have
NEEDED_ABI = 3  # the first version that can refuse to truncate a file
SECCOMP_RET_ERRNO, SECCOMP_RET_ALLOW = 0x00050000, 0x7FFF0000
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # operations of a filter
MACHINES = {
    "x86_64": (0xC000003E, 317, (90, 91, 92, 93, 94, 132, 188, 189, 190, 197, 198, 199, 235, 260, 261, 268, 280, 452, 463, 466)),
    "aarch64": (0xC00000B7, 277, (5, 6, 7, 14, 15, 16, 52, 53, 54, 55, 88, 452, 463, 466)),
}
"""By machine: its name in a filter, the system call `seccomp`, and all calls that change modes, owners, times and attributes."""


def enter(scratch: Path, folders: Iterable[str], writable: Iterable[str], *, hidden: Sequence[str] = ()) -> None:
    """Move this process, which must have no threads yet, into a mirror of `folders`, and let it write only below `writable`.

    Files and folders of `hidden` cannot be read, and have no copy in the mirror. Raises `OSError` if the kernel does not permit this.
    """
    if platform.machine() not in MACHINES or kernel.call("syscall", CREATE_RULESET, None, 0, 1) < NEEDED_ABI:
        raise OSError(errno.ENOSYS, "this kernel cannot forbid all changes of files")
    mirror = scratch / "mirror"
    make_mirror(mirror, sorted(folders), hidden=hidden)
    here = Path(f"{mirror}{Path.cwd()}")
    _restrict([str(scratch), *writable], hidden=hidden)
    os.environ[MIRROR] = str(mirror)
    os.environ["PWD"] = str(here)
    os.chdir(here)


def original(path: str) -> str:
    """Return the user's path of a file in the mirror; other paths are returned as they are."""
    mirror = os.environ.get(MIRROR)
    return path[len(mirror) :] if mirror and path.startswith(mirror + "/") else path


def mirrored(path: str) -> str:
    """Return the path in the mirror of a file that has a copy there; other paths are returned as they are."""
    mirror = os.environ.get(MIRROR)
    return f"{mirror}{path}" if mirror and path.startswith("/") and os.path.lexists(f"{mirror}{path}") else path


def refusal(error: BaseException) -> str:
    """Return what to do if Landlock refused a write; empty if that is not why a program failed."""
    if not isinstance(error, PermissionError) or error.filename is None or MIRROR not in os.environ:
        return ""
    path = original(str(Path(os.fsdecode(error.filename)).absolute()))
    return f". {path} is protected while the program is diagnosed: let it write to a relative path, or use --sandbox off"


def make_mirror(mirror: Path, folders: list[str], *, hidden: Sequence[str] = ()) -> None:
    """Make a folder tree in which some folders have copies, and everything next to them is a link. What is `hidden` is linked."""
    _disk.disk.mkdir(mirror, 0o700)
    room = [MAX_COPIES, MAX_ENTRIES]
    for folder in folders:
        above = "/"
        for name in Path(folder).parts[1:]:
            place = Path(f"{mirror}{above}", name)
            if place.is_symlink():  # made when a folder next to it was mirrored
                _disk.remove_file(place)
            if not place.exists():
                _disk.disk.mkdir(place, 0o755)
            _link_missing(above, Path(f"{mirror}{above}"))
            above = os.path.join(above, name)
        _copy(folder, Path(f"{mirror}{folder}"), room, frozenset(hidden))


def _link_missing(folder: str, place: Path) -> None:
    """Link everything in a folder that the mirror does not have."""
    try:
        names = os.listdir(folder)
    except OSError:  # not permitted to this user: then nothing in it can be listed in the mirror either
        return
    for name in names:
        if not os.path.lexists(place / name):
            files.link(os.path.join(folder, name), place / name)


def _copy(folder: str, place: Path, room: list[int], hidden: frozenset[str]) -> None:
    """Copy what is in a folder, as far as there is room; the rest is linked."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        target = place / entry.name
        if os.path.lexists(target) and not (target.is_dir() and not target.is_symlink()):
            continue
        state = entry.stat(follow_symlinks=False)
        room[1] -= 1
        if entry.is_symlink():
            files.link(os.readlink(entry.path), target)
        elif entry.path in hidden:
            files.link(entry.path, target)
        elif stat.S_ISDIR(state.st_mode) and entry.name not in LINKED and room[1] > 0 and is_copyable(entry.path, str(place)):
            if not target.exists():
                _disk.disk.mkdir(target, 0o755)
            _copy(entry.path, target, room, hidden)
            files.set_state(target, state, mode=False)
        elif (
            stat.S_ISREG(state.st_mode)
            and state.st_size <= min(MAX_COPY, room[0])
            and room[1] > 0
            and os.access(entry.path, os.R_OK)
        ):
            room[0] -= state.st_size
            with open(entry.path, "rb") as source:
                _disk.copy_file(source, target)
            files.set_state(target, state)
        else:
            files.link(entry.path, target)


def is_copyable(folder: str, place: str) -> bool:
    """Return whether a folder can be mirrored: it is not a mount point, and the mirror is not in it."""
    return not os.path.ismount(folder) and not place.startswith(folder.rstrip("/") + "/")


def _restrict(writable: Iterable[str], *, hidden: Sequence[str] = ()) -> None:
    """Have the kernel refuse changes of files elsewhere, and reading what is hidden, for this process and all that it starts."""
    kernel.call("prctl", kernel.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    rights = dict.fromkeys(writable, WRITING)
    if hidden:
        # A rule permits, and none forbids: so all is permitted except what is hidden.
        barred = {*hidden, *(unreadable.raw_devices() if os.geteuid() == 0 else ())}
        for path in unreadable.readable_around(barred):
            rights[path] = rights.get(path, 0) | READ_FILE
    handled = ctypes.create_string_buffer(struct.pack("=Q", WRITING | (READ_FILE if hidden else 0)))
    rules = kernel.call("syscall", CREATE_RULESET, handled, 8, 0)
    try:
        for path, right in rights.items():
            try:
                opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:  # it does not exist, or this user cannot reach it
                continue
            try:
                rule = ctypes.create_string_buffer(struct.pack("=Qi", right if os.path.isdir(path) else right & OF_FILES, opened))
                kernel.call("syscall", ADD_RULE, rules, 1, rule, 0)
            finally:
                os.close(opened)
        kernel.call("syscall", RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)
    _ignore_metadata()


def hide_other_processes() -> None:
    """Have the kernel refuse to look into processes outside, as by /proc/PID/root, for this process and all that it starts.

    Another process of root that has dropped the same capabilities could be looked into, and its files are not hidden. A domain of Landlock
    forbids that whatever it permits; this one permits all else. A kernel without Landlock forbids nothing more.
    """
    with contextlib.suppress(OSError):
        rules = kernel.call("syscall", CREATE_RULESET, ctypes.create_string_buffer(struct.pack("=Q", REFER)), 8, 0)
        root = os.open("/", os.O_PATH | os.O_CLOEXEC)
        try:
            kernel.call("syscall", ADD_RULE, rules, 1, ctypes.create_string_buffer(struct.pack("=Qi", REFER, root)), 0)
            kernel.call("syscall", RESTRICT_SELF, rules, 0)
        finally:
            os.close(root)
            os.close(rules)


def _ignore_metadata() -> None:
    """Make changes of modes, owners, times and attributes do nothing, with success."""
    architecture, seccomp, numbers = MACHINES[platform.machine()]
    steps = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, SECCOMP_RET_ALLOW), (LOAD, 0, 0, 0)]
    for number in numbers:
        steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, SECCOMP_RET_ERRNO)]
    code = b"".join(struct.pack("=HBBI", *step) for step in [*steps, (RETURN, 0, 0, SECCOMP_RET_ALLOW)])
    buffer = ctypes.create_string_buffer(code)
    kernel.call("syscall", seccomp, 1, 0, struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer)))
