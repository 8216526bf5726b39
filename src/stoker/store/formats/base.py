"""What a source is: a file (or a table in memory) that yields Arrow tables piece by piece.

A source knows nothing of series, policies or stores. Its rows are steps, or, where columns are lists, whole series.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from stoker.errors import SourceChangedError, SourceInvalidError, SourceTooLargeError, StokerError


@dataclass(frozen=True, slots=True)
class RowLocation:
    """A point between two rows of a source: the number of rows before it, and where to go on reading."""

    row: int = 0
    position: int = 0
    """A number that only its source understands: bytes, row groups, rows."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows, and the places before and behind them."""

    table: pa.Table
    begin: RowLocation
    end: RowLocation


Task = Callable[[], Chunk]


@dataclass(frozen=True, slots=True)
class SizedTask:
    """A task that holds text of a line longer than a block, and says how much: few of these may wait at a time."""

    task: Task
    num_bytes: int

    def __call__(self) -> Chunk:
        return self.task()


@dataclass(frozen=True, kw_only=True)
class ReadLimits:
    """What no part of a file may exceed, so that a small or damaged file cannot take more memory than a pack was given.

    They follow from the memory of the pack alone: `Options.limits`. What they stand for was measured (docs/packing.md).
    """

    line_bytes: int = 128 << 20
    """Bytes of one line, header or value: it is held several times over while it is decoded."""
    columns: int = 65_536
    """Columns of a table in text, or different keys of JSON."""


MAX_LIMITS = ReadLimits()
"""The limits where memory is plenty."""


class DataSource(ABC):
    """One file or table. `name` goes into the manifest, so it is short and the same on every machine."""

    name: str
    path: Path | None
    """The file to hash, stat and show in messages; None in memory."""
    num_bytes: int
    num_positions: int | None = None
    """How far positions go, for progress; None where that is not known beforehand."""
    typed: bool = True
    """False for text formats: their types are only inferred, so int64 may give way to float64."""
    limits: ReadLimits = MAX_LIMITS

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Names and types of all columns, found with bounded effort: from metadata, or from the first block of text.

        Raises `SourceEmptyError` for a file without content and `SourceInvalidError` for one that is not what its name says.
        """

    @abstractmethod
    def read(self, schema: pa.Schema | None, *, start: RowLocation, chunk_bytes: int) -> Iterator[Task]:
        """Yield tasks that make the chunks from `start` on, in order; tasks may run on any thread, at the same time.

        A chunk holds the columns of `schema` in its order; None means all columns. Text is converted to the types
        asked for, with None to what each block suggests; `InferredTypeError` says that a block does not fit. Other sources keep
        their own types. A chunk takes about `chunk_bytes` in memory, and at least one row.
        """

    @property
    def label(self) -> str:
        """How messages name this source."""
        return str(self.path) if self.path is not None else self.name


class InferredTypeError(Exception):
    """A block of text holds values that do not fit the type guessed from earlier ones."""

    def __init__(self, source: DataSource, column: str) -> None:
        super().__init__(f"column {column!r} of {source.label}")
        self.source = source
        self.column = column


@contextlib.contextmanager
def decoding(path: Path, form: str) -> Iterator[None]:
    """Turn whatever a decoder raises over a bad file into one line that names the file."""
    try:
        yield
    except (StokerError, InferredTypeError):
        raise
    except MemoryError as error:
        raise SourceTooLargeError(
            f"{path} holds a value or a page that is larger than the memory left. Give more, or leave it out."
        ) from error
    except (pa.ArrowException, OSError, ValueError, KeyError, IndexError, TypeError, OverflowError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise SourceInvalidError(f"{path} is damaged or not {form}: {reason}") from error


# Data sets that are folders: files that a description names are looked for inside the folder and nowhere else.


def inside(folder: Path, name: str, *, named_by: str) -> Path:
    """The plain file `name` of the folder; names with separators, and links that lead out, are refused."""
    if not name or name in (".", "..") or any(mark in name for mark in "/\\\0"):
        raise SourceInvalidError(
            f"{folder / named_by} names the file {name[:80]!r}; expected the plain name of a file in its folder."
        )
    path = folder / name
    if not path.exists():
        raise SourceInvalidError(
            f"{folder / named_by} names the file {name!r}, which is not in {folder}. Fetch or make the folder again."
        )
    if not path.resolve().is_relative_to(folder.resolve()):
        raise SourceInvalidError(f"{path} is a link that leads out of its folder. Copy the file into the folder.")
    if not path.is_file():
        raise SourceInvalidError(f"{path} is not a plain file. Fetch or make the folder again.")
    return path


def read_fully(fd: int, buffer: memoryview, offset: int, path: Path) -> None:
    """Fill a buffer from a file whose size was checked before."""
    done = 0
    while done < buffer.nbytes:
        count = os.preadv(fd, [buffer[done:]], offset + done)
        if count == 0:
            raise SourceChangedError(f"{path} changed while it was read: it now ends at byte {offset + done:,}.")
        done += count
