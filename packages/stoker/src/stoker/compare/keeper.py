"""A process around a judged run: nothing that the run has started outlives it.

The run could leave a process that waits for the evaluator. The first process makes itself the one to which the kernel gives orphans, so
that also a process that has left its session and its parents is found; it ends all of them before it ends itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path
from typing import NoReturn

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def keep() -> None:
    """Continue in a new process. This one waits for it, ends all that is left of it, and then ends as it did."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    child = os.fork()
    if child == 0:
        return
    signal.signal(signal.SIGTERM, lambda number, frame: _end(1))
    code = 1
    with contextlib.suppress(ChildProcessError):
        ended = 0
        while ended != child:
            ended, status = os.wait()
            code = os.waitstatus_to_exitcode(status)
    _end(code)


def _end(code: int) -> NoReturn:
    """End all processes below this one, and this one with an exit code, or with the signal that it stands for."""
    while children := _children():
        for child in children:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)  # now its own children are those of this process
    if code < 0 and code != -signal.SIGTERM:
        signal.signal(-code, signal.SIG_DFL) if code != -signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(abs(code))


def _children() -> list[int]:
    """The processes whose parent is this one."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            with contextlib.suppress(OSError):
                # The name of the program is in brackets and may itself have brackets and spaces.
                parent = (path / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
                if parent == str(os.getpid()):
                    found.append(int(path.name))
    return found
