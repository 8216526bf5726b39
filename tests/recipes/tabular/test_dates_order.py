"""Time never goes back within a subject, and events do not start before their context does: on tables with that law, by construction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from stoker.errors import OptionError
from stoker_recipes.tabular import Synthesizer
from stoker_recipes.tabular.dates import rise
from stoker_recipes.tabular.encodings import Subjects
from stoker_recipes.tabular.tables import choose_kind

SMALL: dict[str, Any] = {"size": "s", "epochs": 2, "batch_size": 32}
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
