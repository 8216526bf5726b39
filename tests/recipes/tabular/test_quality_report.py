"""`quality`: two real samples pass, spoilt ones do not, every kind of table gives the same, and wrong input is one line."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.recipes.tabular.tables import bursts, copied, permuted_subjects, shop, shuffled_events

from stoker.errors import OptionError
from stoker.recipes.tabular import QualityReport, make_rules, make_shop, quality


def compare(real: Any, synthetic: Any, **options: Any) -> QualityReport:
    return quality(real, synthetic, **{"key": "user_id", "max_rows": 300, **options})


@functools.cache
def small_report() -> dict[str, Any]:
    """The report of two small tables, which several tests compare with."""
    return compare(shop(60, 0), shop(60, 1)).to_dict()


def test_two_real_samples_pass() -> None:
    found = compare(shop(400, 0), shop(400, 1), holdout=shop(400, 2), seed=0)
    assert found.verdict == "same", str(found)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("make", [shop, bursts])
def test_two_real_samples_pass_for_many_seeds(make: Any, seed: int) -> None:
    found = compare(make(1000, 3 * seed), make(700, 3 * seed + 1), holdout=make(400, 3 * seed + 2), seed=seed, max_rows=1000)
    assert found.verdict == "same", str(found)


@pytest.mark.parametrize(
    ("spoil", "measures"),
    [
        (shuffled_events, {"gaps", "transitions", "order", "classifier of sequences"}),
        (permuted_subjects, {"transitions", "subjects", "lags"}),
        (lambda frame: copied(shop(600, 0), 500), {"closest sequences", "identical sequences", "identical events"}),
    ],
    ids=["shuffled events", "permuted subjects", "copied subjects"],
)
def test_spoilt_tables_are_caught(spoil: Any, measures: set[str]) -> None:
    found = compare(shop(600, 0), spoil(shop(600, 1)), holdout=shop(600, 2))
    assert found.verdict == "differs"
    assert measures <= {one.name for one in found.measures if one.verdict == "differs"}, str(found)


def test_a_permuted_context_is_caught_by_pairs() -> None:
    (users, events), (others, synthetic) = make_shop(800, seed=0), make_shop(800, seed=1)
    context = others.to_pandas()
    for spoilt in (False, True):
        if spoilt:
            context["segment"] = context["segment"].sample(frac=1, random_state=0).to_numpy()
        found = compare(events, synthetic, context=users, synthetic_context=context)
        assert found["bivariate"].verdict == ("differs" if spoilt else "same")


def test_a_flat_table_has_no_measures_of_sequences() -> None:
    found = quality(make_rules(500, seed=0), make_rules(500, seed=1), max_rows=300)
    assert found.verdict == "same"
    assert found.sequences is None
    assert {one.name for one in found.measures} >= {
        "univariate",
        "bivariate",
        "trivariate",
        "classifier of events",
        "closest events",
    }


def test_every_kind_of_table_gives_the_same(tmp_path: Path) -> None:
    real, synthetic = shop(60, 0), shop(60, 1)
    pq.write_table(pa.Table.from_pandas(real), tmp_path / "real.parquet")
    pq.write_table(pa.Table.from_pandas(synthetic), tmp_path / "synthetic.parquet")
    for both in (
        (pl.from_pandas(real), pl.from_pandas(synthetic)),
        (pa.Table.from_pandas(real), pa.Table.from_pandas(synthetic)),
        (str(tmp_path / "real.parquet"), tmp_path / "synthetic.parquet"),
    ):
        assert compare(*both).to_dict() == small_report()


def test_the_report_is_plain_data_and_repeats() -> None:
    found = compare(shop(60, 0), shop(60, 1))
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False)) == found.to_dict() == small_report()
    assert str(found).splitlines()[0].split() == ["measure", "score", "noise", "ratio", "verdict"]
    assert len(str(found).splitlines()) == len(found.measures) + 2
    with pytest.raises(OptionError, match="the report has no measure 'x'; it has univariate"):
        found["x"]


def test_types_of_synthetic_data_may_differ() -> None:
    """Truth values and times come back as text from some generators, integers as floats."""
    real = shop(60, 0).assign(flag=lambda frame: frame["amount"] > 10, count=1)
    other = shop(60, 1).assign(flag=lambda frame: frame["amount"] > 10, count=1)
    text = other.assign(flag=other["flag"].astype(str), time=other["time"].astype(str), count=1.0)
    assert compare(real, text).to_dict() == compare(real, other).to_dict()


REAL = shop(60, 0)
ERRORS: list[tuple[Any, dict[str, Any], str]] = [
    (REAL, {"key": "who"}, "key='who' is not a column of real; it has user_id, time, state, amount, score."),
    (REAL.drop(columns="score"), {}, "synthetic has no column 'score', which real has; it has user_id, time, state, amount."),
    (
        REAL.assign(amount="much"),
        {},
        "column 'amount' holds strings (large_string) in synthetic, but numbers in real. Convert one of them.",
    ),
    (
        REAL[REAL["user_id"] < 5],
        {},
        "the number of subjects with events in synthetic is 4; expected at least 20, as fewer show nothing.",
    ),
    (REAL[:0], {}, "the number of subjects with events in synthetic is 0; expected at least 20, as fewer show nothing."),
    (REAL.assign(extra=1), {}, "synthetic has columns that real has not: extra. Rename or drop them."),
    (REAL, {"context": REAL}, "a context is given, but none for synthetic; give one for every table, and the key."),
    (REAL, {"time": "amount"}, "time='amount' is not a column of times, which are: time."),
    (REAL, {"max_rows": 5}, "max_rows=5 is not valid; expected an integer of at least 20."),
    (REAL, {"seed": -1}, "seed=-1 is not valid; expected an integer from 0 to 2**32 - 1."),
]


@pytest.mark.parametrize(("synthetic", "options", "line"), ERRORS, ids=[line[:40] for _, _, line in ERRORS])
def test_wrong_input_is_one_line(synthetic: pd.DataFrame, options: dict[str, Any], line: str) -> None:
    with pytest.raises(OptionError) as error:
        compare(REAL, synthetic, **options)
    assert str(error.value) == line


def test_a_table_with_keys_alone_is_refused() -> None:
    with pytest.raises(OptionError, match="real has no column beside the key 'user_id'; there is nothing to compare"):
        compare(REAL[["user_id"]], REAL[["user_id"]])


def test_a_context_must_have_one_row_per_subject() -> None:
    users, events = make_shop(60, seed=0)
    doubled = pa.concat_tables([users, users])
    with pytest.raises(OptionError, match="the context of real has a key twice"):
        compare(events, events, context=doubled, synthetic_context=users)
    other = users.to_pandas().assign(user_id=lambda frame: frame["user_id"] + 1000)
    with pytest.raises(OptionError, match="no key of real is in the context of real"):
        compare(events, events, context=other, synthetic_context=users)


def test_columns_without_values_and_odd_columns() -> None:
    real = shop(60, 0).assign(nothing=None, constant=7, text=lambda frame: [f"{i} words" for i in range(len(frame))])
    other = shop(60, 1).assign(nothing=None, constant=7, text=lambda frame: [f"{i} words" for i in range(len(frame))])
    assert compare(real, other)["lengths"].verdict == "same"
    with pytest.raises(OptionError, match="column 'lists' of real has the type list"):
        compare(real.assign(lists=[[1]] * len(real)), other.assign(lists=[[1]] * len(other)))
