"""The slow, obvious twin of a pack: what the options mean, said with lists and dicts of plain Python."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stoker.store.shards import MISSING_TIME
from stoker.store.store import Store

Row = Mapping[str, Any]
Group = tuple[Any, list[Row]]

EPOCH = dt.datetime(1970, 1, 1)


class Refused(Exception):
    """The twin's word for an input that a pack must refuse."""


def is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def slow_pack(
    rows: Sequence[Row],
    *,
    series: str | None = None,
    time: str | None = None,
    sort: bool = False,
    missing: str = "keep",
) -> list[Group]:
    """Series as (key, rows), in the order of a store. Without `series`, all rows are one series."""
    names = [name for name in rows[0] if name != series] if rows else []
    if missing == "error" and any(is_missing(row[name]) for row in rows for name in names):
        raise Refused("missing")
    if missing == "drop":
        rows = [row for row in rows if not any(is_missing(row[name]) for name in names)]
    if time is not None and any(is_missing(row[time]) for row in rows):
        raise Refused("time missing")
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[series] if series is not None else 0, []).append(row)
    ordered = [(key, _in_time(groups[key], time, sort)) for key in sorted(groups)]
    if missing == "ffill":
        ordered = [(key, _filled(group, names)) for key, group in ordered]
    return ordered


def _in_time(rows: list[Row], time: str | None, sort: bool) -> list[Row]:
    if time is None:
        return rows
    if sort:
        return sorted(rows, key=lambda row: row[time])  # stable: equal times keep the order of the rows
    if any(not a[time] < b[time] for a, b in itertools.pairwise(rows)):
        raise Refused("disorder")
    return rows


def _filled(rows: list[Row], names: Sequence[str]) -> list[Row]:
    last: dict[str, Any] = {}
    filled = []
    for row in rows:
        full = {**row, **{name: last[name] for name in names if is_missing(row[name]) and name in last}}
        last.update({name: full[name] for name in names if not is_missing(full[name])})
        filled.append(full)
    return filled


def assert_equals_twin(store: Store, expected: Sequence[Group], *, series: str | None) -> None:
    """Every number of the store, bit for bit; texts of categories by what they say, not by their codes."""
    assert len(store) == len(expected)
    assert store.lengths.tolist() == [len(rows) for _, rows in expected]
    for one, (key, rows) in zip(store, expected, strict=True):
        if series is not None:
            assert one[series] == _number(key, store.schema[series].unit)
        for name, column in store.schema.items():
            if column.level == "series":
                continue
            values = [row[name] for row in rows]
            if column.texts is not None:
                texts = list(column.texts)
                assert [None if code < 0 else texts[code] for code in one[name].tolist()] == values
            else:
                wanted = np.array([_in_band(value, column.unit) for value in values], dtype=column.dtype)
                assert one[name].tobytes() == wanted.tobytes(), f"{name} of series {key!r}"
    _assert_counts(store)


def _assert_counts(store: Store) -> None:
    """The counts of values that are not finite, and the place of the first, against the values themselves."""
    for name, column in store.schema.items():
        if column.level == "series" or column.dtype is None or column.dtype.kind != "f":
            continue
        bad = [(i, j) for i, one in enumerate(store) for j in np.flatnonzero(~np.isfinite(one[name])).tolist()]
        flat = store.column(name)
        assert column.nonfinite.nan == np.isnan(flat).sum()
        assert column.nonfinite.inf == np.isinf(flat).sum()
        assert column.nonfinite.first == (list(bad[0]) if bad else None)


PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def _number(value: Any, unit: str | None) -> Any:
    """Dates and moments as a store holds them: counts of its unit since 1970."""
    if isinstance(value, dt.date):
        moment = value if isinstance(value, dt.datetime) else dt.datetime.combine(value, dt.time())
        return round((moment - EPOCH).total_seconds()) * PER_SECOND[unit or "s"]
    return value


def _in_band(value: Any, unit: str | None) -> Any:
    if value is None:
        return math.nan if unit is None else MISSING_TIME
    return _number(value, unit)
