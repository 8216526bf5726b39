"""Manifests that lie: sizes that overflow, lengths below zero, objects for numbers, and JSON made to exhaust a parser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from attempt import main
from tests.harness import seal_manifest, tiny_store

from stoker.store.manifest import MANIFEST_NAME
from stoker.store.opening import open_store

Change = Callable[[dict[str, Any]], None]


def attempts(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Changes of a good manifest, each with a digest that fits."""
    built = tiny_store(folder / "store", columns=["price"])
    for what, change in CHANGES.items():
        tree: dict[str, Any] = msgspec.to_builtins(built.manifest)
        change(tree)
        yield what, partial(open_with, folder / "store", seal_manifest(tree))
    for what, data in RAW.items():
        yield what, partial(open_with, folder / "store", data)


def open_with(store: Path, manifest: bytes) -> object:
    """Open a store with another manifest, and read all of it."""
    path = store / MANIFEST_NAME
    path.unlink()
    path.write_bytes(manifest)
    return [bytes(series["price"].tobytes()) for series in open_store(store)]


def _shape(*shape: int) -> Change:
    def change(tree: dict[str, Any]) -> None:
        tree["columns"][0]["values"]["shape"] = list(shape)

    return change


def _dtype(dtype: str) -> Change:
    def change(tree: dict[str, Any]) -> None:
        tree["columns"][0]["values"]["dtype"] = dtype

    return change


def _uniform(length: int, num_series: int, num_steps: int) -> Change:
    def change(tree: dict[str, Any]) -> None:
        tree.update(length=length, offsets=None, num_series=num_series, num_steps=num_steps)
        tree["columns"][0]["values"]["shape"] = [num_steps]

    return change


def _steps(num_steps: int) -> Change:
    return lambda tree: tree.update(num_steps=num_steps)


CHANGES: dict[str, Change] = {
    "a shape whose product is 2^64, so 0 in 64 bits": _shape(2**32, 2**32),
    "a shape whose bytes are 2^63": _shape(2**60),
    "a shape below zero": _shape(-9),
    "a shape of zero width": _shape(9, 0),
    "a shape of three axes": _shape(9, 1, 1),
    "more steps than the shard has": _shape(10),
    "steps below zero": _steps(-1),
    "steps of 2^63": _steps(2**63 - 1),
    "length times series of 2^64": _uniform(2**32, 2**32, 0),
    "length times series that does not fit the steps": _uniform(3, 5, 9),
    "objects": _dtype("|O"),
    "nothing": _dtype("|V0"),
    "text": _dtype("<U8"),
    "big-endian numbers": _dtype(">f8"),
    "a structure": _dtype("[('a', '<f8')]"),
}

RAW: dict[str, bytes] = {
    "a hundred thousand brackets": b"[" * 100_000,
    "a number of a million digits": b'{"num_series": ' + b"9" * 1_000_000 + b"}",
    "not a number": b'{"num_series": NaN}',
    "65 MB of spaces": b" " * (65 << 20),
    "nothing at all": b"",
}


if __name__ == "__main__":
    main(attempts)
