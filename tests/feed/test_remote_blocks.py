"""Feeds of remote stores: the same batches as from disk, little fetched twice, and eviction close to Belady's optimum."""

from __future__ import annotations

import itertools
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.harness.flat_feed import flat_feed
from tests.harness.object_folder import Storage

import stoker
from stoker.feed.feed import Feed
from stoker.feed.gather import HostGather
from stoker.feed.remote_blocks import Forecast, make_hints
from stoker.store.block_cache import NEVER
from stoker.store.remote import RemoteStore, cached_file, upload

pytestmark = pytest.mark.scale

BLOCK = 1 << 16
STEPS = BLOCK // 4  # of float32
NUM_BLOCKS = 48
WINDOW = stoker.Windows(256, stride=256, tail="drop")
"""64 samples per block."""


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> stoker.Store:
    values = np.random.default_rng(0).standard_normal((4, NUM_BLOCKS // 4 * STEPS)).astype(np.float32)
    return stoker.Store.from_arrays(x=values, y=values[:, ::-1].copy()).save(tmp_path_factory.mktemp("feed") / "a.stoker")


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: stoker.Store) -> Storage:
    found = Storage(tmp_path / "buckets", monkeypatch, BLOCK)
    assert local.path is not None
    upload(local.path, "test://a")
    return found


def opened(tmp_path: Path, *, blocks: int = 2 * NUM_BLOCKS, name: str = "cache") -> RemoteStore:
    store = stoker.open("test://a", cache=tmp_path / name, cache_size=blocks * BLOCK)
    assert isinstance(store, RemoteStore)
    return store


ORDERS = {
    "sequential": stoker.Sequential(),
    "blocks": stoker.BlockShuffle(seed=1, block=64, window=512),
    "shuffle": stoker.Shuffle(seed=2),
}


@pytest.mark.promise("P31")
@pytest.mark.usefixtures("storage")
@pytest.mark.parametrize(("order", "threads"), [("sequential", 0), ("blocks", 2), ("shuffle", 2)])
def test_batches_are_those_from_disk(local: stoker.Store, tmp_path: Path, order: str, threads: int) -> None:
    options: dict[str, Any] = {"batch_size": 64, "order": ORDERS[order], "return_index": True}
    blocks = 2 * NUM_BLOCKS if order == "shuffle" else 40
    there = flat_feed(opened(tmp_path, blocks=blocks), WINDOW, threads=threads, **options)
    assert there.residency.where == "stream"
    here = flat_feed(local, WINDOW, **options)
    for _ in range(2):
        for one, other in zip(there, here, strict=True):
            assert all(torch.equal(one[name], other[name]) for name in other)
    cache = there.stores[0].cache  # type: ignore[attr-defined]
    there.close()
    assert not cache._held.any()
    assert cache._forecasts == []


@pytest.mark.usefixtures("storage")
def test_blocks_of_a_slow_thread_stay_until_it_has_gathered(
    local: stoker.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last batch of a window is slow, while the other thread is far into the next: the cache has no room for both windows."""
    options: dict[str, Any] = {"batch_size": 64, "order": ORDERS["blocks"], "return_index": True}
    expected = [batch["x"] for batch in flat_feed(local, WINDOW, **options)]
    slow = next(itertools.islice(flat_feed(local, WINDOW, **options), 7, None))["sample"][0].item()
    gather = HostGather.gather

    def slowly(self: HostGather, numbers: Any, *arguments: Any, **given: Any) -> Any:
        if numbers[0] == slow:
            time.sleep(0.3)
        return gather(self, numbers, *arguments, **given)

    monkeypatch.setattr(HostGather, "gather", slowly)
    with flat_feed(opened(tmp_path, blocks=40), WINDOW, threads=2, **options) as feed:
        assert all(torch.equal(batch["x"], other) for batch, other in zip(feed, expected, strict=True))


@pytest.mark.promise("P31")
@pytest.mark.usefixtures("storage")
def test_a_second_epoch_from_the_cache_makes_no_request(tmp_path: Path) -> None:
    store = opened(tmp_path)
    feed = Feed(store, WINDOW, batch_size=64, order=ORDERS["blocks"])
    for _ in feed:
        pass
    before = store.traffic
    assert before.bytes_read >= store.num_bytes
    for _ in feed:
        pass
    assert (store.traffic - before).requests == 0


@pytest.mark.promise("P31")
@pytest.mark.usefixtures("storage")
def test_ranks_of_one_machine_share_a_cache(local: stoker.Store, tmp_path: Path) -> None:
    stores = [opened(tmp_path) for _ in range(2)]
    feeds = [
        flat_feed(store, WINDOW, batch_size=32, order=ORDERS["blocks"], rank=i, world_size=2) for i, store in enumerate(stores)
    ]
    whole = Feed(local, WINDOW, batch_size=64, order=ORDERS["blocks"])
    for one, other, both in zip(*feeds, whole, strict=True):
        assert torch.equal(torch.cat([one["x"], other["x"]]), both["x"])
    assert sum(store.traffic.bytes_read for store in stores) < 1.1 * stores[0].num_bytes


@pytest.mark.usefixtures("storage")
def test_a_dataset_travels_to_another_process(local: stoker.Store, tmp_path: Path) -> None:
    dataset = Feed(opened(tmp_path), WINDOW, batch_size=64).as_dataset()
    again = pickle.loads(pickle.dumps(dataset))
    for one in (dataset, again):
        assert torch.equal(one[[700, 3]]["y"], Feed(local, WINDOW, batch_size=64).as_dataset()[[700, 3]]["y"])


@pytest.mark.usefixtures("storage")
def test_two_stores_one_of_them_remote(local: stoker.Store, tmp_path: Path) -> None:
    options: dict[str, Any] = {"batch_size": 64, "order": ORDERS["blocks"]}
    there = flat_feed([opened(tmp_path), local], WINDOW, residency="stream", **options)
    for one, other in zip(there, flat_feed([local, local], WINDOW, **options), strict=True):
        assert torch.equal(one["x"], other["x"])


# ---- next use ----


class Units:
    """Units with blocks that a test gives; a step is a block."""

    def __init__(self, blocks: list[list[int]]) -> None:
        self.blocks = blocks
        self.count = len(blocks)

    def of(self, step: int) -> tuple[int, int]:
        return step, step

    def ranges(self, unit: int) -> tuple[Any, Any]:
        starts = np.array(self.blocks[unit], dtype=np.int64)
        return starts, starts + 1


class Column:
    """A column of which a step is a block."""

    def __init__(self, store: RemoteStore) -> None:
        self.file = cached_file(store.mapped("x"))
        self.step_bytes = BLOCK

    def own(self, starts: Any, stops: Any) -> tuple[Any, Any]:
        return starts, stops


@pytest.mark.usefixtures("storage")
@pytest.mark.parametrize("max_uses", [1 << 22, 40])
def test_the_forecast_is_that_of_a_loop(tmp_path: Path, max_uses: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.feed.remote_blocks.MAX_USES", max_uses)
    generator = np.random.default_rng(3)
    uses = [sorted({int(one) for one in generator.integers(0, 30, 5)}) for _ in range(24)]
    store = opened(tmp_path)
    forecast = Forecast(store.cache, [Column(store)], Units(uses[:12]), Units(uses[12:]))  # type: ignore[arg-type, list-item]
    first = store.cache.table.first[Column(store).file.file]  # type: ignore[union-attr]
    for position in (0, 1, 4, 5, 11, 13, 20):
        forecast.position = position
        found = forecast()[first : first + 30]
        for block in range(30):
            slow = next((unit for unit in range(position, 24) if block in uses[unit]), NEVER)
            # One that looks ahead less far knows fewer uses, and none that is wrong.
            assert found[block] == slow or (max_uses == 40 and found[block] == NEVER and slow > position + 2)


def belady(uses: list[int], capacity: int) -> int:
    """The least number of fetches for this order of uses: evict what is used last."""
    later: dict[int, list[int]] = {}
    for place, block in enumerate(uses):
        later.setdefault(block, []).append(place)
    cached: set[int] = set()
    fetches = 0
    for block in uses:
        later[block].pop(0)
        if block in cached:
            continue
        fetches += 1
        if len(cached) == capacity:
            cached.remove(max(cached, key=lambda one: later[one][0] if later[one] else len(uses)))
        cached.add(block)
    return fetches


@pytest.mark.promise("P31")
@pytest.mark.usefixtures("storage")
@pytest.mark.parametrize("order", ["sequential", "blocks"])
def test_a_cache_of_a_quarter_fetches_little_more_than_the_optimum(
    tmp_path: Path, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = stoker.BlockShuffle(seed=1, block=64, window=128) if order == "blocks" else ORDERS[order]
    quarter = NUM_BLOCKS // 4
    store = opened(tmp_path, blocks=quarter)
    before = store.traffic.bytes_read
    uses: list[int] = []
    monkeypatch.setattr("stoker.feed.feed.make_hints", recording(uses))
    feed = flat_feed(store, WINDOW, batch_size=64, order=chosen, columns=["x"], threads=1)
    for _ in range(4):
        for _ in feed:
            pass
    assert len(set(uses)) == NUM_BLOCKS
    fetched = (store.traffic.bytes_read - before) / BLOCK
    assert fetched <= 1.05 * belady(uses, quarter)
    # A rule that evicts what was used longest ago fetches far more.
    assert belady(uses, quarter) < 0.85 * len(uses)


def recording(uses: list[int]) -> Any:
    """`make_hints` that also notes the blocks of each unit, in their order."""

    def make(columns: Any, units: Any, following: Any) -> Any:
        hints: Any = make_hints(columns, units, following)
        _, forecast = hints._forecasts[0]
        for unit in range(units.count):
            uses.extend(forecast.ids(unit).tolist())
        return hints

    return make
