"""Sets for time series classification and regression: UCR's `.tsv`, `.ts` (UEA, aeon, sktime) and `.arff` (Weka).

    UcrSource    `.tsv`: no header, tabs, one series per line with its label first; read as a stream
    AeonSource   `.ts` and `.arff`, by the readers of aeon: in memory

A set has one series per row. One dimension is the column "value", more are "dim_0", "dim_1", …; a class is the column "label", a
regression target "target". Missing values ("?" of `.ts` and `.arff`) are null.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc

from stoker._text import how_to_install, readable_bytes
from stoker._types import Array
from stoker.errors import OptionError, SourceEmptyError, SourceInvalidError, SourceTooLargeError
from stoker.store.formats.base import MAX_LIMITS, Chunk, FileSource, ReadLimits, RowLocation, SizedTask, Task, batch_chunks
from stoker.store.formats.text import LineBlock, TextSource

_FIRST_BLOCK = 64 << 10
# Lines and their parts are Python objects while they are parsed: short rows take many times the memory of their text.
_INFLATION = 16
EXACT_INTEGERS = 2**53


class _RowError(Exception):
    """A row that breaks a rule: its index among some rows, and the reason."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(index, reason)
        self.index, self.reason = index, reason


class UcrSource(TextSource):
    """One `.tsv` file in UCR's form: columns "value" (a list) and "label" (a string).

    Series shorter than the longest are padded with NaN at their end, which is removed; NaN between values stays.
    """

    def schema(self) -> pa.Schema:
        return self._table([]).schema

    @cached_property
    def first_line(self) -> bytes | None:
        """The text of the first row; None where there is no row."""
        with closing(self._blocks(0, _FIRST_BLOCK)) as blocks:
            for block in blocks:
                if rows := _rows_of(block):
                    return rows[0]
        return None

    @cached_property
    def _num_fields(self) -> int:
        row = self.first_line
        if row is None:
            raise SourceEmptyError(f"{self.path} holds nothing but blank lines. Remove it, or leave it out of the pattern.")
        if not is_ucr_row(row):
            raise self.invalid(f"does not begin with a label and numbers between tabs, but with {row[:40]!r}. Is it a table?")
        return row.count(b"\t") + 1

    def read(self, schema: pa.Schema | None, *, start: RowLocation, chunk_bytes: int) -> Generator[Task, None, None]:
        row = start.row
        with closing(self._blocks(start.position, max(chunk_bytes // _INFLATION, 1))) as blocks:
            for block in blocks:
                count = len(_rows_of(block))
                if count:
                    yield SizedTask(partial(self._chunk, block, schema, row), len(block.data))
                row += count

    def _chunk(self, block: LineBlock, schema: pa.Schema | None, row: int) -> Chunk:
        rows = _rows_of(block)
        try:
            table = self._table(rows)
        except _RowError as fault:
            line = self.line_of(row + fault.index + 1) or 0
            what = f"line {line:,} of {self.path}: {fault.reason}. Fix the line, or fetch the file again."
            raise SourceInvalidError(what, path=self.path, row=row + fault.index + 1, line=line) from None
        table = table if schema is None else table.select(schema.names)
        return Chunk(table, RowLocation(row, block.begin), RowLocation(row + len(rows), block.end))

    def _table(self, rows: list[bytes]) -> pa.Table:
        """All columns of some rows; raises `_RowError`."""
        expected = self._num_fields
        for i, row in enumerate(rows):
            count = row.count(b"\t") + 1
            if count != expected:
                raise _RowError(i, f"{count:,} fields found, {expected:,} expected as in the first line")
        try:
            fields = pc.split_pattern(pa.array([b"\t".join(rows)] if rows else [], pa.large_string()), "\t").flatten()
            is_label = np.arange(len(fields)) % expected == 0
            labels = pc.utf8_trim_whitespace(fields.filter(is_label)).to_pylist()
            values = fields.filter(~is_label).cast(pa.float64()).to_numpy().reshape(len(rows), expected - 1)
            is_exact = "" not in labels and not (np.abs(values) >= EXACT_INTEGERS).any()
        except pa.ArrowInvalid:
            is_exact = False
        if not is_exact:  # other spellings of numbers, or the row of an error
            labels, values = _row_by_row(rows)
        numbers = np.where(np.isnan(values), 0, np.arange(1, expected))  # of each value that is not NaN, from 1
        series = [row[:count] for row, count in zip(values, numbers.max(1, initial=0), strict=True)]
        texts = pa.array(labels, pa.string()).dictionary_encode()
        return pa.table({"value": _lists_of(series, nan_is_missing=False), "label": texts})


def _rows_of(block: LineBlock) -> list[bytes]:
    """The lines of a block that are not blank."""
    # Tabs at the ends stay: they may separate fields.
    return [line.strip(b" \r") for line in block.data.split(b"\n") if line.strip()]


def _row_by_row(rows: list[bytes]) -> tuple[list[str], Array]:
    """The labels, and the values as Python reads them; raises `_RowError`."""
    labels, values = [], []
    for i, row in enumerate(rows):
        try:
            label, *fields = row.decode().split("\t")
            if not label.strip():
                raise ValueError("the label is empty")
            labels.append(label.strip())
            values.append([_number(field.strip()) for field in fields])
        except ValueError as error:
            raise _RowError(i, str(error)) from error
    return labels, np.array(values)


def _number(text: str) -> float:
    try:
        value = float(text) if text.isascii() and "_" not in text else None  # Python takes 1_000 for a number
    except ValueError:
        value = None
    shown = repr(text if len(text) <= 40 else text[:40] + "…")
    if value is None:
        raise ValueError(f"{shown} is not numeric")
    if np.isinf(value) and "inf" not in text.lower():
        raise ValueError(f"{shown} is too large a number for float64")
    if abs(value) >= EXACT_INTEGERS and text.lstrip("+-").isdigit() and int(text) != value:
        raise ValueError(f"{shown} is an integer that float64 cannot hold exactly")
    return value


def _lists_of(series: Sequence[Array], *, nan_is_missing: bool) -> pa.Array:
    """Series of float64 as one array of lists; NaN becomes null where it means a missing value."""
    offsets = np.zeros(len(series) + 1, dtype=np.int64)
    np.cumsum([len(values) for values in series], out=offsets[1:])
    flat = np.concatenate(series) if len(series) else np.empty(0)
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(flat, mask=np.isnan(flat) if nan_is_missing else None))


def is_ucr_row(row: bytes) -> bool:
    """Whether a line is an integer and then at least one number, separated by tabs."""
    try:
        (label,), values = _row_by_row([row])
        return bool(values.size) and float(label).is_integer()
    except (ValueError, OverflowError, _RowError):
        return False


def is_ucr(path: Path, limits: ReadLimits = MAX_LIMITS) -> bool:
    """Whether the first line of a `.tsv` file is in UCR's form, and not the header or a row of a table."""
    try:
        source = UcrSource(path, path.name)
        source.limits = limits
        first = source.first_line
    except (SourceEmptyError, SourceInvalidError, SourceTooLargeError):
        return False
    return first is not None and is_ucr_row(first)


# `.ts` and `.arff`, by aeon.

MAX_DIMENSIONS = 4096
_MEMORY_SHARE = 0.5  # of the free memory, for one file
_FILE_INFLATION = 4  # bytes per byte of a file: its numbers as float64 twice, and a line of them as Python objects


class AeonSource(FileSource):
    """One `.ts` or `.arff` file. A position is a number of rows."""

    def schema(self) -> pa.Schema:
        return self._table.schema

    def read(self, schema: pa.Schema | None, *, start: RowLocation, chunk_bytes: int) -> Iterator[Task]:
        return batch_chunks(self._table.to_batches(), schema, start=start, chunk_bytes=chunk_bytes)

    @cached_property
    def _table(self) -> pa.Table:
        cases, answers, is_regression = self._load()
        if not len(cases):
            raise SourceEmptyError(f"{self.path} holds no series. Remove it, or leave it out of the pattern.")
        num_dimensions = len(cases[0])
        if num_dimensions > MAX_DIMENSIONS:
            raise SourceTooLargeError(f"{self.path} has {num_dimensions:,} dimensions; at most {MAX_DIMENSIONS:,} can be read.")
        names = ["value"] if num_dimensions == 1 else [f"dim_{d}" for d in range(num_dimensions)]
        columns = {name: _lists_of([case[d] for case in cases], nan_is_missing=True) for d, name in enumerate(names)}
        if len(answers) and is_regression:
            columns["target"] = pa.array(answers, mask=np.isnan(answers))
        elif len(answers):
            columns["label"] = pa.array(answers.tolist(), pa.string()).dictionary_encode()
        return pa.table(columns)

    def _load(self) -> tuple[list[Array] | Array, Array, bool]:
        """The cases (dimensions, steps), their classes or targets, and whether these are targets."""
        free = int(psutil.virtual_memory().available * _MEMORY_SHARE)
        if self.num_bytes * _FILE_INFLATION > free:
            raise SourceTooLargeError(
                f"{self.path} has {readable_bytes(self.num_bytes)} and is read into memory, where "
                f"{readable_bytes(free // _FILE_INFLATION)} of it fit. Save it as Parquet on a larger machine."
            )
        try:
            from aeon.datasets import load_from_arff_file, load_from_ts_file
        except ImportError:
            raise OptionError(f"{self.path} needs aeon to be read. {how_to_install('ucr')}", path=self.path) from None
        try:
            if self.path.suffix.lower() == ".arff":
                return *load_from_arff_file(str(self.path)), False
            cases, answers, header = load_from_ts_file(str(self.path), return_meta_data=True)
        except MemoryError as error:
            raise SourceTooLargeError(f"{self.path} does not fit into memory. Save it as Parquet on a larger machine.") from error
        except Exception as error:  # whatever a parser of hostile text runs into
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise self.invalid(f"cannot be read by aeon: {reason}. Fix the file, or fetch it again.") from error
        if header["timestamps"]:  # aeon reads the numbers of such a file without their signs
            raise self.invalid(
                "has time stamps, which aeon does not read. Save it as a table, such as CSV, with a column of times."
            )
        return cases, answers, header["targetlabel"]
