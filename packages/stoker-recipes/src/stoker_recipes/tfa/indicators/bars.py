"""Bars in, features out: tables and stores of bars as columns of numbers, checks of their order, and `FeatureFrame`.

pandas, polars, Arrow, mappings of arrays or a store become columns and the bounds of each series, without a copy where values are
numbers already. A value that cannot be read is named with its column and row, a missing column with the feature that needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stoker.errors import BadValueError, OptionError, TimeOrderError
from stoker.extend import Array
from stoker.store import Store, decimals_as_floats
from stoker_recipes.tfa.indicators.spec import Spec

_SHOWN_COLUMNS = 20


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Columns of bars. In the order of `order` (or as they are) series are consecutive."""

    columns: dict[str, Array]
    """By the names of program.BAR; numbers of any type."""
    offsets: Array
    """Where each series begins, and the end of the last; int64."""
    order: Array | None = None
    """Row numbers, series by series; None where the rows are in this order."""

    @property
    def num_rows(self) -> int:
        """Bars of all series."""
        return int(self.offsets[-1])


def read_bars(bars: Any, spec: Spec, *, series: str | None = None) -> Bars:
    """Read the columns that a spec needs; `series` is the column with the series of each row."""
    if isinstance(bars, Store):
        if series is not None:
            raise OptionError(f"{bars.name} is a store, which has its own series: leave series={series!r} out.", parameter="series")
        return _store_bars(bars, spec)
    names = _names(bars)
    columns = {name: _numbers(column, bars[column]) for name, column in _needed(spec, names, "the bars").items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
        raise OptionError(f"the columns of the bars have different lengths: {shown}.", parameter="bars")
    num_rows = next(iter(lengths.values()))
    offsets, order = np.array([0, num_rows], dtype=np.int64), None
    if series is not None:
        if series not in names:
            raise OptionError(f"series names {series!r}, but the bars have the columns {_listed(names)}.", parameter="series")
        offsets, order = _group(series, bars[series])
    if offsets[-1] != num_rows:
        raise OptionError(
            f"column {series!r} has {offsets[-1]:,} rows, but {next(iter(columns))!r} has {num_rows:,}.", column=series
        )
    checked = {name: bars[name] for name in time_and_key_columns(names)}
    if type(index := getattr(bars, "index", None)).__name__ == "DatetimeIndex":
        checked["timestamp"] = index
    refuse_disorder(checked, offsets=offsets, order=order)
    return Bars(columns=columns, offsets=offsets, order=order)


def _store_bars(store: Store, spec: Spec) -> Bars:
    steps = [name for name, column in store.schema.items() if column.level == "step"]
    columns = {}
    for name, source in _needed(spec, steps, store.name).items():
        column = store.schema[source]
        if column.kind == "category":
            _refuse_text(store, source)
        if column.kind != "number" or column.width is not None:
            raise OptionError(
                f"column {source!r} of {store.name} holds {column.label}; expected one number per bar.", column=source
            )
        columns[name] = store.column(source)
    refuse_disorder_of_store(store)
    return Bars(columns=columns, offsets=store.offsets)


def _refuse_text(store: Store, name: str) -> NoReturn:
    """One string among numbers makes a whole column strings: find it."""
    texts = list(store.texts(name))
    words = [code for code, text in enumerate(texts) if not _is_number(text)]
    rows = np.flatnonzero(np.isin(store.column(name), np.array(words or range(len(texts)))))
    place = f": {texts[int(store.column(name)[rows[0]])][:60]!r} in {place_in_store(store, int(rows[0]))}" if len(rows) else ""
    raise BadValueError(f"column {name!r} of the bars holds strings{place}; expected numbers.")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _needed(spec: Spec, names: Sequence[str], where: str) -> dict[str, str]:
    """The columns to read, by the names of a bar; case is ignored where that is unambiguous."""
    needed: dict[str, str] = {}
    for i, feature in enumerate(spec.features):
        for name in feature.reads:
            same = [name] if name in names else [column for column in names if column.lower() == name]
            if len(same) > 1:
                raise OptionError(
                    f"both {same[0]!r} and {same[1]!r} of {where} may be {name!r}: rename one of them.", parameter="bars"
                )
            if not same:
                what = f"feature {feature.name!r} ($.features[{i}]) needs a column {name!r}"
                raise OptionError(f"{what}, but the columns of {where} are {_listed(names)}.", column=name)
            needed[name] = same[0]
    return needed


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN_COLUMNS:,} more" if len(names) > _SHOWN_COLUMNS else ""
    return (", ".join(names[:_SHOWN_COLUMNS]) or "no columns") + more


def _names(bars: Any) -> list[str]:
    """The columns of a table, whatever it is."""
    if isinstance(bars, Mapping):
        return [str(name) for name in bars]
    if type(bars).__name__ == "LazyFrame":
        raise OptionError("the bars are a LazyFrame; pass the result of its collect().", parameter="bars")
    if isinstance(bars, np.ndarray) and bars.dtype.names:
        return list(bars.dtype.names)
    names = getattr(bars, "column_names", None) or getattr(bars, "columns", None)
    if names is None or not hasattr(bars, "__getitem__"):
        raise OptionError(
            f"the bars are a {type(bars).__name__}; expected a DataFrame, an Arrow table, a mapping of arrays, or a store.",
            parameter="bars",
        )
    return [str(name) for name in names]


def _numbers(name: str, column: Any) -> Array:
    """A column as a one-dimensional array of numbers, NaN where a value is missing; other values are an error."""
    values = column if isinstance(column, np.ndarray) else _from_frame(column)
    if values.ndim != 1:
        raise OptionError(f"column {name!r} has shape {values.shape}; expected one number per bar.", column=name)
    if values.dtype.kind in "biuf":
        return values
    numbers = np.empty(len(values))
    for row, value in enumerate(values):
        try:
            if isinstance(value, str | bytes | np.datetime64 | np.timedelta64):
                raise TypeError("not numeric, though NumPy would convert it")
            numbers[row] = np.nan if value is None else value
        except (TypeError, ValueError):
            raise BadValueError(
                f"column {name!r} holds {str(value)[:60]!r} ({type(value).__name__}) in row {row + 1:,}; expected a number."
            ) from None
    return numbers


def _from_frame(column: Any) -> Array:
    module = type(column).__module__.partition(".")[0]
    if module == "pandas" and not isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf":
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    if module not in ("polars", "pyarrow"):
        return np.asarray(column)
    array = _one_array(column)
    kind = array.type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if not (is_number or pa.types.is_decimal(kind) or pa.types.is_null(kind)):
        return np.array(array.to_pylist(), dtype=object)
    if pa.types.is_decimal(kind):
        array = decimals_as_floats(array)
    if array.null_count or not is_number:
        array = pc.fill_null(array.cast(pa.float64()), float("nan"))
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _one_array(column: Any) -> Any:
    """A column as one Arrow array."""
    if type(column).__module__.partition(".")[0] == "polars":
        column = column.to_arrow()
    array = column if isinstance(column, pa.Array | pa.ChunkedArray) else pa.array(column, from_pandas=True)
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _group(name: str, column: Any) -> tuple[Array, Array | None]:
    """Where each series begins, and the stable order of rows that makes series consecutive."""
    array = _one_array(column)
    if array.null_count:
        row = int(np.asarray(array.is_null().to_numpy(zero_copy_only=False)).argmax())
        raise BadValueError(f"column {name!r} is missing in row {row + 1:,}; expected the series of the row.")
    if not len(array):
        return np.zeros(1, dtype=np.int64), None
    codes = _codes(array)
    sizes = np.bincount(codes)
    sizes = sizes[sizes > 0]
    starts = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
    if len(starts) == len(sizes):  # the rows of each series are together
        return np.append(starts, len(codes)).astype(np.int64), None
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), np.argsort(codes, kind="stable")


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureFrame:
    """Features of bars, one row per bar in the order of the bars, as `features` returns them."""

    values: Array
    """float32 [bars, features], row-major. NaN where a feature is not ready (with compat="sentio": 0 or worse)."""
    spec: Spec
    offsets: Array
    """Where each series begins in `order`, and the end of the last; int64."""
    order: Array | None = None
    """Row numbers, series by series; None where the rows are in this order."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features."""
        return self.spec.names

    @property
    def first(self) -> Array:
        """The first bar of a series at which each feature is ready, if no value is missing; int64 [features]."""
        return np.array([feature.first for feature in self.spec.features], dtype=np.int64)

    @property
    def emit_from(self) -> int:
        """The first bar of a series at which all features are ready, if no value is missing."""
        return self.spec.emit_from

    @cached_property
    def ready(self) -> Array:
        """Which values are ready; bool [bars, features].

        With compat="sentio" a missing value is 0 like others, so only the first bars of a series are not ready.
        """
        if self.spec.compat is None:
            return np.asarray(np.isfinite(self.values))
        return np.asarray(self.bars_before[:, None] >= np.maximum(self.first, self.emit_from))

    @property
    def bars_before(self) -> Array:
        """Number of earlier bars of the same series for each row; int64 [bars]."""
        before: Array = np.arange(len(self), dtype=np.int64) - np.repeat(self.offsets[:-1], np.diff(self.offsets))
        if self.order is None:
            return before
        rows = np.empty_like(before)
        rows[self.order] = before
        return rows

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __getitem__(self, name: str) -> Array:
        if name not in self.names:
            raise KeyError(f"there is no feature {name!r}; there are {', '.join(self.names[:20])}.")
        column: Array = self.values[:, self.names.index(name)]
        return column

    def __array__(self, dtype: npt.DTypeLike = None, copy: bool | None = None) -> Array:
        return np.array(self.values, dtype=dtype) if copy else np.asarray(self.values, dtype=dtype)

    def __repr__(self) -> str:
        arithmetic = f"compat={self.spec.compat!r}, " if self.spec.compat else ""
        num_series = len(self.offsets) - 1
        return (
            f"<{len(self.names)} features of {len(self):,} bars in {num_series:,} series, {arithmetic}emit_from={self.emit_from}>"
        )


# ---- order: bars of several series, or not in the order of time, are errors ----
# Columns with the usual names of a time or a symbol are checked, so that an indicator never mixes symbols or runs back in time
# because an option was left out. Where a key or a time was given when a store was packed, it was checked then.

TIMES = ("ts_nyt_epoch", "ts", "ts_utc", "timestamp", "datetime", "date", "time")  # the preferred one first
KEYS = ("symbol", "ticker", "instrument")
_PIECE = 1 << 20


def time_and_key_columns(names: Sequence[str]) -> list[str]:
    """Columns that may not change within a series, and then those that may not fall.

    Beside a date, a time is one of the day, which falls every night.
    """
    clock = "time" if "date" in {name.lower() for name in names} else None
    times = [name for name in names if name.lower() in TIMES and name.lower() != clock]
    return [name for name in names if name.lower() in KEYS] + times


def refuse_disorder(columns: Mapping[str, Any], *, offsets: Array, order: Array | None) -> None:
    """Check the times and keys of a table of bars; `order` brings its rows together by series, which begin at `offsets`."""
    for name, values in columns.items():
        try:
            column = _one_array(values)
            numbers = _codes(column) if name.lower() in KEYS else _times(column)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
            continue  # neither times nor keys
        if numbers is None or len(numbers) != offsets[-1]:
            continue
        row = _first_break(name, numbers if order is None else numbers[order], offsets)
        if row is not None:
            rows = (row - 1, row) if order is None else (int(order[row - 1]), int(order[row]))
            before, behind = (f"{column[row].as_py()!s:.60} in row {row + 1:,}" for row in rows)
            _refuse(
                name, f"{behind} comes after {before}", "Sort the bars by time", f"Pass series={name!r}, or leave the column out"
            )


def refuse_disorder_of_store(store: Store) -> None:
    """Check the bars of a store; times ascend where it was packed by them."""
    steps = {name: column for name, column in store.schema.items() if column.level == "step" and column.width is None}
    for name in time_and_key_columns(list(steps)):
        kind, is_key = steps[name].kind, name.lower() in KEYS
        if kind != "category" if is_key else kind not in ("number", "timestamp") or store.time is not None:
            continue
        values = store.column(name)
        row = _first_break(name, values, store.offsets)
        if row is None:
            continue
        shown: Any = values[[row - 1, row]]
        if is_key:
            shown = [store.texts(name)[int(code)] for code in shown]
        elif unit := (steps[name].unit or "").partition(",")[0]:
            shown = shown.astype(np.int64).view(f"datetime64[{unit}]")
        advice = "Pass time={0!r} and sort=True when the bars are packed", "Pass series={0!r} when the bars are packed"
        _refuse(name, f"{shown[1]} in {place_in_store(store, row)} comes after {shown[0]}", *(text.format(name) for text in advice))


def _refuse(name: str, what: str, sort: str, part: str) -> NoReturn:
    """Raise for times that fall, or for a key that changes within a series."""
    if name.lower() in KEYS:
        raise OptionError(f"column {name!r} of the bars holds several series: {what}. {part}.", parameter="series")
    raise TimeOrderError(f"the time {name!r} of the bars falls: {what}. {sort}.")


def place_in_store(store: Store, row: int) -> str:
    """The place of a bar of a store, for messages."""
    series = int(np.searchsorted(store.offsets, row, side="right")) - 1
    of_series = f" of series {series:,}" if len(store) > 1 else ""
    return f"bar {row - int(store.offsets[series]) + 1:,}{of_series}"


def _first_break(name: str, values: Array, offsets: Array) -> int | None:
    """The first row that cannot follow the one before it in the same series: another key, or an earlier time."""
    breaks = _differs if name.lower() in KEYS else _falls
    for start in range(1, len(values), _PIECE):
        stop = min(start + _PIECE, len(values))
        rows = np.flatnonzero(breaks(values[start - 1 : stop - 1], values[start:stop])) + start
        inside = rows[offsets[np.searchsorted(offsets, rows)] != rows]
        if len(inside):
            return int(inside[0])
    return None


def _falls(before: Array, behind: Array) -> Array:
    missing = np.iinfo(behind.dtype).min if behind.dtype.kind == "i" else np.nan
    return np.asarray((behind < before) & (behind != missing))


def _differs(before: Array, behind: Array) -> Array:
    return np.asarray((before != behind) & (before >= 0) & (behind >= 0))  # a missing value has a code below 0


def _codes(array: Any) -> Array:
    encoded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    return np.asarray(pc.fill_null(encoded.indices.cast(pa.int64()), -1))


def _times(array: Any) -> Array | None:
    """Times as numbers; None where they are not times."""
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        first = str(next((text for text in array[:16].to_pylist() if text), ""))
        array = pc.cast(array, pa.timestamp("us", "UTC" if first.endswith("Z") or "+" in first else None))
    if pa.types.is_date(array.type):
        array = pc.cast(array, pa.timestamp("s"))
    if pa.types.is_timestamp(array.type):
        array = pc.fill_null(pc.cast(array, pa.int64()), np.iinfo(np.int64).min)
    if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
        return None
    return np.asarray(array.to_numpy(zero_copy_only=False))
