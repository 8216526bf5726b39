"""Columns of numbers say what `analyze_numeric` of mostlyai-engine says, as JSON, key by key."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from benchmarks.before.mostlyai_statistics import analyze_numeric
from tests.recipes.tabular.digits.digits_twin import mixed_numbers, money
from tests.recipes.tabular.statistics.twin import as_json, number_columns

from stoker.errors import BadValueError, OptionError
from stoker_recipes.tabular import analyze
from stoker_recipes.tabular.digits.kernels import BLOCK
from stoker_recipes.tabular.statistics import numbers
from stoker_recipes.tabular.statistics.numbers import Encoding, NumberColumn
from stoker_recipes.tabular.statistics.quantiles import compiled


def number(values: Any, **options: Any) -> NumberColumn:
    column = analyze({"x": values} if not isinstance(values, pd.Series) else values.to_frame(), **options)["x"]
    assert isinstance(column, NumberColumn)
    return column


@pytest.mark.promise("P11")
@pytest.mark.parametrize("encoding", get_args(Encoding))
def test_the_same_json_as_the_original(encoding: Encoding, rng: np.random.Generator) -> None:
    for name, values in number_columns(rng, 1200).items():
        expected = as_json(analyze_numeric(values, encoding=encoding))
        found = number(values).analysis(encoding)
        assert list(found) == list(expected)
        assert as_json(found) == expected, name


def test_integers_stay_exact() -> None:
    found = number(np.array([2**63 - 1, 2**53 + 1, -(2**63)]))
    assert (found.min, found.max) == (-(2**63), 2**63 - 1)
    assert found.cnt_values == {str(-(2**63)): 1, str(2**53 + 1): 1, str(2**63 - 1): 1}
    assert found.quantiles is not None
    assert found.quantiles[500] == 2**53 + 1
    assert found.min_n == [-(2.0**63), 2.0**53, 2.0**63]


def test_minus_zero_is_not_negative_and_counts_as_zero() -> None:
    found = number(np.array([-0.0, 0.0, -0.0, 1.5, -2.0]))
    assert found.num_negative == 1
    assert found.num_distinct == 3
    assert found.cnt_values == {"-2.0": 1, "0.0": 3, "1.5": 1}
    assert number(np.array([-0.0])).cnt_values == {"-0.0": 1}


def test_infinite_values_are_counted_and_left_out() -> None:
    found = number(np.array([1.0, math.nan, -math.inf, 3.0, math.inf]))
    assert (found.num_infinite, found.first_infinite, found.num_null) == (2, 2, 1)
    assert (found.min, found.max, found.num_distinct) == (1.0, 3.0, 2)
    assert sum(found.log_hist) == 2
    with pytest.raises(BadValueError, match="column 'x' holds an infinite value in row 3, which has no digits"):
        found.analysis()


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        (pa.array([1, None, 3], pa.duration("ms")), [1, 3]),
        (pa.array([1, None, 3], pa.time32("s")), [1, 3]),
        (pa.array(["1.25", None, "-3.5"]).cast(pa.decimal128(6, 2)), [-3.5, 1.25]),
        (pa.array([1.5, None, 2.5], pa.float16()), [1.5, 2.5]),
    ],
)
def test_other_types_of_numbers(values: pa.Array, numbers: list[float]) -> None:
    found = number(values)
    assert [found.min, found.max] == numbers
    assert found.num_null == 1


def test_values_are_counted_one_by_one_only_where_all_were_kept(rng: np.random.Generator) -> None:
    values = rng.integers(0, 3000, 5000)
    assert number(values).analysis("discrete")["cnt_values"] == dict(sorted(pd.Series(values).value_counts().items()))
    sketched = number(values, exact=1024)
    with pytest.raises(OptionError, match="more different values than were kept"):
        sketched.analysis("discrete")
    with pytest.raises(OptionError, match="encoding is 'digits'; expected one of"):
        sketched.analysis("digits")  # type: ignore[arg-type]


# Digit ranges are those of all digits, though most blocks need not be looked at


FEW = 4 * BLOCK + 77


def found_in(values: Any) -> tuple[dict[str, int], dict[str, int]]:
    compiled(10**9)  # few values are printed, unless the kernels are loaded
    analysis = number(values).analysis("digit")
    return analysis["min_digits"], analysis["max_digits"]


def printed(values: Any) -> tuple[dict[str, int], dict[str, int]]:
    analysis = analyze_numeric(pd.Series(values, name="x"), encoding="digit")
    return analysis["min_digits"], analysis["max_digits"]


def columns(rng: np.random.Generator) -> dict[str, Any]:
    mixed = mixed_numbers(rng, FEW)
    return {
        "normals": rng.normal(size=FEW),
        "money": money(rng, FEW),
        "mixed": mixed[np.isfinite(mixed)],
        "narrow": rng.uniform(531, 532, FEW),
        "away from zero": rng.uniform(0.1, 9, FEW),
        "many decimals": rng.normal(size=FEW) * 1e-7,
        "more decimals than are printed": rng.normal(size=FEW) * 1e-18,
        "above the highest place": rng.normal(size=FEW) * 1e19,
        "one above": np.concatenate([rng.uniform(0, 9e18, FEW), [2e19]]),
        "whole": rng.integers(-(10**6), 10**6, FEW),
        "whole from 2 to 3 million": rng.integers(2 * 10**6, 3 * 10**6, FEW),
        "large": rng.integers(0, 2**64 - 1, FEW, dtype=np.uint64),
        "zeros": np.zeros(3),
        "one rounded away": np.array([1e-25, 0.5]),
    }


def test_ranges_are_those_of_the_printed_digits(rng: np.random.Generator) -> None:
    for name, values in columns(rng).items():
        assert found_in(values) == printed(values), name


@pytest.mark.promise("P11", control=True)
def test_negative_control_leaving_out_too_much_is_found(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    amounts = money(rng, 20 * BLOCK)
    middle = round(float(np.median(amounts)), 2) + 0.006  # far from the blocks of the ends, which are always read
    values = np.concatenate([amounts, [middle]])
    expected = printed(values[-3 * BLOCK :])
    assert expected[1]["E-3"] == found_in(values)[1]["E-3"] == 6
    monkeypatch.setattr(numbers, "_lowest_reached", lambda sizes, lowest: np.full(sizes.shape[1], 99))
    assert found_in(values)[1]["E-3"] == 0
