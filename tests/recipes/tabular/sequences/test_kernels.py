"""The kernels that number keys: as a dictionary does, whatever the table behind them."""

from __future__ import annotations

import numpy as np
import pytest

from stoker_recipes.tabular import pad_sequences
from stoker_recipes.tabular.sequences import kernels


def check(keys: np.ndarray) -> None:
    known: dict[int, list[int]] = {}
    for row, key in enumerate(keys.tolist()):
        known.setdefault(key, []).append(row)
    packed = pad_sequences({"k": keys, "row": np.arange(len(keys))}, key="k", layout="packed")
    assert packed.contexts.tolist() == list(known)
    assert packed["row"].tolist() == [row for rows in known.values() for row in rows]


@pytest.mark.parametrize("spread", [1, 3, 1000, 2**40])
def test_keys_are_numbered_as_by_a_dictionary(rng: np.random.Generator, spread: int) -> None:
    """More keys than the first table has room for, close together and far apart."""
    check(rng.integers(-20_000, 20_000, 50_000) * spread)


def test_keys_that_share_a_slot_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    """All keys of a table that is never larger than 8: they have to step aside for one another."""
    monkeypatch.setattr(kernels, "_FIRST_ROOM", 4)
    check(np.array([number << 50 for number in (3, 1, 3, 2, 0, 1, 7, 6, 5, 4, 0)]))
