"""Shards: flat `.npy` files that are mapped, never read whole, and whose every byte is accounted for.

The header of a shard is a function of its dtype and shape, so opening compares 128 bytes instead of parsing them.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from stoker import files
from stoker.errors import StoreDamaged
from stoker.store.manifest import BLOCK_BYTES, HEADER_BYTES, Shard

Array = npt.NDArray[Any]


def header(dtype: str, shape: Sequence[int]) -> bytes:
    """The first 128 bytes of a shard: NumPy's format 1.0, padded to a fixed size so that it can be written last."""
    sizes = ", ".join(str(n) for n in shape) + ("," if len(shape) == 1 else "")
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({sizes}), }}"
    length = HEADER_BYTES - 10
    return b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + text.ljust(length - 1).encode() + b"\n"


def hash_block(data: bytes | memoryview | Array) -> str:
    """The hash of one block of values."""
    return xxhash.xxh3_64_hexdigest(data)


def name_of(dtype: str, shape: Sequence[int], blocks: Sequence[str]) -> str:
    """The file name of a shard follows from its content: equal content, equal name."""
    return xxhash.xxh3_64_hexdigest(header(dtype, shape) + "".join(blocks).encode()) + ".npy"


def map_shard(folder: Path, shard: Shard, what: str) -> Array:
    """Map a shard read-only after checking that it is a plain file of the right size and header. Reads no values."""
    fd = open_shard(folder, shard, what)
    try:
        with files.naming(folder / shard.file):  # a process may not be allowed the address space
            mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    finally:
        os.close(fd)
    return np.frombuffer(mapped, dtype=shard.dtype, offset=HEADER_BYTES).reshape(shard.shape)


def open_shard(folder: Path, shard: Shard, what: str) -> int:
    """Open a shard, checked as `map_shard` says, and return its descriptor."""
    path = folder / shard.file
    try:
        fd = files.open_inside(folder, shard.file)
    except FileNotFoundError:
        raise StoreDamaged(f"{path} is missing: it holds {what}. Restore the file or pack the store again.") from None
    try:
        found = os.fstat(fd).st_size
        if found != shard.num_bytes:
            raise StoreDamaged(
                f"{path} has {found:,} bytes, but {shard.num_bytes:,} are expected: it holds {what}. Pack the store again."
            )
        if os.pread(fd, HEADER_BYTES, 0) != header(shard.dtype, shard.shape):
            raise StoreDamaged(f"{path} has a header that does not fit the manifest: it holds {what}. Pack the store again.")
    except BaseException:
        os.close(fd)
        raise
    return fd


def ends_of(folder: Path, shard: Shard, what: str) -> tuple[int, int]:
    """The first and the last value of a shard of offsets, without mapping it."""
    fd = open_shard(folder, shard, what)
    try:
        first, last = (os.pread(fd, 8, HEADER_BYTES + 8 * i) for i in (0, shard.shape[0] - 1))
    finally:
        os.close(fd)
    return int.from_bytes(first, "little", signed=True), int.from_bytes(last, "little", signed=True)


def damaged_blocks(folder: Path, shard: Shard, report: Callable[[int], None]) -> Iterator[int]:
    """Read every byte of a shard and yield the numbers of the blocks whose hash differs. `report` gets bytes read."""
    fd = files.open_inside(folder, shard.file)
    try:
        buffer = bytearray(min(BLOCK_BYTES, shard.values_bytes))
        for i, expected in enumerate(shard.blocks):
            start = i * BLOCK_BYTES
            view = memoryview(buffer)[: min(BLOCK_BYTES, shard.values_bytes - start)]
            found = os.preadv(fd, [view], HEADER_BYTES + start)
            if found != len(view) or hash_block(view) != expected:
                yield i
            report(len(view))
    finally:
        os.close(fd)
