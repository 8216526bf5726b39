"""Every argument that cannot be meant gets one line that says what was found and what is expected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.harness.flat_feed import flat_feed

from stoker import Feed, Store, Windows
from stoker.errors import OptionError
from stoker.store.store import store_from_arrays


def store() -> Store:
    return Store.from_arrays(lengths=[9, 5, 1], x=np.zeros(15, dtype=np.float32), n=np.arange(15), y=np.arange(3))


def make(**options: Any) -> Feed:
    given = {"store": store(), "view": Windows(4), "batch_size": 2, **options}
    return flat_feed(given.pop("store"), given.pop("view"), **given)


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"store": "prices.stoker"}, "store"),
        ({"view": 48}, "view"),
        ({"view": Windows(99, tail="drop")}, "view"),
        ({"batch_size": 0}, "batch_size"),
        ({"threads": -1}, "loading.threads"),
        ({"threads": 10**6}, "loading.threads"),
        ({"prefetch": 0}, "loading.prefetch"),
        ({"last_batch": "mask"}, "last_batch"),
        ({"order": "shuffle"}, "order"),
        ({"transform": "text"}, "transform"),
        ({"device": "gpu"}, "device"),
        ({"columns": ["x", "z"]}, "z"),
        ({"dtype": "int32"}, "dtype"),
        ({"normalize": "minmax"}, "normalize"),
        ({"residency": "gpu"}, "loading.residency"),
        ({"residency": "stream"}, "residency"),  # of a store in memory
        ({"residency": "device", "transform": dict}, "residency"),
        ({"rank": 1}, "rank"),
    ],
)
def test_an_invalid_option_is_refused(options: dict[str, Any], place: str) -> None:
    with pytest.raises(OptionError) as caught:
        make(**options)
    assert (caught.value.parameter or caught.value.column) == place
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["mask", "target_mask", "lengths", "valid", "sample", "cu_seqlens", "x_target"])
def test_columns_that_a_batch_would_hide_are_refused(name: str) -> None:
    clashing = store_from_arrays({name: np.zeros((2, 4)), "x": np.zeros((2, 4))})
    with pytest.raises(OptionError, match=f"a batch has an entry '{name}' of its own, which the column would hide"):
        Feed(clashing, Windows(2, shift=1), batch_size=1)
    assert Feed(clashing, Windows(2, shift=1), batch_size=1, columns="x").num_samples > 0


def test_defaults_depend_on_what_is_fed() -> None:
    assert make().threads == 0
    assert make(transform=dict).threads > 0
    assert make(residency="device").threads == 1
    assert make(threads=5).prefetch >= 5


def test_floats_are_float32_unless_asked_otherwise() -> None:
    """A store of float64, as pandas makes it, feeds a model as torch makes it."""
    doubles = store_from_arrays({"x": np.ones((4, 6)), "n": np.ones((4, 6), dtype=np.int32)})
    batch = next(iter(Feed(doubles, Windows(6), batch_size=4)))
    assert (batch["x"].dtype, batch["n"].dtype) == (torch.float32, torch.int32)
    assert torch.nn.Linear(6, 1)(batch["x"]).shape == (4, 1)
    assert next(iter(Feed(doubles, Windows(6), batch_size=4, dtype="float64")))["x"].dtype == torch.float64


def test_negative_control_stored_types_do_not_fit_a_model() -> None:
    doubles = store_from_arrays({"x": np.ones((4, 6))})
    batch = next(iter(Feed(doubles, Windows(6), batch_size=4, dtype=None)))
    with pytest.raises(RuntimeError, match="same dtype"):
        torch.nn.Linear(6, 1)(batch["x"])
