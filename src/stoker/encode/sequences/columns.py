"""Columns of a table from pandas, polars, Arrow, or a mapping of arrays, and their values as numbers.

A column consists of parts, each a NumPy or Arrow array that shares the memory of the table; only columns of Python objects are
converted. Numbers are read in blocks of the requested type: nothing is rounded, cut or wrapped silently. A value that cannot be
read raises an error that names its column, row and value.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker._types import Array
from stoker.errors import BadValueError, OptionError
from stoker.store import MISSING_TIME

if TYPE_CHECKING:
    import pyarrow as pa

Part = Any
"""A one-dimensional NumPy array of numbers or times, or an Arrow array."""
_SHOWN = 60
_NUMBERS, _TIMES = "biuf", "mM"


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
    def is_numpy(self) -> bool:
        """Whether the parts are NumPy arrays."""
        return isinstance(self.kind, np.dtype)

    def bad(self, row: int, value: object, reason: str) -> BadValueError:
        """The error for the value of a row (from 0)."""
        text = repr(value)
        text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        return BadValueError(f"column {self.name!r} holds {text} ({type(value).__name__}) in row {row + 1:,}, {reason}.")

    def value(self, row: int) -> object:
        """The value of a row as a Python object."""
        for part in self.parts:
            if row < len(part):
                one = part[row]
                return one.as_py() if hasattr(one, "as_py") else one.item() if isinstance(one, np.generic) else one
            row -= len(part)
        return None

    def first_value(self) -> tuple[int, object]:
        """The first value that is not missing, and its row; None where all are missing."""
        for row in range(self.num_rows):
            value = self.value(row)
            if value is not None:
                return row, value
        return 0, None


def read_columns(table: Any, *, key: str | None, columns: Sequence[str] | None) -> tuple[TableColumn | None, list[TableColumn]]:
    """The key column and the columns of values, by default all others; all have the same number of rows."""
    names, take = _open(table)
    if key is not None and key not in names:
        raise OptionError(f"the table has no column {key!r} to group by; it has {', '.join(map(str, names[:20])) or 'none'}.")
    wanted = [name for name in names if name != key] if columns is None else _checked_names(columns)
    for name in wanted:
        if name not in names:
            raise OptionError(f"the table has no column {name!r}; it has {', '.join(map(str, names[:20])) or 'none'}.")
    if not wanted:
        raise OptionError(f"the table has no column to pad besides {key!r}. Add some, or name them with columns=.")
    read = [read_column(name, take(name)) for name in ([key] if key is not None else []) + wanted]
    for column in read:
        if column.num_rows != read[0].num_rows:
            raise OptionError(
                f"column {column.name!r} has {column.num_rows:,} rows, but {read[0].name!r} has {read[0].num_rows:,}; "
                "expected the same number in all columns."
            )
    return (read[0], read[1:]) if key is not None else (None, read)


def _checked_names(columns: Any) -> list[str]:
    if isinstance(columns, str) or not isinstance(columns, Sequence) or not all(isinstance(name, str) for name in columns):
        raise OptionError(f"columns is {columns!r}; expected a list of names.")
    if len(set(columns)) < len(columns):
        double = next(name for name in columns if columns.count(name) > 1)
        raise OptionError(f"columns names {double!r} twice.")
    return list(columns)


def _open(table: Any) -> tuple[list[str], Any]:
    """The names of a table, and a function from a name to its values."""
    if isinstance(table, Mapping):
        return list(table), table.__getitem__
    module = type(table).__module__.partition(".")[0]
    if type(table).__name__ == "LazyFrame":
        table = table.collect()
    if module == "pandas" and hasattr(table, "columns"):
        return _open_pandas(table)
    names = getattr(table, "column_names", None) or getattr(table, "columns", None)
    if module == "pyarrow" and names is not None:
        _refuse_doubles(names)
        return list(names), table.column
    if module == "polars" and names is not None:
        return list(names), table.get_column
    raise OptionError(
        f"the table is a {type(table).__name__}; expected a pandas or polars frame, an Arrow table, or a mapping of arrays. "
        "For files, use pack_sequences."
    )


def _open_pandas(frame: Any) -> tuple[list[str], Any]:
    names, levels = list(frame.columns), [name for name in frame.index.names if name is not None]
    _refuse_doubles(names)

    def take(name: str) -> Any:
        return frame[name] if name in names else frame.index.get_level_values(name)

    return [*names, *(name for name in levels if name not in names)], take


def _refuse_doubles(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        double = next(name for name in names if list(names).count(name) > 1)
        raise OptionError(f"the table has two columns named {double!r}. Rename one of them.")


def read_column(name: str, given: Any) -> TableColumn:
    """Open one column."""
    module = type(given).__module__.partition(".")[0]
    if isinstance(given, Mapping) or hasattr(given, "columns") or hasattr(given, "column_names"):
        raise OptionError(f"column {name!r} is a table ({type(given).__name__}); expected one column.")
    if module == "torch":
        given = given.detach().numpy()
    elif isinstance(given, range):
        given = np.arange(given.start, given.stop, given.step)
    elif module == "pandas":
        given = _from_pandas(given)
    elif isinstance(given, list | tuple):
        given = _from_list(given)
    if isinstance(given, np.ndarray):
        if given.ndim != 1:
            raise OptionError(f"column {name!r} has {given.ndim} axes, shape {given.shape}; expected one value per row.")
        if isinstance(given, np.ma.MaskedArray):
            return _from_arrow(name, _arrow_array(name, given))
        if given.dtype.kind in _NUMBERS + _TIMES and given.dtype.itemsize <= 8:
            return TableColumn(name=name, parts=[given], kind=given.dtype)
        return _from_arrow(name, _arrow_array(name, given))
    return _from_arrow(name, given)


def _from_pandas(given: Any) -> Any:
    """The NumPy array of a column without a copy, or an Arrow array for the types of pandas."""
    if isinstance(given.dtype, np.dtype):
        return given.to_numpy()
    import pyarrow as pa

    if isinstance(given.dtype, sys.modules["pandas"].DatetimeTZDtype):
        return given.dt.tz_convert(None).to_numpy() if hasattr(given, "dt") else given.tz_convert(None).to_numpy()
    return pa.array(getattr(given, "array", given), from_pandas=True)


def _from_list(given: Sequence[Any]) -> Array:
    """As objects, so that mixed types are checked: NumPy would turn 1 and "a" into strings."""
    objects = np.empty(len(given), dtype=object)
    objects[:] = given
    return objects


def _from_arrow(name: str, given: Any) -> TableColumn:
    import pyarrow as pa

    if not isinstance(given, pa.Array | pa.ChunkedArray):
        if hasattr(given, "to_arrow"):
            given = given.to_arrow()
        elif hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__"):
            given = pa.chunked_array(given)
        elif hasattr(given, "__array__"):
            return read_column(name, np.asarray(given))
        else:
            raise OptionError(f"column {name!r} is a {type(given).__name__}; expected an array or a column of a table.")
    chunks, kind = ([given], given.type) if isinstance(given, pa.Array) else (given.chunks, given.type)
    if isinstance(kind, pa.BaseExtensionType):
        chunks, kind = [chunk.storage for chunk in chunks], kind.storage_type
    return TableColumn(name=name, parts=chunks, kind=kind)


def _arrow_array(name: str, values: Array) -> Any:
    """Python objects and NumPy strings as Arrow values of one type."""
    import pyarrow as pa

    if values.dtype == object:
        _refuse_mixture(name, values)
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        column = TableColumn(name=name, parts=[values], kind=values.dtype)
        row, value = column.first_value()
        raise column.bad(row, value, "expected a number or a string. Convert it first") from None


def _refuse_mixture(name: str, values: Array) -> None:
    """Raise an error for objects of different types; the row is searched only then."""
    kinds = {kind for kind in set(map(type, values)) if not _is_missing_type(kind)}
    if (
        len(kinds) < 2
        or kinds <= {float, np.float64}
        or all(issubclass(kind, np.integer | int) and kind is not bool for kind in kinds)
    ):
        return
    first: object = None
    for row, value in enumerate(values):
        if _is_missing_type(type(value)) or value != value:
            continue
        if first is None:
            first = value
        elif type(value) is not type(first):
            column = TableColumn(name=name, parts=[values], kind=values.dtype)
            raise column.bad(row, value, f"but {type(first).__name__} in the rows before. Use one type per column")


def _is_missing_type(kind: type) -> bool:
    return kind is type(None) or (kind.__name__ in ("NAType", "NaTType") and kind.__module__.startswith("pandas."))


# ---- numbers: the values of a column, block by block, in the type of the tensors ----
#
# A missing value is NaN in floats and the smallest int64 in times; integers have no such value, so there it is an error. A column
# that has the right type already is one block, without a copy.

BLOCK_ROWS = 1 << 16
"""Rows that are converted at a time: they stay in the L2 cache until they are used."""


def number_type(column: TableColumn) -> np.dtype[Any]:
    """The type of a column's numbers; times are int64. Raises `BadValueError` for other types."""
    if isinstance(column.kind, np.dtype):
        return np.dtype(np.int64) if column.kind.kind in "mM" else column.kind.newbyteorder("=")
    import pyarrow as pa

    kind = column.kind
    if _is_time(kind):
        return np.dtype(np.int64)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        found: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return found
    row, value = column.first_value()
    if value is None:
        raise BadValueError(f"column {column.name!r} has no values (type {kind}); expected numbers. Leave it out of columns=.")
    raise column.bad(row, value, f"and its type is {kind}; expected a number. Encode it first")


def number_blocks(column: TableColumn, dtype: np.dtype[Any], *, truncate: bool = False) -> Iterator[tuple[int, Array]]:
    """The first row of each block and its values, contiguous and of `dtype`; `truncate` drops fractions."""
    start = 0
    for part in column.parts:
        size = max(len(part), 1) if _is_plain(part, dtype) else BLOCK_ROWS
        for begin in range(0, len(part), size):
            values, gaps = plain_values(part[begin : begin + size])
            if values.dtype != dtype or gaps is not None:
                values = _converted(column, start + begin, values, gaps, dtype, truncate)
            yield start + begin, np.ascontiguousarray(values)
        start += len(part)


def _is_plain(part: Any, dtype: np.dtype[Any]) -> bool:
    """Whether a part can be used as it is."""
    if isinstance(part, np.ndarray):
        return part.dtype.kind in "biuf" and part.dtype == dtype and part.flags.c_contiguous and part.flags.aligned
    import pyarrow as pa

    return not part.null_count and not pa.types.is_boolean(part.type)


def plain_values(part: Any) -> tuple[Array, Array | None]:
    """A part as NumPy numbers (times as int64), and which of them are missing; NaN is not counted as missing."""
    if isinstance(part, np.ndarray):
        if part.dtype.kind not in "mM":
            return part if part.dtype.isnative else part.astype(part.dtype.newbyteorder("=")), None
        numbers = np.ascontiguousarray(part, dtype=part.dtype.newbyteorder("=")).view(np.int64)
        gaps = numbers == MISSING_TIME
        return numbers, gaps if gaps.any() else None
    import pyarrow as pa
    import pyarrow.compute as pc

    from stoker.store import to_numpy

    gaps = to_numpy(pc.is_null(part)) if part.null_count else None
    if _is_time(part.type):
        part = part.view(pa.int32() if part.type.bit_width == 32 else pa.int64())
    return to_numpy(part), gaps


def plain_gaps(part: Any) -> Array | None:
    """Which values of a part are missing, NaN and NaT too; None where none is."""
    if isinstance(part, np.ndarray):
        gaps = np.isnan(part) if part.dtype.kind == "f" else np.isnat(part) if part.dtype.kind in "mM" else None
    else:
        import pyarrow.compute as pc

        from stoker.store import to_numpy

        gaps = to_numpy(pc.is_null(part, nan_is_null=True))
    return gaps if gaps is not None and gaps.any() else None


def _is_time(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_temporal(kind)) and not pa.types.is_interval(kind)


def _converted(column: TableColumn, row: int, values: Array, gaps: Array | None, dtype: np.dtype[Any], truncate: bool) -> Array:
    is_time = column.kind.kind in "mM" if isinstance(column.kind, np.dtype) else _is_time(column.kind)
    if gaps is not None and not is_time and dtype.kind != "f":
        raise column.bad(row + int(gaps.argmax()), None, f"which {dtype} cannot hold. Fill the gaps, or pass dtype='float64'")
    result = cast_numbers(column, row, values, gaps, dtype, truncate=truncate)
    if gaps is not None:
        result[gaps] = np.nan if dtype.kind == "f" else MISSING_TIME
    return result


def cast_numbers(
    column: TableColumn, row: int, values: Array, gaps: Array | None, dtype: np.dtype[Any], *, truncate: bool = False
) -> Array:
    """A copy in another type, each value checked except missing ones. `row` is that of the first value."""
    with np.errstate(all="ignore"):
        result = values.astype(dtype)
        # NumPy calls the cast from 64-bit integers to float64 safe, which it is not.
        if values.dtype == dtype or (values.dtype.itemsize < 8 and np.can_cast(values.dtype, dtype, casting="safe")):
            return result
        bad = _differs(values, result, truncate)
    if gaps is not None:
        bad &= ~gaps
    if bad.any():
        i = int(bad.argmax())
        raise column.bad(row + i, values[i].item(), f"which {dtype} cannot hold. Choose another dtype, or fix the row")
    return result


def _differs(values: Array, result: Array, truncate: bool) -> Array:
    """Which numbers differ after a cast; floats may round to narrower floats, but not overflow."""
    source, target = values.dtype.kind, result.dtype.kind
    if source == "f" and target == "f":
        return np.asarray(np.isfinite(values) & ~np.isfinite(result))
    if target == "b":
        return np.asarray((values != 0) & (values != 1))
    if source == "f":
        whole = np.trunc(values.astype(np.float64))
        outside = ~_fits(whole, result.dtype)
        return outside if truncate else outside | (whole != values)
    bad = (result.astype(values.dtype) != values) | ((values < 0) != (result < 0))
    return np.asarray(bad | ~_fits(result.astype(np.float64), values.dtype) if target == "f" else bad)


def _fits(whole: Array, dtype: np.dtype[Any]) -> Array:
    """Which float64 fit an integer type; the cast of others depends on the processor."""
    bounds = np.iinfo(dtype)
    return np.asarray((whole >= float(bounds.min)) & (whole < float(bounds.max) + (0.0 if bounds.bits > 53 else 1.0)))
