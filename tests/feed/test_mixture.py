"""Feeds of several stores: the batches of one store that has all series, in the order of a slow list of due times."""

from __future__ import annotations

import json
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from tests.feed.stores import every_number
from tests.feed.twin import Twin, assert_same_batch
from tests.harness import num_examples
from tests.harness.flat_feed import flat_feed
from tests.sampling import twins

import stoker
from stoker import BlockShuffle, ByLength, Feed, Segments, Sequences, Sequential, Shuffle, Store, Windows
from stoker.errors import FeedError, LeakError, OptionError
from stoker.feed.mixture import MixtureGather
from stoker.sampling.mixture import store_seed
from stoker.testing import assert_exactly_once, assert_resumes_exactly

pytestmark = pytest.mark.usefixtures("poisoned")

PARTS = [(5, 0, 9, 1), (3, 14, 2), (7, 0, 4, 11, 6)]
COLUMNS = ["xf8", "xf4", "xf2", "wf4", "xu2", "xb1", "si8", "sf4", "sw"]
VIEWS = [
    Windows(3, stride=2, horizon=1),
    Windows(3, shift=2, tail="drop"),
    Segments(4),
    Sequences(6),
    Sequences(8, buckets=(2, 5, 8), keep="last"),
    Sequences(5, layout="packed"),
]


def make_stores() -> list[Store]:
    return [every_number(lengths, seed=seed) for seed, lengths in enumerate(PARTS)]


def join(stores: list[Store]) -> Store:
    """One store with the series of all."""
    names = list(stores[0].schema)
    columns = {name: np.concatenate([store.column(name) for store in stores]) for name in names}
    return Store.from_arrays(lengths=[length for store in stores for length in store.lengths.tolist()], **columns)


def slow_order(feed: Feed, weights: list[float] | None, epochs: int) -> list[list[int]]:
    """The samples of all stores as they are due, each store in its own shuffle."""
    sizes = [part.num_samples for part in feed.samples.parts]  # type: ignore[attr-defined]
    orders = [Shuffle(store_seed(feed.order.seed, i)) for i in range(len(sizes))]
    plans = [order.over(part, batch_size=1) for order, part in zip(orders, feed.samples.parts, strict=True)]  # type: ignore[attr-defined]
    return twins.list_due(plans, sizes, weights, epochs=epochs)


@pytest.mark.promise("P9")
@pytest.mark.parametrize("normalize", [None, "zero"])
@pytest.mark.parametrize("residency", ["host", "device", "stream"])
@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_batches_are_those_of_one_store_with_all_series(view: Any, residency: str, normalize: Any, tmp_path: Path) -> None:
    stores = make_stores()
    twin = Twin(join(stores), view, columns=COLUMNS, dtype=None, normalize=normalize)
    if residency == "stream":
        stores = [store.save(tmp_path / str(i)) for i, store in enumerate(stores)]
    options: dict[str, Any] = {"columns": COLUMNS, "normalize": normalize, "residency": residency, "threads": 0, "dtype": None}
    feed = flat_feed(stores, view, batch_size=5, order=Shuffle(2), return_index=True, **options)
    assert feed.num_samples == len(twin.samples)
    seen = []
    for batch in feed:
        numbers = [number for number in batch["sample"].tolist() if number >= 0]
        assert_same_batch(batch, twin.batch(numbers, 5, valid=True, shows_numbers=True))
        seen += numbers
    assert sorted(seen) == list(range(feed.num_samples))


@pytest.mark.promise("P9")
@settings(max_examples=num_examples(40))
@given(
    sizes=st.lists(st.integers(1, 25), min_size=2, max_size=4),
    weighted=st.booleans(),
    world=st.integers(1, 4),
    batch_size=st.integers(1, 7),
    threads=st.sampled_from([0, 0, 2]),
    residency=st.sampled_from(["host", "device"]),
    data=st.data(),
)
def test_ranks_read_the_slow_list_of_due_times(
    sizes: list[int], weighted: bool, world: int, batch_size: int, threads: int, residency: str, data: st.DataObject
) -> None:
    weights = data.draw(st.lists(st.floats(0.05, 20), min_size=len(sizes), max_size=len(sizes))) if weighted else None
    stores = [Store.from_arrays(x=[np.full(i % 3 + 1, s, dtype=np.float32) for i in range(size)]) for s, size in enumerate(sizes)]
    options: dict[str, Any] = {"batch_size": batch_size, "order": Shuffle(9), "weights": weights, "threads": threads}
    options |= {"return_index": True, "return_store": True, "residency": residency}
    feeds = [flat_feed(stores, Sequences(3), rank=rank, world_size=world, **options) for rank in range(world)]
    expected = slow_order(feeds[0], weights, epochs=3)
    bounds = np.cumsum([0, *sizes])
    for epoch in range(3):
        seen = []
        for batches in zip(*feeds, strict=True):
            for batch in batches:
                real = batch["sample"] >= 0
                seen += batch["sample"][real].tolist()
                assert batch["store"][~real].eq(-1).all()
                assert (np.searchsorted(bounds, batch["sample"][real].numpy(), side="right") - 1).tolist() == batch["store"][
                    real
                ].tolist()
                assert batch["x"][real][:, 0].tolist() == batch["store"][real].tolist()
        assert seen == expected[epoch]


ORDERS = [Sequential(), Shuffle(1), BlockShuffle(2, block=3, window=6), BlockShuffle(5), ByLength(4, group=5, pool=2)]


@pytest.mark.promise("P9")
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_without_weights_every_sample_comes_once_per_epoch(order: Any) -> None:
    make = partial(flat_feed, make_stores(), Windows(3, stride=2), batch_size=3, columns=["xf4"], order=order, return_index=True)
    assert_exactly_once(make, worlds=(1, 2, 3, 4))


CASES: list[dict[str, Any]] = [
    {"order": Shuffle(1), "threads": 2},
    {"order": Shuffle(1), "weights": [1, 5, 2]},
    {"order": BlockShuffle(block=2, window=4), "residency": "stream", "weights": [3, 1, 1], "threads": 2},
    {"order": BlockShuffle(), "residency": "stream"},
    {"order": Shuffle(3), "residency": "stream", "threads": 1},
    {"order": BlockShuffle(), "residency": "device", "weights": [1, 1, 1]},
    {"order": ByLength(group=4, pool=2), "threads": 1},
    {"last_batch": "short", "weights": [1, 9, 1]},
]


@pytest.mark.promise("P9")
@pytest.mark.parametrize("options", CASES, ids=str)
def test_resumes_at_every_position(options: dict[str, Any], tmp_path: Path) -> None:
    stores = make_stores()
    if options.get("residency") == "stream":
        stores = [store.save(tmp_path / str(i)) for i, store in enumerate(stores)]
    make = partial(
        flat_feed, stores, Windows(3, stride=2), **{"batch_size": 10, "columns": ["xf4"], "return_index": True, **options}
    )
    assert_resumes_exactly(make, worlds=(1, 2))


def test_the_state_is_a_few_integers_and_knows_its_stores() -> None:
    stores = make_stores()
    make = partial(flat_feed, view=Windows(3), batch_size=4, columns=["xf4"], order=BlockShuffle(1))
    feed = make(stores, weights=[1, 2, 3])
    next(iter(feed))
    state = json.loads(json.dumps(feed.state_dict()))
    assert {name for name, value in state.items() if not isinstance(value, int)} == {"feed"}
    assert {"block0", "window0", "block1", "window1", "block2", "window2"} < state.keys()
    make(stores, weights=[2, 4, 6]).load_state_dict(state)  # the same shares
    for other in (make(stores), make(stores, weights=[1, 2, 4]), make([stores[1], stores[0], stores[2]], weights=[1, 2, 3])):
        with pytest.raises(FeedError, match="other data, another view or another kind of order"):
            other.load_state_dict(state)
    fixed = make(stores, weights=[1, 2, 3], order=BlockShuffle(1, block=state["block0"] + 1))
    with pytest.raises(OptionError, match="another order"):
        fixed.load_state_dict(state)


def test_subsets_are_one_per_store() -> None:
    stores, view = make_stores(), Windows(3)
    split = stoker.split.chronological(stores[1], view, fractions=(0.5, 0.5))
    feed = flat_feed(
        stores, view, batch_size=4, columns=["xf4"], subset=[None, split.train, None], return_index=True, return_store=True
    )
    counts = np.bincount(np.concatenate([batch["store"][batch["store"] >= 0] for batch in feed]))
    whole = [Feed(store, view, batch_size=1).num_samples for store in stores]
    assert counts.tolist() == [whole[0], len(split.train), whole[2]]
    with pytest.raises(OptionError, match="subset has 1 values for 3 stores; expected a list with one per store"):
        Feed(stores, view, batch_size=4, subset=split.train)
    with pytest.raises(OptionError, match="of other data than this store"):
        Feed(stores, view, batch_size=4, subset=[split.train, None, None])
    with pytest.raises(LeakError, match="would depend on steps of the others"):
        Feed(stores, view, batch_size=4, subset=[None, split.train, None], normalize="zero")


def test_the_dataset_of_a_mixture_survives_pickling(tmp_path: Path) -> None:
    stores = [store.save(tmp_path / str(i)) for i, store in enumerate(make_stores())]
    feed = flat_feed(stores, Windows(3), batch_size=4, columns=["xf4", "si8"], return_index=True, return_store=True)
    dataset = feed.dataset
    again = pickle.loads(pickle.dumps(dataset))
    numbers = list(range(0, len(dataset), 3))
    assert_same_batch(again[numbers], dataset[numbers])
    in_order = torch.cat([batch["xf4"][batch["sample"] >= 0] for batch in feed])
    order = torch.cat([batch["sample"][batch["sample"] >= 0] for batch in feed])
    assert dataset[order.tolist()]["xf4"].equal(in_order)


of = Store.from_arrays
STORE = of(x=[np.zeros(4)], y=[np.zeros(4)])
SCALER = stoker.split.SeriesScaler.fit(STORE, None, columns=["x"])


@pytest.mark.parametrize(
    ("stores", "options", "parameter"),
    [
        ([], {}, "store"),
        ([STORE, 3], {}, "store"),
        ([STORE, of(x=[np.zeros(4)])], {}, "columns"),
        ([STORE, of(x=[np.zeros(4, "f4")])], {"columns": "x"}, "dtype"),
        ([STORE, of(x=[np.zeros((4, 2))])], {"columns": "x"}, "dtype"),
        ([STORE, STORE], {"weights": [1]}, "weights"),
        ([STORE, of(x=[np.zeros(2)], y=[np.zeros(2)])], {}, "view"),
        ([of(store=[np.zeros(4)])] * 2, {"return_store": True}, "store"),
        ([STORE, STORE], {"scaler": SCALER}, "normalize"),
    ],
)
def test_stores_that_cannot_be_mixed_are_refused(stores: Any, options: Any, parameter: str) -> None:
    with pytest.raises(OptionError) as caught:
        flat_feed(stores, Windows(4, tail="drop"), batch_size=2, **options)
    assert caught.value.parameter == parameter


def with_missing(store: Store, seed: int) -> Store:
    """The store with NaN in its floats."""
    rng, columns = np.random.default_rng(seed), {name: store.column(name).copy() for name in store.schema}
    for name in OBSERVED:
        columns[name][rng.random(columns[name].shape) < 0.3] = np.nan
    return Store.from_arrays(lengths=store.lengths, **columns)


OBSERVED = ["xf8", "xf4", "xf2", "wf4", "sf4", "sw"]


@pytest.mark.promise("P9")
@pytest.mark.parametrize("normalize", [None, "zero"])
@pytest.mark.parametrize("residency", ["host", "device"])
@pytest.mark.parametrize("view", [*VIEWS, Sequences(3, keep="random"), Sequences(3, keep="random", layout="packed")], ids=str)
def test_masks_random_places_and_series_are_those_of_one_store(view: Any, residency: str, normalize: Any) -> None:
    """`wf4` has rows of 12 bytes, which are gathered store by store."""
    stores = [with_missing(store, seed) for seed, store in enumerate(make_stores())]
    options: dict[str, Any] = {"batch_size": 5, "columns": COLUMNS, "observed": OBSERVED, "return_index": True, "threads": 0}
    options |= {"return_series": True, "normalize": normalize, "residency": residency, "order": Sequential()}
    one, several = flat_feed(join(stores), view, **options), flat_feed(stores, view, **options)
    for _ in range(2):
        batches = {}
        for batch in one:
            batches |= rows_of(batch)
        seen = {}
        for batch in several:
            seen |= rows_of(batch)
        assert seen == batches
        assert len(seen) == one.num_samples


def rows_of(batch: dict[str, torch.Tensor]) -> dict[int, dict[str, Any]]:
    """Each sample of a batch by its index: its values without padding, as text, so that NaN equals NaN."""
    found: dict[int, dict[str, Any]] = {}
    starts = batch.get("cu_seqlens")
    for row, number in enumerate(batch["sample"].tolist()):
        if number < 0:
            continue
        own: dict[str, Any] = {}
        for name, values in batch.items():
            if starts is not None and len(values) == int(starts[-1]) and name.removesuffix("_observed")[0] in "xw":
                own[name] = repr(values[int(starts[row]) : int(starts[row + 1])].tolist())
            elif values is not starts:
                own[name] = repr(values[row].tolist()) if len(values) == len(batch["sample"]) else None
        found[number] = own
    return found


@pytest.mark.promise("P9")
@pytest.mark.parametrize("view", [Windows(3, max_gap=1), Segments(2, max_gap=1)], ids=str)
@pytest.mark.parametrize("residency", ["host", "device"])
def test_no_window_of_several_stores_spans_a_gap(view: Any, residency: str, tmp_path: Path) -> None:
    stores = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        rows = ["s,t,x"]
        for series in range(4):
            times = np.cumsum(rng.choice([1, 1, 1, 5], size=12))
            rows += [f"{series},{time},{100 * seed + time}" for time in times]
        (tmp_path / f"{seed}.csv").write_text("\n".join(rows) + "\n")
        stores.append(stoker.pack(tmp_path / f"{seed}.csv", tmp_path / f"{seed}.stoker", series="s", time="t"))
    options: dict[str, Any] = {"batch_size": 4, "columns": ["x"], "return_index": True, "residency": residency}
    feed, expected = flat_feed(stores, view, **options), []
    for store in stores:
        expected += [row["x"] for batch in flat_feed(store, view, **options) for row in rows_of(batch).values()]
    rows_seen = {number: row["x"] for batch in feed for number, row in rows_of(batch).items()}
    assert [rows_seen[number] for number in range(feed.num_samples)] == expected
    again = pickle.loads(pickle.dumps(feed.dataset))
    assert again[list(range(5))]["x"].equal(feed.dataset[list(range(5))]["x"])


@pytest.mark.promise("P9", control=True)
def test_negative_control_rows_of_the_wrong_store_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    fill = MixtureGather._fill

    def wrong(self: Any, column: Any, target: Any, found: Any, *rest: Any) -> None:
        fill(self, column, target, found._replace(starts=found.starts * 0), *rest)

    monkeypatch.setattr(MixtureGather, "_fill", wrong)
    stores = make_stores()
    twin = Twin(join(stores), Windows(3), columns=["xf8"], dtype=None, normalize=None)
    batch = next(iter(flat_feed(stores, Windows(3), batch_size=5, columns=["xf8"], return_index=True)))
    expected = twin.batch(batch["sample"].tolist(), 5, valid=True, shows_numbers=True)
    with pytest.raises(AssertionError, match="the batch"):
        assert_same_batch(batch, expected)
