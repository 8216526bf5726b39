"""Small stores for the tests of splits: series of given lengths, some with times."""

from __future__ import annotations

from collections.abc import Sequence

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
