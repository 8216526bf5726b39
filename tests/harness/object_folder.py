"""Object storage for tests: a local folder with conditional puts, counts, and faults drawn from a generator."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.store import object_storage, remote
from stoker.store.object_storage import Bucket, FoundObject, check_url

FAULTS = ("unavailable", "reset", "cut", "wrong")


class ObjectFolder:
    """A backend of `Bucket`. With `fault_rate`, that share of the requests for ranges fails in one of the ways of `FAULTS`."""

    def __init__(self, folder: Path, *, fault_rate: float = 0.0, seed: int = 0) -> None:
        self.folder = folder
        self.fault_rate = fault_rate
        self.requests: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self._generator = np.random.default_rng(seed)
        self._lock = threading.Lock()

    def get(self, name: str, limit: int) -> tuple[bytes, Any]:
        self.requests["get"] += 1
        data = (self.folder / name).read_bytes()
        return data[: limit + 1], object_tag(data)

    def get_range(self, name: str, start: int, stop: int) -> Any:
        with self._lock:
            self.requests["range"] += 1
            fault = FAULTS[self._generator.integers(len(FAULTS))] if self._generator.random() < self.fault_rate else ""
            self.faults[fault] += bool(fault)
        if fault in ("unavailable", "reset"):
            raise ConnectionError("503 SlowDown" if fault == "unavailable" else "connection reset by peer")
        with (self.folder / name).open("rb") as file:
            file.seek(start)
            data = file.read(stop - start)
        if fault == "cut":
            return data[: len(data) // 2]
        return data[:-1] + bytes([data[-1] ^ 1]) if fault == "wrong" else data

    def head(self, name: str) -> FoundObject:
        self.requests["size"] += 1
        found = (self.folder / name).stat()
        return FoundObject(name, found.st_size, str(found.st_mtime_ns))

    def put(self, name: str, data: Any, *, tag: Any, is_new: bool) -> None:
        self.requests["put"] += 1
        path = self.folder / name
        with self._lock:
            if (is_new and path.exists()) or (tag and object_tag(path.read_bytes()) != tag):
                raise FileExistsError
            self.folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def object_tag(data: bytes) -> dict[str, str]:
    return {"e_tag": str(hash(data))}


class Storage:
    """Folders that `stoker.open("test://NAME")` and `upload` find, with small blocks and short pauses."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
        self.root = root
        self.backends: dict[str, ObjectFolder] = {}
        monkeypatch.setattr(remote, "UPLOAD_BLOCK_BYTES", block_bytes)
        monkeypatch.setattr(remote, "open_bucket", self.bucket)
        monkeypatch.setattr(object_storage, "BACKOFF_S", 0.0)

    def bucket(self, url: str) -> Bucket:
        return Bucket(check_url(url), self.backend(url))

    def backend(self, url: str) -> ObjectFolder:
        name = url.removeprefix("test://")
        return self.backends.setdefault(name, ObjectFolder(self.root / name))
