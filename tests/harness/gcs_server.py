"""A server on 127.0.0.1 that answers what obstore asks of Google's storage: the requests of its XML API, in memory.

Objects have generations, which count up; `x-goog-if-generation-match` refuses a put where the object has another one (0: where there is
one). Written after Google's reference of the XML API. It shows that requests and answers fit together, not that Google's servers behave so.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

PAGE = 40
"""Objects of one answer to a listing; Google's have 1,000."""
_DATE = "Tue, 17 Nov 2026 12:00:00 GMT"


class GcsServer(ThreadingHTTPServer):
    """Objects by their path, with their generation; `requests` has the method and what was special of each request."""

    daemon_threads = True

    def __init__(self, *, checks_generations: bool = True, handler: type[Handler] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), handler or Handler)
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.requests: list[str] = []
        self.checks_generations = checks_generations
        self.generations = itertools.count(1)
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: GcsServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _asked(self) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        special = [name for name in ("Range", "x-goog-if-generation-match") if self.headers[name]]
        self.server.requests.append(" ".join([self.command, *sorted(set(query) & {"list-type", "uploads", "uploadId"}), *special]))
        return unquote(parts.path).removeprefix("/"), query

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"] or 0))

    def do_GET(self) -> None:
        name, query = self._asked()
        if "list-type" in query:
            self._list(name, query)
        elif (found := self.server.objects.get(name)) is None:
            self._answer(404)
        elif self.headers["Range"] is None:
            self._answer(200, found[0], **self._about(*found))
        else:
            first, last = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups()  # type: ignore[union-attr]
            part = found[0][int(first) : int(last) + 1]
            span = f"bytes {first}-{int(first) + len(part) - 1}/{len(found[0])}"
            self._answer(206 if part else 416, part, Content_Range=span, **self._about(*found))

    def do_HEAD(self) -> None:
        found = self.server.objects.get(self._asked()[0])
        if found is None:
            self._answer(404)
        else:
            self._answer(200, Content_Length=str(len(found[0])), **self._about(*found))

    @staticmethod
    def _about(data: bytes, generation: int) -> dict[str, str]:
        return {"ETag": f'"{hashlib.md5(data).hexdigest()}"', "x_goog_generation": str(generation), "Last_Modified": _DATE}

    def do_PUT(self) -> None:
        name, query = self._asked()
        data = self._body()
        if "uploadId" in query:
            self.server.uploads[query["uploadId"]][int(query["partNumber"])] = data
            self._answer(200, ETag=f'"{hashlib.md5(data).hexdigest()}"')
            return
        with self.server.lock:
            if self._is_refused(name):
                self._answer(412)
                return
            stored = self.server.objects[name] = (data, next(self.server.generations))
        self._answer(200, **self._about(*stored))

    def _is_refused(self, name: str) -> bool:
        """Whether another object is there than the condition of a put says."""
        expected = self.headers["x-goog-if-generation-match"]
        there = self.server.objects.get(name, (b"", 0))[1]
        return expected is not None and self.server.checks_generations and int(expected) != there

    def do_POST(self) -> None:
        """Begin an upload in parts, or end it."""
        name, query = self._asked()
        self._body()
        if "uploads" in query:
            number = str(next(self.server.generations))
            self.server.uploads[number] = {}
            kind, fields = "InitiateMultipartUploadResult", f"<UploadId>{number}</UploadId>"
            about = {}
        else:
            parts = self.server.uploads.pop(query["uploadId"])
            data = b"".join(parts[number] for number in sorted(parts))
            stored = self.server.objects[name] = (data, next(self.server.generations))
            about = self._about(*stored)
            kind, fields = "CompleteMultipartUploadResult", f"<ETag>{escape(about['ETag'])}</ETag>"
        place = f"<Bucket>{name.partition('/')[0]}</Bucket><Key>{escape(name.partition('/')[2])}</Key>"
        self._answer(200, f"<{kind}>{place}{fields}</{kind}>".encode(), **about)

    def do_DELETE(self) -> None:
        found = self.server.objects.pop(self._asked()[0], None)
        self._answer(204 if found is not None else 404)

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        """At most `PAGE` objects at a time."""
        names = sorted(name.partition("/")[2] for name in self.server.objects if name.startswith(f"{bucket}/"))
        names = [name for name in names if name.startswith(query.get("prefix", "")) and name > query.get("continuation-token", "")]
        rows = ""
        for name in names[:PAGE]:
            data, generation = self.server.objects[f"{bucket}/{name}"]
            tag = self._about(data, generation)["ETag"]
            rows += f"<Contents><Key>{escape(name)}</Key><Generation>{generation}</Generation><Size>{len(data)}</Size>"
            rows += f"<LastModified>2026-11-17T12:00:00.000Z</LastModified><ETag>{escape(tag)}</ETag></Contents>"
        more = f"<NextContinuationToken>{escape(names[PAGE - 1])}</NextContinuationToken>" if len(names) > PAGE else ""
        truncated = "true" if more else "false"
        self._answer(200, f"<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{more}{rows}</ListBucketResult>".encode())


@contextlib.contextmanager
def gcs_server(*, checks_generations: bool = True) -> Iterator[GcsServer]:
    """A server; the environment has its address and needs no token."""
    server = GcsServer(checks_generations=checks_generations)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    account = {"gcs_base_url": address, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account))
            patch.setenv("GOOGLE_ALLOW_HTTP", "true")
            yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
