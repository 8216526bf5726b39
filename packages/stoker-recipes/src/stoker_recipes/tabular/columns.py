"""A column of values from anywhere: pandas, polars, Arrow, NumPy, tensors, or a list.

It consists of parts, each a NumPy or Arrow array that shares the memory of the table; only columns of Python objects are converted. A value
that cannot be read raises an error that names its column, row and value.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker.errors import BadValueError, OptionError
from stoker.extend import Array
from stoker.store import MISSING_TIME, to_numpy

Part = Any
"""A one-dimensional NumPy array of numbers or times, or an Arrow array."""
_SHOWN = 60
_NUMBERS, TIMES = "biuf", "mM"


@dataclass(frozen=True, kw_only=True)
class TableColumn:
    """One column: parts end to end, all NumPy or all Arrow."""

    name: str
    parts: Sequence[Part]
    kind: np.dtype[Any] | pa.DataType
    """The type of all parts: a NumPy dtype for NumPy arrays, an Arrow type for Arrow arrays."""

    @property
    def num_rows(self) -> int:
        """Rows of all parts."""
        return sum(map(len, self.parts))

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"column {self.name!r}" if self.name else "the column"

    def bad(self, row: int, value: object, reason: str) -> BadValueError:
        """The error for the value of a row (from 0)."""
        text = " ".join(repr(value).split())  # a repr may have several lines
        text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        return BadValueError(f"{self.label} holds {text} ({type(value).__name__}) in row {row + 1:,}, {reason}.")

    def value(self, row: int) -> object:
        """The value of a row as a Python object."""
        for part in self.parts:
            if row < len(part):
                value = part[row]
                return value.as_py() if hasattr(value, "as_py") else value.item() if isinstance(value, np.generic) else value
            row -= len(part)
        return None

    def first_value(self) -> tuple[int, object]:
        """The first value that is not missing, and its row; None where all are missing."""
        values = ((row, self.value(row)) for row in range(self.num_rows))
        return next((value for value in values if value[1] is not None), (0, None))


def read_column(name: str, source: Any) -> TableColumn:
    """Open one column."""
    module = type(source).__module__.partition(".")[0]
    if isinstance(source, Mapping) or hasattr(source, "columns") or hasattr(source, "column_names"):
        raise OptionError(f"column {name!r} is a table ({type(source).__name__}); expected one column.", column=name)
    if module == "torch":
        try:
            source = source.detach().cpu().numpy()
        except TypeError:  # bfloat16
            raise OptionError(
                f"column {name!r} is {source.dtype}, which NumPy does not have. Convert it to float32.", column=name
            ) from None
    elif isinstance(source, range):
        source = np.arange(source.start, source.stop, source.step)
    elif module == "pandas":
        source = _from_pandas(source)
    elif isinstance(source, list | tuple):
        # As objects, so that mixed types are checked: NumPy would turn 1 and "a" into strings.
        objects = np.empty(len(source), dtype=object)
        objects[:] = source
        source = objects
    if not isinstance(source, np.ndarray):
        return _from_arrow(name, source)
    if source.ndim != 1:
        raise OptionError(f"column {name!r} has {source.ndim} axes, shape {source.shape}; expected one value per row.", column=name)
    plain = source.dtype.kind in _NUMBERS + TIMES and source.dtype.itemsize <= 8 and not isinstance(source, np.ma.MaskedArray)
    return TableColumn(name=name, parts=[source], kind=source.dtype) if plain else _from_arrow(name, _arrow_array(name, source))


def _from_pandas(source: Any) -> Any:
    """The NumPy array of a column without a copy, or an Arrow array for the types of pandas."""
    pandas = sys.modules["pandas"]
    if isinstance(source.dtype, np.dtype):
        return source.to_numpy()
    if isinstance(source.dtype, pandas.SparseDtype):
        return np.asarray(source)
    if isinstance(source.dtype, pandas.DatetimeTZDtype):
        return source.dt.tz_convert(None).to_numpy() if hasattr(source, "dt") else source.tz_convert(None).to_numpy()
    return pa.array(getattr(source, "array", source), from_pandas=True)


def _from_arrow(name: str, source: Any) -> TableColumn:
    if not isinstance(source, pa.Array | pa.ChunkedArray):
        if hasattr(source, "to_arrow"):
            source = source.to_arrow()
        elif hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__"):
            source = pa.chunked_array(source)
        elif hasattr(source, "__array__"):
            return read_column(name, np.asarray(source))
        else:
            raise OptionError(
                f"column {name!r} is a {type(source).__name__}; expected an array or a column of a table.", column=name
            )
    chunks, kind = ([source], source.type) if isinstance(source, pa.Array) else (source.chunks, source.type)
    if isinstance(kind, pa.BaseExtensionType):
        chunks, kind = [chunk.storage for chunk in chunks], kind.storage_type
    return TableColumn(name=name, parts=chunks, kind=kind)


def _arrow_array(name: str, values: Array) -> Any:
    """Python objects and NumPy strings as Arrow values of one type; the row of a wrong one is searched only then."""
    column = TableColumn(name=name, parts=[values], kind=values.dtype)
    kinds = {kind for kind in set(map(type, values)) if not _is_missing_type(kind)} if values.dtype == object else set()
    whole = all(issubclass(kind, np.integer | int) and kind is not bool for kind in kinds)
    if len(kinds) > 1 and not kinds <= {float, np.float64} and not whole:
        first: object = None
        for row, value in enumerate(values):
            if _is_missing_type(type(value)) or value != value:
                continue
            if first is None:
                first = value
            elif type(value) is not type(first):
                raise column.bad(row, value, f"but {type(first).__name__} in the rows before. Use one type per column")
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        raise column.bad(*column.first_value(), "expected a number or a string. Convert it first") from None


def _is_missing_type(kind: type) -> bool:
    return kind is type(None) or (kind.__name__ in ("NAType", "NaTType") and kind.__module__.startswith("pandas."))


def plain_values(part: Any) -> tuple[Array, Array | None]:
    """A part as NumPy numbers (times as int64), and which of them are missing; NaN is not counted as missing."""
    if isinstance(part, np.ndarray):
        if part.dtype.kind not in "mM":
            return part if part.dtype.isnative else part.astype(part.dtype.newbyteorder("=")), None
        numbers = np.ascontiguousarray(part, dtype=part.dtype.newbyteorder("=")).view(np.int64)
        gaps = numbers == MISSING_TIME
        return numbers, gaps if gaps.any() else None
    gaps = to_numpy(pc.is_null(part)) if part.null_count else None
    if is_time(part.type):
        part = part.view(pa.int32() if part.type.bit_width == 32 else pa.int64())
    return to_numpy(part), gaps


def is_time(kind: Any) -> bool:
    """Whether values of a type are times, dates or durations."""
    if isinstance(kind, np.dtype):
        return kind.kind in TIMES
    return bool(pa.types.is_temporal(kind)) and not pa.types.is_interval(kind)
