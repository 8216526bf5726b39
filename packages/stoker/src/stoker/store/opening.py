"""`open_store` opens a store: on disk or at a URL, as it was packed or with rows that were appended."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from stoker._disk import check_path
from stoker._text import is_url
from stoker.errors import OptionError, StoreDamagedError
from stoker.store.manifest import manifest_stamp, read_manifest
from stoker.store.store import Store, map_store

T = TypeVar("T")


def open_store(
    path: str | os.PathLike[str],
    *,
    cache: str | os.PathLike[str] | None = None,
    cache_size: str | int | None = None,
) -> Store:
    """Open a packed store: check the manifest and the size of every shard, and map the shards. Reads no values.

    What `stoker.append` has added is mapped and merged when it is first used. Values of a store at a URL are fetched when they are
    read, and kept in a local cache.

    Args:
        path: the folder of the store, or a URL like "s3://bucket/events.stoker".
        cache: for a URL: the folder of the cache, which several stores and processes may share (default: one of this user).
        cache_size: for a URL: how much the cache may hold, like "200GB" (default: 3/4 of the free space).

    Raises:
        StoreNotFoundError: there is no store at this path.
        StorageError: object storage refused a request, or failed at every attempt.
        ManifestError: the manifest breaks a rule of the format.
        StoreDamagedError: a shard is missing, or has the wrong size or header.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Store.from_arrays(x=[[1.0, 2.0], [3.0]]).save(folder + "/a.stoker")
        ...     open_store(folder + "/a.stoker").lengths.tolist()
        [2, 1]
    """
    if is_url(path):
        from stoker.store.remote import open_remote

        return open_remote(str(path), cache=cache, cache_size=cache_size)
    if cache is not None or cache_size is not None:
        raise OptionError(f"cache and cache_size are for URLs, but {path} is a path. Leave them out.", parameter="cache")
    folder = check_path(path)
    return steadily(folder, lambda: _open_local(folder))


def _open_local(folder: Path) -> Store:
    manifest = read_manifest(folder)
    store = map_store(folder, manifest)
    if manifest.parts is None:
        return store
    from stoker.store.appended import AppendedStore  # its imports take a fifth of a second, which a plain store must not

    return AppendedStore(store)


def steadily(folder: Path, read: Callable[[], T]) -> T:
    """Read a store; again, if it seems damaged because a pack has replaced it meanwhile."""
    while True:
        stamp = manifest_stamp(folder)
        try:
            return read()
        except StoreDamagedError:
            if manifest_stamp(folder) == stamp:
                raise
