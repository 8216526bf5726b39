"""The journal of a pack: how far it is, so that a pack that was killed goes on where it stopped.

It is written without waiting for the disk. That is safe because nothing in it is believed: the journal carries its own
hash, and the files it names are hashed anew before they are taken up.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import xxhash

from stoker.files import write_file
from stoker.store.columnfile import Mark
from stoker.store.packing.merge import CursorMark
from stoker.store.packing.run import RunMark

NAME = "journal"


class MergeMark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A merge under way: which runs, into what, and how far."""

    first: int
    """Index of the first run that is merged."""
    count: int
    out: RunMark
    cursors: list[CursorMark]


class Journal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of a pack between two blocks."""

    fingerprint: str
    settled: bool
    """Whether the types were found by reading everything."""
    source: int
    row: int
    position: int
    source_rows: list[int]
    """Rows of the sources that were read to their end."""
    read: bool
    """Whether all sources are read."""
    missing: dict[str, int]
    wide_time: tuple[int, int | float] | None
    categories: dict[str, list[Mark]]
    runs: list[RunMark]
    merged: int
    """How many of the runs are results of the current round of merges."""
    merge: MergeMark | None


def save(folder: Path, journal: Journal) -> None:
    """Replace the journal."""
    body = msgspec.json.encode(journal)
    write_file(folder / NAME, xxhash.xxh3_128_hexdigest(body).encode() + b"\n" + body, durable=False)


def load(folder: Path, fingerprint: str) -> Journal | None:
    """The journal of an earlier process, if it is whole and of the same pack."""
    try:
        data = (folder / NAME).read_bytes()
    except OSError:
        return None
    digest, _, body = data.partition(b"\n")
    if digest.decode("ascii", "replace") != xxhash.xxh3_128_hexdigest(body):
        return None
    try:
        journal = msgspec.json.decode(body, type=Journal)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return journal if journal.fingerprint == fingerprint else None
