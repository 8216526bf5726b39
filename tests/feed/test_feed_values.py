"""Every view, from every residency, by any number of threads, is its slow twin bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from tests.feed.stores import LENGTHS, every_number
from tests.feed.twin import Twin, assert_same_batch
from tests.harness import num_examples, tiny_store
from tests.harness.flat_feed import flat_feed

from stoker import Feed, Segments, Sequences, Sequential, Shuffle, Store, Windows

pytestmark = pytest.mark.usefixtures("poisoned")

VIEWS = [
    Windows(4),
    Windows(1),
    Windows(4, stride=3),
    Windows(2, stride=5),
    Windows(3, horizon=2),
    Windows(3, stride=2, shift=1),
    Windows(3, shift=2, tail="drop"),
    Windows(5, stride=2, horizon=1, tail="drop"),
    Segments(4),
    Segments(4, tail="drop"),
    Segments(3, shift=1),
    Segments(2, horizon=3),
    Sequences(6),
    Sequences(100, keep="last"),
    Sequences(6, keep="last"),
    Sequences(8, buckets=(2, 5, 8)),
    Sequences(5, layout="packed"),
    Sequences(100, layout="packed", keep="last"),
]
RESIDENCIES = ["host", "device", "stream"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `every_number` as a store on disk, and a `tiny_store`."""
    folder = tmp_path_factory.mktemp("stores")
    every_number().save(folder / "every")
    tiny_store(folder / "tiny", lengths=LENGTHS)
    return folder


def open_for(residency: str, folder: Path) -> Store:
    from stoker import open as open_store

    return open_store(folder / "every") if residency == "stream" else every_number()


def check(store: Store, view: Any, *, batch_size: int, columns: list[str] | None = None, **options: Any) -> int:
    """Compare an epoch with its twin; returns the number of batches."""
    options = {"dtype": None, **options}  # as stored
    feed = flat_feed(store, view, batch_size=batch_size, columns=columns, **options)
    names = columns or [name for name, column in store.schema.items() if column.dtype is not None]
    twin = Twin(store, view, columns=names, dtype=options.get("dtype"), normalize=options.get("normalize"))
    assert feed.num_samples == len(twin.samples)
    last, shows_numbers = options.get("last_batch", "pad"), options.get("return_index", False)
    order = feed.plan.numbers(0, 0, feed.num_samples).tolist()
    starts = range(0, len(order), batch_size)
    if last == "drop":
        starts = range(0, len(order) - batch_size + 1, batch_size)
    batches = list(feed)
    assert len(batches) == len(feed) == len(starts)
    for start, batch in zip(starts, batches, strict=True):
        numbers = order[start : start + batch_size]
        rows = batch_size if last == "pad" else len(numbers)
        assert_same_batch(batch, twin.batch(numbers, rows, valid=last == "pad", shows_numbers=shows_numbers))
    return len(batches)


@pytest.mark.promise("P8")
@pytest.mark.parametrize("residency", RESIDENCIES)
@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_every_view_of_every_type_is_its_twin(view: Any, residency: str, folder: Path) -> None:
    store = open_for(residency, folder)
    for threads in (0, 1, 3):
        assert check(store, view, batch_size=4, residency=residency, threads=threads, order=Shuffle(threads)) > 0


@pytest.mark.parametrize("residency", RESIDENCIES)
@pytest.mark.parametrize("last", ["pad", "short", "drop"])
@pytest.mark.parametrize("view", [Windows(4, shift=1), Sequences(6), Sequences(6, layout="packed")], ids=str)
def test_a_short_last_batch_is_masked_short_or_dropped(view: Any, last: str, residency: str, folder: Path) -> None:
    store = open_for(residency, folder)
    for batch_size in (1, 4, 100):
        check(store, view, batch_size=batch_size, last_batch=last, return_index=True, residency=residency, order=Sequential())


@pytest.mark.parametrize("residency", RESIDENCIES)
@pytest.mark.parametrize("normalize", [None, "zero", "max"])
@pytest.mark.parametrize("dtype", [None, "float16", "float32", "float64"])
@pytest.mark.parametrize("view", [Windows(4, stride=2, shift=1), Sequences(6, layout="packed"), Sequences(6)], ids=str)
def test_floats_are_normalised_and_cast(view: Any, dtype: Any, normalize: Any, residency: str, folder: Path) -> None:
    store = open_for(residency, folder)
    columns = ["xf2", "xf4", "xf8", "wf2", "wf4", "wf8", "xi4", "sf4", "sf8", "si8", "xb1"]
    check(store, view, batch_size=5, columns=columns, dtype=dtype, normalize=normalize, residency=residency, order=Shuffle())


@pytest.mark.parametrize("residency", RESIDENCIES)
@pytest.mark.parametrize("view", [Windows(4, shift=1), Sequences(6), Sequences(6, layout="packed")], ids=str)
def test_kinds_that_are_not_plain_numbers_are_delivered_as_stored(view: Any, residency: str, folder: Path) -> None:
    from stoker import open as open_store

    store = open_store(folder / "tiny")
    assert {column.kind for column in store.schema.values()} >= {"bfloat16", "timestamp", "duration", "category", "text"}
    for options in ({}, {"dtype": "float32", "normalize": "zero"}):
        check(store, view, batch_size=4, residency=residency, **options)


@pytest.mark.parametrize("residency", RESIDENCIES)
@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_series_of_one_length_are_their_twin(view: Any, residency: str, tmp_path: Path) -> None:
    store = every_number([7] * 5)
    assert store.uniform_length == 7
    store = store.save(tmp_path / "s") if residency == "stream" else store
    columns = ["xf4", "wu2", "si8"]
    check(store, view, batch_size=4, columns=columns, residency=residency, order=Shuffle(), return_index=True)


@pytest.mark.parametrize("view", [Windows(300), Windows(7, stride=5), Sequences(2**40, layout="packed")], ids=str)
def test_batches_large_enough_to_be_written_past_the_caches(view: Any) -> None:
    rng = np.random.default_rng(0)
    store = Store.from_arrays(x=[rng.normal(size=size).astype(np.float32) for size in (3000, 11, 70_000, 0, 5000)])
    size = 2048 if isinstance(view, Windows) else 5
    check(store, view, batch_size=size, order=Shuffle(), columns=["x"], last_batch="drop")


LENGTH_LISTS = st.lists(st.integers(0, 25), min_size=1, max_size=12)


@st.composite
def views(draw: st.DrawFn) -> Any:
    kind = draw(st.sampled_from(["windows", "segments", "sequences"]))
    length = draw(st.integers(1, 8))
    if kind == "sequences":
        layout = draw(st.sampled_from(["padded", "packed"]))
        buckets = draw(st.none() | st.sets(st.integers(1, length)).map(lambda some: (*sorted(some), length)))
        keep = draw(st.sampled_from(["first", "last"]))
        return Sequences(length, layout=layout, buckets=buckets if layout == "padded" else None, keep=keep)
    target = draw(st.sampled_from([{}, {"horizon": draw(st.integers(1, 5))}, {"shift": draw(st.integers(1, 5))}]))
    tail = draw(st.sampled_from(["keep", "drop"]))
    if kind == "segments":
        return Segments(length, tail=tail, **target)
    return Windows(length, stride=draw(st.integers(1, 12)), tail=tail, **target)


@settings(max_examples=num_examples(250))
@given(
    lengths=LENGTH_LISTS,
    view=views(),
    batch_size=st.integers(1, 9),
    last=st.sampled_from(["pad", "short", "drop"]),
    residency=st.sampled_from(["host", "device"]),
    threads=st.sampled_from([0, 0, 2]),
    normalize=st.sampled_from([None, "zero", "max"]),
)
def test_whatever_the_lengths_and_the_view(
    lengths: list[int], view: Any, batch_size: int, last: str, residency: str, threads: int, normalize: Any
) -> None:
    rng = np.random.default_rng(len(lengths))
    store = Store.from_arrays(
        lengths=lengths,
        x=rng.normal(size=sum(lengths)).astype(np.float32),
        w=rng.normal(size=(sum(lengths), 2)),
        s=np.arange(len(lengths)),
    )
    twin = Twin(store, view, columns=["x"], dtype=None, normalize=None)
    if twin.samples:
        options: dict[str, Any] = {"last_batch": last, "residency": residency, "threads": threads, "normalize": normalize}
        columns = ["x", "w", "s"] if sum(lengths) != len(lengths) else ["x"]
        check(store, view, batch_size=batch_size, columns=columns, return_index=True, order=Shuffle(), **options)


@pytest.mark.promise("P8", control=True)
def test_the_twin_sees_a_difference() -> None:
    """Negative control: one bit of one value is enough."""
    store = every_number()
    twin = Twin(store, Windows(4), columns=["xf4"], dtype=None, normalize=None)
    expected = twin.batch([0, 1], 2, valid=True, shows_numbers=False)
    batch = next(iter(Feed(store, Windows(4), batch_size=2, columns=["xf4"])))
    assert_same_batch(batch, expected)
    expected["xf4"][1, 2] = -expected["xf4"][1, 2]
    with pytest.raises(AssertionError, match="differs in xf4, row 1"):
        assert_same_batch(batch, expected)


def test_every_target_of_segments_comes_exactly_once() -> None:
    """Every step of a series but its first is a target, once, and stands where its input ends."""
    for lengths in ([*range(26)], [1, 0, 2], [8] * 5, [9] * 5, [16] * 3):
        starts = np.cumsum([0, *lengths])[:-1]
        store = Store.from_arrays(lengths=lengths, x=np.arange(sum(lengths)))
        for last in ("pad", "short"):
            seen = []
            for batch in Feed(store, Segments(8, shift=1), batch_size=5, order=Shuffle(), last_batch=last):
                mask = batch["target_mask"] if "target_mask" in batch else torch.ones_like(batch["x"], dtype=torch.bool)
                mask = mask & batch["valid"][:, None] if last == "pad" else mask
                assert (batch["x"][mask] + 1).equal(batch["x_target"][mask])
                seen += batch["x_target"][mask].tolist()
            targets = [step for start, size in zip(starts, lengths, strict=True) for step in range(start + 1, start + size)]
            assert sorted(seen) == targets
