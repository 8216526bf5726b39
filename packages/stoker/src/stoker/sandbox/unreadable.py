"""Files that a program in the sandbox cannot read: neither itself, nor by what it starts, nor by another of their names.

In an overlay, a socket, which no program can open as a file, is mounted over each file, and an empty folder over each folder. The
program cannot unmount it: mounts of another user namespace are locked, and root loses the capabilities that it would need. Under
Landlock no rule permits to read them. Both ask for the file that a path leads to, so links, /proc/self/fd and maps of memory are covered.

A file can have several paths: where its disk is mounted twice, and by hard links. `other_mounts` returns the former; the latter must be
searched for, because the kernel keeps no list of them.
"""

from __future__ import annotations

import ctypes
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

CAPABILITIES = (2, 16, 17, 19, 21, 27, 38, 39, 40)
"""What root would need to read files by their handle, to unmount, to look into other processes, or to read the disk itself:
DAC_READ_SEARCH, SYS_MODULE, SYS_RAWIO, SYS_PTRACE, SYS_ADMIN, MKNOD, PERFMON, BPF and CHECKPOINT_RESTORE."""
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
LINUX_CAPABILITY_VERSION_3 = 0x20080522
RAW = ("mem", "kmem", "port", "kcore")  # devices that show the memory of the machine
_libc = ctypes.CDLL(None, use_errno=True)


def mounts() -> list[tuple[str, str, str]]:
    """The device, the folder of it and the path of each mount, the innermost first."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    fields = [[_plain(field) for field in line.split()[2:5]] for line in lines]
    return sorted(((device, root, path) for device, root, path in fields), key=lambda mount: -len(mount[2]))


def _plain(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field)


def other_mounts(path: str) -> list[str]:
    """Return the paths at which a file or folder can be reached by another mount of its disk."""
    every = mounts()
    device, root, place = next(mount for mount in every if is_below(path, mount[2]))
    inside = _joined(root, os.path.relpath(path, place))
    others = [
        _joined(other_place, os.path.relpath(inside, other_root))
        for other_device, other_root, other_place in every
        if other_device == device and other_place != place and is_below(inside, other_root)
    ]
    return [other for other in others if os.path.exists(other) and os.path.samefile(other, path)]


def _joined(folder: str, name: str) -> str:
    return folder if name == "." else os.path.join(folder, name)


def is_below(name: str, folder: str) -> bool:
    """Return whether a path is this folder or inside it."""
    return name == folder or name.startswith(folder.rstrip("/") + "/")


def is_above(folder: str, unreadable: Iterable[str]) -> bool:
    """Return whether a folder is one of these or contains one."""
    return any(is_below(path, folder) for path in unreadable)


def raw_devices() -> list[str]:
    """Return the devices by which root could read a disk or the memory past the kernel's checks."""
    found = []
    for entry in os.scandir("/dev"):
        state = entry.stat(follow_symlinks=False)
        if stat.S_ISBLK(state.st_mode) or (stat.S_ISCHR(state.st_mode) and entry.name in RAW):
            found.append(entry.path)
    return found


def readable_around(unreadable: Collection[str]) -> Iterator[str]:
    """Yield the paths that together are the disk without some files: what is next to them and next to the folders above them.

    Links are left out: a rule for a link is one for the file that it leads to.
    """
    pending = ["/"]
    while pending:
        folder = pending.pop()
        below = {os.path.join(folder, os.path.relpath(path, folder).split("/")[0]) for path in unreadable if is_below(path, folder)}
        pending += below - set(unreadable)
        try:
            entries = list(os.scandir(folder))
        except OSError:  # this user cannot list it, so nothing else in it is known to be readable
            continue
        yield from (entry.path for entry in entries if entry.path not in below and not entry.is_symlink())


def drop_capabilities() -> None:
    """Drop what root needs to undo a mount or to read a disk, for this process and all that it starts."""
    if _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0:
        raise _error("prctl")
    for capability in CAPABILITIES:
        if _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            raise _error("prctl")
    header, sets = (ctypes.c_uint32 * 2)(LINUX_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    if _libc.capget(header, sets) < 0:
        raise _error("capget")
    mask = sum(1 << capability for capability in CAPABILITIES)
    for number in range(6):  # effective, permitted and inheritable of the first 32 capabilities, then of the others
        sets[number] &= ~(mask >> 32 if number > 2 else mask) & 0xFFFFFFFF
    if _libc.capset(header, sets) < 0:
        raise _error("capset")


def _error(name: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{name}: {os.strerror(number)}")
