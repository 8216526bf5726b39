"""Code that runs when an array is loaded: NumPy files may hold pickles, and a pickle may call anything."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from attempt import main
from tests.harness import tiny_store

from stoker.store.opening import open_store
from stoker.store.pack.api import pack


class Payload:
    """Makes a file when it is unpickled: what an attacker would have do worse."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._mark,)


def attempts(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """A pickle as an array, inside an archive, under another name, and in the place of a shard."""
    mark = folder / "payload ran"
    array = np.empty(1, dtype=object)
    array[0] = Payload(mark)
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    npy, raw = buffer.getvalue(), pickle.dumps(Payload(mark))
    with zipfile.ZipFile(folder / "inside.npz", "w") as archive:
        archive.writestr("x.npy", npy)
    (folder / "object.npy").write_bytes(npy)
    (folder / "renamed.npy").write_bytes(raw)
    (folder / "renamed.npz").write_bytes(raw)
    (folder / "claimed.npy").write_bytes(npy.replace(b"'|O'", b"'O8'"))
    for name in ("object.npy", "renamed.npy", "claimed.npy", "inside.npz", "renamed.npz"):
        yield f"a pickle in {name}", partial(_unless_run, mark, partial(pack, folder / name, folder / "packed"))
    built = tiny_store(folder / "store", columns=["price"])
    shard = next(path for path in built.path.glob("*.npy") if path.stat().st_size > 128)
    shard.unlink()
    shard.write_bytes(npy)
    yield "a pickle in the place of a shard", partial(_unless_run, mark, partial(open_store, built.path))


def _unless_run(mark: Path, act: Callable[[], object]) -> object:
    """An attempt whose code has run has succeeded, whatever was raised afterwards."""
    try:
        return act()
    finally:
        if mark.exists():
            raise RuntimeError("the payload ran")


if __name__ == "__main__":
    main(attempts)
