"""The laws of feeding: every sample once an epoch, one order for all, and no trace of restarts, ranks, batch sizes or threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tests.feed.stores import every_number
from tests.harness import num_examples
from tests.harness.flat_feed import flat_feed

import stoker
from stoker import BlockShuffle, ByLength, Feed, Segments, Sequences, Sequential, Shuffle, Store, Weighted, Windows
from stoker.feed.prefetch import FeedRanks, Steps
from stoker.testing import assert_exactly_once, assert_resumes_exactly

ORDERS = [
    Sequential(),
    Shuffle(1),
    BlockShuffle(2, block=3, window=12),
    BlockShuffle(3, block=4, window=4),
    ByLength(4, group=5, pool=2),
]


def numbered(size: int) -> Store:
    """A store with so many samples, one a series."""
    return Store.from_arrays(lengths=np.arange(size) % 4 + 1, x=np.zeros(int((np.arange(size) % 4 + 1).sum()), dtype=np.float32))


def read(feeds: list[Feed], steps: int | None = None) -> list[int]:
    """The samples that all ranks get, in the one order, in a pass or the first steps of it."""
    found: list[int] = []
    for number, batches in enumerate(zip(*feeds, strict=True)):
        found += [sample for batch in batches for sample in batch["sample"].tolist() if sample >= 0]
        if number + 1 == steps:
            break
    return found


def make_ranks(store: Store, world: int, **options: Any) -> list[Feed]:
    given = {"return_index": True, **options}
    return [flat_feed(store, Sequences(4), rank=rank, world_size=world, **given) for rank in range(world)]


@pytest.mark.promise("P8")
@pytest.mark.promise("P9")
@settings(max_examples=num_examples(60))
@given(
    size=st.integers(1, 60),
    batch_size=st.integers(1, 9),
    worlds=st.lists(st.integers(1, 5), min_size=2, max_size=3, unique=True),
    order=st.sampled_from(ORDERS),
    last=st.sampled_from(["pad", "short"]),
    threads=st.sampled_from([0, 0, 1, 3]),
    residency=st.sampled_from(["host", "device"]),
)
def test_every_sample_once_in_one_order(
    size: int, batch_size: int, worlds: list[int], order: Any, last: str, threads: int, residency: str
) -> None:
    options = {"batch_size": batch_size, "order": order, "last_batch": last, "threads": threads, "residency": residency}
    assert_exactly_once(partial(flat_feed, numbered(size), Sequences(4), return_index=True, **options), worlds=worlds)  # type: ignore[arg-type]


@pytest.mark.promise("P5")
@settings(max_examples=num_examples(60))
@given(
    size=st.integers(1, 60),
    order=st.sampled_from(ORDERS),
    runs=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(0, 4), st.sampled_from([0, 2])), max_size=12),
    last=st.sampled_from(["pad", "short"]),
)
def test_restarts_with_other_ranks_and_batches_leave_no_trace(
    size: int, order: Any, runs: list[tuple[int, int, int, int]], last: str
) -> None:
    """The runs of a training: so many ranks, of such a batch size, for so many steps, in so many threads."""
    store = numbered(size)
    state: dict[str, Any] | None = None
    seen: list[int] = []
    for world, batch_size, steps, threads in [*runs, (1, 7, 10**6, 0)]:
        feeds = make_ranks(store, world, batch_size=batch_size, order=order, last_batch=last, threads=threads)
        for feed in feeds:
            if state is not None:
                feed.load_state_dict(state)
        seen += read(feeds, steps) if steps else []
        states = [json.loads(json.dumps(feed.state_dict())) for feed in feeds]
        assert all(other == states[0] for other in states), "the state is the same on all ranks"
        state = states[0]
    plan = feeds[0].plan
    epochs = len(seen) // size
    assert seen == [number for epoch in range(epochs) for number in plan.numbers(epoch, 0, size).tolist()]
    assert state is not None
    assert (state["epoch"], state["position"]) == (epochs, 0)


@pytest.mark.promise("P9")
@settings(max_examples=num_examples(40))
@given(size=st.integers(1, 60), batch_size=st.integers(1, 9), world=st.integers(1, 4), order=st.sampled_from(ORDERS))
def test_what_is_dropped_is_the_rest_and_nothing_is_repeated(size: int, batch_size: int, world: int, order: Any) -> None:
    feeds = make_ranks(numbered(size), world, batch_size=batch_size, order=order, last_batch="drop")
    step = batch_size * world
    for epoch in range(2):
        assert read(feeds) == feeds[0].plan.numbers(epoch, 0, size // step * step).tolist()
        assert feeds[0].epoch == epoch + 1


@pytest.mark.promise("P9")
def test_weights_are_drawn_exactly_over_any_restarts() -> None:
    """An epoch of a weighted order has a number of draws of its own; each is handed out once."""
    weights = np.arange(1.0, 12.0)
    make = partial(flat_feed, numbered(11), Sequences(4), batch_size=4, order=Weighted(weights, num_samples=30), return_index=True)
    whole = read([make()])
    assert len(whole) == 30
    assert np.abs(np.bincount(whole, minlength=11) - 30 * weights / weights.sum()).max() < 1
    assert_resumes_exactly(make, worlds=(1, 2))


def double(batch: dict[str, Any]) -> dict[str, Any]:
    return {"x": batch["xf8"] * 2, "sample": batch["sample"]}


CONFIGURATIONS: list[tuple[Any, dict[str, Any]]] = [
    (Windows(4, stride=2, shift=1), {"order": Shuffle(1)}),
    (Windows(4, stride=2), {"order": Shuffle(1), "threads": 3, "last_batch": "short"}),
    (Windows(3, stride=2, horizon=2), {"order": BlockShuffle(block=4, window=8), "threads": 1}),
    (Windows(3, stride=2), {"order": BlockShuffle(), "residency": "device"}),
    (Segments(3), {"order": ByLength(group=4, pool=2), "threads": 2}),
    (Segments(3, shift=1), {"order": Shuffle(5), "columns": ["xf4"], "normalize": "zero"}),
    (Sequences(6), {"order": ByLength(group=4, pool=1), "last_batch": "short"}),
    (Sequences(6, buckets=(2, 6)), {"order": Shuffle(), "last_batch": "drop", "batch_size": 2}),
    (Sequences(6, layout="packed"), {"order": Shuffle(), "threads": 2}),
    (Sequences(6, layout="packed"), {"order": Sequential(), "residency": "device"}),
    (Windows(4, stride=3), {"residency": "stream", "order": BlockShuffle(block=2, window=6), "threads": 2}),
    (Windows(4, stride=3), {"transform": double, "return_index": True}),
]


@pytest.mark.promise("P5")
@pytest.mark.parametrize(("view", "options"), CONFIGURATIONS)
def test_resumes_at_every_position(view: Any, options: dict[str, Any], tmp_path: Path) -> None:
    """Stopped after every batch of two epochs, and before each of them twice."""
    store = every_number()
    if options.get("residency") == "stream":
        store = store.save(tmp_path / "s")
    assert_resumes_exactly(partial(flat_feed, store, view, **{"batch_size": 3, "columns": ["xf8", "wf4", "si8"], **options}))


@pytest.mark.promise("P5")
@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("view", [Windows(4, stride=2, shift=1), Sequences(6), Sequences(6, layout="packed")], ids=str)
def test_resumes_at_every_position_on_other_numbers_of_ranks(view: Any, order: Any) -> None:
    make = partial(flat_feed, every_number(), view, batch_size=3, order=order, columns=["xf8"], return_index=True)
    assert_resumes_exactly(make, worlds=(1, 2, 3), epochs=2)


@pytest.mark.promise("P8")
@pytest.mark.parametrize("order", [BlockShuffle(), ByLength()], ids=str)
def test_an_order_that_chooses_for_itself_keeps_its_choice_on_other_ranks(order: Any) -> None:
    """Begun on one rank, it would have chosen otherwise on three; the state says what was chosen."""
    store = numbered(150)
    begun = make_ranks(store, 1, batch_size=2, order=order)
    seen = read(begun, 20)
    resumed = make_ranks(store, 3, batch_size=5, order=order)
    assert resumed[0].plan.shape != begun[0].plan.shape
    for feed in resumed:
        feed.load_state_dict(begun[0].state_dict())
    seen += read(resumed)
    assert seen == begun[0].plan.numbers(0, 0, 150).tolist()


RESUME = """
import json, sys
import numpy as np
from stoker import Feed, Shuffle, Windows, open
from stoker.feed import Loading, Returns
feed = Feed(open(sys.argv[1]), Windows(4, stride=2), batch_size=5, order=Shuffle(), returns=Returns(index=True), loading=Loading(threads=2))
feed.load_state_dict(json.loads(sys.argv[2]))
print(json.dumps([batch["sample"].tolist() for epoch in range(2) for batch in feed]))
"""


@pytest.mark.promise("P5")
def test_resumes_in_a_new_process(tmp_path: Path) -> None:
    store = every_number().save(tmp_path / "s")
    feed = flat_feed(store, Windows(4, stride=2), batch_size=3, order=Shuffle(9), return_index=True)
    batches = iter(feed)
    next(batches), next(batches)
    state = json.dumps(feed.state_dict())
    command = [sys.executable, "-c", RESUME, str(tmp_path / "s"), state]
    environment = {**os.environ, "PYTHONHASHSEED": "77", "TZ": "Asia/Kathmandu", "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    found = [number for batch in json.loads(done.stdout) for number in batch if number >= 0]
    size = feed.num_samples
    assert found == [*feed.plan.numbers(0, 6, size).tolist(), *feed.plan.numbers(1, 0, size).tolist()]


def walk_in_steps(feed: Feed) -> list[list[int]]:
    return [[number for number in batch["sample"].tolist() if number >= 0] for batch in feed]


def walk(feed: Feed) -> list[int]:
    return [number for step in walk_in_steps(feed) for number in step]


@pytest.mark.promise("P5")
@pytest.mark.parametrize("threads", [0, 2])
def test_an_epoch_left_early_is_followed_by_the_next(threads: int) -> None:
    """And the position of a pass that was left does not leak into it."""
    (feed,) = make_ranks(numbered(20), 1, batch_size=3, order=Shuffle(), threads=threads)
    epochs = [feed.plan.numbers(epoch, 0, 20).tolist() for epoch in range(4)]
    for epoch in range(3):
        left = iter(feed)
        assert next(left)["sample"].tolist() == epochs[epoch][:3]
        assert (feed.state_dict()["epoch"], feed.state_dict()["position"]) == (epoch, 3)
    assert walk(feed) == epochs[3]
    assert next(left)["sample"].tolist() == epochs[2][3:6], "who holds a pass may go on with it"
    assert (feed.state_dict()["epoch"], feed.state_dict()["position"]) == (4, 0)


@pytest.mark.promise("P5")
def test_set_epoch_says_which_epoch_is_next() -> None:
    (feed,) = make_ranks(numbered(20), 1, batch_size=3, order=Shuffle())
    epochs = {epoch: feed.plan.numbers(epoch, 0, 20).tolist() for epoch in (0, 1, 2, 5, 6)}
    for epoch in (5, 5, 0, 2):
        feed.set_epoch(epoch)
        assert walk(feed) == epochs[epoch]
    next(iter(feed))
    feed.set_epoch(feed.epoch)
    assert feed.state_dict()["position"] == 0, "an epoch that was begun is begun again"
    feed.set_epoch(5)
    state = {**feed.state_dict(), "position": 6}
    feed.load_state_dict(state)
    feed.set_epoch(5)
    assert walk(feed) == epochs[5][6:], "a state of this epoch keeps its position"
    feed.load_state_dict(state)
    feed.set_epoch(6)
    assert walk(feed) == epochs[6], "a state of another epoch does not"


@pytest.mark.promise("P5")
@pytest.mark.parametrize(
    "order", [Shuffle(3), BlockShuffle(3, block=10, window=100), ByLength(3, group=32, pool=4)], ids=["shuffle", "blocks", "length"]
)
def test_three_thousand_restarts(order: Any, rng: np.random.Generator) -> None:
    """A training of 997 samples, stopped and resumed 3,000 times with other ranks and batch sizes: no sample lost or repeated."""
    samples = Feed(numbered(997), Sequences(4), batch_size=1).samples
    plan = order.over(samples, batch_size=32)
    epoch = position = 0
    epochs: list[list[Any]] = [[]]
    for _ in range(3000):
        world, batch_size, num_steps = int(rng.integers(1, 9)), int(rng.integers(1, 40)), int(rng.integers(0, 4))
        ranks = [FeedRanks(rank, world) for rank in range(world)]
        passes = [
            Steps(plan=plan, epoch=epoch, start=position, batch_size=batch_size, ranks=one, drops_last=False) for one in ranks
        ]
        for step in range(min(num_steps, len(passes[0]))):
            epochs[-1] += [one.numbers(step) for one in passes]
            position = passes[0].end(step)
        if position == plan.num_positions:
            epoch, position = epoch + 1, 0
            epochs.append([])
    assert len(epochs) > 100
    for number, parts in enumerate(epochs[:-1]):
        found = np.concatenate(parts)
        assert np.array_equal(found, plan.numbers(number, 0, 997))
        assert np.array_equal(np.sort(found), np.arange(997))


@pytest.mark.promise("P9", control=True)
def test_a_lost_sample_would_be_seen() -> None:
    """Negative control: ranks whose shares overlap or leave a gap."""

    class Careless(Feed):
        def __init__(self, *arguments: Any, gap: int, distributed: stoker.feed.Distributed, **options: Any) -> None:
            super().__init__(*arguments, distributed=distributed, **options)
            original = self.plan.numbers
            self.plan.numbers = lambda epoch, start, stop: original(epoch, max(0, start + gap), stop)  # type: ignore[method-assign]

    make = partial(Careless, numbered(20), Sequences(4), batch_size=3, returns=stoker.feed.Returns(index=True))
    with pytest.raises(AssertionError, match=r"epoch 0 on 1 rank has 13 samples; expected 20; sample 0 did not come"):
        assert_exactly_once(partial(make, gap=1))
    with pytest.raises(AssertionError, match=r"sample 2 came twice: as row 2 of batch 0 .* and as row 0 of batch 1"):
        assert_exactly_once(partial(make, gap=-1, last_batch="short"))


def updates_of(plan: Any, epoch: int, start: int, world: int, *, batch_size: int, per_update: int) -> list[tuple[int, list[Any]]]:
    """The updates of a pass, each with the position after it and its batches in their order, as the ranks take them in turn."""
    given: Any = {"plan": plan, "epoch": epoch, "start": start, "batch_size": batch_size, "drops_last": False}
    passes = [Steps(ranks=FeedRanks(rank, world), per_update=per_update, **given) for rank in range(world)]
    assert len({len(one) for one in passes}) == 1
    rounds, found = passes[0].rounds, []
    for first in range(0, len(passes[0]), rounds):
        steps = range(first, min(first + rounds, len(passes[0])))
        batches = [tuple(one.numbers(step).tolist()) for step in steps for one in passes]
        found.append((passes[0].end(steps[-1]), [batch for batch in batches if batch]))
    return found


@pytest.mark.promise("P33")
@pytest.mark.parametrize("order", [Shuffle(3), BlockShuffle(3, block=10, window=100)], ids=["shuffle", "blocks"])
def test_random_schedules_of_ranks_keep_every_update(order: Any, rng: np.random.Generator) -> None:
    """Ranks come and go amid epochs, and may lose updates since the last checkpoint: what takes effect is what one process does."""
    for number in range(40):
        count, batch_size, per_update = int(rng.integers(1, 400)), int(rng.integers(1, 9)), int(rng.integers(1, 9))
        samples = Feed(numbered(count), Sequences(4), batch_size=1).samples
        plan = order.over(samples, batch_size=batch_size * per_update)
        given: Any = {"batch_size": batch_size, "per_update": per_update}
        expected = [[batches for _, batches in updates_of(plan, epoch, 0, 1, **given)] for epoch in range(3)]
        done: list[list[Any]] = [[], [], []]
        epoch = position = 0
        worlds = [4, 2, 3] if number == 0 else []
        while epoch < 3:
            world = worlds.pop(0) if worlds else int(rng.integers(1, 10))
            left = updates_of(plan, epoch, position, world, **given)
            taken = int(rng.integers(0, len(left) + 1))
            saved = int(rng.integers(0, taken + 1))  # what came after the last checkpoint is lost with the ranks, and done again
            done[epoch] += [batches for _, batches in left[:saved]]
            position = left[saved - 1][0] if saved else position
            if position == plan.num_positions:
                epoch, position = epoch + 1, 0
        assert done == expected
        for updates in done:
            assert sorted(one for batches in updates for batch in batches for one in batch) == list(range(count))


@pytest.mark.promise("P33")
def test_eight_thousand_ranks_share_an_order_of_146_million_samples(rng: np.random.Generator) -> None:
    """300 billion points in segments of 2,048 on 1,000 nodes: each rank computes its own batches, which end to end are the order."""
    count, batch_size, world = 300_000_000_000 // 2048, 16, 8000
    plan = Shuffle(3).over(SimpleNamespace(num_samples=count), batch_size=batch_size * world)  # type: ignore[arg-type]
    given: Any = {"plan": plan, "epoch": 2, "batch_size": batch_size, "drops_last": False, "per_update": world}
    start = int(rng.integers(0, 1000)) * batch_size * world
    first = Steps(ranks=FeedRanks(0, world), start=start, **given)
    assert len(first) == -(-(count - start) // (batch_size * world))
    for step in (0, int(rng.integers(0, len(first))), len(first) - 1):
        low, high = first.end(step - 1), first.end(step)
        for rank in (0, *map(int, rng.integers(0, world, 20)), world - 1):
            found = Steps(ranks=FeedRanks(rank, world), start=start, **given).numbers(step)
            expected = plan.numbers(2, min(low + rank * batch_size, high), min(low + (rank + 1) * batch_size, high))
            assert np.array_equal(found, expected)


@pytest.mark.promise("P33", control=True)
def test_shares_that_depend_on_the_ranks_would_be_seen() -> None:
    """Negative control: without a fixed number of batches per update, other ranks have other batches."""
    plan = Shuffle(3).over(Feed(numbered(50), Sequences(4), batch_size=1).samples, batch_size=16)
    given: Any = {"plan": plan, "epoch": 0, "start": 0, "batch_size": 4, "drops_last": False}
    batches = [
        [
            Steps(ranks=FeedRanks(rank, world), **given).numbers(step).tolist()
            for step in range(50 // (4 * world))
            for rank in range(world)
        ]
        + [Steps(ranks=FeedRanks(rank, world), **given).numbers(50 // (4 * world)).tolist() for rank in range(world)]
        for world in (1, 4)
    ]
    assert batches[0] != batches[1]
