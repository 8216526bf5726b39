"""What a run ran on: versions, machine and commit, as far as they can be told without starting anything on a GPU."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

GIT_SECONDS = 10
NVIDIA = Path("/proc/driver/nvidia")


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The computer of a run."""

    host: str
    system: str
    cpu: str
    cores: int
    """That this process may use."""
    memory_bytes: int
    gpus: list[str]
    driver: str | None


class Commit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of the user's code."""

    commit: str
    dirty: bool
    """Whether files that git knows differ from the commit."""


def find_machine() -> Machine:
    """This computer."""
    import psutil

    return Machine(
        host=platform.node(),
        system=platform.platform(),
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=int(psutil.virtual_memory().total),
        gpus=list(_gpu_names()),
        driver=_driver(),
    )


def find_versions() -> dict[str, str]:
    """What computes: stoker, Python and the packages whose arithmetic a run consists of."""
    import numpy as np
    import torch

    import stoker

    versions = {
        "stoker": stoker.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": str(torch.__version__),
    }
    return versions | ({"cuda": torch.version.cuda} if torch.version.cuda else {})


def find_commit(folder: Path) -> Commit | None:
    """The commit of the git repository that holds a folder; None where there is none, or no git."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None or not re.fullmatch(r"[0-9a-f]{40,64}", commit):
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return Commit(commit=commit, dirty=changes is None or bool(changes))


def _git(folder: Path, *arguments: str) -> str | None:
    # Neither a lock in somebody's repository, nor a program that its settings name.
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=GIT_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu_name() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", _text(Path("/proc/cpuinfo")), re.MULTILINE)
    return found[1] if found else platform.processor() or platform.machine()


def _gpu_names() -> Iterator[str]:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        yield from (torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))
        return
    # To ask torch would open every GPU, which a run on the CPU has no use for.
    for path in sorted((NVIDIA / "gpus").glob("*/information")):
        found = re.search(r"^Model:\s*(.+)$", _text(path), re.MULTILINE)
        if found:
            yield found[1]


def _driver() -> str | None:
    found = re.search(r"Kernel Module(?: for \S+)?\s+(\S+)", _text(NVIDIA / "version"))
    return found[1] if found else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
