"""Values per series, codes of categories and the series index, as a batch has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.feed.twin import all_samples
from tests.harness.flat_feed import flat_feed
from tests.split.stores import with_time

from stoker import Feed, Sequences, Shuffle, Store, Windows
from stoker.store.shards import Column, Texts

pytestmark = pytest.mark.usefixtures("poisoned")

VIEWS = [Windows(3), Windows(2, horizon=1, tail="drop"), Sequences(4), Sequences(4, layout="packed")]
LENGTHS = [5, 0, 3, 7, 1]


def make_store() -> Store:
    """With a category per step and one per series, whose missing ones are -1, a number and a vector per series."""
    rng = np.random.default_rng(0)
    plain = Store.from_arrays(
        lengths=LENGTHS, x=rng.normal(size=16), mood=rng.integers(-1, 3, 16).astype(np.int32), age=np.arange(5.0)
    )
    country, place = np.array([1, -1, 0, 2, 1], dtype=np.int32), rng.normal(size=(5, 2))
    values = {**{name: plain.column(name) for name in plain.schema}, "country": country, "place": place}
    schema = dict(plain.schema) | {
        "mood": Column(name="mood", dtype=np.dtype("i4"), level="step", kind="category", texts=Texts.of(["a", "b", "c"])),
        "country": Column(
            name="country", dtype=np.dtype("i4"), level="series", kind="category", texts=Texts.of(["at", "de", "fr"])
        ),
        "place": Column(name="place", dtype=np.dtype("f8"), level="series", kind="number", width=2),
    }
    return Store(schema, values, num_series=5, length=None, offsets=plain.offsets, name="<memory>")


@pytest.mark.parametrize("residency", ["host", "device"])
@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_series_values_and_index_are_those_of_the_sample(view: Any, residency: str) -> None:
    store = make_store()
    feed = flat_feed(
        store, view, batch_size=4, order=Shuffle(2), dtype=None, residency=residency, return_series=True, return_index=True
    )
    samples = all_samples(view, LENGTHS)
    for batch in feed:
        for row, number in enumerate(batch["sample"].tolist()):
            series = samples[number].series if number >= 0 else -1
            assert batch["series"][row] == series
            assert batch["age"][row] == (store.column("age")[series] if series >= 0 else 0)
            assert batch["place"][row].tolist() == (store.column("place")[series].tolist() if series >= 0 else [0, 0])
        assert batch["series"].dtype == torch.int64
        assert batch["age"].shape == (4,)
        assert batch["place"].shape == (4, 2)


@pytest.mark.promise("P8")
@pytest.mark.parametrize("residency", ["host", "device"])
@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_an_offset_keeps_code_0_for_padding_and_missing_categories(view: Any, residency: str) -> None:
    store = make_store()
    options: dict[str, Any] = {"batch_size": 4, "order": Shuffle(2), "residency": residency, "columns": ["mood", "country", "x"]}
    for stored, shifted in zip(
        flat_feed(store, view, **options), flat_feed(store, view, **options, category_offset=1), strict=True
    ):
        assert stored["country"].dtype == torch.int32
        assert shifted["country"].dtype == torch.int64
        assert shifted["country"].tolist() == ((stored["country"] + 1) * stored["valid"]).tolist()
        mask = stored.get("mask", stored["valid"][:, None] if stored["mood"].dim() > 1 else torch.ones(1))
        assert shifted["mood"].tolist() == ((stored["mood"] + 1) * mask).long().tolist()
        for name in stored.keys() - {"mood", "mood_target", "country"}:
            assert stored[name].equal(shifted[name])


def test_runs_between_gaps_have_the_number_of_their_series() -> None:
    store = with_time([[0, 1, 2, 9, 10, 11], [0, 1, 2]], label=np.array([7, 8]))
    batch = next(iter(flat_feed(store, Windows(3, max_gap=1), batch_size=3, return_series=True, columns=["t", "label"])))
    assert batch["series"].tolist() == [0, 0, 1]
    assert batch["label"].tolist() == [7, 7, 8]
    assert batch["t"].tolist() == [[0, 1, 2], [9, 10, 11], [0, 1, 2]]


def test_options_that_change_batches_are_part_of_the_identity_and_others_are_not() -> None:
    store = make_store()
    options: dict[str, Any] = {"return_series": True, "observed": True, "category_offset": 1, "device_transform": dict}
    plain, other = (
        Feed(store, Windows(3), batch_size=4).identity(),
        flat_feed(store, Windows(3), batch_size=4, **options).identity(),
    )
    assert {name for name in plain if plain[name] != other[name]} == {
        "returns",
        "observed",
        "category_offset",
        "device_transform",
        "columns",
    }
    assert flat_feed(store, Windows(3), batch_size=4, threads=2).identity() == plain
