"""`Store.where`: the series for which an expression over their facts is true."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stoker._types import Array
from stoker.errors import OptionError
from stoker.store.expressions import parse_expression, stored_values, text_array

if TYPE_CHECKING:
    from stoker.store.store import Store

LENGTH = "num_steps"
_PART = 1 << 18  # series handled at a time: their strings are Python objects


def find_series(store: Store, expression: str) -> Array:
    """The numbers of the series that fulfil a condition, rising; see `Store.where`."""
    condition = parse_expression(expression, "where")
    there = [name for name, column in store.schema.items() if column.level == "series"]
    for name in condition.columns:
        if name in there or (name == LENGTH and name not in store.schema):
            continue
        if name in store.schema:
            raise OptionError(
                f"where is {expression!r} and uses {name!r}, which has one value per step in {store.name}; series are chosen by columns "
                "with one value per series. Rows are filtered when they are packed: stoker.pack(where=…)."
            )
        raise OptionError(
            f"where is {expression!r} and uses {name!r}, but {store.name} has these columns per series: {', '.join([*there, LENGTH])}."
        )
    if condition.context:
        raise OptionError(f"where is {expression!r}: lag and diff need steps, but series are chosen by one value each.")
    texts = {name: text_array(list(store.texts(name))) for name in condition.columns if _kind(store, name) == "category"}
    found = []
    for start in range(0, len(store), _PART):
        stop = min(start + _PART, len(store))
        values = {name: _values(store, name, start, stop, texts.get(name)) for name in condition.columns}
        found.append(np.flatnonzero(condition.evaluate_rows(values, np.zeros(stop - start, dtype=np.int64))) + start)
    return np.concatenate(found).astype(np.int64) if found else np.empty(0, dtype=np.int64)


def _kind(store: Store, name: str) -> str | None:
    return store.schema[name].kind if name in store.schema else None


def _values(store: Store, name: str, start: int, stop: int, texts: Array | None) -> Array:
    """One value per series, as expressions take them."""
    if name not in store.schema:
        return np.diff(store.offsets[start : stop + 1])
    column = store.schema[name]
    if column.kind == "text":
        found = np.empty(stop - start, dtype=object)
        found[:] = store.texts(name)[start:stop]
        return found
    if column.width is not None:
        raise OptionError(f"where uses {name!r}, which has {column.width} values per series; expected one.")
    return stored_values(store.column(name)[start:stop], column.kind, column.unit, texts)
