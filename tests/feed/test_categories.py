"""Codes of categories mean the same in all stores of a feed, and in the feed that takes them over."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from tests.harness.flat_feed import flat_feed

import stoker
from stoker import Sequences, Store
from stoker.errors import OptionError


def texts_store(folder: Path, texts: list[str], values: list[float]) -> Store:
    return stoker.pack({"x": [[value, value] for value in values], "label": texts}, folder, dtype={"label": "category"})


@pytest.mark.promise("P9")
def test_codes_of_categories_mean_the_same_in_all_stores(tmp_path: Path) -> None:
    a = texts_store(tmp_path / "a", ["up", "down"], [1, 2])
    b = texts_store(tmp_path / "b", ["down", "flat", "up"], [2, 3, 1])
    for residency in ("host", "device"):
        feed = flat_feed([a, b], Sequences(2), batch_size=5, columns=["x", "label"], residency=residency)
        batch = next(iter(feed))
        assert feed.categories == {"label": ["up", "down", "flat"]}
        assert (batch["label"] + 1).tolist() == batch["x"][:, 0].tolist()
    again = pickle.loads(pickle.dumps(feed.dataset))
    assert again[[0, 1, 2, 3, 4]]["label"].tolist() == feed.dataset[[0, 1, 2, 3, 4]]["label"].tolist()
    known = flat_feed(a, Sequences(2), batch_size=2, categories={"label": ["flat", "down", "up"]})
    assert next(iter(known))["label"].tolist() == [2, 1]
    with pytest.raises(OptionError, match=r"column 'label' of .*b holds 'flat'; expected one of the 2 texts of categories="):
        flat_feed(b, Sequences(2), batch_size=2, categories={"label": ["up", "down"]})


@pytest.mark.promise("P9", control=True)
def test_negative_control_stored_codes_alone_mix_up_classes(tmp_path: Path) -> None:
    a = texts_store(tmp_path / "a", ["up", "down"], [1, 2])
    b = texts_store(tmp_path / "b", ["down", "up"], [2, 1])
    codes = np.concatenate([store.column("label") for store in (a, b)])
    values = np.concatenate([[one["x"][0] for one in store] for store in (a, b)])
    assert len({*zip(codes.tolist(), values.tolist(), strict=True)}) == 4
