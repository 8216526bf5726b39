"""Kernels of sequences, each beside a loop of plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from stoker_recipes.tabular.sequences import kernels
from stoker_recipes.tabular.sequences.kernels import Numbering

Array = npt.NDArray[Any]


class TestNumbering:
    """Numbers are those of a dictionary, whatever the table behind them."""

    @staticmethod
    def numbers(keys: Array, blocks: int, low: int, high: int) -> tuple[list[int], list[int]]:
        numbering = Numbering(low, high, len(keys))
        found = np.empty(len(keys), dtype=np.int32)
        for block in np.array_split(np.arange(len(keys)), blocks):
            numbering.add(keys[block], found[block[0] : block[-1] + 1] if len(block) else found[:0])
        return found.tolist(), numbering.keys.tolist()

    @pytest.mark.parametrize("spread", [1, 3, 1000, 2**40])
    @pytest.mark.parametrize("blocks", [1, 5])
    def test_numbers_are_those_of_a_dictionary(self, rng: np.random.Generator, spread: int, blocks: int) -> None:
        keys = rng.integers(-20_000, 20_000, 50_000) * spread
        known: dict[int, int] = {}
        expected = [known.setdefault(key, len(known)) for key in keys.tolist()]
        assert self.numbers(keys, blocks, int(keys.min()), int(keys.max())) == (expected, list(known))

    def test_keys_that_share_a_slot_are_distinguished(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """All keys of a table that is never larger than 8: they have to step aside for one another."""
        monkeypatch.setattr(kernels, "_FIRST_ROOM", 4)
        keys = np.array([number << 50 for number in (3, 1, 3, 2, 0, 1, 7, 6, 5, 4, 0)])
        known: dict[int, int] = {}
        expected = [known.setdefault(key, len(known)) for key in keys.tolist()]
        assert self.numbers(keys, 1, 0, 7 << 50) == (expected, list(known))
