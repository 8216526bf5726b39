"""Starts of training runs on a disk that fails: functions that a zygote runs."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from tests.harness import FaultyFiles

import stoker


def start(folder: str, **options: Any) -> int:
    """Train as the configuration of the folder says."""
    os.chdir(folder)
    if options.get("resume"):
        return stoker.experiment.run("run", progress=False, **options).step
    return stoker.experiment.run("c.yaml", folder="run", progress=False, **options).step


def count_operations(folder: str) -> int:
    """Operations on files up to the run.json."""
    with FaultyFiles(record=True) as disk:
        start(folder)
    return next(i for i, operation in enumerate(disk.log) if operation.target == Path(folder) / "run" / "run.json") + 1


def start_on_full_disk(folder: str, full_at: int) -> None:
    with FaultyFiles(error_at=(full_at, errno.ENOSPC), sticky=True):
        start(folder)


def start_and_die(folder: str, kill_at: int) -> None:
    with FaultyFiles(kill_at=kill_at):
        start(folder)
