"""A web server on loopback that serves ranges of files, and fails on purpose: 503, resets, cut bodies, delays, wrong bytes.

`Content` is what it serves: files of a folder, or anything with `size` and `read`, such as a file of 100 GB that does not exist.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

FAULTS = ("unavailable", "reset", "cut", "delay", "wrong", "whole")
DELAY_S = 0.02


class Content(Protocol):
    def size(self, name: str) -> int | None:
        """The size of an object; None where there is none."""

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Some bytes of it."""


class Folder:
    """The files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def size(self, name: str) -> int | None:
        path = self._folder / name
        return path.stat().st_size if path.is_file() else None

    def read(self, name: str, start: int, stop: int) -> bytes:
        with (self._folder / name).open("rb") as file:
            file.seek(start)
            return file.read(stop - start)


class RangeServer(ThreadingHTTPServer):
    """`fault(name)` says how the next request fails; "" for not at all."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, content: Content, fault: Callable[[str], str] = lambda name: "") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content = content
        self.fault = fault
        self.requests = 0
        self.faults: Counter[str] = Counter()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that closes a connection is not an error here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RangeServer
    disable_nagle_algorithm = True

    def log_message(self, format: str, *arguments: Any) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        server, name = self.server, self.path.lstrip("/").partition("?")[0]
        with server.lock:
            server.requests += 1
            fault = server.fault(name)
            server.faults[fault] += bool(fault)
        size = server.content.size(name)
        if fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.close_connection = True
            self.connection.close()
            return
        if fault == "delay":
            time.sleep(DELAY_S)
        if fault == "unavailable" or size is None:
            self.send_response(503 if size is not None else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start, stop = (int(asked[1]), min(int(asked[2] or size) + 1, size)) if asked else (0, size)
        if start >= size and size:
            self.send_response(416)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if fault == "whole":  # as servers do that know no ranges
            asked, start, stop = None, 0, min(size, 1 << 20)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(stop - start))
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.end_headers()
        if not with_body:
            return
        data = server.content.read(name, start, stop)
        if fault == "wrong" and data:
            data = data[:-1] + bytes([data[-1] ^ 1])
        if fault == "cut":
            data = data[: len(data) // 2]
            self.close_connection = True
        self.wfile.write(data)


@contextlib.contextmanager
def serve(content: Content, fault: Callable[[str], str] = lambda name: "") -> Iterator[RangeServer]:
    """A server that runs in a thread until the end of the block."""
    server = RangeServer(content, fault)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
