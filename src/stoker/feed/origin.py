"""Origin: where the samples of a batch come from in the store, in words, and which of them hold no numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.feed.columns import FedColumn
from stoker.order.samples import Samples

Array = npt.NDArray[Any]

SHOWN = 4


def describe(samples: Samples, columns: list[FedColumn], numbers: Array, *, name: str, first_steps: Array) -> str:
    """The samples with values that are not finite, or (where all are) the first ones; `first_steps` is where each series begins."""
    where = samples.locate(numbers)
    rows = list(zip(numbers.tolist(), where.series.tolist(), where.starts.tolist(), where.counts.tolist(), strict=True))
    bad = [(row, found) for row in rows if (found := _first_not_finite(columns, row)) is not None]
    if bad:
        told = [
            f"sample {number:,}: {column} of series {series:,} is {value} at step {step - int(first_steps[series]):,}"
            for (number, series, _, _), (column, step, value) in bad[:SHOWN]
        ]
        return f"{'; '.join(told)}{'; …' if len(bad) > SHOWN else ''} in {name}"
    told = []
    for number, series, start, count in rows[:SHOWN]:
        begin = start - int(first_steps[series])
        told.append(f"{number:,} (series {series:,}, steps {begin:,} to {begin + count - 1:,})")
    return f"samples {', '.join(told)}{', …' if len(rows) > SHOWN else ''} of {name}"


def _first_not_finite(columns: list[FedColumn], row: tuple[int, int, int, int]) -> tuple[str, int, float] | None:
    _, series, start, count = row
    for column in columns:
        if not np.issubdtype(column.values.dtype, np.floating):
            continue
        begin, end = (start, start + count) if column.level == "step" else (series, series + 1)
        values = column.values[begin:end]
        bad = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(1))
        if len(bad):
            value = values[bad[0]].reshape(-1)
            return column.name, int(begin + bad[0]) if column.level == "step" else start, float(value[~np.isfinite(value)][0])
    return None
