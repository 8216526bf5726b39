"""Filling forward, against a loop."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from stoker.store.pack.values import fill_forward, to_bfloat16
from stoker.store.shards import MISSING_CODE, MISSING_TIME

NAN = np.array([np.nan], dtype="<f4")
KINDS = {
    "float64": (np.dtype("<f8"), np.nan),
    "float16": (np.dtype("<f2"), np.nan),
    "time": (np.dtype("<i8"), MISSING_TIME),
    "category": (np.dtype("<i4"), MISSING_CODE),
    "bfloat16": (np.dtype("<u2"), int(to_bfloat16(NAN)[0])),
}


def slow_fill(values: list[Any], starts: list[int], before: Any, gap: Any) -> list[Any]:
    last, filled = before if before is not None else gap, []
    for i, value in enumerate(values):
        if i in starts:
            last = gap
        last = last if value is None else value
        filled.append(last)
    return filled


@given(
    kind=st.sampled_from(sorted(KINDS)),
    values=st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=20),
    starts=st.sets(st.integers(0, 19)),
    before=st.one_of(st.none(), st.integers(0, 9)),
)
def test_gaps_take_the_last_value_of_their_series(
    kind: str, values: list[int | None], starts: set[int], before: int | None
) -> None:
    dtype, gap = KINDS[kind]
    begin = sorted(start for start in starts if start < len(values))
    if before is None and values:
        begin = sorted({0, *begin})
    array = np.array([gap if value is None else value for value in values], dtype=dtype)
    kept = array.copy()
    filled = fill_forward(array, np.array(begin, dtype=np.int64), before)
    assert filled.tobytes() == np.array(slow_fill(values, begin, before, gap), dtype=dtype).tobytes()
    assert array.tobytes() == kept.tobytes(), "the values given are not changed"
