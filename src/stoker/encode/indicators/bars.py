"""Bars as they come: pandas, polars, Arrow, mappings of arrays or a store become columns of numbers and where each series lies.

It stands between what the user has and the engine. Nothing is copied that is numbers already. Law: what cannot be read names
column, row and value, what is missing names the feature that needs it, and bars that are out of order are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from stoker.encode.indicators.disorder import place_in_store, refuse_disorder, refuse_disorder_of_store, time_and_key_columns
from stoker.encode.indicators.spec import Spec
from stoker.errors import BadValue, OptionError
from stoker.store.store import Store

Array = npt.NDArray[Any]

_SHOWN_COLUMNS = 20


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Columns of bars. In the order of `order` (or as they are) the series lie one behind the other."""

    columns: dict[str, Array]
    """By the names of program.BAR; numbers of any type."""
    offsets: Array
    """Where each series begins, and the end of the last; int64."""
    order: Array | None = None
    """Row numbers, series by series; None where the rows lie so already."""

    @property
    def num_rows(self) -> int:
        """Bars of all series."""
        return int(self.offsets[-1])


def read_bars(given: Any, spec: Spec, *, series: str | None = None) -> Bars:
    """Take the columns that a spec needs; `series` names the column that tells the series apart."""
    if isinstance(given, Store):
        if series is not None:
            raise OptionError(f"{given.name} is a store, which knows its series: leave series={series!r} out.")
        return _store_bars(given, spec)
    names = _names(given)
    taken = {name: _numbers(found, given[found]) for name, found in _found(spec, names, "the bars").items()}
    lengths = {name: len(values) for name, values in taken.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
        raise OptionError(f"the columns of the bars have different lengths: {shown}.")
    num_rows = next(iter(lengths.values()))
    offsets, order = np.array([0, num_rows], dtype=np.int64), None
    if series is not None:
        if series not in names:
            raise OptionError(f"series names {series!r}, but the bars have the columns {_listed(names)}.")
        offsets, order = _group(series, given[series])
    if offsets[-1] != num_rows:
        raise OptionError(f"column {series!r} has {offsets[-1]:,} rows, but {next(iter(taken))!r} has {num_rows:,}.")
    refuse_disorder(_told(given, names), offsets=offsets, order=order)
    return Bars(columns=taken, offsets=offsets, order=order)


def _store_bars(store: Store, spec: Spec) -> Bars:
    steps = [name for name, column in store.schema.items() if column.level == "step"]
    columns = {}
    for name, found in _found(spec, steps, store.name).items():
        column = store.schema[found]
        if column.kind == "category":
            _refuse_text(store, found)
        if column.kind != "number" or column.width is not None:
            raise OptionError(f"column {found!r} of {store.name} holds {column.label}, but a number a bar is needed.")
        columns[name] = store.column(found)
    refuse_disorder_of_store(store)
    return Bars(columns=columns, offsets=store.offsets)


def _refuse_text(store: Store, name: str) -> NoReturn:
    """One text among numbers makes a whole column text: find it."""
    texts = list(store.texts(name))
    words = [code for code, text in enumerate(texts) if not _is_number(text)] or range(len(texts))
    rows = np.flatnonzero(np.isin(store.column(name), np.array(words)))
    place = f": {texts[int(store.column(name)[rows[0]])][:60]!r} in {place_in_store(store, int(rows[0]))}" if len(rows) else ""
    raise BadValue(f"column {name!r} of the bars holds text{place}, but numbers are needed.")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _found(spec: Spec, names: Sequence[str], where: str) -> dict[str, str]:
    """The columns to read, by the names of a bar; capitals do not matter where only they differ."""
    found: dict[str, str] = {}
    for i, feature in enumerate(spec.features):
        for name in feature.reads:
            same = [name] if name in names else [one for one in names if one.lower() == name]
            if len(same) > 1:
                raise OptionError(f"both {same[0]!r} and {same[1]!r} of {where} may be {name!r}: rename one of them.")
            if not same:
                raise OptionError(
                    f"feature {feature.name!r} ($.features[{i}]) needs a column {name!r}, but {where} gave only {_listed(names)}."
                )
            found[name] = same[0]
    return found


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN_COLUMNS:,} more" if len(names) > _SHOWN_COLUMNS else ""
    return (", ".join(names[:_SHOWN_COLUMNS]) or "no columns") + more


def _names(given: Any) -> list[str]:
    """The columns of a table, whatever it is."""
    if isinstance(given, Mapping):
        return [str(name) for name in given]
    if type(given).__name__ == "LazyFrame":
        raise OptionError("a LazyFrame holds no bars yet: give what its collect() returns.")
    if isinstance(given, np.ndarray) and given.dtype.names:
        return list(given.dtype.names)
    names = getattr(given, "column_names", None) or getattr(given, "columns", None)
    if names is None or not hasattr(given, "__getitem__"):
        raise OptionError(
            f"{type(given).__name__} is no table of bars: give a DataFrame, an Arrow table, a mapping of arrays, or a store."
        )
    return [str(name) for name in names]


def _told(given: Any, names: Sequence[str]) -> dict[str, Any]:
    """The columns that say which bar a row is, with the times that pandas may have as its index."""
    told = {name: given[name] for name in time_and_key_columns(names)}
    index = getattr(given, "index", None)
    return told if type(index).__name__ != "DatetimeIndex" else {**told, "timestamp": index}


def _numbers(name: str, column: Any) -> Array:
    """A column as a one-dimensional array of numbers; what is missing is NaN."""
    values = column if isinstance(column, np.ndarray) else _from_frame(name, column)
    if values.ndim != 1:
        raise OptionError(f"column {name!r} has shape {values.shape}, but one number a bar is needed.")
    if values.dtype.kind in "biuf":
        return values
    return _from_objects(name, values)


def _from_frame(name: str, column: Any) -> Array:
    module = type(column).__module__.partition(".")[0]
    if module == "polars":
        column = column.to_arrow()
        module = "pyarrow"
    if module == "pyarrow":
        return _from_arrow(name, column)
    if module == "pandas" and not isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf":
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.asarray(column)


def _from_arrow(name: str, column: Any) -> Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    from stoker.store.decimals import decimals_as_floats

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = array.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind)):
        return np.array(array.to_pylist(), dtype=object)
    if pa.types.is_decimal(kind):
        array = decimals_as_floats(array)
    if array.null_count or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        array = pc.fill_null(array.cast(pa.float64()), float("nan"))
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _from_objects(name: str, values: Array) -> Array:
    """Python objects one by one: numbers and None are taken, anything else is refused with its row."""
    numbers = np.empty(len(values))
    for row, value in enumerate(values):
        try:
            if isinstance(value, str | bytes | np.datetime64 | np.timedelta64):
                raise TypeError("no number, though NumPy would make one of it")
            numbers[row] = np.nan if value is None else value
        except (TypeError, ValueError):
            raise BadValue(
                f"column {name!r} holds {str(value)[:60]!r} ({type(value).__name__}) in row {row + 1:,}, but numbers are needed."
            ) from None
    return numbers


def _group(name: str, column: Any) -> tuple[Array, Array | None]:
    """Where each series begins, and the order of rows that brings them together; rows of a series keep theirs."""
    import pyarrow as pa

    if type(column).__module__.partition(".")[0] == "polars":
        column = column.to_arrow()
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    array = array if isinstance(array, pa.Array) else pa.array(array, from_pandas=True)
    if array.null_count:
        row = int(np.asarray(array.is_null().to_numpy(zero_copy_only=False)).argmax())
        raise BadValue(f"column {name!r} is missing in row {row + 1:,}, so that row belongs to no series.")
    if not len(array):
        return np.zeros(1, dtype=np.int64), None
    encoded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    codes = np.asarray(encoded.indices.to_numpy(zero_copy_only=False))
    counts = np.bincount(codes)
    breaks = int((codes[1:] != codes[:-1]).sum())
    together = breaks == np.count_nonzero(counts) - 1
    if together:
        starts = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
        return np.append(starts, len(codes)).astype(np.int64), None
    sizes = counts[counts > 0]
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), np.argsort(codes, kind="stable")
