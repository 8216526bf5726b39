"""The codes of mostlyai-engine for the values of a column, by its entry in stats.json.

    TABULAR_CATEGORICAL, TABULAR_NUMERIC_DISCRETE    cat: a class per value
    TABULAR_NUMERIC_DIGIT        nan, neg, E2, E1, E0, E-1, ...: a class per digit, from the smallest that occurs at its place
    TABULAR_NUMERIC_BINNED       bin: unknown, missing, the minimum, the maximum, then intervals between quantiles
    TABULAR_DATETIME             nan, year, month, day, hour, minute, second, ms_E2, ms_E1, ms_E0
    TABULAR_DATETIME_RELATIVE    nan, start_year, ..., start_second of the first date; itt_neg, itt_week, ..., itt_second since the
                                 event before

Where a value is missing codes are 0; `compat.encode` fills them as mostlyai-engine does, from random other values. One thing differs,
because there it is wrong: a missing date is filled from the same subject only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from stoker.errors import OptionError
from stoker.extend import Array
from stoker_recipes.tabular import parse_dates, parse_numbers, split_digits
from stoker_recipes.tabular.dates import first_valid, split_date
from stoker_recipes.tabular.encodings import RARE, Categorical, find_intervals
from stoker_recipes.tabular.values import Values, is_text, read_values

KINDS = {
    "TABULAR_CATEGORICAL": "text", "TABULAR_NUMERIC_AUTO": "number", "TABULAR_NUMERIC_DIGIT": "number",
    "TABULAR_NUMERIC_DISCRETE": "number", "TABULAR_NUMERIC_BINNED": "number", "TABULAR_DATETIME": "time",
    "TABULAR_DATETIME_RELATIVE": "time",
}  # fmt: skip
"""The kinds of columns, and what their values are read as. Characters and places have encodings in the recipe itself."""
NULL, MINIMUM = "<<NULL>>", "<<MIN>>"
ESCAPE = "\x01"
DATE, TIME = ("year", "month", "day"), ("hour", "minute", "second")
ITT = {"week": 7 * 86_400, "day": 86_400, "hour": 3600, "minute": 60, "second": 1}
"""Seconds of the parts of a gap."""


def encode_values(entry: Mapping[str, Any], values: Values, starts: Array) -> Array:
    """Return the codes of values, (rows, sub-columns).

    Args:
        entry: The entry of the column in stats.json.
        values: The values; those of relative dates with the events of a subject side by side.
        starts: The first row of each subject.
    """
    kind = entry["encoding_type"]
    if kind == "TABULAR_NUMERIC_DIGIT":
        return _encode_digits(entry, values)
    if kind == "TABULAR_NUMERIC_BINNED":
        return _encode_bins(entry, values)
    if kind in ("TABULAR_CATEGORICAL", "TABULAR_NUMERIC_DISCRETE"):
        return _categorical(entry, is_number=kind == "TABULAR_NUMERIC_DISCRETE").encode(values, starts)
    is_relative, low, sizes = kind == "TABULAR_DATETIME_RELATIVE", entry["min_values"], entry["cardinalities"]
    parts = relative_parts(values, starts) if is_relative else _split(values.data) | {"nan": ~values.valid}
    has_code = values.valid | is_relative
    columns = [
        parts[name] if name in ("nan", "itt_neg") else np.where(has_code, np.clip(parts[name] - low[name], 0, size - 1), 0)
        for name, size in sizes.items()
    ]
    return np.stack(columns, 1).astype(np.int64)


def _encode_digits(entry: Mapping[str, Any], values: Values) -> Array:
    highest, lowest = entry["max_decimal"], entry["min_decimal"]
    places = [f"E{place}" for place in range(highest, lowest - 1, -1)]
    low, high = (np.array([entry[name][place] for place in places]) for name in ("min_digits", "max_digits"))
    split = split_digits(np.where(values.valid, values.data, 0).astype(np.float64), max_decimal=highest, min_decimal=lowest)
    digits = np.clip(np.asarray(split.digits, np.int64) - low, 0, high - low)
    flags = [~values.valid] if entry["has_nan"] else []
    flags += [np.asarray(split.negative) > 0] if entry["has_neg"] else []
    return np.column_stack([*flags, np.where(values.valid[:, None], digits, 0)]).astype(np.int64)


def _encode_bins(entry: Mapping[str, Any], values: Values) -> Array:
    numbers, edges = values.data.astype(np.float64), np.array(entry["bins"], np.float64)
    has_null, has_ends = NULL in entry["codes"], MINIMUM in entry["codes"]  # no ends where no value may be kept
    first, inner = len(entry["codes"]), edges[1:-1]
    codes = (find_intervals(np.append(np.nextafter(inner, -np.inf), np.inf), numbers) + first).astype(np.int64)
    if len(edges) == 1:  # no interval
        codes[:] = first - 1
    if has_ends:
        codes[numbers == edges[0]] = first - 2
        codes[numbers == edges[-1]] = first - 1
    codes[~values.valid] = int(has_null)
    return codes[:, None]


def _split(data: Array) -> dict[str, Array]:
    parts = split_date(data, "us")
    millis = parts["milli"]
    return parts | {"ms_E2": millis // 100, "ms_E1": millis // 10 % 10, "ms_E0": millis % 10}


def relative_parts(values: Values, starts: Array) -> dict[str, Array]:
    """All parts of relative dates: the first date of each subject, and the seconds since the date before.

    A missing date is that of the event before, or else the first one of the subject. A subject without any has the smallest date.
    """
    rows = np.arange(len(values))
    lengths = np.diff(np.append(starts, len(values)))
    first = np.repeat(starts, lengths)
    last = np.maximum.accumulate(np.where(values.valid, rows, -1)) if len(rows) else rows
    begins = np.full(len(starts), values.data[values.valid].min() if values.valid.any() else 0)
    is_first = first_valid(values.valid, starts)
    begins[np.repeat(np.arange(len(starts)), lengths)[is_first]] = values.data[is_first]
    begin = np.repeat(begins, lengths)
    dates = np.where(last >= first, values.data[np.maximum(last, 0)], begin) if len(rows) else values.data
    millis = np.floor_divide(np.diff(dates, prepend=0), 1000)
    millis[starts[lengths > 0]] = 0
    seconds, parts = np.abs(millis) // 1000, {"nan": (~values.valid).astype(np.int64)}
    parts |= {f"start_{name}": part for name, part in _split(begin).items() if name in DATE + TIME}
    parts["itt_neg"] = (millis < 0).astype(np.int64)
    for name, scale in ITT.items():
        parts[f"itt_{name}"] = seconds // scale
        seconds = seconds % scale
    return parts


def range_of(entry: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Return the range that values are cut to, dates in microseconds; None where no value may be kept."""
    ends = entry["min"], entry["max"]
    if None in ends or KINDS[entry["encoding_type"]] != "time":
        return None if None in ends else ends
    return tuple(int(np.datetime64(end.replace(" ", "T"), "us").astype(np.int64)) for end in ends)


def _categorical(stats: Mapping[str, Any], *, is_number: bool) -> Categorical:
    tokens = list(map(str, stats["codes"]))
    known = [token.removeprefix(ESCAPE) for token in tokens if token not in (RARE, NULL)]
    if is_number and stats["min_decimal"] < 0:  # floats as Arrow writes them: 50, not 50.0
        known = pa.array([float(word) for word in known], pa.float64()).cast(pa.string()).to_pylist()
    return Categorical(values=known, has_null=NULL in tokens, has_rare=not is_number and bool(stats.get("no_of_rare_categories")))


# ---- from the column of a file to its codes ----

FILLED = ("TABULAR_NUMERIC_DIGIT", "TABULAR_DATETIME")
"""The encodings with a sub-column for missing values, whose other sub-columns are filled."""


def read_column(name: str, column: pa.ChunkedArray | pa.Array, kind: str) -> pa.Array:
    """A column as its encoding reads it: strings, int64 or float64, or microseconds in UTC.

    Raises:
        OptionError: The encoding is unknown.
        BadValueError: A value cannot be used.
    """
    if kind not in KINDS:
        raise OptionError(f"column {name!r} has the encoding {kind!r}; expected one of {', '.join(KINDS)}.")
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    read_values(name, array.slice(0, 0))  # lists and others are refused by name
    return {"text": _to_text, "number": _to_number, "time": _to_time}[KINDS[kind]](name, array)


def _to_text(name: str, array: pa.Array) -> pa.Array:
    kind = array.type
    if is_text(kind) or pa.types.is_null(kind):
        return array.cast(pa.string())
    if pa.types.is_floating(kind):  # each with the digits that its type distinguishes
        numbers = array.fill_null(float("nan")).to_numpy(zero_copy_only=False)
        return pa.array([None if number != number else str(number) for number in numbers], pa.string())
    if pa.types.is_timestamp(kind):
        texts = _to_time(name, array).cast(pa.string()).to_pylist()
        for nothing in (".000000", " 00:00:00"):  # what all of them have
            if all(text is None or text.endswith(nothing) for text in texts):
                texts = [None if text is None else text.removesuffix(nothing) for text in texts]
        return pa.array(texts, pa.string())
    return pa.array([None if value is None else str(value) for value in array.to_pylist()], pa.string())


def _to_number(name: str, array: pa.Array) -> pa.Array:
    kind = array.type
    if is_text(kind):
        array = parse_numbers(array)
        kind = array.type
    if pa.types.is_boolean(kind):
        return array.cast(pa.int8()).cast(pa.int64())
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind):
        values = read_values(name, array.cast(pa.float64()))
        return pa.array(values.data.astype(np.float64), mask=~values.valid)
    try:
        return array.cast(pa.int64())
    except pa.ArrowInvalid:  # uint64
        return array.cast(pa.float64(), safe=False)


def _to_time(name: str, array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_null(kind):
        return array.cast(pa.timestamp("us"))
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        return parse_dates(array, name)
    values = read_values(name, array)
    unit = "D" if pa.types.is_date32(kind) else "ms" if pa.types.is_date64(kind) else kind.unit
    micros = values.data // 1000 if unit == "ns" else values.data * {"D": 86_400_000_000, "s": 10**6, "ms": 1000, "us": 1}[unit]
    return pa.array(micros, mask=~values.valid).cast(pa.timestamp("us"))


def _values_of(name: str, column: pa.ChunkedArray, kind: str, *, min_decimal: int) -> Values:
    """The values of a column, for its encoding; with `min_decimal` from 0 they are rounded to integers."""
    array = read_column(name, column, kind)
    if min_decimal >= 0 and kind != "TABULAR_NUMERIC_BINNED" and pa.types.is_floating(array.type):
        values = read_values(name, array)
        if np.abs(values.data).max(initial=0) < 2**63:
            array = pa.array(np.rint(values.data).astype(np.int64), mask=~values.valid)
    is_words = KINDS[kind] == "text" or kind == "TABULAR_NUMERIC_DISCRETE"
    return read_values(name, array, family="text" if is_words else None)


def codes_of_column(name: str, column: pa.ChunkedArray, entry: Mapping[str, Any], order: Array, starts: Array) -> Array:
    """The codes of a column, as `encode` of mostlyai-engine has them.

    What belongs to a missing value is drawn from the values of the column, with `np.random`.

    Args:
        name: The column.
        column: Its values, in the order of the file.
        entry: Its entry in stats.json.
        order: The rows of the result: those of a subject side by side.
        starts: The first row of each subject, in that order.
    """
    kind = entry["encoding_type"]
    values = _values_of(name, column, kind, min_decimal=entry.get("min_decimal", -1))
    if kind == "TABULAR_DATETIME_RELATIVE":
        sorted_values = Values(family="time", data=values.data[order], valid=values.valid[order])
        return encode_values(entry, sorted_values, starts)
    if kind not in FILLED:
        return encode_values(entry, values, starts)[order]
    codes = encode_values(entry, _fill(values, range_of(entry)), starts)
    if entry["has_nan"]:
        codes[:, list(entry["cardinalities"]).index("nan")] = ~values.valid
    return codes[order]


def _fill(values: Values, limits: tuple[Any, ...] | None) -> Values:
    """Return values within the limits, with random ones of the same column where they are missing."""
    valid, data = values.valid, values.data
    if limits is not None:
        data = np.clip(data, *limits).astype(data.dtype)
    if valid.any() and not valid.all():
        distinct, first, counts = np.unique(data[valid], return_index=True, return_counts=True)
        by_count = np.lexsort((first, -counts))  # the most frequent first, ties by their first row
        chances = counts[by_count] / counts.sum()
        data = data.copy()
        data[~valid] = distinct[by_count][np.random.choice(len(distinct), size=int((~valid).sum()), p=chances)]
        valid = np.ones(len(data), bool)
    return Values(family=values.family, data=data, valid=valid, words=values.words)


def column_names(entry: Mapping[str, Any]) -> list[str]:
    """The names of the sub-columns of a column, as the model has them."""
    base = f"{entry['argn_processor']}:{entry['argn_table']}/{entry['argn_column']}"
    return [f"{base}__{name}" for name in entry["cardinalities"]]
