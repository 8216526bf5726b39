"""Corruption: the ways in which files get damaged, from a bit that flips to a block that lands in the wrong place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

_PAGE_BYTES = 4096


def _flip(data: bytearray, rng: np.random.Generator) -> str:
    bit = int(rng.integers(len(data) * 8))
    data[bit // 8] ^= 1 << bit % 8
    return f"bit {bit % 8} of byte {bit // 8:,} flipped"


def _zero(data: bytearray, rng: np.random.Generator) -> str:
    begin = int(rng.integers(-(-len(data) // _PAGE_BYTES))) * _PAGE_BYTES
    end = min(begin + _PAGE_BYTES, len(data))
    data[begin:end] = bytes(end - begin)
    return f"bytes {begin:,} to {end:,} zeroed"


def _truncate(data: bytearray, rng: np.random.Generator) -> str:
    size, before = int(rng.integers(len(data))), len(data)
    del data[size:]
    return f"truncated from {before:,} to {size:,} bytes"


def _duplicate(data: bytearray, rng: np.random.Generator) -> str:
    begin, end = _range(data, rng)
    data[end:end] = data[begin:end]
    return f"bytes {begin:,} to {end:,} written twice"


def _swap(data: bytearray, rng: np.random.Generator) -> str:
    size = int(rng.integers(1, max(len(data) // 2, 1) + 1))
    first = int(rng.integers(len(data) - size + 1))
    second = int(rng.integers(len(data) - size + 1))
    if abs(first - second) < size:
        return ""
    data[first : first + size], data[second : second + size] = data[second : second + size], data[first : first + size]
    return f"{size:,} bytes at {first:,} and {second:,} swapped"


def _append(data: bytearray, rng: np.random.Generator) -> str:
    extra = rng.bytes(int(rng.integers(1, _PAGE_BYTES)))
    data += extra
    return f"{len(extra):,} bytes appended"


def _range(data: bytearray, rng: np.random.Generator) -> tuple[int, int]:
    begin = int(rng.integers(len(data)))
    return begin, int(rng.integers(begin + 1, len(data) + 1))


CORRUPTIONS: Mapping[str, Callable[[bytearray, np.random.Generator], str]] = {
    "flip": _flip,
    "zero": _zero,
    "truncate": _truncate,
    "duplicate": _duplicate,
    "swap": _swap,
    "append": _append,
}


NOT_JSON: Mapping[str, bytes] = {
    **{
        "empty": b"",
        "open": b"{",
        "nothing": b"null",
        "a list": b"[]",
        "a mark": b"\xef\xbb\xbf{}",
        "no text": b"\xff\xfe",
        "zeros": b"\0" * 100,
    },
    **{"nan": b'{"version": NaN}', "infinite": b'{"version": 1e999}', "huge": b'{"version": ' + b"9" * 5000 + b"}"},
    **{"surrogate": b'{"format": "\\ud800"}', "a bad byte": b'{"format": "sto\xffker"}'},
    **{
        "deep lists": b"[" * 100_000,
        "deep objects": b'{"a":' * 100_000,
        "closed": b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    },
}
"""What no file of ours holds: not JSON, not an object, or made to exhaust whoever reads it."""


def flip_byte(path: Path, at: int = -1) -> None:
    """Flip the lowest bit of one byte, in place; counted from the end where `at` is negative."""
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(at, 0 if at >= 0 else 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


def corrupt(path: Path, rng: np.random.Generator, *, kind: str | None = None) -> str:
    """Damage a file in a random way, or in that of `kind`, and say how. Afterwards its bytes are surely others.

    Read-only files are damaged too. The file is read whole.
    """
    before = path.read_bytes()
    for _ in range(1000):
        chosen = kind or list(CORRUPTIONS)[int(rng.integers(len(CORRUPTIONS)))]
        if not before and chosen != "append":
            if kind:
                break
            continue
        data = bytearray(before)
        description = CORRUPTIONS[chosen](data, rng)
        if data != before:
            path.chmod(0o644)
            path.write_bytes(data)
            return f"{path.name}: {description}"
    raise ValueError(f"{path} has {len(before):,} bytes that {kind!r} cannot change.")
