"""Options that are plain values: an absurd one of any view, order or schedule is refused by its name, in one line."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from stoker import BlockShuffle, ByLength, EarlyStopping, Segments, Sequences, Shuffle, Weighted, Windows
from stoker._types import converted
from stoker.errors import OptionError
from stoker.feed import CategoryCodes, Distributed
from stoker.train import Constant, Cosine, Inverse, Linear, OneCycle, StepDecay

ABSURD: list[Any] = [-1, 2**90, 1.5, math.nan, math.inf, True, "absurd", b"", [], {}, object()]
NEEDED: dict[type, dict[str, Any]] = {
    Windows: {"length": 8},
    Segments: {"length": 8},
    Sequences: {"max_length": 8},
    Shuffle: {},
    BlockShuffle: {},
    ByLength: {},
    Weighted: {"weights": [1.0]},
    CategoryCodes: {},
    Distributed: {},
    EarlyStopping: {"metric": "val_loss"},
    Constant: {},
    Linear: {},
    Cosine: {},
    OneCycle: {},
    StepDecay: {"every": 5},
    Inverse: {},
}
OPTIONS = {
    Windows: "length stride horizon shift tail gaps",
    Segments: "length horizon shift tail gaps",
    Sequences: "max_length layout keep",
    Shuffle: "seed",
    BlockShuffle: "seed block window",
    ByLength: "seed group pool",
    Weighted: "seed num_samples",
    CategoryCodes: "offset",
    Distributed: "rank world_size global_batch_size",
    EarlyStopping: "patience mode",
    Constant: "warmup",
    Linear: "warmup end",
    Cosine: "warmup end",
    OneCycle: "warmup start end",
    StepDecay: "every factor",
    Inverse: "warmup",
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in OPTIONS.items() for name in names.split()])
def test_an_absurd_value_is_refused_by_its_name(kind: Any, name: str) -> None:
    refused = []
    for value in ABSURD:
        try:
            kind(**{**NEEDED[kind], name: value})
        except OptionError as error:
            refused.append((value, error.parameter, "\n" in str(error)))
    assert {(parameter, is_long) for _, parameter, is_long in refused} == {(name, False)}
    meant = [value for value in ABSURD if not any(value is other for other, _, _ in refused)]
    assert all(type(value) in (int, float) and math.isfinite(value) and value > 0 for value in meant), meant


@pytest.mark.parametrize("value", [np.int64(5), np.uint8(5)])
def test_integers_of_numpy_become_those_of_python(value: Any) -> None:
    assert type(Windows(value).length) is type(Shuffle(value).seed) is int
    assert converted("limit", np.float64(0.5), float | None) == 0.5
