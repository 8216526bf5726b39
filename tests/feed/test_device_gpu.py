"""What a GPU gets is what the CPU gets, bit for bit, by every residency. Skipped where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.harness import tiny_store
from tests.harness.flat_feed import flat_feed

import stoker

pytestmark = pytest.mark.gpu

VIEWS = [
    stoker.Windows(16, stride=3),
    stoker.Windows(16, stride=1, horizon=2),
    stoker.Segments(20, shift=1),
    stoker.Segments(20, tail="drop"),
    stoker.Sequences(24),
    stoker.Sequences(24, keep="random"),
    stoker.Sequences(24, layout="packed"),
    stoker.Sequences(32, buckets=(8, 32), keep="last"),
]
OF_ONE_SHAPE = [*VIEWS[:4], stoker.Sequences(32, buckets=(32,)), stoker.Sequences(32, buckets=(32,), keep="random")]
FLOATS = ["price", "exact", "half", "wide"]


def make_store() -> stoker.Store:
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 70, 200)
    steps = int(lengths.sum())
    return stoker.Store.from_arrays(
        lengths=lengths,
        price=rng.normal(size=steps).astype(np.float32),
        exact=rng.normal(size=steps),
        half=rng.normal(size=steps).astype(np.float16),
        wide=rng.normal(size=(steps, 5)).astype(np.float32),
        count=rng.integers(-9, 9, steps),
        small=rng.integers(0, 200, steps).astype(np.uint16),
        flag=rng.random(steps) < 0.5,
        label=np.arange(200),
    )


def with_missing() -> stoker.Store:
    """`make_store` with NaN in its floats, and one value per series that may be missing."""
    store, rng = make_store(), np.random.default_rng(1)
    columns = {name: store.column(name).copy() for name in store.schema}
    for name in FLOATS:
        columns[name][rng.random(columns[name].shape) < 0.3] = np.nan
    return stoker.Store.from_arrays(lengths=store.lengths, **columns, level=np.where(rng.random(200) < 0.3, np.nan, 1.0))


def scaled() -> tuple[stoker.Store, dict[str, Any]]:
    store = make_store()
    columns = [*FLOATS, "count", "small"]
    return store, {"scaler": stoker.split.SeriesScaler.fit(store, None, columns=columns, method="robust", unseen="global")}


OBSERVED = {"observed": [*FLOATS, "level"], "return_series": True}
CASES: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "as stored": lambda: (make_store(), {}),
    "normalized": lambda: (make_store(), {"normalize": "zero"}),
    "normalized by the largest": lambda: (make_store(), {"normalize": "max"}),
    "scaled": scaled,
    "observed": lambda: (with_missing(), OBSERVED),
    "observed and normalized": lambda: (with_missing(), OBSERVED | {"normalize": "zero"}),
    "several stores": lambda: ([make_store() for _ in range(3)], {"weights": [1, 2, 1], "normalize": "zero", "return_store": True}),
}


def assert_same(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        found = b[name].cpu()
        assert a[name].dtype == found.dtype
        assert a[name].shape == found.shape
        assert a[name].contiguous().view(torch.uint8).equal(found.contiguous().view(torch.uint8)), name


@pytest.mark.promise("P8")
@pytest.mark.promise("P9")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("residency", ["device", "host"])
@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_batches_are_those_of_the_cpu(view: Any, residency: str, case: str) -> None:
    store, more = CASES[case]()
    options: dict[str, Any] = {"batch_size": 32, "order": stoker.Shuffle(3), "return_index": True, **more}
    here, there = flat_feed(store, view, **options), flat_feed(store, view, device="cuda", residency=residency, **options)
    for _ in range(2):
        for a, b in zip(here, there, strict=True):
            assert all(tensor.is_cuda for tensor in b.values())
            assert_same(a, b)


@pytest.mark.parametrize("case", ["as stored", "observed", "several stores"])
@pytest.mark.parametrize("view", OF_ONE_SHAPE, ids=str)
def test_captured_batches_are_those_of_the_cpu_epoch_after_epoch(view: Any, case: str) -> None:
    store, more = CASES[case]()
    options: dict[str, Any] = {"batch_size": 32, "order": stoker.Shuffle(3), "return_index": True, **more}
    captured = flat_feed(store, view, device="cuda", residency="device", **options).captured()
    feed = flat_feed(store, view, **options)
    for _ in range(3):
        for a, b in zip(feed, captured, strict=True):
            assert_same(a, b)


def test_codes_of_categories_are_shifted_as_on_the_cpu(tmp_path: Any) -> None:
    tiny_store(tmp_path / "tiny")
    store = stoker.open(tmp_path / "tiny")
    options: dict[str, Any] = {"batch_size": 3, "columns": ["mood", "price"], "category_offset": 1}
    for view in (stoker.Windows(3), stoker.Sequences(4), stoker.Sequences(4, layout="packed")):
        there = flat_feed(store, view, device="cuda", residency="device", **options)
        for a, b in zip(flat_feed(store, view, **options), there, strict=True):
            assert_same(a, b)


def test_the_gather_can_be_part_of_a_graph_of_the_whole_step() -> None:
    store, view = make_store(), stoker.Windows(16, stride=3)
    captured = flat_feed(store, view, batch_size=32, order=stoker.Shuffle(3), device="cuda", residency="device").captured()
    list(captured)  # warms up
    total = torch.zeros((), dtype=torch.float64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total += captured.enqueue()["exact"].sum()
    total.zero_()
    for _ in captured.passes():
        graph.replay()
    expected = sum(batch["exact"].sum() for batch in stoker.Feed(store, view, batch_size=32))
    assert torch.isclose(total.cpu(), expected)


@pytest.mark.parametrize("residency", ["device", "host"])
@pytest.mark.parametrize(
    ("options", "value"), [({"dtype": "float32"}, 1e39), ({"dtype": "float16"}, 7e4), ({"normalize": "zero"}, 1e308)]
)
def test_a_finite_value_never_becomes_infinite(residency: str, options: dict[str, Any], value: float) -> None:
    """On the device before the first batch, so that graphs need no check; NaN and infinities of the store are no reason."""
    values = np.arange(100.0)
    values[57] = value

    def feed_of(values: Any) -> stoker.Feed:
        given: dict[str, Any] = {"batch_size": 9, "device": "cuda", "residency": residency, **options}
        return flat_feed(stoker.Store.from_arrays(x=[values]), stoker.Windows(8), **given)

    with pytest.raises(stoker.errors.FeedError, match="column 'x' of <memory>"):
        list(feed_of(values))
    values[56:58] = np.inf, np.nan
    feed = feed_of(values)
    passes = [feed, feed.captured()] if residency == "device" else [feed]
    for batches in passes:
        assert sum(int(batch["x"].isinf().sum() + batch["x"].isnan().sum()) for batch in batches) == 16


@pytest.mark.promise("P10")
def test_a_kept_batch_never_changes() -> None:
    feed = flat_feed(make_store(), stoker.Windows(16), batch_size=32, order=stoker.Shuffle(1), device="cuda", residency="host")
    kept = [(batch["wide"], batch["wide"].clone()) for batch in feed]
    assert all(torch.equal(a, b) for a, b in kept)


def test_small_columns_are_kept_on_the_device_and_the_reason_is_said() -> None:
    feed = stoker.Feed(make_store(), stoker.Windows(16), batch_size=32, device="cuda")
    assert feed.residency.where == "device"
    assert "fit 50% of the free GPU memory" in str(feed)


@pytest.mark.promise("P5")
@pytest.mark.parametrize("residency", ["device", "host"])
def test_transforms_on_the_device_draw_the_same_after_a_resume(residency: str) -> None:
    """Their generator is one of the GPU, seeded for each batch."""

    def noisy(batch: dict[str, torch.Tensor], rng: torch.Generator) -> dict[str, torch.Tensor]:
        assert rng.device.type == "cuda"
        price = batch["price"]
        return {**batch, "price": price + torch.randn(price.shape, generator=rng, device=rng.device)}

    def make() -> stoker.Feed:
        view = stoker.Windows(16, stride=3)
        return flat_feed(
            make_store(),
            view,
            batch_size=32,
            order=stoker.Shuffle(3),
            device="cuda",
            residency=residency,
            transform=stoker.feed.OnDevice(noisy),
        )

    whole = list(make())
    feed = make()
    batches = iter(feed)
    for _ in range(5):
        next(batches)
    resumed = make()
    resumed.load_state_dict(feed.state_dict())
    for a, b in zip(whole[5:], resumed, strict=True):
        assert all(tensor.is_cuda for tensor in b.values())
        assert all(a[name].equal(b[name]) for name in a)
