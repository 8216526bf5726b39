"""The live page over HTTP: one page, and one stream of server-sent events per open page.

Only this machine can connect (127.0.0.1), and only with the token of the address. Names of hosts other than this machine's are refused, so
that a web page elsewhere cannot read runs through a browser here. The page loads nothing from anywhere, and its policy forbids it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from stoker._disk import write_file
from stoker.errors import OptionError
from stoker.live.follow import Board

POLL_SECONDS = 1.0
BEAT_SECONDS = 15.0
"""Between signs of life of a stream in which nothing happens, so that a closed page is noticed."""
MOST_PAGES = 16
MOST_SELECTED = 8
MOST_SAVED = 50


def page(data: dict[str, Any] | None = None) -> str:
    """The page as one HTML file. With data it shows them and never connects; without, it follows the server that it came from."""
    source = files("stoker.live")
    style, script = ((source / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    known = json.dumps(data, allow_nan=False).replace("<", "\\u003c")  # no text of a run can end the element
    fill = {"POLICY": _policy(style, script, connects=data is None), "STYLE": style, "SCRIPT": script, "DATA": known}
    html = (source / "page.html").read_text(encoding="utf-8")
    for name, text in fill.items():
        before, found, after = html.partition(f"%{name}%")
        if not found:
            raise ValueError(f"page.html has no %{name}%")
        html = before + text + after
    return html


def _policy(style: str, script: str, *, connects: bool) -> str:
    """What the browser may load: nothing but the style, the script and the empty icon (a data URL) of the page itself."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    to_server = "'self'" if connects else "'none'"
    return (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; img-src data:; connect-src {to_server}; "
        "base-uri 'none'; form-action 'none'"
    )


def save_page(folder: str | Path, path: str | Path) -> int:
    """Write the page with the present state of all runs of a folder.

    Args:
        folder: A run, or a folder of runs.
        path: The HTML file.

    Returns:
        The number of runs.

    Example:
        >>> save_page("runs", "runs.html")  # doctest: +SKIP
    """
    board = Board(folder)
    board.refresh()
    names = [run["name"] for run in board.view([])["runs"]]
    write_file(Path(path), page(board.view(names[:MOST_SAVED], most=MOST_SAVED)).encode())
    return len(names)


class Server(ThreadingHTTPServer):
    """Serves the page of a folder of runs until `close`.

    Args:
        folder: A run, or a folder of runs.
        port: 0 for any that is free.

    Attributes:
        address: What to open in a browser; it holds the token.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, folder: str | Path, *, port: int = 0) -> None:
        self.board = Board(folder)
        self.board.refresh()
        self._token = secrets.token_urlsafe(24)
        self._changed = threading.Condition()
        self._version = 0
        self._pages = 0
        self._is_closed = False
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise OptionError(
                f"port {port} cannot be used ({error.strerror}). Give another one, or none for any that is free.", parameter="port"
            ) from None
        self.port = self.server_address[1]
        self.address = f"http://127.0.0.1:{self.port}/?token={self._token}"
        self._poller = threading.Thread(target=self._poll, name="stoker live", daemon=True)

    def start(self) -> None:
        """Serve in threads of its own."""
        self._poller.start()
        threading.Thread(target=self.serve_forever, name="stoker live http", daemon=True).start()

    def close(self) -> None:
        """Stop serving; open pages say so."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self.shutdown()
        self.server_close()

    def may_read(self, query: dict[str, list[str]], host: str | None) -> bool:
        """Whether a request has the token, and was meant for this machine."""
        here = {f"127.0.0.1:{self.port}", f"localhost:{self.port}"}
        return host in here and hmac.compare_digest(query.get("token", [""])[0].encode(), self._token.encode())

    def _poll(self) -> None:
        """Read files while a page is open; without one nothing is read."""
        with self._changed:
            while not self._is_closed:
                if self._pages and self.board.refresh():
                    self._version += 1
                    self._changed.notify_all()
                self._changed.wait(POLL_SECONDS)

    def next_view(self, seen: int, selected: Sequence[str] | None) -> tuple[int, dict[str, Any] | None]:
        """Wait until something changed since a version; None where nothing did for `BEAT_SECONDS`, version -1 at the end."""
        with self._changed:
            if seen < 0:
                self.board.refresh()
            self._changed.wait_for(lambda: self._is_closed or self._version != seen, BEAT_SECONDS)
            if self._is_closed:
                return -1, None
            return self._version, self.board.view(selected, most=MOST_SELECTED) if self._version != seen else None

    def open_page(self) -> bool:
        """Count one more page; False where there are too many."""
        with self._changed:
            is_free = self._pages < MOST_PAGES
            self._pages += is_free
            return is_free

    def close_page(self) -> None:
        """One page fewer."""
        with self._changed:
            self._pages -= 1

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that is closed amid an answer is not an error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "stoker", ""
    server: Server
    HEADERS: ClassVar = {
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
    }

    def do_HEAD(self) -> None:
        """Answer like GET, without a body; a stream of events has no end, so it has no answer here."""
        if urlsplit(self.path).path == "/events":
            self._answer(HTTPStatus.METHOD_NOT_ALLOWED, "The stream of events is for GET.\n")
        else:
            self.do_GET()

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        query = parse_qs(address.query)
        if not self.server.may_read(query, self.headers.get("Host")):
            self._answer(HTTPStatus.FORBIDDEN, "Open the address that `stoker live` printed: it holds a token.\n")
        elif address.path == "/":
            self._answer(HTTPStatus.OK, page(), kind="text/html")
        elif address.path == "/events":
            self._stream(query.get("run"))
        else:
            self._answer(HTTPStatus.NOT_FOUND, "There is only one page here.\n")

    def _answer(self, status: HTTPStatus, text: str, *, kind: str = "text/plain") -> None:
        data = text.encode()
        self.send_response(status)
        for name, value in {**self.HEADERS, "Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _stream(self, selected: list[str] | None) -> None:
        if not self.server.open_page():
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{MOST_PAGES} pages are open. Close one of them.\n")
            return
        try:
            self.send_response(HTTPStatus.OK)
            for name, value in {**self.HEADERS, "Content-Type": "text/event-stream", "Connection": "close"}.items():
                self.send_header(name, value)
            self.end_headers()
            self.close_connection = True
            seen = -1
            while True:
                seen, view = self.server.next_view(seen, selected)
                if seen < 0:
                    self.wfile.write(b"event: end\ndata: \n\n")
                    return
                text = f"data: {json.dumps(view, allow_nan=False)}\n\n" if view is not None else ": alive\n\n"
                self.wfile.write(text.encode())
                self.wfile.flush()
        except OSError:
            return  # the page was closed
        finally:
            self.server.close_page()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: an address in a log would hold the token."""
