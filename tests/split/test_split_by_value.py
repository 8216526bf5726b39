"""`by_value`: whole series by the value of a column, against a plain loop."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

import stoker
from stoker import Feed, Sequences, Store, Windows


def make_store(values: Any) -> Store:
    return Store.from_arrays(x=[np.full(3, i, dtype=np.float32) for i in range(len(values))], group=np.asarray(values))


@given(st.lists(st.integers(0, 3), min_size=3, max_size=20))
def test_the_subsets_are_those_of_a_loop(values: list[int]) -> None:
    values = [*values, 0, 1, 2, 3]
    split = stoker.split.by_value(make_store(values), Windows(2, tail="drop"), "group", train=[0, 3], valid=1, test=[2])
    for name, asked in (("train", {0, 3}), ("valid", {1}), ("test", {2})):
        feed = Feed(make_store(values), Windows(2, tail="drop"), batch_size=100, subset=split.subsets[name], last_batch="short")
        expected = [i for i, value in enumerate(values) if value in asked for _ in range(2)]
        assert next(iter(feed))["x"][:, 0].tolist() == expected


def test_strings_may_be_patterns(tmp_path: Path) -> None:
    names = ["a_TRAIN.ts", "b_TRAIN.ts", "a_TEST.ts", "c.ts"]
    for kind in ("category", "text"):
        store = stoker.pack({"x": [[1.0]] * 4, "name": names}, tmp_path / kind, dtype={"name": kind})
        split = stoker.split.by_value(store, Sequences(1), "name", train="*_TRAIN.ts", test=["a_TEST.ts", "c.*"])
        assert split.subsets["train"].runs.firsts.tolist() == [0]
        assert [len(subset) for subset in split] == [sum(fnmatchcase(one, "*_TRAIN.ts") for one in names), 2]
