"""What the sandbox asks of the kernel: system calls that Python does not have, mounts, and capabilities."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
LINUX_CAPABILITY_VERSION_3 = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: Any) -> int:
    """Call a function of the C library. Raises `OSError` if it fails."""
    result = int(getattr(_libc, name)(*arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


class Mount(NamedTuple):
    """A mounted file system."""

    path: str
    device: str
    root: str  # the folder of the device that is mounted
    writable: bool


def mounts() -> list[Mount]:
    """The mounts that this process sees, in the order in which they were made."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    fields = [
        [re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field) for field in line.split()[2:6]] for line in lines
    ]
    return [Mount(path, device, root, "rw" in options.split(",")) for device, root, path, options in fields]


def keep_capabilities(mask: int) -> None:
    """Drop all capabilities of this process except those of a mask of bits."""
    header, sets = (ctypes.c_uint32 * 2)(LINUX_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    call("capget", header, sets)
    for number in range(6):  # effective, permitted and inheritable of the first 32 capabilities, then of the others
        sets[number] &= (mask >> 32 if number > 2 else mask) & 0xFFFFFFFF
    call("capset", header, sets)
