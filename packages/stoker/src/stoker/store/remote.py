"""Stores in object storage: opened through a local cache, and written so that two writers cannot both win.

open_remote    the store at a URL: its manifest by one request, its columns as files that are filled when they are read
RemoteStore    what that returns: a `Store` whose values are fetched block by block
upload         a store on disk to a URL: shards first, the manifest last, and only if no other writer was there
"""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from stoker import _disk
from stoker._disk import check_path
from stoker._text import readable_bytes
from stoker._types import Array
from stoker.errors import OptionError, StoreDamagedError, StoreError, StoreExistsError, StoreNotFoundError
from stoker.store.block_cache import BlockCache, BlockTable, CacheFullError
from stoker.store.manifest import (
    BLOCK_BYTES,
    HEADER_BYTES,
    MANIFEST_NAME,
    MAX_BYTES,
    Manifest,
    Shard,
    load,
    named_shards,
    read_manifest,
)
from stoker.store.object_storage import Bucket, Traffic, check_url, open_bucket
from stoker.store.shards import hash_block, header, open_shard
from stoker.store.store import ColumnsOnUse, Store, map_store

UPLOAD_BLOCK_BYTES = 4 << 20
"""A block of an uploaded store. The hashes of a manifest are of 16 MiB, more than a sample in random order should fetch."""
DEFAULT_SHARE = 0.75
"""Of the free disk space, what a cache may take where no size is given."""


class CachedFile(mmap.mmap):
    """The mapped file of a shard of which some blocks may not be there: read it only under a lease of `cache`."""

    cache: BlockCache
    file: str


class RemoteStore(Store):
    """A store in object storage. What is read is fetched, verified and kept in a local cache.

    `store[i]["x"]` gives a copy, because the cache may drop a block later. `column` fetches a whole column, which then stays in the cache
    as long as the store is open.
    """

    is_remote = True

    def __init__(self, mapped: Store, bucket: Bucket, cache: BlockCache, reopen: Callable[[], Store]) -> None:
        super().__init__(
            mapped.schema,
            mapped._values,
            num_series=len(mapped),
            length=mapped.uniform_length,
            offsets=mapped._offsets,
            name=bucket.url,
            manifest=mapped.manifest,
        )
        self.cache = cache
        self._bucket = bucket
        self._reopen = reopen
        self._mapped = dict(mapped._values)
        self._values: Any = ColumnsOnUse(weakref.proxy(self), self._mapped)
        self._step_values: Any = {
            name: _BlockColumn(cache, values) for name, values in self._mapped.items() if self.schema[name].level == "step"
        }

    @property
    def traffic(self) -> Traffic:
        """Requests and bytes since the store was opened.

        Take the difference of two values for those of an epoch.
        """
        return self._bucket.traffic

    @property
    def max_whole_bytes(self) -> int:
        """Bytes of columns that the cache can hold whole."""
        return self.cache.limit

    @property
    def num_bytes(self) -> int:
        """Size of all values, offsets and texts."""
        return sum(shard.values_bytes for shard in self.cache.table.shards)

    @property
    def opener(self) -> Callable[[], Store]:
        """Opens the store again, in another process."""
        return self._reopen

    def column(self, name: str) -> Array:
        """The whole flat column, fetched; its blocks stay in the cache while the store is open."""
        if name not in self._mapped:
            self._unknown(name)
        if self.schema[name].level == "step":
            values = self._mapped[name]
            try:
                self.cache.pin(self.cache.table.all_ids(_file_of(values).file))
            except CacheFullError:
                raise StoreError(
                    f"column {name!r} of {self.name} has {readable_bytes(values.nbytes)}, which the cache of "
                    f"{readable_bytes(self.cache.limit)} cannot hold beside what is in use. Raise cache_size, or read it by a Feed."
                ) from None
        return self._mapped[name]

    def mapped(self, name: str) -> Array:
        """The column, of which only leased blocks may be read."""
        return self._mapped[name]

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Rows `start` to `stop` of a flat column, as a copy for which only their blocks are fetched."""
        if name not in self._mapped:
            self._unknown(name)
        values = self._mapped[name]
        return _copied(self.cache, values, *slice(start, stop).indices(len(values))[:2])

    def damaged_blocks(self, shard: Shard, report: Callable[[int], None]) -> Iterator[int]:
        """Fetch every byte of a shard from the storage, and yield the numbers of the blocks whose hash differs. `report` gets bytes read.

        A block with another hash is requested again before it counts as damaged. The header counts as part of the first block.
        """
        expected_header = header(shard.dtype, shard.shape)
        for number, expected in enumerate(shard.blocks):
            start = number * BLOCK_BYTES
            stop = min(start + BLOCK_BYTES, shard.values_bytes)
            try:
                self._bucket.get_range(shard.file, HEADER_BYTES + start, HEADER_BYTES + stop, partial(_has_hash, expected))
                if number == 0:
                    self._bucket.get_range(shard.file, 0, HEADER_BYTES, lambda data: bytes(data) == expected_header)
            except StoreDamagedError:
                yield number
            report(stop - start)

    def _pieces(self, name: str, max_bytes: int) -> Iterator[Array]:
        values = self._mapped[name]
        rows = max(
            1, min(max_bytes, self.cache.limit // 4) // (values.dtype.itemsize * (values.shape[1] if values.ndim == 2 else 1))
        )
        for start in range(0, len(values), rows):
            yield _copied(self.cache, values, start, min(start + rows, len(values)))


def _has_hash(expected: str, data: Any) -> bool:
    return hash_block(data) == expected


class _BlockColumn:
    """A column of steps of which slices are copies."""

    def __init__(self, cache: BlockCache, values: Array) -> None:
        self._cache = cache
        self._values = values

    def __getitem__(self, part: slice) -> Array:
        start, stop, _ = part.indices(len(self._values))
        return _copied(self._cache, self._values, start, stop)


def _file_of(values: Array) -> CachedFile:
    file = cached_file(values)
    if file is None:
        raise TypeError("the column is not that of a remote store")
    return file


def cached_file(values: Array) -> CachedFile | None:
    """The file behind a column of a remote store; None for all others."""
    base: Any = values
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, CachedFile) else None


def _copied(cache: BlockCache, values: Array, start: int, stop: int) -> Array:
    row_bytes = values.dtype.itemsize * (values.shape[1] if values.ndim == 2 else 1)
    ids = cache.table.ids(_file_of(values).file, np.array([start * row_bytes]), np.array([stop * row_bytes]))
    with cache.lease(ids):
        part = values[start:stop].copy()
    part.flags.writeable = False
    return part


def default_cache() -> Path:
    """The cache folder of this user."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "stoker" / "stores"


def open_remote(url: str, *, cache: str | os.PathLike[str] | None = None, cache_size: str | int | None = None) -> RemoteStore:
    """Open a store in object storage.

    Args:
        url: where it lies, like "s3://bucket/events.stoker".
        cache: a local folder for fetched blocks, which several stores and processes may share (default: one of this user).
        cache_size: how much the folder may hold, like "200GB" (default: 3/4 of the free space).

    Raises:
        StoreNotFoundError: there is no store at this URL.
        StorageError: the storage refused a request, or failed at every attempt.
        ManifestError: the manifest breaks a rule of the format.
        StoreDamagedError: bytes differ from the manifest.
    """
    from stoker.store.pack.options import parse_bytes

    root = check_path(cache) if cache is not None else default_cache()
    limit = int(_disk.free_bytes(root) * DEFAULT_SHARE) if cache_size is None else parse_bytes(cache_size, parameter="cache_size")
    if limit < 1:
        raise OptionError(f"cache_size is {cache_size!r}; expected a size above 0, like '200GB'.", parameter="cache_size")
    bucket = open_bucket(url)
    data, manifest, _ = _read_manifest(bucket)
    if manifest.parts is not None:
        raise StoreError(
            f"{bucket.url} has appended parts, which are not read remotely. Run `stoker append --compact`, upload it again."
        )
    blocks = BlockCache(root.absolute(), manifest, data, _read_table(bucket, manifest), bucket, limit=limit)
    blocks.pin(_needed_at_open(manifest, blocks))
    mapped = map_store(blocks.folder, manifest, map_file=partial(_map_file, blocks))
    return RemoteStore(mapped, bucket, blocks, partial(open_remote, url, cache=str(root.absolute()), cache_size=limit))


def _read_manifest(bucket: Bucket) -> tuple[bytes, Manifest, Any]:
    where = f"{bucket.url}/{MANIFEST_NAME}"
    try:
        data, tag = bucket.get(MANIFEST_NAME, MAX_BYTES)
    except StoreNotFoundError:
        raise StoreNotFoundError(f"{bucket.url} is not a store: it has no {MANIFEST_NAME}.") from None
    return data, load(data, where), tag


def _list_name(digest: str) -> str:
    return f"blocks-{digest}.xxh3"


def _read_table(bucket: Bucket, manifest: Manifest) -> BlockTable:
    """The blocks of a store: those of the list that its upload wrote, or those of the manifest, which are larger."""
    name = _list_name(manifest.digest)
    try:
        data, _ = bucket.get(name, MAX_BYTES)
    except StoreNotFoundError:
        return BlockTable(manifest)
    hashes = [data[start : start + 8].hex() for start in range(0, len(data) - 8, 8)]
    table = BlockTable(manifest, block_bytes=UPLOAD_BLOCK_BYTES, hashes=hashes)
    if len(hashes) != len(table) or data[-8:].hex() != hash_block(data[:-8]):
        raise StoreDamagedError(f"{bucket.url}/{name} is not the list of blocks of this store. Upload the store again.")
    return table


def _needed_at_open(manifest: Manifest, blocks: BlockCache) -> Array:
    """Blocks of offsets, texts and values per series: small beside the steps, and read by everything."""
    files = [manifest.offsets.file] if manifest.offsets is not None else []
    for column in manifest.columns:
        if column.values is not None and column.level == "series":
            files.append(column.values.file)
        if column.texts is not None:
            files += [column.texts.utf8.file, column.texts.offsets.file]
    return np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *(blocks.table.all_ids(file) for file in files)]))


def _map_file(cache: BlockCache, fd: int, file: str) -> mmap.mmap:
    mapped = CachedFile(fd, 0, prot=mmap.PROT_READ)
    mapped.cache, mapped.file = cache, file
    return mapped


def upload(
    folder: Path, url: str, *, replace: bool = False, progress: Callable[[int, int], None] = lambda done, total: None
) -> None:
    """Copy a store on disk to object storage, all or nothing. An upload that was killed continues when it is called again.

    Shards are named by their content, so those that are there already are not sent again. The manifest is written last: only if there is
    none, or with `replace` only if it is still the one that was there in the beginning. So of two writers one fails.

    Args:
        folder: the store.
        url: where to write it, like "s3://bucket/events.stoker".
        replace: replace a store that is there. Its shards stay, because readers may use them.
        progress: called with the bytes done and all bytes.

    Raises:
        StoreExistsError: there is a store already, and `replace` is False; or another writer was faster.
        StoreDamagedError: a shard on disk differs from the manifest. Nothing was committed.
        StorageError: the storage refused a request, or failed at every attempt.
    """
    manifest, bucket = read_manifest(folder), open_bucket(url)
    if manifest.parts is not None:
        raise StoreError(f"{folder} has appended parts. Run `stoker append {folder} --compact` before it is uploaded.")
    has_old, tag = _find_old(bucket, replace=replace)
    whole = {shard.file: (shard, what) for what, shard in named_shards(manifest)}
    total, done, hashes = sum(shard.num_bytes for shard, _ in whole.values()), 0, b""
    for shard, what in whole.values():
        fd = open_shard(folder, shard, what)
        try:
            with _disk.naming(folder / shard.file), mmap.mmap(fd, 0, prot=mmap.PROT_READ) as data:
                hashes += _hash_blocks(folder, shard, data)
                if bucket.size(shard.file) != shard.num_bytes:
                    bucket.put(shard.file, data)
        finally:
            os.close(fd)
        done += shard.num_bytes
        progress(done, total)
    bucket.put(_list_name(manifest.digest), hashes + bytes.fromhex(hash_block(hashes)))
    written = (folder / MANIFEST_NAME).read_bytes()
    if load(written, str(folder / MANIFEST_NAME)).digest != manifest.digest:
        raise StoreError(f"{folder} was replaced while it was uploaded. Upload it again.")
    try:
        bucket.put(MANIFEST_NAME, written, tag=tag, is_new=not has_old)
    except StoreExistsError:
        raise StoreExistsError(f"{bucket.url}: another writer has committed a store meanwhile, which stays as it is.") from None


def _find_old(bucket: Bucket, *, replace: bool) -> tuple[bool, Any]:
    """Whether there is a manifest that is to be replaced, and its tag; refuses one that must stay."""
    try:
        _, tag = bucket.get(MANIFEST_NAME, MAX_BYTES)
    except StoreNotFoundError:
        return False, None
    if not replace:
        raise StoreExistsError(f"{bucket.url} holds a store already. Give replace=True to replace it.")
    if not tag:
        raise StoreError(f"{bucket.url} cannot be replaced: this storage has no conditional writes. Upload to another place.")
    return True, tag


@contextlib.contextmanager
def uploading(url: str, *, replace: bool) -> Iterator[Path]:
    """A local folder for a store that is uploaded at the end of the block. After a kill it stays, and the next block continues.

    Raises:
        StoreExistsError: there is a store already, and `replace` is False.
    """
    _find_old(open_bucket(url), replace=replace)
    place = default_cache().parent / "uploads" / xxhash.xxh3_64_hexdigest(check_url(url).encode())
    with _disk.scratch_folder(place) as folder:
        yield folder / "store"
        upload(folder / "store", url, replace=replace)


def _hash_blocks(folder: Path, shard: Shard, data: mmap.mmap) -> bytes:
    """The hashes of the blocks of an upload, after comparing those of the manifest."""
    with memoryview(data) as whole, whole[HEADER_BYTES:] as values:
        for number, expected in enumerate(shard.blocks):
            if hash_block(values[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]) != expected:
                raise StoreDamagedError(
                    f"{folder / shard.file} is damaged (block {number:,}). Run `stoker inspect {folder} --verify`."
                )
        starts = range(0, shard.values_bytes, UPLOAD_BLOCK_BYTES)
        return b"".join(bytes.fromhex(hash_block(values[start : start + UPLOAD_BLOCK_BYTES])) for start in starts)
