"""`print(feed)`: what is fed, how, and why so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.harness.flat_feed import flat_feed

from stoker import BlockShuffle, Feed, Sequences, Store, Windows


def make(view: Any, **options: Any) -> Feed:
    store = Store.from_arrays(lengths=[9, 5, 1], x=np.zeros(15, dtype=np.float32), w=np.zeros((15, 3)), y=np.arange(3))
    return flat_feed(store, view, **{"batch_size": 4, **options})


@pytest.mark.parametrize(
    ("feed", "name", "expected"),
    [
        ({"view": Sequences(6)}, "a", "batch x float32[4, steps], w float32[4, steps, 3], y int64[4]: up to 416 B"),
        ({"view": Sequences(6, layout="packed")}, "a", "batch x float32[steps], w float32[steps, 3], y int64[4]: up to 416 B"),
        ({"view": Windows(4), "dtype": "float16"}, "a", "batch x float16[4, 4], w float16[4, 4, 3], y int64[4]: 160 B"),
        ({"view": Windows(3, horizon=1), "columns": "x"}, "a", "batch x float32[4, 3], x_target [4, 1]: 64 B"),
        ({"view": Windows(4), "batch_size": 3}, "batches", "3 of 3"),
        ({"view": Windows(4), "last_batch": "drop"}, "batches", "2 of 4; the last 1 sample of an epoch is dropped"),
        ({"view": Windows(4), "last_batch": "short"}, "batches", "3 of 4; the last one has 1 sample, it is shorter"),
        (
            {"view": Windows(4), "rank": 1, "world_size": 2},
            "batches",
            "2 of 4 on each of 2 ranks (this is rank 1); the last one has 1",
        ),
        ({"view": Windows(4), "threads": 2, "prefetch": 5}, "threads", "2, 5 batches ahead"),
        ({"view": Windows(4), "residency": "device"}, "residency", "device: as given"),
        ({"view": Windows(4), "order": BlockShuffle(1, block=2, window=4)}, "order", "blocks of 2 samples, mixed in 2 windows"),
        ({"view": Windows(4, tail="drop")}, "note", "1 of 3 series have no window: they are too short."),
    ],
)
def test_a_line_of_a_summary(feed: dict[str, Any], name: str, expected: str) -> None:
    found = repr(make(**feed))
    assert expected in " ".join(found.split()), found
    assert any(text.split()[0] == name for text in found.splitlines())
