"""Dates come back, nothing comes from another subject, and time never goes back within one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from stoker._types import Array
from stoker.errors import OptionError
from stoker_recipes.tabular import Synthesizer
from stoker_recipes.tabular.dates import fit_datetime, fit_relative, join_date, rise, split_date
from stoker_recipes.tabular.encodings import Subjects
from stoker_recipes.tabular.tables import choose_kind
from stoker_recipes.tabular.values import read_values


def relative_back(column: pa.Array, starts: Array, *, least: int = 0) -> pd.Series:
    values = read_values("t", column)
    encoding = fit_relative(values, Subjects(starts=starts, num_rows=len(column), least=least), column.type)
    assert encoding is not None
    codes = encoding.encode(values, starts)
    assert (codes < list(encoding.sizes.values())).all()
    back: pd.Series = encoding.decode(codes, column.type, starts, np.full(len(column), 0.5)).to_pandas()
    return back


@pytest.mark.parametrize("unit", ["D", "s", "ms", "us", "ns"])
def test_parts_are_those_of_pandas(rng: np.random.Generator, unit: str) -> None:
    per_day = {"D": 1, "s": 86_400, "ms": 86_400_000, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}[unit]
    data = rng.integers(-30_000, 60_000, 500) * per_day + rng.integers(0, per_day, 500)
    found = split_date(data, unit)
    times = pd.DatetimeIndex(data.astype(f"datetime64[{unit}]"))
    for name in ("year", "month", "day", *(("hour", "minute", "second") if unit != "D" else ())):
        assert (found[name] == getattr(times, name)).all(), name
    assert (join_date(found, unit) == data).all()


def test_dates_with_a_time_zone_and_missing_values_come_back(rng: np.random.Generator) -> None:
    seconds = rng.integers(1.5e9, 1.6e9, 300)
    column = pa.array(np.where(rng.random(300) < 0.1, None, seconds), pa.int64()).cast(pa.timestamp("s", "Europe/Vienna"))
    values = read_values("t", column)
    starts = np.arange(300)
    encoding = fit_datetime(values, Subjects(starts=starts, num_rows=300, least=0), column.type)
    assert encoding is not None
    assert next(iter(encoding.sizes)) == "nan"
    assert encoding.decode(encoding.encode(values, starts), column.type, starts, np.zeros(300)).equals(column)


def test_fractions_that_are_noise_are_drawn(rng: np.random.Generator) -> None:
    column = pa.array(rng.integers(0, 10**15, 2000)).cast(pa.timestamp("us"))
    encoding = fit_datetime(read_values("t", column), Subjects(starts=np.arange(2000), num_rows=2000, least=0), column.type)
    assert encoding is not None
    assert "micro" not in encoding.sizes
    codes = encoding.encode(read_values("t", column), np.arange(2000))
    back = encoding.decode(codes, column.type, np.arange(2000), rng.random(2000))
    assert np.abs(np.asarray(back.cast(pa.int64())) - np.asarray(column.cast(pa.int64()))).max() < 10**6


@pytest.mark.parametrize("step", [1, 60, 900])
def test_days_to_seconds_of_first_dates_are_drawn_where_they_are_uniform(rng: np.random.Generator, step: int) -> None:
    starts = np.arange(0, 2000, 2)
    begins = 1_600_000_000 // 3600 * 3600 + rng.integers(0, 10**7 // step, 1000) * step
    data = np.repeat(begins, 2) + np.tile([0, 7], 1000)
    column = pa.array(data).cast(pa.timestamp("s"))
    values = read_values("t", column)
    encoding = fit_relative(values, Subjects(starts=starts, num_rows=2000, least=0), column.type)
    assert encoding is not None
    assert ("start_second" in encoding.sizes, "start_minute" in encoding.sizes) == (False, step == 900)  # quarters are learned
    back = np.asarray(encoding.decode(encoding.encode(values, starts), column.type, starts, rng.random(2000)).cast(pa.int64()))
    assert (np.diff(back)[::2] == 7).all()
    assert {"start_day", "start_hour"}.isdisjoint(encoding.sizes)  # these are uniform, too
    months = [one.astype("datetime64[s]").astype("datetime64[M]") for one in (back, data)]
    assert (months[0] == months[1])[::2].all()
    days = back[::2] // 86_400
    assert days.min() >= begins.min() // 86_400
    assert days.max() <= begins.max() // 86_400
    assert np.bincount(days - days.min()).max() < 30  # also in the first month, of which only a part is there
    minutes = back[::2] // 60 % 60
    assert len(np.unique(minutes)) == (4 if step == 900 else 60)
    assert len(np.unique(back[::2] % 60)) == (60 if step == 1 else 1)


def test_days_and_hours_of_first_dates_are_learned_where_they_are_not_uniform(rng: np.random.Generator) -> None:
    starts = np.arange(0, 2000, 2)
    day = rng.integers(0, 12, 1000) * 30 + rng.binomial(20, 0.5, 1000)
    begins = 1_577_836_800 + day * 86_400 + rng.binomial(23, 0.5, 1000) * 3600 + rng.integers(0, 3600, 1000)
    column = pa.array(np.repeat(begins, 2) + np.tile([0, 7], 1000)).cast(pa.timestamp("s"))
    encoding = fit_relative(read_values("t", column), Subjects(starts=starts, num_rows=2000, least=0), column.type)
    assert encoding is not None
    assert {"start_day", "start_hour"} <= set(encoding.sizes)


@pytest.mark.promise("P30")
@pytest.mark.parametrize("gap", ["1s", "250ms", "36h", "70D"])
def test_constant_gaps_come_back_exactly(gap: str) -> None:
    """Upstream loses parts of a second, and hours where every sequence begins at midnight."""
    starts = np.arange(0, 200, 10)
    times = [
        time
        for one in range(20)
        for time in pd.date_range(pd.Timestamp("2020-01-01") + pd.Timedelta(days=one), periods=10, freq=gap)
    ]
    column = pa.array(pd.Series(times).astype("datetime64[ms]"))
    assert relative_back(column, starts).tolist() == times


@pytest.mark.promise("P30")
def test_missing_dates_take_nothing_from_another_subject() -> None:
    """Upstream fills a subject without dates with the next subject's."""
    first, *others = pd.to_datetime(["2020-01-01", "2020-01-04", "2020-01-10", "2020-01-11"])
    rows = [first, None, others[0], None, None, None, None, *others[1:]]
    back = relative_back(pa.array(pd.Series(rows)), np.array([0, 3, 6]))
    assert [None if pd.isna(one) else one for one in back] == rows


# Time never goes back within a subject, and events do not start before their context does: on tables with that law, by construction


SMALL: dict[str, Any] = {"size": "s", "epochs": 1, "batch_size": 32}
PLAIN = {"time": "datetime", "shipped": "datetime", "number": "numeric"}


def make_ledger(num_subjects: int, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Accounts, and orders after they were opened: times, numbers and days of delivery rise; no delivery is before its order."""
    rng = np.random.default_rng(seed)
    opened = np.datetime64("2020-01-01") + rng.integers(0, 700, num_subjects)
    lengths = rng.integers(1, 9, num_subjects)
    users = pd.DataFrame(
        {"account": np.arange(num_subjects), "opened": opened.astype("M8[s]"), "kind": rng.choice(["a", "b"], num_subjects)}
    )
    rows = []
    for account, count in enumerate(lengths):
        time = opened[account].astype("M8[s]") + np.cumsum(rng.exponential(9, count) * 86_400).astype("m8[s]")
        shipped = np.maximum.accumulate(time + (rng.exponential(4, count) * 86_400).astype("m8[s]"))
        number = rng.integers(0, 5000) + np.cumsum(rng.integers(0, 4, count))
        rows.append(pd.DataFrame({"account": account, "time": time, "shipped": shipped, "number": number}))
    return pd.concat(rows, ignore_index=True), users


def broken(events: pd.DataFrame, users: pd.DataFrame) -> dict[str, int]:
    """How often each law is broken."""
    by_account = events.groupby("account", sort=False)
    falls = {
        name: int((by_account[name].diff().dropna() < type(by_account[name].diff().dropna().iloc[0])(0)).sum()) for name in PLAIN
    }
    opened = users.set_index("account")["opened"]
    first = by_account["time"].first()
    return falls | {
        "delivered before": int((events["shipped"] < events["time"]).sum()),
        "before the account": int((first < opened.reindex(first.index)).sum()),
    }


NONE = dict.fromkeys([*PLAIN, "delivered before", "before the account"], 0)


@pytest.fixture(scope="module")
def model() -> Synthesizer:
    events, users = make_ledger(300)
    assert broken(events, users) == NONE
    return Synthesizer(**SMALL).fit(events, key="account", context=users)


@pytest.mark.promise("P30")
def test_generated_time_never_goes_back(model: Synthesizer) -> None:
    users = model.sample_context(600)
    assert broken(model.sample(context=users), users) == NONE
    _, later = make_ledger(200, seed=5)
    later["opened"] += np.timedelta64(3000, "D")  # beyond all that was learned
    found = model.sample(context=later)
    assert broken(found, later) == NONE
    assert found["time"].min() >= later["opened"].min()


@pytest.mark.promise("P30")
def test_a_continued_sequence_does_not_go_back(model: Synthesizer) -> None:
    events, users = make_ledger(300)
    given = events.groupby("account").head(2).copy()
    given["time"] += np.timedelta64(500, "D")  # where no drawn date is
    given["shipped"] += np.timedelta64(500, "D")
    given["number"] += 10**6
    found = model.sample(given=given, context=users)
    assert broken(found, users) == NONE
    begin = found.groupby("account").head(2).merge(given.assign(place=given.groupby("account").cumcount()), how="inner")
    assert len(begin) >= len(given)
    assert (found.groupby("account").size() > 2).any()


@pytest.mark.promise("P30", control=True)
def test_negative_control_encoded_on_their_own_they_go_back() -> None:
    events, users = make_ledger(300)
    model = Synthesizer(**SMALL).fit(events, key="account", context=users, encodings=PLAIN)
    drawn = model.sample_context(600)
    assert all(count > 0 for count in broken(model.sample(context=drawn), drawn).values())


def test_a_context_without_the_date_is_an_error_of_one_line(model: Synthesizer) -> None:
    _, users = make_ledger(5)
    users.loc[3, "opened"] = pd.NaT
    with pytest.raises(OptionError, match="context has no 'opened' in row 3; events were learned not to start before it") as error:
        model.sample(context=users)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("seed", range(20))
def test_integers_without_the_rule_are_numbers(seed: int) -> None:
    """Of 19 subjects with two events each, in random order, and of facts that do not change."""
    rng = np.random.default_rng(seed)
    starts = np.arange(0, 38, 2)
    subjects = Subjects(starts=starts, num_rows=38, least=0)
    chance = pa.chunked_array([np.sort(rng.integers(0, 9, (19, 2))).ravel()])
    constant = pa.chunked_array([np.repeat(rng.integers(0, 99, 19), 2)])
    long = pa.chunked_array([rng.integers(0, 99, 38)])
    for column in (chance, constant, long):
        assert choose_kind("x", column, "auto", subjects, is_sequence=True) == "numeric"
    rising = pa.chunked_array([np.arange(38)])
    assert (
        choose_kind("x", rising, "auto", Subjects(starts=np.array([0, 19]), num_rows=38, least=0), is_sequence=True) == "relative"
    )


def plainly_raised(data: list[int], valid: list[bool], fixed: list[bool]) -> list[int]:
    """The rule of `rise` for one subject, value by value."""
    found = list(data)
    for i in range(len(data)):
        if valid[i] and not fixed[i]:
            later = [data[j] for j in range(i + 1, len(data)) if valid[j] and fixed[j]]
            found[i] = min([data[i], *later[:1]])
            before = [found[j] for j in range(i) if valid[j]]
            found[i] = max([found[i], *before[-1:]])
    return found


def test_values_are_raised_as_by_the_plain_rule(rng: np.random.Generator) -> None:
    for _ in range(200):
        lengths = rng.integers(0, 7, 4)
        starts, size = np.cumsum(lengths) - lengths, int(lengths.sum())
        data, valid, fixed = rng.integers(0, 20, size), rng.random(size) < 0.8, rng.random(size) < 0.3
        found = data.copy()
        rise(found, valid, fixed, starts)
        expected = [
            value
            for begin, length in zip(starts.tolist(), lengths.tolist(), strict=True)
            for value in plainly_raised(*(one[begin : begin + length].tolist() for one in (data, valid, fixed)))
        ]
        assert found.tolist() == expected
