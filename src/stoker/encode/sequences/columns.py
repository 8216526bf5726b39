"""Columns of a table, wherever the table comes from: pandas, polars, Arrow, or a mapping of arrays.

They stand before the grouping. A column is parts, each a NumPy or an Arrow array that shares the table's memory; only a column
of Python objects is converted. Law: what cannot be read names column, row and value in one line.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stoker.errors import BadValue, OptionError

if TYPE_CHECKING:
    import pyarrow as pa

Array = npt.NDArray[Any]
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
    """The type of all parts: one of NumPy for NumPy arrays, one of Arrow for Arrow's."""

    @property
    def num_rows(self) -> int:
        """Rows of all parts."""
        return sum(map(len, self.parts))

    @property
    def is_numpy(self) -> bool:
        """Whether the parts are NumPy arrays."""
        return isinstance(self.kind, np.dtype)

    def bad(self, row: int, value: object, reason: str) -> BadValue:
        """The error for the value of a row, counted from 0."""
        text = repr(value)
        text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        return BadValue(f"column {self.name!r} holds {text} ({type(value).__name__}) in row {row + 1:,}, {reason}.")

    def value(self, row: int) -> object:
        """The value of a row, as Python has it."""
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
    """The key's column and the columns of values, by default all beside the key; all have the same number of rows."""
    names, take = _open(table)
    if key is not None and key not in names:
        raise OptionError(f"the table has no column {key!r} to group by; it has {', '.join(map(str, names[:20])) or 'none'}.")
    wanted = [name for name in names if name != key] if columns is None else _checked_names(columns)
    for name in wanted:
        if name not in names:
            raise OptionError(f"the table has no column {name!r}; it has {', '.join(map(str, names[:20])) or 'none'}.")
    if not wanted:
        raise OptionError(f"no column is left to pad beside {key!r}. Name some with columns=.")
    read = [read_column(name, take(name)) for name in ([key] if key is not None else []) + wanted]
    for column in read:
        if column.num_rows != read[0].num_rows:
            raise OptionError(
                f"column {column.name!r} has {column.num_rows:,} rows, but {read[0].name!r} has {read[0].num_rows:,}; "
                "all columns of a table are equally long."
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
        f"{type(table).__name__} is no table: give a frame of pandas or polars, an Arrow table, or a mapping of arrays. "
        "Files become a store with pack_sequences(…)."
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
    """See one column as parts."""
    module = type(given).__module__.partition(".")[0]
    if isinstance(given, Mapping) or hasattr(given, "columns") or hasattr(given, "column_names"):
        raise OptionError(f"column {name!r} is a table ({type(given).__name__}), but one column is needed. Take one of it.")
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
            raise OptionError(f"column {name!r} has {given.ndim} axes, shape {given.shape}; expected one value a row.")
        if isinstance(given, np.ma.MaskedArray):
            return _from_arrow(name, _arrow_array(name, given))
        if given.dtype.kind in _NUMBERS + _TIMES and given.dtype.itemsize <= 8:
            return TableColumn(name=name, parts=[given], kind=given.dtype)
        return _from_arrow(name, _arrow_array(name, given))
    return _from_arrow(name, given)


def _from_pandas(given: Any) -> Any:
    """The NumPy array of a column, or Arrow's where it is of pandas' own types; nothing that NumPy holds is copied."""
    if isinstance(given.dtype, np.dtype):
        return given.to_numpy()
    import pyarrow as pa

    if isinstance(given.dtype, sys.modules["pandas"].DatetimeTZDtype):
        return given.dt.tz_convert(None).to_numpy() if hasattr(given, "dt") else given.tz_convert(None).to_numpy()
    return pa.array(getattr(given, "array", given), from_pandas=True)


def _from_list(given: Sequence[Any]) -> Array:
    """NumPy would turn 1 and "a" into texts, so that whether they may stand side by side is looked at first."""
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
            raise OptionError(f"column {name!r} is a {type(given).__name__}, but an array or a column of a table is needed.")
    chunks, kind = ([given], given.type) if isinstance(given, pa.Array) else (given.chunks, given.type)
    if isinstance(kind, pa.BaseExtensionType):
        chunks, kind = [chunk.storage for chunk in chunks], kind.storage_type
    return TableColumn(name=name, parts=chunks, kind=kind)


def _arrow_array(name: str, values: Array) -> Any:
    """Python objects and texts of NumPy as Arrow values, all of one type."""
    import pyarrow as pa

    if values.dtype == object:
        _refuse_mixture(name, values)
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        column = TableColumn(name=name, parts=[values], kind=values.dtype)
        row, value = column.first_value()
        raise column.bad(row, value, "where a number or a text is needed. Convert it first") from None


def _refuse_mixture(name: str, values: Array) -> None:
    """One look at the types of all objects; one by one only to find the row."""
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
            raise column.bad(row, value, f"but {type(first).__name__} before it. Give the column one type")


def _is_missing_type(kind: type) -> bool:
    return kind is type(None) or (kind.__name__ in ("NAType", "NaTType") and kind.__module__.startswith("pandas."))
