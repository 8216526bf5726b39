"""The index of windows: the same at every density, small whatever the number of windows, and it trusts no offset."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from tests.sampling import twins
from tests.sampling.test_views_windows import VIEWS, as_tuples, check, listed

from stoker.errors import StoreDamagedError
from stoker.sampling import views
from stoker.sampling.views import Lengths, Segments, Sequences, Windows

SHAPES = {
    "alike": [9] * 50,
    "empty at the start": [0] * 40 + [9],
    "empty at the end": [9] + [0] * 40,
    "empty in between": [9, *[0] * 40, 23, *[0] * 17, 4],
    "one long": [1] * 20 + [500] + [1] * 20,
    "growing": list(range(45)),
    "falling": list(range(45, 0, -1)),
    "fifteen": [7] * 15,
    "sixteen": [7] * 16,
    "seventeen": [7] * 17,
    "all empty": [0] * 33,
}


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_dense_and_a_sparse_index_equal_the_twin(monkeypatch: pytest.MonkeyPatch, shape: str, dense: bool) -> None:
    """A sparse one has an entry for every 16 series, as there is for millions of them."""
    monkeypatch.setattr(views, "_DENSE_SERIES", 2**22 if dense else 0)
    for view in VIEWS[::6]:
        check(view.over(twins.ragged(SHAPES[shape])), view, SHAPES[shape])


def test_ten_billion_windows_cost_what_ten_cost() -> None:
    used = {}
    for steps in (57, 10**10 + 47):
        num_windows = steps - 47
        for lengths in (twins.uniform(steps, 1), twins.ragged([steps])):
            listed(Windows(48).over(twins.ragged([57])))  # so that kernels are loaded
            listed(Windows(48).over(twins.uniform(57, 1)))
            tracemalloc.start()
            samples = Windows(48).over(lengths)
            found = samples.locate(np.array([0, num_windows - 1, num_windows // 2]))
            used[steps] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert samples.num_samples == num_windows
            assert samples.notes() == []
            assert as_tuples(found) == [(0, 0, 48), (0, num_windows - 1, 48), (0, num_windows // 2, 48)]
    assert used[10**10 + 47] < used[57] + 2000


def test_positions_beyond_32_bits_are_exact() -> None:
    lengths = [2**33 + 1, 0, 2**34, 3, 2**35 + 7]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).tolist()
    view = Windows(1000, stride=999)
    samples = view.over(twins.ragged(lengths))
    numbers, expected, first = [], [], 0
    for series, num_steps in enumerate(lengths):
        count = max(0, -(-(num_steps - 1000) // 999)) + (num_steps > 0)
        for k in sorted({0, count // 2, count - 1} if count else set()):
            start = offsets[series] + k * 999
            numbers.append(first + k)
            expected.append((series, start, min(1000, offsets[series + 1] - start)))
        first += count
    assert samples.num_samples == first
    assert as_tuples(samples.locate(np.array(numbers))) == expected
    uniform = view.over(twins.uniform(2**34, 8))
    per_series = -(-(2**34 - 1000) // 999) + 1
    assert uniform.num_samples == 8 * per_series
    last = uniform.locate(np.array([uniform.num_samples - 1]))
    assert as_tuples(last) == [(7, 7 * 2**34 + (per_series - 1) * 999, 2**34 - (per_series - 1) * 999)]


def hostile(offsets: list[int], num_steps: int = 40) -> Lengths:
    return Lengths(num_series=len(offsets) - 1, num_steps=num_steps, offsets=np.array(offsets, dtype=np.int64), name="prices")


DAMAGE = {
    "negative": ([-8, 10, 20, 30, 40], 0, "-8 and 10"),
    "falling": ([0, 10, 30, 20, 40], 2, "30 and 20"),
    "beyond the end": ([0, 10, 20, 50, 40], 2, "20 and 50"),
    "far beyond": ([0, 10, 2**62, 2**62 + 5, 40], 1, "10 and 4,611,686,018,427,387,904"),
    "far below": ([0, -(2**62), 20, 30, 40], 0, "0 and -4,611,686,018,427,387,904"),
    "lowest": ([0, 10, -(2**63), 30, 40], 1, "10 and -9,223,372,036,854,775,808"),
    "last too far": ([0, 10, 20, 30, 41], 3, "30 and 41"),
}


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("view", [Windows(3), Windows(8, horizon=2, stride=5), Segments(50)], ids=repr)
def test_damaged_offsets_are_named_by_the_index(
    monkeypatch: pytest.MonkeyPatch, view: Windows | Segments, damage: str, dense: bool
) -> None:
    monkeypatch.setattr(views, "_DENSE_SERIES", 2**22 if dense else 0)
    offsets, series, values = DAMAGE[damage]
    with pytest.raises(StoreDamagedError) as caught:
        view.over(hostile(offsets))
    assert str(caught.value) == f"prices: the offsets of series {series} are {values} of 40. Run `stoker inspect --verify`."


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("view", [Windows(3), Windows(8, horizon=2, stride=5), Segments(50)], ids=repr)
def test_offsets_damaged_later_are_named_or_stay_in_bounds(
    monkeypatch: pytest.MonkeyPatch, view: Windows | Segments, damage: str, dense: bool
) -> None:
    monkeypatch.setattr(views, "_DENSE_SERIES", 2**22 if dense else 0)
    lengths = hostile([0, 10, 20, 30, 40])
    samples = view.over(lengths)
    lengths.offsets[:] = DAMAGE[damage][0]
    raised = 0
    for number in range(samples.num_samples):
        try:
            found = samples.locate(np.array([number]))
        except StoreDamagedError:
            raised += 1
        else:
            assert 0 <= found.starts[0] < found.starts[0] + found.counts[0] <= 40
    assert raised


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("keep", ["first", "last"])
def test_sequences_name_damaged_offsets(damage: str, keep: str) -> None:
    offsets, series, values = DAMAGE[damage]
    samples = Sequences(5, keep=keep).over(hostile(offsets))  # type: ignore[arg-type]
    with pytest.raises(StoreDamagedError) as caught:
        samples.locate(np.array([series]))
    assert str(caught.value) == f"prices: the offsets of series {series} are {values} of 40. Run `stoker inspect --verify`."
