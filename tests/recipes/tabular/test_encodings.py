"""Classes of values and back: what is kept comes back exactly, what one subject has alone does not."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from stoker._types import Array
from stoker.errors import BadValueError
from stoker_recipes.tabular import encodings
from stoker_recipes.tabular.encodings import (
    Numeric,
    Subjects,
    _ends,
    fit_categorical,
    fit_character,
    fit_lat_long,
    fit_numeric,
    fit_tail,
)
from stoker_recipes.tabular.values import read_values


def rows_of(num_rows: int, *, per_subject: int = 1, least: int = 0) -> Subjects:
    return Subjects(starts=np.arange(0, num_rows, per_subject), num_rows=num_rows, least=least)


def round_trip(
    encoding: object, column: pa.Array, kind: pa.DataType | None = None, *, text: bool = False, seed: int = 0
) -> pa.Array:
    values = read_values("x", column, family="text" if text else None)
    codes = encoding.encode(values, np.arange(len(column)))  # type: ignore[attr-defined]
    sizes = list(encoding.sizes.values())  # type: ignore[attr-defined]
    assert codes.shape == (len(column), len(sizes))
    assert (codes >= 0).all()
    assert (codes < sizes).all()
    uniform = np.random.default_rng(seed).random(len(column))
    return encoding.decode(codes, column.type, np.arange(len(column)), uniform)  # type: ignore[attr-defined]


@pytest.mark.parametrize("per_subject", [1, 7])
def test_subjects_are_counted_as_the_slow_way_does(rng: np.random.Generator, per_subject: int) -> None:
    subjects = rows_of(100, per_subject=per_subject)
    codes = rng.integers(-1, 6, 100)
    owners = np.arange(100) // per_subject
    slow = [len({owner for owner, code in zip(owners, codes, strict=True) if code == one}) for one in range(6)]
    assert subjects.count(codes, 6).tolist() == slow


@pytest.mark.parametrize("has_null", [False, True])
def test_many_categories_share_classes_and_come_back(
    has_null: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encodings, "MOST_CLASSES", 100)
    words = [f"w{number:03d}" for number in rng.permutation(500)]
    rows = words * 2 + ["w007"] * 40 + ["w400"] * 9 + ([None] * 5 if has_null else [])
    column = pa.array([rows[one] for one in rng.permutation(len(rows))])
    values, subjects = read_values("x", column), rows_of(len(column), least=1)
    found = fit_categorical(values, subjects, column.type)
    assert found.values[:2] == ["w007", "w400"]  # the frequent ones have a class each
    assert found.sizes == {"cat": 1 + has_null + 2 + len(found.shared), "fine": max(found.shared)}
    assert sum(found.shared) == 498
    assert max(found.shared) - min(found.shared) <= 1
    assert sum(found.sizes.values()) < 60
    assert round_trip(found, column, text=True).equals(column)
    assert found.own_class("w400") == 2 + has_null
    assert found.own_class("w001") is None
    assert found.own_class("no") is None
    # What no group has is its last value, and a value that is not known is a rare one.
    last = 1 + has_null + 2 + len(found.shared) - 1
    codes = np.array([[last, max(found.shared) - 1], [0, 0], [3 + has_null, 0]])
    decoded = found.decode(codes, pa.string(), np.arange(3), np.zeros(3)).to_pylist()
    assert decoded == [found.values[-1], None, found.values[2]]
    assert found.encode(read_values("x", pa.array(["w007", "new"])), np.arange(2)).tolist() == [[1 + has_null, 0], [0, 0]]
    # Asked for, or with fewer of them, every value has its own class.
    alone = fit_categorical(values, subjects, column.type, may_share=False)
    assert alone.sizes == {"cat": 501 + has_null}
    assert alone.values == sorted(words)


@pytest.mark.promise("P30", control=True)
def test_a_value_of_one_subject_is_rare_however_often_it_occurs() -> None:
    column = pa.array(["secret"] * 50 + ["a", "b"] * 200)
    subjects = rows_of(450, per_subject=50, least=5)
    encoding = fit_categorical(read_values("x", column), subjects, column.type)
    assert encoding.values == ["a", "b"]
    assert set(round_trip(encoding, column).to_pylist()) == {"_RARE_", "a", "b"}
    by_rows = fit_categorical(read_values("x", column), rows_of(450, least=5), column.type)
    assert "secret" in by_rows.values  # negative control: rows instead of subjects


NUMBERS = {
    "few": lambda rng: pa.array(rng.integers(0, 9, 3000)),
    "wide integers": lambda rng: pa.array(rng.integers(-(2**62), 2**62, 3000)),
    "money": lambda rng: pa.array(np.round(rng.lognormal(3, 1, 3000), 2)),
    "normal": lambda rng: pa.array(rng.normal(size=3000)),
    "constant": lambda rng: pa.array([7.5] * 3000),
    "missing": lambda rng: pa.array(np.where(rng.random(3000) < 0.1, np.nan, rng.normal(size=3000)), from_pandas=True),
    "mostly zero": lambda rng: pa.array(np.where(rng.random(3000) < 0.9, 0, rng.integers(0, 10**6, 3000))),
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("least", [0, 5])
def test_numbers_come_back_in_their_bin(rng: np.random.Generator, name: str, least: int) -> None:
    column = NUMBERS[name](rng)
    values = read_values("x", column)
    encoding = fit_numeric(values, rows_of(3000, least=least))
    assert encoding is not None
    assert all(low <= high for low, high in zip(encoding.lows, encoding.highs, strict=True))
    assert encoding.highs == sorted(encoding.highs)
    back = read_values("x", round_trip(encoding, column))
    assert (back.valid == values.valid).all()
    lows, highs = np.array(encoding.lows), np.array(encoding.highs)
    given, found = values.data[values.valid], back.data[back.valid]
    place = np.minimum(np.searchsorted(_ends(lows, highs), given), len(highs) - 1)
    inside = np.clip(given, lows[0], highs[-1])
    assert ((inside >= lows[place]) & (inside <= highs[place])).all()
    bins = np.array(encoding.bins or range(len(lows)))
    least, most = (np.array([kind(one[bins == b]) for b in range(bins.max() + 1)]) for kind, one in ((min, lows), (max, highs)))
    assert ((found >= least[bins[place]]) & (found <= most[bins[place]])).all()
    if encoding.decimals is not None:
        assert (np.round(found, encoding.decimals) == found).all()


@pytest.mark.promise("P30")
def test_prices_come_back_exactly(rng: np.random.Generator) -> None:
    prices = np.arange(200) + np.where(np.arange(200) % 2, 0.99, 0.5)
    column = pa.array(rng.choice(prices, 20_000))
    encoding = fit_numeric(read_values("x", column), rows_of(20_000, least=6))
    assert encoding is not None
    assert round_trip(encoding, column).equals(column)


def priced(rng: np.random.Generator, count: int) -> Array:
    """Amounts of which a third end in .99."""
    amounts = rng.lognormal(3, 1, count)
    return np.where(rng.random(count) < 1 / 3, np.floor(amounts) + 0.99, np.round(amounts, 2))


def test_frequent_prices_between_others_stay(rng: np.random.Generator) -> None:
    data = priced(rng, 16_000)
    encoding = fit_numeric(read_values("x", pa.array(data)), rows_of(16_000, least=6))
    assert encoding is not None
    back = np.asarray(round_trip(encoding, pa.array(data)))
    assert (back[data == 12.99] == 12.99).all()  # also where an interval of few values ends in it
    ends = [np.mean(np.rint(one * 100) % 100 == 99) for one in (data, back)]
    assert abs(ends[0] - ends[1]) < 0.025
    expensive = data > 200  # too few of each price, so their decimals are drawn
    assert 0.2 < np.mean(np.rint(back[expensive] * 100) % 100 == 99) < 0.45
    assert len(np.unique(back)) < 1.2 * len(np.unique(data))


@pytest.mark.promise("P30")
def test_moments_and_tails_stay(rng: np.random.Generator) -> None:
    data = np.round(rng.lognormal(3, 1, 20_000), 2)
    encoding = fit_numeric(read_values("x", pa.array(data)), rows_of(20_000, least=6))
    assert encoding is not None
    back = np.asarray(round_trip(encoding, pa.array(data)))

    def top(one: Array) -> float:
        return float(np.sort(one)[-200:].mean())

    assert abs(back.mean() / data.mean() - 1) < 0.005  # upstream's bins: 0.030
    assert abs(back.std() / data.std() - 1) < 0.05  # 0.141
    assert abs(top(back) / top(data) - 1) < 0.05  # 0.26


def test_a_number_of_one_subject_does_not_come_back() -> None:
    data = np.concatenate([np.full(50, 777_777), np.repeat([1, 2, 3, 999_999], 100)])
    subjects = rows_of(450, per_subject=10, least=5)
    one = Subjects(starts=np.append(0, np.arange(50, 450, 10)), num_rows=450, least=5)
    kept = fit_numeric(read_values("x", pa.array(data)), one)
    assert kept is not None
    assert (777_777, 777_777) not in list(zip(kept.lows, kept.highs, strict=True))
    assert 777_777 not in set(round_trip(kept, pa.array(data)).to_pylist())
    control = fit_numeric(read_values("x", pa.array(data)), subjects)
    assert control is not None
    assert (777_777, 777_777) in list(zip(control.lows, control.highs, strict=True))  # five subjects have it


def test_characters_come_back(rng: np.random.Generator) -> None:
    column = pa.array([f"AB-{one:04d}" if one % 5 else None for one in rng.integers(0, 9999, 500)])
    encoding = fit_character(read_values("x", column), rows_of(500, least=5))
    assert round_trip(encoding, column).equals(column)


def test_a_rare_character_is_left_out() -> None:
    column = pa.array(["ab"] * 50 + ["aü"])
    encoding = fit_character(read_values("x", column), rows_of(51, least=5))
    assert round_trip(encoding, column).to_pylist()[-1] == "a"


def test_places_come_back_in_their_interval(rng: np.random.Generator) -> None:
    lat, lon = rng.uniform(40, 50, 3000), rng.uniform(-5, 5, 3000)
    column = pa.array([f"{a:.4f}, {b:.4f}" for a, b in zip(lat, lon, strict=True)])
    encoding = fit_lat_long("x", read_values("x", column), rows_of(3000, least=5))
    assert encoding is not None
    back = np.array([[float(part) for part in one.split(", ")] for one in round_trip(encoding, column).to_pylist()])
    assert np.abs(back[:, 0] - lat).mean() < 0.08  # a third of a bin
    assert np.abs(back[:, 1] - lon).mean() < 0.08


def test_a_string_that_is_not_a_place_is_refused() -> None:
    with pytest.raises(BadValueError, match="'somewhere'; expected a latitude and a longitude"):
        fit_lat_long("x", read_values("x", pa.array(["48.1, 16.2", "somewhere"])), rows_of(2))


# Tails: what protection cuts off a heavy tail is drawn from a law, which no extreme value has a part in


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
