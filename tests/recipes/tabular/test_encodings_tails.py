"""Tails: what protection cuts off a heavy tail is drawn from a law, which no extreme value has a part in."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from stoker._types import Array
from stoker_recipes.tabular.encodings import Numeric, Subjects, fit_numeric, fit_tail
from stoker_recipes.tabular.values import read_values


def learned(data: Array, *, has_tails: bool = True, per_subject: int = 1, least: int = 6) -> Numeric:
    subjects = Subjects(starts=np.arange(0, len(data), per_subject), num_rows=len(data), least=least)
    found = fit_numeric(read_values("x", pa.array(data)), subjects, has_tails=has_tails)
    assert found is not None
    return found


def back(encoding: Numeric, data: Array, seed: int = 0) -> Array:
    codes = encoding.encode(read_values("x", pa.array(data)), np.arange(len(data)))
    return encoding.numbers(codes.astype(np.int64), np.random.default_rng(seed).random(len(data)))[0]


def top(values: Array) -> float:
    return float(np.sort(values)[-max(1, len(values) // 100) :].mean())


def likelihood(scale: float, shape: float, distances: Array, end: float, num_cut: int) -> float:
    """The slow twin: the log-likelihood of a generalized Pareto law, written out."""
    densities = -np.log(scale) - (1 / shape + 1) * np.log(1 + shape * distances / scale)
    return float(densities.sum() - num_cut / shape * np.log(1 + shape * end / scale))


@pytest.mark.parametrize(("shape", "scale"), [(0.2, 3.0), (0.5, 1.0), (0.9, 100.0)])
def test_the_law_is_the_likeliest_one(shape: float, scale: float) -> None:
    rng = np.random.default_rng(1)
    drawn = scale * (rng.random(800) ** -shape - 1) / shape
    end = float(np.sort(drawn)[-9])
    inside = drawn[drawn < end]
    found = fit_tail(inside, end, 9)
    assert found[1] == pytest.approx(shape, abs=0.2)
    best = likelihood(*found, inside, end, 9)
    scales, shapes = scale * np.linspace(0.5, 2, 40), np.linspace(0.02, 1.5, 40)
    assert best > max(likelihood(a, b, inside, end, 9) for a in scales for b in shapes) - 0.3


@pytest.mark.promise("P30")
@pytest.mark.parametrize("per_subject", [1, 4])
def test_the_mean_of_the_largest_values_stays(per_subject: int) -> None:
    errors: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(12):
        rng = np.random.default_rng(seed)
        effects = np.repeat(rng.lognormal(0, 0.3, 2000 // per_subject), per_subject)
        data = np.round(effects * rng.random(2000) ** (-1 / 2.5), 2)
        for has_tails, found in errors.items():
            found.append(top(back(learned(data, has_tails=has_tails, per_subject=per_subject), data, seed)) / top(data) - 1)
    assert abs(np.mean(errors[True])) < 0.09
    assert np.mean(errors[False]) < -0.12  # negative control: the cut alone


@pytest.mark.promise("P30")
def test_no_extreme_value_has_a_part_in_it() -> None:
    data = np.random.default_rng(0).lognormal(3, 1, 3000)
    other = data.copy()
    other[np.argsort(data)[-5:]] = [1e6, 1e7, 1e8, 1e9, 1e12]
    one, two = learned(data), learned(other)
    assert one.above is not None
    assert one == two  # what is stored, and so all that is generated, is the same
    assert back(two, other).max() < 20 * np.sort(data)[-7]


def test_values_of_one_subject_are_not_a_tail() -> None:
    """A subject with 60 of the largest values, of 20 with more than one."""
    data = np.concatenate([np.random.default_rng(0).uniform(0, 1000, 600), np.geomspace(1001, 1e6, 60)])
    owners = np.append(np.arange(0, 600, 3), 600)
    found = fit_numeric(read_values("x", pa.array(data)), Subjects(starts=owners, num_rows=660, least=6), has_tails=True)
    assert found is not None
    assert found.above is None or found.above.most < 1000


LIGHT = {
    "uniform": lambda rng: rng.random(3000) * 80,
    "normal": lambda rng: rng.normal(size=3000),
    "ages": lambda rng: np.clip(np.rint(rng.normal(40, 15, 3000)), 18, 90).astype(np.int64),
    "counts": lambda rng: rng.poisson(3, 3000),
}


@pytest.mark.promise("P30")
@pytest.mark.parametrize("name", LIGHT)
def test_other_tails_stay_in_the_protected_range(name: str) -> None:
    data = LIGHT[name](np.random.default_rng(2))
    encoding = learned(data)
    assert encoding.above is None
    assert encoding.below is None
    assert back(encoding, data).max() <= encoding.highs[-1]


def test_values_keep_their_kind() -> None:
    rng = np.random.default_rng(3)
    heavy = rng.random(4000) ** -0.5
    whole = learned((heavy * 10).astype(np.int64) * 50)
    assert whole.above is not None
    drawn = back(whole, (heavy * 10).astype(np.int64) * 50)
    assert drawn.dtype == np.int64
    assert (drawn % 50 == 0).all()
    assert drawn.max() > whole.highs[-1]
    shares = heavy / heavy.max() * 0.999
    assert back(learned(shares), shares).max() <= 1
    assert back(learned(heavy), heavy).min() >= 1 - 1e-9  # positive values have no tail below 0
    lower = back(learned(-heavy), -heavy)
    assert learned(-heavy).below is not None
    assert lower.max() < 0
    assert lower.min() < learned(-heavy).lows[0]
