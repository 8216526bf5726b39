"""Small stores for the tests of splits: series of given lengths, some with times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stoker import Store


def plain(lengths: Sequence[int]) -> Store:
    """Each value is its place in the flat column."""
    return Store.from_arrays(lengths=np.array(lengths, dtype=np.int64), x=np.arange(sum(lengths), dtype=np.float64))


def timed(times: Sequence[Sequence[int]]) -> Store:
    """Series with these times."""
    flat = np.array([time for series in times for time in series], dtype=np.int64)
    return Store.from_arrays(
        lengths=np.array([len(one) for one in times], dtype=np.int64), x=np.arange(len(flat), dtype=np.float64), t=flat
    )


class TimedStore(Store):
    """A store in memory with a time column `t`, as a packed store has one."""

    @property
    def time(self) -> str:
        """The column that orders the steps."""
        return "t"


def with_time(times: Sequence[Sequence[int]], **columns: Any) -> Store:
    """Series with these times as the time column, `x` as in `timed`, and further columns."""
    plain_store = timed(times)
    more = Store.from_arrays(lengths=plain_store.lengths, x=plain_store.column("x"), t=plain_store.column("t"), **columns)
    return TimedStore(
        more.schema,
        {name: more.column(name) for name in more.schema},
        num_series=len(more),
        length=more.uniform_length,
        offsets=None if more.uniform_length is not None else more.offsets,
        name="<memory>",
    )
