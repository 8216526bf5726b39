"""The process behind `Zygote`: reads requests from standard input, forks a child for each, reports how it ended.

Requests and replies are lines of JSON. This process starts no thread and calls nothing of Arrow: what a child needs of
that kind it starts itself, in its own copy of this process.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import resource
import selectors
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn


@dataclass
class _Child:
    number: int
    pid: int
    ended: int
    """A descriptor that becomes readable at the end of the child."""
    result: int
    """The reading end of the pipe for its result."""
    temporary: Path | None
    received: bytearray = field(default_factory=bytearray)

    def receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self.result, 1 << 16):
                self.received += part


class _Server:
    def __init__(self, replies: int) -> None:
        self._replies = replies
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, _Child] = {}
        self._rest = b""

    def run(self) -> None:
        """Serve until standard input ends; then no child is left behind."""
        self._selector.register(0, selectors.EVENT_READ, self._read_requests)
        try:
            while self._selector.get_map().get(0) is not None:
                for key, _ in self._selector.select():
                    key.data()
        finally:
            for child in list(self._children.values()):
                _kill(child, signal.SIGKILL)
                self._end(child)

    def _read_requests(self) -> None:
        data = os.read(0, 1 << 16)
        if not data:
            self._selector.unregister(0)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if "kill" not in request:
                self._start(request)
            elif request["id"] in self._children:
                _kill(self._children[request["id"]], request["kill"])

    def _start(self, request: dict[str, Any]) -> None:
        number = request["id"]
        try:
            function = _find(request["call"])
        except (ImportError, AttributeError):
            self._reply(id=number, pid=0)
            self._reply(id=number, exit=1, signal=None, value=None, error=f"no {request['call']}", trace=traceback.format_exc())
            return
        temporary = None if request["folder"] else Path(tempfile.mkdtemp(prefix="stoker-case-"))
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(self._replies)
            _live(function, request, temporary, writing)
        os.close(writing)
        os.set_blocking(reading, False)
        child = _Child(number, pid, os.pidfd_open(pid), reading, temporary)
        self._children[number] = child
        self._selector.register(child.ended, selectors.EVENT_READ, functools.partial(self._end, child))
        self._selector.register(child.result, selectors.EVENT_READ, functools.partial(self._receive, child))
        self._reply(id=number, pid=pid)

    def _receive(self, child: _Child) -> None:
        """Take what is in the pipe, so that a child with much to say is not held up; its end is told by `ended`."""
        if child.number not in self._children:
            return
        size = len(child.received)
        child.receive()
        if len(child.received) == size:
            self._selector.unregister(child.result)

    def _end(self, child: _Child) -> None:
        child.receive()
        _, status = os.waitpid(child.pid, 0)
        self._selector.unregister(child.ended)
        with contextlib.suppress(KeyError):
            self._selector.unregister(child.result)
        os.close(child.ended)
        os.close(child.result)
        del self._children[child.number]
        if child.temporary is not None:
            shutil.rmtree(child.temporary, ignore_errors=True)
        code = os.waitstatus_to_exitcode(status)
        result = {"value": None, "error": None, "trace": None}
        with contextlib.suppress(ValueError):  # a child that died while it wrote its result has none
            result = json.loads(child.received)
        self._reply(id=child.number, exit=code if code >= 0 else None, signal=-code if code < 0 else None, **result)

    def _reply(self, **reply: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody waits any more
            _write_all(self._replies, json.dumps(reply).encode() + b"\n")


def _find(call: str) -> Callable[..., Any]:
    module, _, name = call.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    function: Callable[..., Any] = found
    return function


def _kill(child: _Child, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(child.ended, number)


def _live(function: Callable[..., Any], request: dict[str, Any], temporary: Path | None, writing: int) -> NoReturn:
    """The life of a child: it never returns into the server's code."""
    status = 1
    try:
        status, result = _call(function, request, temporary)
        signal.alarm(0)
        _write_all(writing, json.dumps(result).encode())
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _call(function: Callable[..., Any], request: dict[str, Any], temporary: Path | None) -> tuple[int, dict[str, Any]]:
    try:
        _settle(request, temporary)
        value = function(**request["arguments"])
        json.dumps(value)
        return 0, {"value": value, "error": None, "trace": None}
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        return status, {"value": None, "error": f"SystemExit: {error.code}", "trace": None}
    except BaseException as error:
        return 1, {"value": None, "error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}


def _settle(request: dict[str, Any], temporary: Path | None) -> None:
    """Give a child its folder and its limits, and take away the server's standard input and output."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(request["seconds"])
    os.chdir(temporary or request["folder"])
    if request["memory_bytes"] is not None:
        _limit_memory(request["memory_bytes"])


def _limit_memory(num_bytes: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + num_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def main() -> None:
    """Import what was named on the command line, then serve."""
    for name in sys.argv[1:]:
        importlib.import_module(name)
    replies = os.dup(1)
    os.dup2(2, 1)  # what an imported module prints must not get between the replies
    _Server(replies).run()


if __name__ == "__main__":
    main()
