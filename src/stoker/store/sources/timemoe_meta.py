"""The `meta.json` of a Time-MoE folder, apart from its sequences: read as a stream, and checked against the files.

It may be gigabytes, for it describes every sequence: these are left for whoever reads them, from `scales_at` on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stoker.errors import SourceInvalid
from stoker.store.sources.folder import inside
from stoker.store.sources.json_text import JsonText
from stoker.store.sources.source import MOST, Limits
from stoker.store.sources.text import open_text

META = "meta.json"
_KEYS = ("num_sequences", "dtype", "files", "scales")
_NAMES = "float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()
_DTYPES = {
    spelling: np.dtype(name).newbyteorder("<") for name in _NAMES for spelling in (name, np.dtype(name).newbyteorder("<").str)
}


@dataclass(frozen=True, slots=True)
class Part:
    """One `.bin` file and the elements of the whole that it holds."""

    path: Path
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Meta:
    """What `meta.json` says of the values, and where it goes on to the sequences."""

    dtype: np.dtype[Any]
    parts: list[Part]
    num_sequences: int
    scales_at: int
    """The byte where the array of sequences begins."""

    @property
    def num_elements(self) -> int:
        """Values in all files."""
        return self.parts[-1].end if self.parts else 0


def is_time_moe(folder: Path) -> bool:
    """Whether a folder is one of Time-MoE's: `meta.json` and some `.bin` file, whatever its name, as Time-MoE itself decides."""
    return (folder / META).is_file() and any(path.is_file() for path in folder.glob("*.bin"))


def read_meta(folder: Path, limits: Limits = MOST) -> Meta:
    """Read and check everything but the sequences."""
    path = folder / META
    with JsonText(open_text(path), str(path), limits=limits) as text:
        found = _members(text, path)
    missing = [name for name in _KEYS if name not in found]
    if missing:
        raise SourceInvalid(f"{path} has no key {missing[0]!r}; expected {', '.join(_KEYS)}. Is it a Time-MoE data set?")
    return _checked(folder, found)


def _members(text: JsonText, path: Path) -> dict[str, Any]:
    """The values of the keys, of "scales" only where it begins."""
    found: dict[str, Any] = {}
    text.expect(b"{")
    while text.peek() != b"}":
        key = text.key()
        if key in found:
            raise SourceInvalid(f"{path} has the key {key!r} twice. Make the folder again.")
        if key == "scales":
            text.peek()
            found[key] = text.position
            if all(name in found for name in _KEYS):
                break  # what follows is looked at when the sequences are read
            text.enter()
            text.skip()
        else:
            found[key] = text.value()
        if text.peek() != b"}":
            text.expect(b",")
    return found


def _checked(folder: Path, found: dict[str, Any]) -> Meta:
    path = folder / META
    number, dtype, files = found["num_sequences"], found["dtype"], found["files"]
    if not _is_count(number):
        raise SourceInvalid(f"{path} has num_sequences {str(number)[:40]!r}; expected a whole number.")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise SourceInvalid(f"{path} has the dtype {str(dtype)[:40]!r}; expected one of {' '.join(_NAMES)}.")
    if not isinstance(files, dict):
        raise SourceInvalid(f"{path} has no object of names and lengths under 'files'. Is it a Time-MoE data set?")
    return Meta(_DTYPES[dtype], _parts(folder, files, _DTYPES[dtype].itemsize), number, found["scales"])


def _parts(folder: Path, files: dict[str, Any], item_bytes: int) -> list[Part]:
    """The files in the order of their numbers, each exactly as long as `meta.json` says."""
    parts: list[Part] = []
    begin = 0
    for name in _in_order(folder, files):
        path = inside(folder, name, named_by=META)
        length = files[name]
        if not _is_count(length):
            raise SourceInvalid(f"{folder / META} gives {name!r} {str(length)[:40]!r} elements; expected a whole number.")
        found, expected = path.stat().st_size, length * item_bytes
        if found != expected:
            state = "cut off" if found < expected else "longer than meta.json says"
            raise SourceInvalid(f"{path} is {state}: {found:,} bytes found, {expected:,} expected. Fetch or make it again.")
        parts.append(Part(path, begin, begin + length))
        begin += length
    return parts


def _in_order(folder: Path, files: dict[str, Any]) -> list[str]:
    """By the number behind the first hyphen: data-2 comes before data-10."""
    numbered: dict[int, str] = {}
    for name in files:
        digits = [*name.split("-"), ""][1]
        if not (digits.isascii() and digits.isdecimal() and len(digits) < 19) or int(digits) in numbered:
            raise SourceInvalid(
                f"{folder / META} names the file {name[:80]!r}; expected names like 'data-1-of-2.bin', "
                "each with a number of its own."
            )
        numbered[int(digits)] = name
    return [name for _, name in sorted(numbered.items())]


def _is_count(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 2**60
