"""Raw files in object storage: found by URL or pattern, and read by ranges, so that nothing is copied to a disk first.

    find_remote     the objects that a URL names: one, all below a folder, or those that match a pattern
    RemotePath      what the readers ask of a path: its name, its size, and to open it
    RangedFile      an object as a file: whole blocks are requested, the next one ahead where reading is sequential

An object that is replaced while it is read is noticed: its ETag is compared at the end, as the time of a local file is.
"""

from __future__ import annotations

import io
import re
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import xxhash

from stoker._text import printable
from stoker.errors import (
    OptionError,
    SourceChangedError,
    SourceInvalidError,
    SourceNotFoundError,
    StoreDamagedError,
    StoreNotFoundError,
)
from stoker.store.formats.base import suffix_of
from stoker.store.object_storage import Bucket, check_url, open_bucket

BLOCK_BYTES = 1 << 20
"""Bytes of one request."""
MAX_BLOCKS = 32
"""Blocks that an open file keeps: a reader of Parquet is at a place of its own in each column."""
SUFFIXES = {".parquet", ".pq", ".arrow", ".feather", ".ipc", ".csv", ".tsv", ".txt", ".jsonl", ".ndjson"}
_MAGIC = re.compile(r"[*?\[]")


class RemoteStat(NamedTuple):
    """What is compared to notice a change."""

    st_size: int
    st_mtime_ns: int  # a number that changes with the ETag


@dataclass(frozen=True)
class RemotePath:
    """An object, as far as readers ask it what they ask a path."""

    bucket: Bucket
    name_in_bucket: str

    def __str__(self) -> str:
        return f"{self.bucket.url}/{self.name_in_bucket}"

    @property
    def name(self) -> str:
        """The last part of its name."""
        return self.name_in_bucket.rpartition("/")[2]

    @property
    def suffixes(self) -> list[str]:
        """The endings of its name."""
        return [f".{word}" for word in self.name.split(".")[1:]]

    @property
    def suffix(self) -> str:
        """The last ending of its name."""
        return self.suffixes[-1] if self.suffixes else ""

    def stat(self) -> RemoteStat:
        """Size and tag now.

        Raises:
            OSError: the object is gone.
        """
        try:
            entry = self.bucket.head(self.name_in_bucket)
        except StoreNotFoundError as error:
            raise FileNotFoundError(2, str(error)) from None
        return RemoteStat(entry.num_bytes, xxhash.xxh3_64_intdigest(entry.stamp.encode()) >> 1)

    def open(self, mode: str = "rb", buffering: int = -1) -> io.BufferedReader:
        """Open the object for reading."""
        if mode != "rb":
            raise ValueError(f"{self} can be read only")
        return io.BufferedReader(RangedFile(self, self.stat().st_size), buffer_size=1 << 16)

    def is_dir(self) -> bool:
        """Objects are never folders."""
        return False

    def resolve(self) -> RemotePath:
        """Itself."""
        return self


class RangedFile(io.RawIOBase):
    """An object as a file that can be read from any place."""

    def __init__(self, path: RemotePath, num_bytes: int) -> None:
        self._path = path
        self._num_bytes = num_bytes
        self._position = 0
        self._blocks: OrderedDict[int, Future[Any]] = OrderedDict()
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="stoker-ranges")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._num_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        if self._position >= self._num_bytes or not view.nbytes:
            return 0
        number, offset = divmod(self._position, BLOCK_BYTES)
        is_sequential = number - 1 in self._blocks
        data = self._block(number).result()
        if is_sequential and (number + 1) * BLOCK_BYTES < self._num_bytes:
            self._block(number + 1)
        count = min(view.nbytes, len(data) - offset)
        view[:count] = memoryview(data)[offset : offset + count]
        self._position += count
        return count

    def _block(self, number: int) -> Future[Any]:
        if number not in self._blocks:
            self._blocks[number] = self._pool.submit(self._fetch, number)
            while len(self._blocks) > MAX_BLOCKS:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(number)
        return self._blocks[number]

    def _fetch(self, number: int) -> Any:
        start = number * BLOCK_BYTES
        stop = min(start + BLOCK_BYTES, self._num_bytes)
        try:
            return self._path.bucket.get_range(self._path.name_in_bucket, start, stop, lambda data: True)
        except (StoreDamagedError, StoreNotFoundError):
            raise SourceChangedError(
                f"{self._path} changed while it was read. Pack again when nothing writes to it.", path=self._path
            ) from None

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        super().close()


def find_remote(url: str) -> list[RemotePath]:
    """The files that a URL, or a pattern like "s3://bucket/raw/*.parquet", names, in the order of their names.

    Raises:
        SourceNotFoundError: there is none.
        OptionError: the URL holds credentials, or needs a package that is not installed.
        StorageError: the storage refused a request.
    """
    url = check_url(url)
    magic = _MAGIC.search(url)
    scheme, _, rest = url.partition("://")
    if magic is None and "/" not in rest:
        raise OptionError(
            f"{printable(url)} names a whole bucket. Give a file, a folder in it, or a pattern like {printable(url)}/raw/*.parquet.",
            path=url,
        )
    folder, _, name = (url[: magic.start()] if magic else url).rpartition("/")
    if "://" not in folder:
        raise OptionError(
            f"{printable(url)} has a pattern in place of a bucket; expected one like {scheme}://bucket/raw/*.parquet.", path=url
        )
    bucket = open_bucket(folder)
    if magic is not None:
        pattern = _pattern(url[len(folder) + 1 :])
        names = [entry.name for entry in bucket.find(name) if pattern.fullmatch(entry.name)]
        missing = "no object matches"
    else:
        if bucket.size(name) is not None:
            return [RemotePath(bucket, name)]
        names = [
            entry.name for entry in bucket.find(f"{name}/") if suffix_of(cast(Path, RemotePath(bucket, entry.name))) in SUFFIXES
        ]
        missing = "there is no such object, and no folder with objects that can be read, at"
    if not names:
        raise SourceNotFoundError(f"{missing} {printable(url)}.")
    return [RemotePath(bucket, entry) for entry in sorted(names)]


def check_readable(path: RemotePath) -> None:
    """Refuse formats that are read from a disk only."""
    if suffix_of(cast(Path, path)) not in SUFFIXES:
        known = " ".join(sorted(SUFFIXES))
        raise SourceInvalidError(f"{path} cannot be read from object storage; expected one of {known}. Copy it to a disk first.")


def _pattern(text: str) -> re.Pattern[str]:
    """A pattern of names: `*` and `?` within a folder, `**` over folders, `[ab]`.

    Example:
        >>> [bool(_pattern("a/*.csv").fullmatch(name)) for name in ("a/b.csv", "a/b/c.csv")]
        [True, False]
        >>> [bool(_pattern("**/*.csv").fullmatch(name)) for name in ("b.csv", "a/b/c.csv")]
        [True, True]
    """
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", text)
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    made = [
        known.get(part, part.replace("[!", "[^") if part.startswith("[") and part.endswith("]") else re.escape(part))
        for part in parts
    ]
    return re.compile("".join(made))
