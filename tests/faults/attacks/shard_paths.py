"""Shards that lead elsewhere: a store from a stranger must not read a file that is not its own, nor hang or fill memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from attempt import main
from tests.harness import seal_manifest, tiny_store

from stoker.store.manifest import MANIFEST_NAME
from stoker.store.opening import open_store

SECRET = b"\x93NUMPY a private file that lies outside of the store"


def attempts(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Names that lead out of the store, and things in the place of a shard that are not plain files."""
    (folder / "secret.npy").write_bytes(SECRET)
    names = ["../secret.npy", str(folder / "secret.npy"), "./../secret.npy", "0123456789abcdef.npy/../../secret.npy"]
    names += ["..\\secret.npy", "%2e%2e/secret.npy", "secret.npy\0.npy", "", ".", "..", "/dev/zero", "0123456789ABCDEF.npy"]
    for i, name in enumerate(names):
        store = folder / f"named{i}"
        rename_shard(store, name)
        yield f"a shard named {name!r}", partial(read, store)
    for what, put in _not_files(folder).items():
        store = folder / what.replace(" ", "-")
        shard = store / first_shard(tiny_store(store, columns=["price"]).manifest)
        shard.unlink()
        put(shard)
        yield f"{what} in the place of a shard", partial(read, store)


def rename_shard(store: Path, name: str) -> None:
    """A store whose manifest is right in all but the name of its first column's shard."""
    built = tiny_store(store, columns=["price"])
    tree: dict[str, Any] = msgspec.to_builtins(built.manifest)
    tree["columns"][0]["values"]["file"] = name
    (store / MANIFEST_NAME).chmod(0o644)
    (store / MANIFEST_NAME).write_bytes(seal_manifest(tree))


def first_shard(manifest: Any) -> str:
    """The file name of the first column."""
    return str(manifest.columns[0].values.file)


def _not_files(folder: Path) -> dict[str, Callable[[Path], None]]:
    return {
        "a link to a private file": lambda path: path.symlink_to(folder / "secret.npy"),
        "a link to endless zeros": lambda path: path.symlink_to("/dev/zero"),
        "a link to itself": lambda path: path.symlink_to(path),
        "a FIFO without a writer": lambda path: os.mkfifo(path),
        "a folder": lambda path: path.mkdir(),
    }


def read(store: Path) -> bytes:
    """What a user does with a store."""
    return bytes(open_store(store).column("price").tobytes())


if __name__ == "__main__":
    main(attempts)
