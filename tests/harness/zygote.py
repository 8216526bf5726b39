"""The zygote: a warm process that forks a child for each case, so that a case may die, hang or exhaust memory alone.

A test process cannot fork safely, as it has threads (its own, Arrow's, the test runner's). So the zygote is a process
of its own, which has imported what takes long and has started no thread (`tests.harness.zygote_server`).

    with Zygote() as zygote:
        outcome = zygote.run(function, path="...")     # any function of an importable module, JSON in and out
        assert outcome.signal == signal.SIGKILL
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a case ended."""

    exit: int | None
    """Exit status: 0 after a return, 1 after an exception; None if a signal ended the child."""
    signal: int | None
    value: Any
    """What the function returned, as JSON keeps it."""
    error: str | None
    """Type and message of the exception, as in "DiskFullError: /a/b: the disk is full ..."."""
    trace: str | None

    def check(self) -> Any:
        """The value, if the case returned one; otherwise an error that tells what happened."""
        if self.exit != 0:
            raise ChildProcessError(self.trace or self.error or f"the child ended with status {self.exit}, signal {self.signal}")
        return self.value


class Case:
    """A child that runs."""

    def __init__(self, zygote: Zygote, number: int, pid: int) -> None:
        self.pid = pid
        self._zygote = zygote
        self._number = number

    def kill(self, signal: int) -> None:
        """Send a signal; nothing happens if the child has ended."""
        self._zygote._send({"id": self._number, "kill": int(signal)})

    def wait(self) -> Outcome:
        """Wait for the end."""
        return Outcome(**self._zygote._receive(self._number, "exit"))


class Zygote:
    """A context manager that owns the warm process. `imports` are the modules to have ready."""

    def __init__(self, *, imports: Sequence[str] = ("numpy", "pyarrow")) -> None:
        self._imports = list(imports)
        self._server: subprocess.Popen[str] | None = None
        self._replies: dict[tuple[int, str], dict[str, Any]] = {}
        self._num_cases = 0

    def __enter__(self) -> Self:
        # A fork copies only the thread that forks, so the libraries that start threads on import are told not to.
        one_thread = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        one_thread["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
        path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.zygote_server", *self._imports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **one_thread, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the test runner, whose end is then seen at the pipe
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._server is not None and self._server.stdin is not None and self._server.stdout is not None:
            self._server.stdin.close()
            self._server.wait()
            self._server.stdout.close()
            self._server = None

    def run(
        self,
        function: Callable[..., Any],
        /,
        *,
        seconds: int = 60,
        memory_bytes: int | None = None,
        work_folder: Path | None = None,
        **arguments: Any,
    ) -> Outcome:
        """Call a function in a child and wait for its end; see `start`."""
        return self.start(function, seconds=seconds, memory_bytes=memory_bytes, work_folder=work_folder, **arguments).wait()

    def start(
        self,
        function: Callable[..., Any],
        /,
        *,
        seconds: int = 60,
        memory_bytes: int | None = None,
        work_folder: Path | None = None,
        **arguments: Any,
    ) -> Case:
        """Call a function of an importable module in a child, with arguments that JSON can say (and paths, as text).

        The child works in `work_folder`, or else in a new one that is removed at its end. SIGALRM ends it after `seconds`.
        `memory_bytes` limits the address space that it may take beyond that of the zygote.
        """
        self._num_cases += 1
        request = {
            "id": self._num_cases,
            "call": f"{function.__module__}:{function.__qualname__}",
            "arguments": arguments,
            "folder": None if work_folder is None else str(work_folder.absolute()),
            "seconds": seconds,
            "memory_bytes": memory_bytes,
        }
        self._send(request)
        return Case(self, self._num_cases, self._receive(self._num_cases, "pid")["pid"])

    def _send(self, request: dict[str, Any]) -> None:
        if self._server is None or self._server.stdin is None:
            raise RuntimeError("the zygote is not running: use it as a context manager.")
        self._server.stdin.write(json.dumps(request, default=os.fspath) + "\n")
        self._server.stdin.flush()

    def _receive(self, number: int, field: str) -> dict[str, Any]:
        """The reply with this field to this case; other replies are kept for whoever waits for them."""
        while (number, field) not in self._replies:
            line = self._server.stdout.readline() if self._server is not None and self._server.stdout is not None else ""
            if not line:
                raise RuntimeError("the zygote has ended; its last words are on standard error.")
            reply = json.loads(line)
            self._replies[reply.pop("id"), "pid" if "pid" in reply else "exit"] = reply
        return self._replies.pop((number, field))
