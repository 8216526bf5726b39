"""A store of four series and feeds of windows over it, for the tests of all adapters."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.harness.flat_feed import flat_feed

import stoker

LENGTH, HORIZON = 6, 2
VIEW = stoker.Windows(LENGTH, horizon=HORIZON, tail="drop")


def store() -> stoker.Store:
    rng = np.random.default_rng(0)
    lengths = (12, 9, 15, 10)
    return stoker.Store.from_arrays(
        load=[rng.normal(size=n).astype(np.float32) for n in lengths],
        hour=[(np.arange(n) % 24).astype(np.float32) for n in lengths],
        size=np.arange(4, dtype=np.float32),
    )


def feed(**options: Any) -> stoker.Feed:
    return flat_feed(store(), VIEW, **{"batch_size": 4, "last_batch": "drop", "dtype": "float32", **options})
