"""`DataSource`: a file, a folder or a table in memory that yields Arrow tables chunk by chunk.

A source knows nothing of series, missing-value policies or stores. Its rows are steps, or, where columns are lists, whole series.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from stoker.errors import OptionError, SourceChangedError, SourceEmptyError, SourceInvalidError, SourceTooLargeError, StokerError
from stoker.store.arrow import from_numpy, from_texts
from stoker.store.shards import read_into


@dataclass(frozen=True, slots=True)
class RowLocation:
    """A point between two rows of a source: the number of rows before it, and the position to resume reading from."""

    row: int = 0
    position: int = 0  # a number that only its source understands: bytes, row groups, rows
    stop: int | None = None
    """Where reading ends, one of the `borders` of the source; None: at its end."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows, and the locations before and behind them."""

    table: pa.Table
    begin: RowLocation
    end: RowLocation


class RowPlace(str):
    """Where a value is, as a message says it: "row 12 of prices.csv". Its parts are fields of the error."""

    path: object = None
    row: int | None = None

    @classmethod
    def of(cls, source: DataSource, row: int, step: int | None = None) -> RowPlace:
        """Return the place of a row, from 0, or of one step of the series in a row."""
        place = cls(("" if step is None else f"step {step + 1:,} of ") + f"row {row + 1:,} of {source.label}")
        place.path, place.row = source.path, row + 1
        return place


def place_fields(place: str) -> dict[str, Any]:
    """Return the fields of an error for a place, which may be plain words."""
    return {"path": place.path, "row": place.row} if isinstance(place, RowPlace) else {}


def row_chunk(table: pa.Table, row: int) -> Chunk:
    """The chunk that begins at `row` of a source whose positions are rows."""
    end = row + table.num_rows
    return Chunk(table, RowLocation(row, row), RowLocation(end, end))


Task = Callable[[], Chunk]


@dataclass(frozen=True, slots=True)
class SizedTask:
    """A task that holds `num_bytes` of text, so that few with long lines wait at a time."""

    task: Task
    num_bytes: int

    def __call__(self) -> Chunk:
        return self.task()


@dataclass(frozen=True, kw_only=True)
class ReadLimits:
    """What no part of a file may exceed, so that a small or damaged file cannot use more memory than the pack may.

    They depend on the memory of the pack alone (`PackOptions.limits`) and were measured (docs/packing.md).
    """

    line_bytes: int = 128 << 20  # bytes of one line, header or value: it is held several times over while it is decoded
    columns: int = 65_536  # columns of a text table, or different keys of JSON


MAX_LIMITS = ReadLimits()  # the limits where memory does not matter


class DataSource(ABC):
    """One file or table. `name` is written to the manifest, so it is short and the same on every machine."""

    name: str
    path: Path | None  # the file to hash, stat and show in messages; None in memory
    num_bytes: int
    num_positions: int | None = None  # the last position, for progress; None where it is unknown
    typed: bool = True  # false for text formats: their types are only inferred, so int64 may become float64
    has_null_texts: bool = False  # whether strings can be named that mean a missing value (`Csv(null=)`)
    once: bool = False  # whether rows can be read only once, as those of a stream
    limits: ReadLimits = MAX_LIMITS
    name_column: str | None = None  # the column that holds the name of the source
    depends_on: Sequence[Path] = ()  # further files that determine the rows: a pack resumes only if they are as they were

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Names and types of all columns, from metadata or from the first block of text.

        Raises:
            SourceEmptyError: the file has no content.
            SourceInvalidError: the file is not what its name says.
        """

    @abstractmethod
    def read(self, schema: pa.Schema | None, *, start: RowLocation, chunk_bytes: int) -> Iterator[Task]:
        """Yield tasks that make the chunks from `start` on, in order; tasks may run on any thread, at the same time.

        Args:
            schema: the columns of each chunk, in this order; None means all columns. Text is converted to these types (None: to
                the type inferred from each block); other sources keep their own types.
            start: where to begin reading.
            chunk_bytes: about how much memory a chunk takes; a chunk has at least one row.

        Raises:
            InferredTypeError: a block of text does not fit the types of `schema`.
        """

    def borders(self) -> list[int]:
        """Positions, in rows, between which this source can be read in parts, by several processes; the first is 0."""
        return [0]

    def find_misfits(self, types: Mapping[str, pa.DataType]) -> Iterator[tuple[int, list[tuple[str, int, str]]]]:
        """Read text again and yield, part by part, its bytes and the strings that are not of their column's type.

        Each is a column, a row from 1, and the string; a string is given once per part. Typed sources have none.
        """
        return iter(())

    def line_of(self, row: int) -> int | None:
        """Return the line in which a row begins, both from 1; None unless it is text. Reads the file up to there."""
        return None

    def origins(self, num_rows: int) -> list[tuple[DataSource, int]]:
        """The sources that the manifest names, with their rows: this one, of which `num_rows` were read, or those it is made of."""
        return [(self, num_rows)]

    @property
    def label(self) -> str:
        """The name of this source in messages."""
        return str(self.path) if self.path is not None else self.name

    def invalid(self, problem: str) -> SourceInvalidError:
        """The error for a source that is not what it should be; `problem` follows its name."""
        return SourceInvalidError(f"{self.label} {problem}", path=self.path)


class FileSource(DataSource):
    """A source that is one file."""

    path: Path

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self.num_bytes = path.stat().st_size
        if self.num_bytes == 0:
            raise SourceEmptyError(f"{path} is empty (0 bytes). Remove it, or leave it out of the pattern.")


class WrappedSource(DataSource):
    """A source that changes something about another one; the rest is that of the other."""

    def __init__(self, inner: DataSource) -> None:
        self._inner = inner
        self.name, self.path, self.num_bytes = inner.name, inner.path, inner.num_bytes
        self.typed, self.once, self.limits, self.depends_on = inner.typed, inner.once, inner.limits, inner.depends_on
        self.name_column, self.has_null_texts = inner.name_column, inner.has_null_texts

    def __getattr__(self, name: str) -> Any:
        """What only some sources have."""
        return getattr(self._inner, name)

    def schema(self) -> pa.Schema:
        return self._inner.schema()

    def borders(self) -> list[int]:
        return self._inner.borders()

    def read(self, schema: pa.Schema | None, *, start: RowLocation, chunk_bytes: int) -> Iterator[Task]:
        return self._inner.read(schema, start=start, chunk_bytes=chunk_bytes)

    def find_misfits(self, types: Mapping[str, pa.DataType]) -> Iterator[tuple[int, list[tuple[str, int, str]]]]:
        return self._inner.find_misfits({name: kind for name, kind in types.items() if name in self._inner.schema().names})

    def line_of(self, row: int) -> int | None:
        return self._inner.line_of(row)

    @property
    def num_positions(self) -> int | None:  # type: ignore[override]
        """Of the source; a file may have to be opened for it."""
        return self._inner.num_positions


class KnownSource(WrappedSource):
    """A source whose schema another process has found: the file is opened only where it is read."""

    def __init__(self, inner: DataSource, schema: pa.Schema) -> None:
        super().__init__(inner)
        self._schema = schema

    def schema(self) -> pa.Schema:
        return self._schema


class NamedSource(WrappedSource):
    """A source with one more column: its own name, in every row (`Files(name_column=)`)."""

    def __init__(self, inner: DataSource, column: str) -> None:
        super().__init__(inner)
        self.name_column = self._column = column

    def schema(self) -> pa.Schema:
        schema = self._inner.schema()
        if self._column in schema.names:
            raise OptionError(
                f"name_column={self._column!r} is a column of {self.label} already. Give another name.", parameter="name_column"
            )
        return schema.append(pa.field(self._column, _NAMES))

    def read(self, schema: pa.Schema | None, *, start: RowLocation, chunk_bytes: int) -> Iterator[Task]:
        inner = None if schema is None else pa.schema([field for field in schema if field.name != self._column])
        for task in self._inner.read(inner, start=start, chunk_bytes=chunk_bytes):
            yield SizedTask(partial(self._named, task, schema), getattr(task, "num_bytes", 0))

    def _named(self, task: Task, schema: pa.Schema | None) -> Chunk:
        chunk = task()
        codes = from_numpy(np.zeros(chunk.table.num_rows, dtype=np.int32))
        names = pa.DictionaryArray.from_arrays(codes, from_texts([self.name]).cast(pa.string()))
        table = chunk.table.append_column(self._column, names)
        return replace(chunk, table=table if schema is None else table.select(schema.names))


_NAMES = pa.dictionary(pa.int32(), pa.string())


def batch_chunks(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema | None, *, start: RowLocation, chunk_bytes: int
) -> Iterator[Task]:
    """Slices of record batches of about `chunk_bytes`, starting at row `start.position`."""
    row = 0
    for batch in batches:
        rows_each = max(1, batch.num_rows * chunk_bytes // max(batch.nbytes, 1))
        while batch.num_rows:
            part, batch = batch.slice(0, rows_each), batch.slice(rows_each)
            begin = max(row, min(start.position, row + part.num_rows))
            part = part.slice(begin - row)
            row = begin + part.num_rows
            if part.num_rows:
                table = pa.Table.from_batches([part])
                table = table if schema is None else table.select(schema.names)
                yield partial(row_chunk, table, begin)


def batch_rows(schema: pa.Schema, chunk_bytes: int) -> int:
    """The rows of a record batch of about `chunk_bytes`, to be asked of a library that streams. Rows with lists may be of any size."""
    if any(is_list(kind) for kind in schema.types):
        return _LEAST_ROWS
    return max(_LEAST_ROWS, min(chunk_bytes // (_VALUE_BYTES * max(len(schema), 1)), _MOST_ROWS))


_LEAST_ROWS, _MOST_ROWS = 2048, 1 << 17
_VALUE_BYTES = 16  # of a number, or of a short string with its offset


def suffix_of(path: Path) -> str:
    """The ending of a file's name in lower case, without that of a compression: ".csv" of "A.CSV.gz"."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


COMPRESSED = {".gz", ".zst", ".bz2", ".xz"}


def is_list(kind: pa.DataType) -> bool:
    """Whether a value of this type is a list, and so a whole series."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


class InferredTypeError(Exception):
    """A block of text holds values that do not fit the type inferred from earlier ones."""

    def __init__(self, source: DataSource, column: str) -> None:
        super().__init__(f"column {column!r} of {source.label}")
        self.source = source
        self.column = column


@contextlib.contextmanager
def decoding(path: Path, form: str) -> Iterator[None]:
    """Turn what a decoder raises for a bad file into one line that names the file."""
    try:
        yield
    except (StokerError, InferredTypeError):
        raise
    except MemoryError as error:
        raise SourceTooLargeError(
            f"{path} holds a value or a page that is larger than the memory left. Pass a larger Resources(memory=), or leave it out.",
            path=path,
            parameter="memory",
        ) from error
    except (pa.ArrowException, OSError, ValueError, KeyError, IndexError, TypeError, OverflowError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise SourceInvalidError(f"{path} is damaged or not {form}: {reason}", path=path) from error


def decoded_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema after its names and time zones were decoded, which Arrow otherwise does when they are first used."""
    for name, kind in zip(schema.names, schema.types, strict=True):
        _ = name, str(kind), getattr(kind, "tz", None)
    return schema


# Data sets that are folders: the files that a description names must be inside the folder.


def inside(folder: Path, name: str, *, named_by: str) -> Path:
    """The plain file `name` of the folder; names with separators, and links to files outside of it, are refused."""
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
    done = read_into(fd, buffer, offset)
    if done < buffer.nbytes:
        raise SourceChangedError(f"{path} changed while it was read: it now ends at byte {offset + done:,}.", path=path)
