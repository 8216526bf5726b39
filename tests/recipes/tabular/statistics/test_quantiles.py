"""Quantiles: NumPy's `closest_observation` as long as all values are kept, within a stated bound where they are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.recipes.tabular.statistics.twin import rank_distance

from stoker_recipes.tabular.statistics import quantiles as sketches
from stoker_recipes.tabular.statistics.quantiles import Distribution, KeyRun, Sketch, closest_positions

SHARES = np.linspace(0, 1, 1001)


@pytest.mark.parametrize("size", [*range(1, 60), 99, 100, 999, 1000, 1001, 2000, 4096, 100_000])
def test_positions_are_those_of_numpy(size: int) -> None:
    expected = np.quantile(np.arange(size), SHARES, method="closest_observation")
    assert closest_positions(size, SHARES).tolist() == expected.tolist()


# A sketch stays within its stated bound: for values in any order, in pieces of any size


def descending(rng: np.random.Generator, size: int) -> Any:
    return np.arange(size, dtype=np.uint64)[::-1]


def zigzag(rng: np.random.Generator, size: int) -> Any:
    """From both ends to the middle: whatever is kept first says nothing of what comes later."""
    values = np.arange(size, dtype=np.uint64)
    values[1::2] = values[1::2][::-1]
    return values


def random(rng: np.random.Generator, size: int) -> Any:
    return rng.integers(0, 2**64 - 1, size, dtype=np.uint64)


def repeated(rng: np.random.Generator, size: int) -> Any:
    return rng.zipf(1.3, size).astype(np.uint64) % 10_000


def blockwise(rng: np.random.Generator, size: int) -> Any:
    """Each block lies within two values of the block before."""
    return np.concatenate([np.sort(random(rng, size // 2)) // np.uint64(2), np.sort(random(rng, size - size // 2))])


ORDERS: list[Callable[[np.random.Generator, int], Any]] = [descending, zigzag, random, repeated, blockwise]


def sketched(values: Any, *, block: int, piece: int) -> Distribution:
    """A distribution that is a sketch from the start."""
    distribution = Distribution(block)
    distribution.sketch = Sketch(block)
    for start in range(0, len(values), piece):
        distribution.add(KeyRun.of(values[start : start + piece].copy()))
    return distribution


def worst_distance(values: Any, distribution: Distribution) -> int:
    ordered = np.sort(values)
    positions = closest_positions(len(values), SHARES).tolist()
    return max(map(lambda key, position: rank_distance(ordered, key, position), distribution.quantiles(SHARES), positions))


@pytest.mark.promise("P11")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("block", [16, 64, 1024, 65536])
@pytest.mark.parametrize("piece", [37, 5000, 200_000])
def test_quantiles_are_within_the_bound(order: Any, block: int, piece: int, rng: np.random.Generator) -> None:
    values = order(rng, 3000 if piece < 100 else 200_000)
    distribution = sketched(values, block=block, piece=piece)
    assert distribution.num_values == len(values)
    assert worst_distance(values, distribution) <= distribution.rank_error


@pytest.mark.promise("P11", control=True)
def test_negative_control_a_sketch_that_keeps_the_first_of_a_group_breaks_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(64 * 64, dtype=np.uint64)

    def first_of_group(run: KeyRun, positions: Any) -> Any:
        return run.keys[positions - (positions[1] - positions[0]) // 2 + 1]

    monkeypatch.setattr(sketches.KeyRun, "at", first_of_group)
    broken = sketched(values, block=4096, piece=4096)
    monkeypatch.undo()
    assert worst_distance(values, broken) > broken.rank_error == 8
    assert worst_distance(values, sketched(values, block=4096, piece=4096)) <= 8
