"""A run of several processes on this machine: `torchrun --nproc-per-node 2 train.py`. What rank 0 does is observed.

`launch` runs in the process of the sandbox: it starts the launcher with rank.py instead of the program. Each rank runs the program with
the hooks, so that all ranks end after the same step. Rank 0 writes what was observed to a file.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stoker import _disk
from stoker.compare.observed import Observed, RunRequest
from stoker.errors import TrainError
from stoker.sandbox import end_with_parent, mirrored

MODULE_FLAGS = {"torchrun": "-m", "accelerate": "-m", "deepspeed": "--module"}
"""The option by which each launcher starts a module instead of a script."""
REQUEST, ANSWER = "STOKER_COMPARE_REQUEST", "STOKER_COMPARE_ANSWER"
POLL_SECONDS = 0.1
ENDING_SECONDS = 5.0  # of the launcher, after rank 0 has answered


def module_flag(launcher: Sequence[str]) -> str:
    """Return the option by which a launcher starts a module."""
    return MODULE_FLAGS.get(Path(launcher[0]).name, "-m")


def launch(request: RunRequest) -> bytes:
    """Run the program by its launcher. Returns what rank 0 has observed, as a message."""
    here = str(Path.cwd())
    if mirrored(here) != here:
        raise TrainError("several processes need a sandbox of overlays, which this machine does not permit.")
    alone = msgspec.structs.replace(request, launcher=[])
    with _disk.temporary_folder() as folder:
        answer = folder / "answer"
        environment = {**os.environ, REQUEST: msgspec.json.encode(alone).decode(), ANSWER: str(answer)}
        # The kernel ends the launcher with this process, which the comparison may kill.
        child = subprocess.Popen(request.launcher, env=environment, preexec_fn=end_with_parent)
        while child.poll() is None and not answer.exists():
            try:
                child.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                continue
        if not answer.exists():
            raise TrainError(
                f"{Path(request.launcher[0]).name} ended with exit code {child.returncode} before rank 0 had answered."
            )
        try:  # other ranks end after the same step, unless the first run has found its number by time
            child.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            child.terminate()
            child.wait()
        return answer.read_bytes()


def failed(error: TrainError) -> bytes:
    """Return the message of a run that has no answer."""
    return msgspec.msgpack.encode(Observed(error=str(error).rstrip(".")))
