"""`Store.where`: the series for which an expression over their facts is true."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stoker._types import Array
from stoker.errors import OptionError
from stoker.store.expressions import parse_expression, stored_values, text_array
from stoker.store.shards import Column

LENGTH = "num_steps"
_PART = 1 << 18  # series handled at a time: their strings are Python objects


def find_series(expression: str, *, schema: Mapping[str, Column], values: Mapping[str, Array], offsets: Array, name: str) -> Array:
    """The numbers of the series that fulfil a condition, rising; see `Store.where`. `name` is that of the store, for messages."""
    condition = parse_expression(expression, "where")
    there = [one for one, column in schema.items() if column.level == "series"]
    for used in condition.columns:
        if used in there or (used == LENGTH and used not in schema):
            continue
        if used in schema:
            raise OptionError(
                f"where is {expression!r} and uses {used!r}, which has one value per step in {name}; series are chosen by columns "
                "with one value per series. Rows are filtered when they are packed: stoker.pack(where=…)."
            )
        raise OptionError(
            f"where is {expression!r} and uses {used!r}, but {name} has these columns per series: {', '.join([*there, LENGTH])}."
        )
    if condition.context:
        raise OptionError(f"where is {expression!r}: lag and diff need steps, but series are chosen by one value each.")
    columns = [schema[used] for used in condition.columns if used in schema]
    for column in columns:
        if column.width is not None:
            raise OptionError(f"where uses {column.name!r}, which has {column.width} values per series; expected one.")
    texts = {one.name: text_array(list(one.texts)) for one in columns if one.kind == "category" and one.texts is not None}
    found = [np.empty(0, dtype=np.int64)]
    num_series = len(offsets) - 1
    for start in range(0, num_series, _PART):
        stop = min(start + _PART, num_series)
        known = {one.name: _values(one, values, start, stop, texts.get(one.name)) for one in columns}
        if LENGTH not in schema:
            known[LENGTH] = np.diff(offsets[start : stop + 1])
        found.append(np.flatnonzero(condition.evaluate_rows(known, np.zeros(stop - start, dtype=np.int64))) + start)
    return np.concatenate(found)


def _values(column: Column, values: Mapping[str, Array], start: int, stop: int, texts: Array | None) -> Array:
    """One value per series, as expressions take them."""
    if column.kind == "text" and column.texts is not None:
        found = np.empty(stop - start, dtype=object)
        found[:] = column.texts[start:stop]
        return found
    return stored_values(values[column.name][start:stop], column.kind, column.unit, texts)
