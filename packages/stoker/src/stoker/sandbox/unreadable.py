"""Files that a program in the sandbox cannot read: neither itself, nor by what it starts, nor by another of their names.

In an overlay, a socket, which no program can open as a file, is mounted over each file, and an empty folder over each folder. The
program cannot unmount it: mounts of another user namespace are locked, and root loses the capabilities that it would need. Under
Landlock no rule permits to read them. Both ask for the file that a path leads to, so links, /proc/self/fd and maps of memory are covered.

A file can have several paths: where its disk is mounted twice, and by hard links. `other_mounts` returns the former; the latter must be
searched for, because the kernel keeps no list of them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator

from stoker.sandbox import kernel

CAPABILITIES = (2, 16, 17, 19, 21, 27, 38, 39, 40)
"""What root would need to read files by their handle, to unmount, to look into other processes, or to read the disk itself:
DAC_READ_SEARCH, SYS_MODULE, SYS_RAWIO, SYS_PTRACE, SYS_ADMIN, MKNOD, PERFMON, BPF and CHECKPOINT_RESTORE."""
RAW = ("mem", "kmem", "port", "kcore")  # devices that show the memory of the machine


def other_mounts(path: str) -> list[str]:
    """Return the paths at which a file or folder can be reached by another mount of its disk."""
    mounts = kernel.mounts()
    mine = max((mount for mount in mounts if is_below(path, mount.path)), key=lambda mount: len(mount.path))
    inside = _joined(mine.root, os.path.relpath(path, mine.path))
    others = [
        _joined(mount.path, os.path.relpath(inside, mount.root))
        for mount in mounts
        if mount.device == mine.device and mount.path != mine.path and is_below(inside, mount.root)
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
    devices = []
    for entry in os.scandir("/dev"):
        state = entry.stat(follow_symlinks=False)
        if stat.S_ISBLK(state.st_mode) or (stat.S_ISCHR(state.st_mode) and entry.name in RAW):
            devices.append(entry.path)
    return devices


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
    kernel.call("prctl", kernel.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for capability in CAPABILITIES:
        kernel.call("prctl", kernel.PR_CAPBSET_DROP, capability, 0, 0, 0)
    kernel.keep_capabilities(~sum(1 << capability for capability in CAPABILITIES))
