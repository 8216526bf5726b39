"""Runs code in a process of its own that is forked where torch is imported already: that import takes longer than a measurement.

`run_forked` forks this process. `Forker` is another process that has imported torch and forks itself; each lane has one, with its cores.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
_of_thread = threading.local()


def start_forked(run: Callable[[], object], *, folder: Path, log: Path, environment: Mapping[str, str]) -> int:
    """Call a function in a forked process that is as if started in `folder`, with its output in a file; returns its number.

    Args:
        run: What to call. It may end the process.
        folder: The working folder.
        log: Gets the output and, if `run` raises, the traceback.
        environment: Variables that are set before.
    """
    child = os.fork()
    if child != 0:
        return child
    try:
        end_with_parent()
        os.setsid()
        os.chdir(folder)
        os.environ.update(environment)
        output = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        run()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def end_with_parent() -> None:
    """Let the kernel end this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end_forked(child: int) -> None:
    """End a forked process, with all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(child, 0)


def run_forked(run: Callable[[], object], *, folder: Path, log: Path, limit: float, environment: Mapping[str, str]) -> None:
    """`start_forked`, and wait for its end; after `limit` seconds it is ended, with all that it has started."""
    child = start_forked(run, folder=folder, log=log, environment=environment)
    end = time.monotonic() + limit
    while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < end:
        time.sleep(0.01)
    end_forked(child)  # and its loader's workers


class Forker:
    """A process that has imported torch and runs a function of a module of ours in forks of itself, one after the other.

    Args:
        imports: Modules that it imports beside torch, where they are installed.
        environment: Variables that are set before it imports anything.
    """

    def __init__(self, *, imports: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "verdicts.forked", *imports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
            env={**os.environ, **(environment or {})},
        )

    @classmethod
    def of_thread(cls, *, imports: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> Forker:
        """That of this thread, which has its cores, with these variables."""
        kept: dict[Any, Forker] = _of_thread.__dict__.setdefault("forkers", {})
        key = frozenset((environment or {}).items())
        if key not in kept or kept[key]._process.poll() is not None:
            kept[key] = cls(imports=imports, environment=environment)
        return kept[key]

    def run(
        self, function: str, arguments: Sequence[Any], *, folder: Path, limit: float, environment: Mapping[str, str] | None = None
    ) -> list[str]:
        """The lines that `module:function` prints with these arguments in a fork."""
        log = folder / "forked.log"
        job = {"function": function, "arguments": arguments, "folder": str(folder), "log": str(log), "limit": limit}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job | {"environment": dict(environment or {})}) + "\n")
        self._process.stdin.flush()
        if not self._process.stdout.readline():
            raise RuntimeError(f"the process that forks has ended with {self._process.wait()}")
        return log.read_text(errors="replace").splitlines()


def _serve() -> None:
    import importlib

    import torch  # noqa: F401

    for name in sys.argv[1:]:
        with suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        job = json.loads(line)
        module, _, name = job["function"].partition(":")
        function = getattr(importlib.import_module(module), name)
        run_forked(
            lambda function=function, job=job: function(*job["arguments"]),
            folder=Path(job["folder"]),
            log=Path(job["log"]),
            limit=job["limit"],
            environment=job["environment"],
        )
        print("done", flush=True)


if __name__ == "__main__":
    _serve()
