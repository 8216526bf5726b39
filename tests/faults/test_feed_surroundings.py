"""What is around a feed: random numbers, defaults of torch, memory. Neither changes the other."""

from __future__ import annotations

import gc
import random
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.faults.feeding import make_feed
from tests.feed.stores import every_number
from tests.harness.flat_feed import flat_feed

import stoker
from stoker import BlockShuffle, ByLength, Feed, Segments, Sequences, Shuffle, Weighted, Windows
from stoker.testing import Content, content_of, difference


def generators() -> list[Any]:
    return [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # type: ignore[union-attr]


def use_everything(folder: Path) -> None:
    """Call all that a feed offers."""
    store = every_number().save(folder / "s")
    for order in (None, Shuffle(), BlockShuffle(), ByLength(), Weighted(np.ones(len(store)))):
        for view in (Windows(4, shift=1), Segments(4), Sequences(6), Sequences(6, layout="packed")):
            for residency in ("host", "device", "stream"):
                feed = Feed(
                    store,
                    view,
                    batch_size=4,
                    order=order,
                    loading=stoker.feed.Loading(residency=residency, threads=1),
                    normalize="zero",
                    dtype="float32",
                )
                list(feed)
                feed.load_state_dict(feed.state_dict())
                repr(feed)
                if not feed.is_packed:
                    feed.as_dataset()[3]


@pytest.mark.promise("P8")
def test_no_generator_of_the_user_is_touched(tmp_path: Path) -> None:
    before = generators()
    use_everything(tmp_path)
    assert generators() == before


def test_a_generator_that_is_touched_would_be_seen() -> None:
    before = generators()
    torch.rand(1)
    assert generators() != before


def contents(**options: Any) -> list[Content]:
    made = []
    for view in (Windows(4, shift=1), Sequences(6), Sequences(6, layout="packed")):
        for residency in ("host", "device"):
            feed = flat_feed(every_number(), view, batch_size=4, order=Shuffle(), residency=residency, normalize="zero", **options)
            made += [content_of(batch) for batch in feed]
    encoded = Feed(every_number(), Windows(4), batch_size=4, transform=lambda batch: {"x": batch["xf4"], "y": batch["xf8"].mean(1)})
    return made + [content_of(batch) for batch in encoded]


@pytest.fixture
def defaults() -> Iterator[None]:
    """Puts the defaults of torch back."""
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.use_deterministic_algorithms(False)


@pytest.mark.promise("P8")
@pytest.mark.usefixtures("defaults")
@pytest.mark.parametrize("threads", [0, 2])
def test_seeds_and_defaults_change_nothing(threads: int) -> None:
    plain = contents(threads=threads)
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.use_deterministic_algorithms(True)
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    with torch.inference_mode():
        other = contents(threads=threads)
    assert len(plain) == len(other)
    assert all(difference(a, b) is None for a, b in zip(plain, other, strict=True))


@pytest.mark.promise("P7")
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"threads": 0}, marks=pytest.mark.slow),
        pytest.param({"threads": 3}, marks=pytest.mark.slow),
        {"threads": 2, "transform": lambda batch: {"x": batch["x"] * 2}},
        {"threads": 1, "residency": "device"},
        pytest.param({"threads": 0, "order": BlockShuffle(block=2, window=8)}, marks=pytest.mark.slow),
    ],
    ids=["no thread", "3 threads", "encoded", "device", "blocks"],
)
def test_memory_does_not_grow_over_epochs(options: dict[str, Any]) -> None:
    for thread in threading.enumerate():  # of feeds that other tests have left, whose memory would count
        if thread.name.startswith("stoker"):
            thread.join()
    feed = make_feed(**options)
    for _ in range(20):
        list(feed)
    gc.collect()
    tracemalloc.start()
    for _ in range(5):
        list(feed)
    gc.collect()
    num_threads, grown = threading.active_count(), []
    for _ in range(3):  # a leak shows in each; a thread that still holds a batch, on a busy machine, in one of them
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(16):
            for _ in feed:
                pass
            for _ in feed:
                break
        gc.collect()
        grown.append(tracemalloc.get_traced_memory()[0] - before)
    tracemalloc.stop()
    assert min(grown) < 16_000, "32 passes of 10 batches: less than 50 bytes a batch, which is noise"
    assert threading.active_count() <= num_threads
