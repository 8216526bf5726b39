"""The calendar: what hour, weekday or month each time is, in a time zone, as numbers that a model takes; and days as dates and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker.errors import OptionError
from stoker.extend import Array

Encoding = Literal["cyclic", "scaled", "ordinal"]

FEATURES = {
    "second": (0, 59),
    "minute": (0, 59),
    "hour": (0, 23),
    "weekday": (0, 6),
    "day": (1, 31),
    "dayofyear": (1, 366),
    "week": (1, 53),
    "month": (1, 12),
    "quarter": (1, 4),
}
"""Each feature with its smallest and largest value; Monday is weekday 0, weeks are those of ISO 8601."""

_DEFAULT = ("hour", "weekday", "dayofyear")


def calendar(
    times: Array,
    features: Sequence[str] = _DEFAULT,
    *,
    encoding: Encoding = "cyclic",
    timezone: str | None = None,
    unit: str | None = None,
) -> Array:
    """The calendar features of times, as float32.

    Args:
        times: datetime64 values, or int64 since 1970 in `unit`, as a store keeps them.
        features: Names: second, minute, hour, weekday (Monday is 0), day, dayofyear, week (ISO 8601), month, quarter.
        encoding: "cyclic" gives sine and cosine of each feature's place in its cycle, so that 23:00 is near 00:00; "scaled" gives
            one value from -0.5 to 0.5; "ordinal" the number itself.
        timezone: Times are UTC; a name like "Europe/Berlin" gives the features of the local time there, with daylight saving.
        unit: The unit of int64 times: "s", "ms", "us" or "ns".

    Returns:
        An array of one row per time, with one column per feature (two for "cyclic"). Missing times (NaT) become NaN.

    Raises:
        OptionError: A name, type or time zone is unknown.

    Example:
        >>> import numpy as np
        >>> from stoker_recipes.tabular import calendar
        >>> times = np.array(["2026-07-01T22:30", "2026-07-02T05:00"], dtype="datetime64[s]")
        >>> calendar(times, ["hour", "weekday"], encoding="ordinal", timezone="Europe/Berlin").tolist()
        [[0.0, 3.0], [7.0, 3.0]]
    """
    unknown = [name for name in features if name not in FEATURES]
    if unknown or not features:
        raise OptionError(f"features is {list(features)!r}; expected names of {', '.join(FEATURES)}.")
    if encoding not in ("cyclic", "scaled", "ordinal"):
        raise OptionError(f"encoding is {encoding!r}; expected 'cyclic', 'scaled' or 'ordinal'.")
    moments = _as_timestamps(np.asarray(times), unit)
    missing = np.isnat(moments)
    try:
        local = (
            pc.local_timestamp(pa.array(moments).cast(pa.timestamp(_unit_of(moments), timezone))) if timezone else pa.array(moments)
        )
    except (pa.ArrowInvalid, ValueError):
        raise OptionError(f"timezone is {timezone!r}; expected a name like 'UTC' or 'Europe/Berlin'.") from None
    columns = []
    for name in features:
        least, most = FEATURES[name]
        values = _field(name, local)
        if encoding == "ordinal":
            columns.append(values)
        elif encoding == "scaled":
            columns.append((values - least) / (most - least) - 0.5)
        else:
            angle = 2 * np.pi * (values - least) / (most - least + 1)
            columns += [np.sin(angle), np.cos(angle)]
    result = np.stack(columns, axis=1).astype(np.float32)
    result[missing] = np.nan
    return result


def _field(name: str, local: pa.Array) -> Array:
    functions = {
        "weekday": pc.day_of_week, "dayofyear": pc.day_of_year, "week": pc.iso_week, "quarter": pc.quarter,
        "second": pc.second, "minute": pc.minute, "hour": pc.hour, "day": pc.day, "month": pc.month,
    }  # fmt: skip
    values: Array = functions[name](local).fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64)
    return values


def _unit_of(moments: Array) -> str:
    return np.datetime_data(moments.dtype)[0]


def _as_timestamps(times: Array, unit: str | None) -> Array:
    if times.ndim != 1:
        raise OptionError(f"times has {times.ndim} dimensions; expected 1.")
    if times.dtype.kind == "M":
        coarse = _unit_of(times) not in ("s", "ms", "us", "ns")
        return times.astype("datetime64[s]") if coarse else times
    if times.dtype != np.int64 or unit is None:
        raise OptionError(f"times has the type {times.dtype} and unit is {unit!r}; expected datetime64, or int64 with unit='ns'.")
    if unit not in ("s", "ms", "us", "ns"):
        raise OptionError(f"unit is {unit!r}; expected 's', 'ms', 'us' or 'ns'.")
    return times.view(f"datetime64[{unit}]")  # the smallest int64, which marks a missing time, is NaT


def split_days(days: Any) -> tuple[Any, Any, Any]:
    """Split numbers of days since 1970 into year, month and day of the proleptic Gregorian calendar.

    Args:
        days: An integer, or an array of them.

    Example:
        >>> [part.item() for part in split_days(-1)]
        [1969, 12, 31]
    """
    dates = np.asarray(days).astype("M8[D]")
    firsts = dates.astype("M8[M]")
    months = firsts.astype(np.int64)
    return months // 12 + 1970, months % 12 + 1, (dates - firsts).astype(np.int64) + 1


def join_days(year: Any, month: Any, day: Any) -> Any:
    """Join year, month and day to numbers of days since 1970; a month beyond 12 is one of the years after it.

    Args:
        year: An integer, or an array of them.
        month: The same, from 1.
        day: The same, from 1.

    Example:
        >>> join_days(1969, 12, 31).item()
        -1
    """
    firsts = np.asarray((year - 1970) * 12 + month - 1).astype("M8[M]").astype("M8[D]")
    return firsts.astype(np.int64) + day - 1
