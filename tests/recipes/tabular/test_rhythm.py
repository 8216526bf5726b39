"""Weekdays and months of generated events have the shares of those that were learned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from benchmarks.tabular.eight_tables import make_table

from stoker_recipes.tabular import Synthesizer
from stoker_recipes.tabular.rhythm import fit_rhythm

SMALL: dict[str, Any] = {"size": "s", "epochs": 4, "batch_size": 32}
DAY = 86_400


def variation(one: pd.Series, other: pd.Series) -> float:
    shares = pd.concat([one.value_counts(normalize=True), other.value_counts(normalize=True)], axis=1).fillna(0)
    return float(0.5 * (shares.iloc[:, 0] - shares.iloc[:, 1]).abs().sum())


def distances(found: pd.DataFrame, real: pd.DataFrame) -> tuple[float, float]:
    firsts = [rows[~rows["customer"].duplicated()]["day"].dt for rows in (found, real)]
    return variation(found["day"].dt.weekday, real["day"].dt.weekday), variation(firsts[0].weekday, firsts[1].weekday)


def test_weekdays_have_their_shares_also_of_first_events() -> None:
    table = make_table("retail", 400, variant=5)
    model = Synthesizer(**SMALL).fit(table.rows, key="customer", context=table.context)
    found = model.sample(context=table.holdout_context)
    assert max(distances(found, table.rows)) < 0.08
    given = table.rows.groupby("customer").head(1)
    continued = model.sample(given=given, context=table.context)
    later = continued[continued["customer"].duplicated()]
    assert variation(later["day"].dt.weekday, table.rows["day"].dt.weekday) < 0.08


def test_negative_control_without_the_rhythm_weekdays_are_even(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker_recipes.tabular.dates.fit_rhythm", lambda *_: None)
    table = make_table("retail", 400, variant=5)
    model = Synthesizer(**SMALL).fit(table.rows, key="customer", context=table.context)
    found = model.sample(context=table.holdout_context)
    assert min(distances(found, table.rows)) > 0.12


@pytest.mark.parametrize("seed", range(20))
def test_dates_without_a_rhythm_have_none(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 15, 150)
    starts = np.cumsum(lengths) - lengths
    gaps = rng.exponential(rng.choice([0.3, 3, 30], 150).repeat(lengths) * DAY).astype(np.int64)
    gaps[starts] = 0
    total = np.cumsum(gaps)
    data = (18_000 + rng.integers(0, 900, 150)).repeat(lengths) * DAY + total - total[starts].repeat(lengths)
    assert fit_rhythm(data, starts, DAY) is None


def test_a_rhythm_of_working_days_is_kept() -> None:
    """Every working day of some weeks: from Friday on it is three days to the next one."""
    rng = np.random.default_rng(0)
    rows = []
    for subject in range(150):
        day = np.busday_offset(np.datetime64("2023-01-02") + int(rng.integers(0, 300)), 0, roll="forward")
        days = np.busday_offset(day, np.cumsum(rng.choice([0, 1, 1, 1, 2], 9)))
        rows.append(pd.DataFrame({"user": subject, "day": days.astype("M8[s]"), "x": rng.integers(0, 4, 9)}))
    real = pd.concat(rows, ignore_index=True)
    found = Synthesizer(**SMALL).fit(real, key="user").sample(300)
    assert (found["day"].dt.weekday >= 5).mean() < 0.08
    plain = Synthesizer(**SMALL).fit(
        real.assign(day=real["day"] + pd.to_timedelta(rng.integers(0, 7, 150).repeat(9), unit="D")), key="user"
    )
    assert (plain.sample(300)["day"].dt.weekday >= 5).mean() > 0.2  # control: where subjects have other days off
