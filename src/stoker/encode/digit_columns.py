"""What digits are made of and what they become: a column of numbers, and the decimal places that are its columns.

`Numbers` reads one column of NumPy, pandas, polars, Arrow or a list as blocks of float64, NaN where a value is missing. Only the
current block is copied. A value that is not a number raises an error that names its column, row and value.

`Window` is the range of places from 10**max_decimal down to 10**min_decimal. Its columns are `nan`, `neg` and one `E{place}` per
place, the highest first.

Numba is not imported here, so that `stoker.encode.analyze` can use a window without it.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stoker._types import Array
from stoker.errors import BadValueError, OptionError

HIGHEST, LOWEST = 49, -20
"""Beyond these places a printed number has no digits: see docs/encoding/digits.md."""
MAX_DECIMAL, MIN_DECIMAL = 18, -8
"""The default window."""


@dataclass(frozen=True)
class Window:
    """The places from `max_decimal` down to `min_decimal`, both included."""

    max_decimal: int = MAX_DECIMAL
    min_decimal: int = MIN_DECIMAL

    def __post_init__(self) -> None:
        for name in ("max_decimal", "min_decimal"):
            object.__setattr__(self, name, _integer(name, getattr(self, name)))
        if not LOWEST <= self.min_decimal <= self.max_decimal <= HIGHEST:
            raise OptionError(
                f"max_decimal is {self.max_decimal} and min_decimal {self.min_decimal}, but places end at {HIGHEST} and {LOWEST}. "
                f"Choose {LOWEST} <= min_decimal <= max_decimal <= {HIGHEST}."
            )

    @staticmethod
    def asked(max_decimal: int | None, min_decimal: int | None) -> Window:
        """The requested window; a bound that is None is as far as possible."""
        return Window(HIGHEST if max_decimal is None else max_decimal, LOWEST if min_decimal is None else min_decimal)

    @staticmethod
    def derived(used: Collection[int], max_decimal: int | None, min_decimal: int | None) -> Window:
        """A bound that is None becomes the highest (but at least 0) or lowest place that is used, as far as the other allows."""
        lowest, highest = min(used, default=0), max(used, default=0)
        if max_decimal is None:
            max_decimal = max(highest, 0 if min_decimal is None else min_decimal)
        return Window(max_decimal, min(lowest, max_decimal) if min_decimal is None else min_decimal)

    @property
    def num_places(self) -> int:
        """Number of columns of digits."""
        return self.max_decimal - self.min_decimal + 1

    @cached_property
    def places(self) -> range:
        """The places in the order of their columns."""
        return range(self.max_decimal, self.min_decimal - 1, -1)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns."""
        return ("nan", "neg", *(f"E{place}" for place in self.places))


def _integer(name: str, given: object) -> int:
    try:
        if isinstance(given, bool):
            raise TypeError
        return operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        raise OptionError(f"{name} is {given!r}; expected an integer.") from None


# ---- a column of numbers ----

Read = Callable[[int, int, Array], Array]
"""Rows start to stop as float64: a view of them, or written to the given block."""
_SHOWN = 60


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """A column of numbers."""

    name: str | None
    num_rows: int
    read: Read
    index: Any = None
    """The index of a pandas column."""

    @staticmethod
    def of(given: Any, *, name: str | None = None) -> Numbers:
        """Open a column; `name` is its name in errors, where it has none of its own."""
        own = getattr(given, "name", None)
        label = name if name is not None or own is None or own == "" else str(own)
        module = type(given).__module__.partition(".")[0]
        is_table = hasattr(given, "columns") or hasattr(given, "column_names") or isinstance(given, str | bytes | Mapping)
        if is_table or getattr(given, "ndim", 1) != 1:
            raise OptionError(f"{_column(label)} is {_described(given)}; expected one column of numbers.")
        if module == "pandas":
            return _from_pandas(given, label)
        if isinstance(given, np.ndarray):
            return _from_array(given, label)
        if module in ("polars", "pyarrow") or hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__"):
            return _from_arrow(given, label)
        if hasattr(given, "__array__"):
            return _from_array(np.asarray(given), label)
        if not isinstance(given, Sequence):
            raise OptionError(f"{_column(label)} is {_described(given)}; expected a list, an array or a column of numbers.")
        return _from_objects(given, label)

    def blocks(self, size: int) -> Iterator[tuple[int, Array]]:
        """All rows in blocks of at most `size`: the first row, and contiguous, read-only float64 that the next block overwrites."""
        scratch = np.empty(min(size, self.num_rows), dtype=np.float64)
        for start in range(0, self.num_rows, size):
            stop = min(start + size, self.num_rows)
            values = self.read(start, stop, scratch[: stop - start])
            if not values.flags.aligned:
                values = values.copy()
            if values.flags.writeable:  # kernels are compiled for each kind of array: always pass read-only ones
                values = values.view()
                values.flags.writeable = False
            yield start, values


def infinite_value(name: str | None, row: int, value: float) -> BadValueError:
    """The error for an infinite value."""
    return _bad(name, row, value, "which has no digits. Replace infinite values, or make them missing")


def _column(name: str | None) -> str:
    return "the column" if name is None else f"column {name!r}"


def _described(given: object) -> str:
    kind = type(given)
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}" if kind.__module__ != "builtins" else f"a {kind.__name__}"


def _bad(name: str | None, row: int, value: object, reason: str) -> BadValueError:
    if isinstance(value, np.datetime64 | np.timedelta64):
        text = str(value)
    else:
        text = repr(value.item() if isinstance(value, np.generic) else value)
    text = " ".join(text.split())  # a repr may have several lines
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return BadValueError(f"{_column(name)} holds {text} ({type(value).__name__}) in row {row + 1:,}, {reason}.")


def _from_array(values: Array, name: str | None, index: Any = None) -> Numbers:
    if values.dtype == object:
        return _from_objects(values, name, index)
    if values.dtype.kind not in "iuf":
        raise _wrong_type(name, values.dtype, (values[i] for i in range(len(values))))
    mask = np.broadcast_to(values.mask, values.shape) if isinstance(values, np.ma.MaskedArray) else None
    plain = values.data if isinstance(values, np.ma.MaskedArray) else values
    shared = plain.dtype == np.float64 and plain.dtype.isnative and plain.flags.c_contiguous and mask is None

    def read(start: int, stop: int, block: Array) -> Array:
        if shared:
            return plain[start:stop]
        with np.errstate(over="ignore", invalid="ignore"):  # values that do not fit become infinite, which is found later
            np.copyto(block, plain[start:stop], casting="same_kind")
        if mask is not None:
            block[mask[start:stop]] = np.nan
        return block

    return Numbers(name=name, num_rows=len(values), read=read, index=index)


def _from_objects(values: Sequence[Any] | Array, name: str | None, index: Any = None) -> Numbers:
    def read(start: int, stop: int, block: Array) -> Array:
        for i, value in enumerate(values[start:stop]):
            if isinstance(value, float | np.floating | int | np.integer) and not isinstance(value, bool):
                try:
                    block[i] = value
                except OverflowError:
                    raise _bad(name, start + i, value, "which float64 cannot hold") from None
            elif _is_missing(value):
                block[i] = np.nan
            else:
                raise _bad(name, start + i, value, "expected a number. Convert or remove it (in pandas: pandas.to_numeric)")
        return block

    return Numbers(name=name, num_rows=len(values), read=read, index=index)


def _is_missing(value: object) -> bool:
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or (type(value).__name__ == "NAType" and type(value).__module__.startswith("pandas."))


def _from_pandas(given: Any, name: str | None) -> Numbers:
    pandas = sys.modules["pandas"]
    index = given.index if isinstance(given, pandas.Series) else None
    values = given if isinstance(given, pandas.api.extensions.ExtensionArray) else given.array
    dtype = given.dtype
    if isinstance(dtype, np.dtype):
        return _from_array(given.to_numpy(), name, index)
    if isinstance(dtype, pandas.ArrowDtype):
        return _from_arrow(values.__arrow_array__(), name, index)
    if dtype.kind not in "iuf":
        raise _wrong_type(name, dtype, iter(values))

    def read(start: int, stop: int, block: Array) -> Array:
        block[:] = values[start:stop].to_numpy(dtype=np.float64, na_value=np.nan)
        return block

    return Numbers(name=name, num_rows=len(values), read=read, index=index)


def _from_arrow(given: Any, name: str | None, index: Any = None) -> Numbers:
    import pyarrow as pa

    if isinstance(given, pa.Array):
        chunks, kind = [given], given.type
    else:
        chunked = given if isinstance(given, pa.ChunkedArray) else pa.chunked_array(given)
        chunks, kind = chunked.chunks, chunked.type
    if isinstance(kind, pa.BaseExtensionType):
        chunks, kind = [chunk.storage for chunk in chunks], kind.storage_type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind)):
        raise _wrong_type(name, kind, (value.as_py() for chunk in chunks for value in chunk))
    ends = np.cumsum([len(chunk) for chunk in chunks], dtype=np.int64)

    def read(start: int, stop: int, block: Array) -> Array:
        number = int(np.searchsorted(ends, start, side="right"))
        if stop <= ends[number]:
            return _arrow_values(chunks[number], start - int(ends[number]) + len(chunks[number]), block)
        done = 0
        while done < len(block):
            begin = int(ends[number]) - len(chunks[number])
            part = block[done : done + int(ends[number]) - start - done]
            if len(part):
                part[:] = _arrow_values(chunks[number], start + done - begin, part)
            done, number = done + len(part), number + 1
        return block

    return Numbers(name=name, num_rows=int(ends[-1]) if len(ends) else 0, read=read, index=index)


def _arrow_values(chunk: Any, start: int, block: Array) -> Array:
    """As many values as the block has, from `start` on; a view if they are float64 and none is missing."""
    import pyarrow as pa

    if pa.types.is_decimal(chunk.type):
        from stoker.store import decimals_as_floats, to_numpy

        block[:] = to_numpy(decimals_as_floats(chunk.slice(start, len(block))).fill_null(np.nan))
        return block
    validity, data = chunk.buffers() if not pa.types.is_null(chunk.type) else (None, None)
    if data is None:
        block[:] = np.nan
        return block
    size, first = len(block), chunk.offset + start
    dtype: np.dtype[Any] = np.dtype(chunk.type.to_pandas_dtype())
    values = np.frombuffer(data, dtype=dtype, count=size, offset=first * dtype.itemsize)
    if validity is None or not chunk.null_count:
        if dtype == np.float64:
            return values
        block[:] = values
    else:
        block[:] = values
        bits = np.unpackbits(np.frombuffer(validity, dtype=np.uint8, offset=first // 8), count=first % 8 + size, bitorder="little")
        block[bits[first % 8 :] == 0] = np.nan
    return block


def _wrong_type(name: str | None, kind: object, values: Iterator[Any]) -> BadValueError:
    """The error for a column of another type, with its first value."""
    for row, value in enumerate(values):
        if not _is_missing(value):
            return _bad(name, row, value, f"and its type is {kind}, not a number. Convert it to float64 or an integer type first")
    return BadValueError(
        f"{_column(name)} has the type {kind}, which is not a number. Convert it to float64 or an integer type first."
    )
