"""Where times do not rise: reads the sources again to name both rows. Errors may be slow; packs may not."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker.errors import TimeDisorder
from stoker.store.packing.field import Field
from stoker.store.packing.plan import Plan
from stoker.store.packing.run import Disorder, Key
from stoker.store.packing.values import one_array, to_numbers
from stoker.store.sharing import from_numpy, to_numpy
from stoker.store.sources.source import Place


def explain_disorder(plan: Plan, found: Disorder) -> TimeDisorder:
    """The first two rows of the series whose times do not rise, by file and row."""
    index = plan.time_index
    field = plan.step[index if index is not None else 0]
    last: tuple[str, Any, str] | None = None
    rows_before = 0
    for number, source in enumerate(plan.sources):
        if plan.grouping == "file" and number != found.key:
            continue
        rows_here = 0
        for task in source.read(plan.schema, start=Place(), chunk_bytes=plan.options.chunk_bytes):
            chunk = task()
            rows_here = chunk.end.row
            column = one_array(chunk.table.column(field.name))
            for row in _rows_of(plan, chunk.table, found, rows_before + chunk.begin.row):
                place = f"row {chunk.begin.row + row + 1:,} of {source.label}"
                values = column[row].values if plan.rows_are_series else column.slice(row, 1)
                for shown, time in zip(values.to_pylist(), to_numbers(values, field, partial(_here, place)).tolist(), strict=True):
                    if last is not None and not last[1] < time:
                        return _error(plan, found, field.name, last, (place, time, str(shown)))
                    last = (place, time, str(shown))
        rows_before += rows_here
    return TimeDisorder(
        f"the times of series {found.key!r} do not rise: {found.before} is followed by {found.behind}. Pass --sort."
    )


def _rows_of(plan: Plan, table: pa.Table, found: Disorder, rows_before: int) -> list[int]:
    """Rows of a chunk that belong to the series."""
    if plan.key is not None:
        keys = one_array(table.column(plan.key.name))
        if pa.types.is_dictionary(keys.type):
            keys = keys.dictionary_decode()
        if plan.key.kind == "timestamp":
            keys = from_numpy(to_numbers(keys, plan.key, str))
        same = pc.fill_null(pc.equal(keys, pa.scalar(found.key, keys.type)), False)
        return [int(i) for i in np.flatnonzero(to_numpy(same))]
    if plan.grouping == "row":
        row = int(found.key) - rows_before
        return [row] if 0 <= row < table.num_rows else []
    return list(range(table.num_rows))


def _error(plan: Plan, found: Disorder, name: str, before: tuple[str, Any, str], behind: tuple[str, Any, str]) -> TimeDisorder:
    series = f" of {plan.key.name} {_shown_key(plan.key, found.key)}" if plan.key is not None else ""
    relation = "equals" if before[1] == behind[1] else "is before"
    return TimeDisorder(
        f"the time {name!r}{series} does not rise: {behind[2]} in {behind[0]} {relation} {before[2]} in {before[0]}. "
        "Fix the rows, or pass --sort."
    )


def _shown_key(field: Field, key: Key) -> str:
    if field.kind != "timestamp":
        return repr(key)
    return str(np.array([key], dtype=np.int64).view(f"datetime64[{(field.unit or 's').partition(',')[0]}]")[0])


def _here(place: str, _: int) -> str:
    return place
