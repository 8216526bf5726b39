"""A server on 127.0.0.1 that answers like MinIO what obstore asks of S3: `GcsServer` with the keys and conditions of S3.

Requests are refused without a signature by the access key, and buckets are the first part of the path, as MinIO has them. It shows that
requests and answers fit together, not that MinIO behaves so.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from tests.harness.gcs_server import GcsServer, Handler

ACCESS_KEY = "mine"


class _S3Handler(Handler):
    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        if not self.headers["Authorization"].startswith(f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/"):
            self._body()
            self._answer(403)
            return False
        return True

    def _is_refused(self, name: str) -> bool:
        there = self.server.objects.get(name)
        if self.headers["If-None-Match"] == "*":
            return there is not None
        tag = self.headers["If-Match"]
        return tag is not None and (there is None or self._about(*there)["ETag"] != tag)


@contextlib.contextmanager
def s3_server() -> Iterator[tuple[str, GcsServer]]:
    """The address of a server, and the server."""
    server = GcsServer(handler=_S3Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
