"""Kernels of sequences, each beside a loop of plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from stoker.encode.sequences import kernels
from stoker.encode.sequences.kernels import NO_STARTS, Numbering, count_rows, place_rows, put_positions, put_values, start_steps

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
    def test_they_equal_those_of_a_dictionary(self, rng: np.random.Generator, spread: int, blocks: int) -> None:
        keys = rng.integers(-20_000, 20_000, 50_000) * spread
        known: dict[int, int] = {}
        expected = [known.setdefault(key, len(known)) for key in keys.tolist()]
        assert self.numbers(keys, blocks, int(keys.min()), int(keys.max())) == (expected, list(known))

    def test_the_ends_of_int64(self) -> None:
        keys = np.array([2**63 - 1, -(2**63), 0, -(2**63), 2**63 - 1])
        assert self.numbers(keys, 1, -(2**63), 2**63 - 1) == ([0, 1, 2, 1, 0], [2**63 - 1, -(2**63), 0])

    @pytest.mark.parametrize("spread", [1, 2**40])
    def test_frozen_it_learns_no_more(self, spread: int) -> None:
        numbering = Numbering(0, 9 * spread, 10)
        numbers = np.empty(3, dtype=np.int32)
        numbering.add(np.array([5, 2, 9]) * spread, numbers)
        numbering.add(np.array([9, 1, 5]) * spread, numbers, frozen=True)
        assert (numbers.tolist(), len(numbering.keys)) == ([2, -1, 0], 3)

    def test_keys_that_share_a_slot_are_distinguished(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """All keys of a table that is never larger than 8: they have to step aside for one another."""
        monkeypatch.setattr(kernels, "_FIRST_ROOM", 4)
        keys = np.array([number << 50 for number in (3, 1, 3, 2, 0, 1, 7, 6, 5, 4, 0)])
        known: dict[int, int] = {}
        expected = [known.setdefault(key, len(known)) for key in keys.tolist()]
        assert self.numbers(keys, 1, 0, 7 << 50) == (expected, list(known))


CONTEXTS = [2, 0, -1, 2, 2, 1, 0, 2, -1, 2]
"""The context of each row; -1 belongs to none."""


def cells_of(limit: int, starts: list[int]) -> tuple[list[int], list[int]]:
    """The length of each sequence and the cell of each row, one row after the other."""
    lengths, cells = [0] * len(starts), []
    for context in CONTEXTS:
        if context < 0 or lengths[context] == limit:
            cells.append(-1)
        else:
            cells.append(starts[context] + lengths[context])
            lengths[context] += 1
    return lengths, cells


@pytest.mark.parametrize("narrow", [True, False])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_rows_go_to_the_cells_of_their_sequences(limit: int, packed: bool, narrow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts, lengths = np.array(CONTEXTS, dtype=np.int32), np.zeros(4, dtype=np.int32)
    count_rows(contexts, limit, lengths)
    expected_lengths, _ = cells_of(limit, [0] * 4)
    assert lengths.tolist() == expected_lengths
    starts = start_steps(lengths, 1)
    assert starts.tolist() == np.cumsum([0, *(length + 1 for length in expected_lengths)]).tolist()
    if not narrow:
        monkeypatch.setattr(kernels, "MAX_NARROW", 5)  # so that cells need 8 bytes; no limit is as large
    begins = starts.tolist()[:-1] if packed else [10 * number for number in range(4)]
    _, cells = cells_of(min(limit, kernels.MAX_NARROW), begins)
    found = place_rows(contexts, lengths, limit, starts=starts if packed else None, steps=10, num_cells=40)
    assert found.tolist() == cells
    assert (found is contexts) == narrow
    assert lengths.tolist() == expected_lengths


@pytest.mark.parametrize("dtype", ["u1", "f2", "i4", "f8", "M8[ns]"])
def test_values_are_put_bit_for_bit(dtype: str) -> None:
    values = np.frombuffer(np.arange(80, dtype=np.uint8).tobytes(), dtype=dtype)[:5]
    target = np.zeros(9, dtype=dtype)
    put_values(np.array([7, -1, 0, 8, 3], dtype=np.int32), values, target)
    expected = np.zeros(9, dtype=dtype)
    for place, value in ((7, values[0]), (0, values[2]), (8, values[3]), (3, values[4])):
        expected[place] = value
    assert target.tobytes() == expected.tobytes()


@pytest.mark.parametrize("divisor", [0, 1, 10])
@pytest.mark.parametrize("packed", [True, False])
def test_positions_are_counted_from_both_ends(divisor: int, packed: bool) -> None:
    lengths = np.array([12, 0, 3], dtype=np.int32)
    starts = start_steps(lengths, 1) if packed else NO_STARTS
    found = np.full((3, 45), -1, dtype=np.int64)
    expected = found.copy()
    put_positions(lengths, starts, 15, divisor, *found)
    for number, count in enumerate(lengths.tolist()):
        first = int(starts[number]) if packed else 15 * number
        for step in range(count + 1):
            for row, value in enumerate((step, count, count - step)):
                expected[row, first + step] = value if divisor == 0 else value // divisor % 10
    assert found.tolist() == expected.tolist()
