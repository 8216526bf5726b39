"""`Synthesizer`: new subjects of the right types, in order, protected, and the same for the same seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from tests.recipes.tabular.frames import make_events, make_users

from stoker.errors import BadValueError, OptionError
from stoker_recipes.tabular import Synthesizer, encodings, generation

SMALL: dict[str, Any] = {"size": "s", "epochs": 2, "seed": 1}


@pytest.fixture(scope="module")
def model() -> Synthesizer:
    return Synthesizer(**SMALL).fit(make_events(80), key="user", context=make_users(80))


def test_a_sample_has_the_columns_and_types_of_the_events(model: Synthesizer) -> None:
    events, found = make_events(80), model.sample(50)
    assert list(found.columns) == list(events.columns)
    assert (found.dtypes == events.dtypes).all()
    assert set(found["user"]) <= set(range(50))
    assert found["state"].isin(["a", "b", "c"]).all()
    assert found["time"].between("2018-01-01", "2025-01-01").all()


@pytest.mark.promise("P30")
def test_events_of_a_subject_are_side_by_side_and_in_time_order(model: Synthesizer) -> None:
    """Upstream sorts by the key with a sort that is not stable."""
    found = model.sample(200)
    assert found["user"].is_monotonic_increasing
    gaps = found.groupby("user")["time"].diff().dropna()
    assert (gaps >= pd.Timedelta(0)).all()


def test_the_same_seed_gives_the_same_sample(model: Synthesizer) -> None:
    one, few, other = model.sample(30, seed=4), model.sample(10, seed=4), model.sample(30, seed=5)
    pd.testing.assert_frame_equal(one, model.sample(30, seed=4))
    pd.testing.assert_frame_equal(one[one["user"] < 10].reset_index(drop=True), few)
    assert not one.equals(other)


@pytest.mark.promise("P30")
def test_a_key_has_the_same_events_in_any_order_and_among_any_others(model: Synthesizer) -> None:
    users = model.sample_context(40, seed=2)
    pd.testing.assert_frame_equal(model.sample(context=users, seed=2), model.sample(40, seed=2))
    users["user"] = users["user"] * 7919 + 13
    whole = model.sample(context=users, seed=2)
    assert not whole.drop(columns="user").equals(model.sample(40, seed=2).drop(columns="user"))  # keys count, not places
    mixed = users.sample(frac=1, random_state=1).iloc[:25]
    found = model.sample(context=mixed, seed=2)
    for user in mixed["user"]:
        one, other = (table[table["user"] == user].reset_index(drop=True) for table in (whole, found))
        pd.testing.assert_frame_equal(one, other)
    first = make_events(20).groupby("user").head(1)
    one, other = (model.sample(given=given, seed=3) for given in (first, first.iloc[::-1]))  # with generated contexts
    pd.testing.assert_frame_equal(
        one.sort_values("user", kind="stable").reset_index(drop=True),
        other.sort_values("user", kind="stable").reset_index(drop=True),
    )


def test_given_events_come_back_as_they_are(model: Synthesizer) -> None:
    events = make_events(80)
    first = events[events["user"] < 20].groupby("user").head(2).reset_index(drop=True)
    found = model.sample(given=first, seed=3)
    kept = found.groupby("user").head(2)
    merged = kept.reset_index(drop=True).iloc[: len(first)]
    counts = first.groupby("user").size()
    for user, count in counts.items():
        pd.testing.assert_frame_equal(
            merged[merged["user"] == user].head(count).reset_index(drop=True),
            first[first["user"] == user].reset_index(drop=True),
        )
    assert len(found) > len(first)


def test_given_columns_of_single_rows_are_kept() -> None:
    rows = pd.DataFrame({"colour": ["red", "blue"] * 60, "n": np.arange(120) % 7, "x": np.linspace(0, 1, 120)})
    model = Synthesizer(**SMALL).fit(rows)
    found = model.sample(given=pd.DataFrame({"colour": ["blue"] * 15, "x": np.linspace(0.2, 0.3, 15)}))
    assert list(found.columns) == ["colour", "n", "x"]
    assert (found["colour"] == "blue").all()
    assert np.allclose(found["x"], np.linspace(0.2, 0.3, 15))
    assert found["n"].isin(range(7)).all()


@pytest.fixture(scope="module")
def rows_model() -> Synthesizer:
    colour = np.resize(["red", "blue", "red", "red", None], 300)
    rows = pd.DataFrame({"colour": colour, "n": np.where(colour == "blue", 5.0, 2.0), "ok": np.resize([True, False], 300)})
    rows.loc[::7, "n"] = None
    return Synthesizer(size="s", epochs=8, seed=1, lr=0.03).fit(rows)


@pytest.mark.promise("P30")
def test_shares_of_values_are_rebalanced(rows_model: Synthesizer) -> None:
    found = rows_model.sample(3000, rebalance={"colour": {"blue": 0.7, None: 0.0}, "ok": {True: 0.9}})
    assert abs((found["colour"] == "blue").mean() - 0.7) < 0.04
    assert found["colour"].notna().all()
    assert abs(found["ok"].mean() - 0.9) < 0.03
    usual = rows_model.sample(3000)
    assert (usual["colour"] == "blue").mean() < 0.5  # negative control
    blue = found[found["colour"] == "blue"]["n"].mean()
    assert abs(blue - usual[usual["colour"] == "blue"]["n"].mean()) < 0.3  # what depends on it follows


@pytest.mark.promise("P30")
def test_missing_values_are_imputed(rows_model: Synthesizer) -> None:
    assert rows_model.sample(500)["n"].isna().any()
    assert rows_model.sample(500, impute=["n"])["n"].notna().all()
    assert rows_model.sample(500, impute=["n"])["colour"].isna().any()
    given = pd.DataFrame({"colour": ["blue", None, "red"] * 50, "n": [None, 2.0, None] * 50, "ok": [True, False, True] * 50})
    found = rows_model.sample(given=given, impute=True)
    assert found.notna().all(axis=None)
    assert (found["ok"] == given["ok"]).all()
    assert (found["colour"][given["colour"].notna()] == given["colour"].dropna()).all()
    assert (found["n"][given["n"].notna()] == 2.0).all()
    assert found["n"][given["colour"] == "blue"].mean() > found["n"][given["colour"] == "red"].mean() + 1
    kept = rows_model.sample(given=given)
    assert (kept["n"].isna() == given["n"].isna()).all()  # negative control: what is missing stays so


def test_the_key_of_contexts_may_have_another_name(model: Synthesizer) -> None:
    other = Synthesizer(**SMALL).fit(
        make_events(80), key="user", context=make_users(80).rename(columns={"user": "id"}), context_key="id"
    )
    users = other.sample_context(30, seed=2)
    pd.testing.assert_frame_equal(users, model.sample_context(30, seed=2).rename(columns={"user": "id"}))
    pd.testing.assert_frame_equal(other.sample(context=users, seed=2), model.sample(30, seed=2))


def test_contexts_are_rebalanced(model: Synthesizer) -> None:
    assert (model.sample_context(400, rebalance={"segment": {"x": 1.0}})["segment"] == "x").all()
    assert len(model.sample(30, rebalance={"segment": {"x": 1.0}, "state": {"a": 1.0}})["state"].unique()) == 1


@pytest.mark.promise("P30", control=True)
def test_a_planted_rare_value_never_comes_back() -> None:
    events = make_events(60)
    events.loc[events["user"] == 7, "state"] = "secret"
    events.loc[events["user"] == 7, "amount"] = 123456.78
    many = pd.concat([events, *[events[events["user"] == 7]] * 10])
    found = Synthesizer(**SMALL).fit(many, key="user").sample(300)
    assert "secret" not in set(found["state"])
    assert found["amount"].max() < 123456
    control = Synthesizer(**SMALL, protect=False).fit(many, key="user").sample(300)
    assert "secret" in set(control["state"])  # negative control


def test_polars_frames_and_string_keys_come_back() -> None:
    events = make_events(40)
    events["user"] = "u" + events["user"].astype(str)
    found = Synthesizer(**SMALL).fit(pl.from_pandas(events), key="user").sample(20)
    assert isinstance(found, pl.DataFrame)
    assert found.schema["user"] == pl.String
    assert found.schema["late"] == pl.Boolean


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Synthesizer().sample(5), OptionError, r"has not learned anything yet. Call fit\(events\) first"),
        (lambda: Synthesizer(bogus=1), OptionError, "there is no option 'bogus'"),
        (lambda: Synthesizer().fit(make_events(1), key="user"), OptionError, "events has 1 subject; expected at least 2"),
        (lambda: Synthesizer().fit(make_events(12), key="user"), OptionError, "protection needs at least 20.*Pass protect=False"),
        (lambda: Synthesizer().fit(pd.DataFrame(np.ones((30, 2)), columns=["a", "a"])), OptionError, "events has more than one column 'a'"),
        (lambda: Synthesizer().fit(make_events(30)[["user"]], key="user"), OptionError, "no column to learn beside the key"),
        (lambda: Synthesizer().fit(make_events(30), context=make_users(30)), OptionError, "context is given, but key is not"),
        (
            lambda: Synthesizer().fit(make_events(30), key="user", context=make_users(30), context_key="id"),
            OptionError,
            "context has no column 'id'; it has 'user', .* Name one of them: context_key=",
        ),
        (lambda: Synthesizer().fit(make_events(30), key="user", context_key="id"), OptionError, "'id', but there is no context"),
        (lambda: Synthesizer().fit(make_events(30), key="user", context=make_users(29)), BadValueError, "events has the user 29 in row"),
        (
            lambda: Synthesizer().fit(make_events(30), key="user", context=pd.concat([make_users(30)] * 2)),
            BadValueError,
            "context has the user 0 more than once",
        ),
        (lambda: Synthesizer().fit(make_events(30), key="user", encodings={"nope": "auto"}), OptionError, "names the column 'nope'"),
        (lambda: Synthesizer().fit(make_events(30), key="user", encodings={"state": "gps"}), OptionError, "is 'gps'; expected one of auto"),
        (lambda: Synthesizer().fit(make_events(30), key="user", resume=True), OptionError, "resume=True needs folder="),
        (lambda: Synthesizer.load("no/such/run"), OptionError, "is not a run of tabular"),
    ],
)  # fmt: skip
def test_bad_input_has_one_clear_line(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as found:
        call()
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_subjects": -1}, "num_subjects is -1; expected an integer from 0"),
        ({"num_subjects": 3, "temperature": 0}, "temperature is 0; expected a number from 0.001"),
        ({"num_subjects": 3, "rebalance": {"state": "a"}}, r"rebalance\['state'\] is 'a'; expected shares of its values"),
        ({"num_subjects": 3, "top_p": 2}, "top_p is 2; expected a number"),
        ({"num_subjects": 3, "context": make_users(5)}, "num_subjects is 3, but context has 5 subjects"),
        ({"context": make_users(5)[["user", "age"]]}, "context lacks the columns 'segment'"),
        ({"rebalance": {"nope": {"a": 1}}}, "rebalance names the column 'nope'; expected one of 'state'.*'segment'"),
        ({"rebalance": {"amount": {1: 1}}}, "'amount', which is encoded as numeric; expected a categorical one"),
        ({"rebalance": {"state": {"zz": 1}}}, "has the value 'zz'; expected some of those that were kept: 'a', 'b', 'c'"),
        ({"rebalance": {"state": {"a": 0.7, "b": 0.7}}}, "has shares with the sum 1.4; expected at most 1"),
        ({"impute": ["nope"]}, "impute names the column 'nope'; expected one of 'state'"),
        ({"given": pd.DataFrame({"user": [1], "nope": [1]})}, "given has the columns 'nope'; expected some of 'state'"),
        ({"given": pd.DataFrame({"user": [1] * 500, "state": ["a"] * 500})}, "given has 500 events of one subject"),
    ],
)
def test_bad_options_of_a_sample_have_one_clear_line(model: Synthesizer, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        model.sample(**options)


def test_a_date_follows_the_given_one_that_it_is_counted_from(rng: np.random.Generator) -> None:
    start = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 700, 200), unit="D")
    table = pd.DataFrame({"start": start, "end": start + pd.to_timedelta(rng.integers(0, 30, 200), unit="D")})
    model = Synthesizer(**SMALL).fit(table)
    given = pd.DataFrame({"start": pd.to_datetime(["2031-05-05"] * 20).astype(table["start"].dtype)})  # beyond all that was learned
    found = model.sample(given=given)
    assert (found["start"] == given["start"]).all()
    assert (found["end"] - found["start"]).between("0D", "29D").all()
    with pytest.raises(OptionError, match="given has 'end' but not 'start' in row 0"):
        model.sample(given=found[["end"]])


def test_a_column_of_many_categories_is_learned_given_and_rebalanced(monkeypatch: pytest.MonkeyPatch) -> None:
    """As 100,000 of them are: they share classes."""
    monkeypatch.setattr(encodings, "MOST_CLASSES", 50)
    words = [f"w{number % 97:02d}" for number in range(600)] + ["often"] * 100
    rows = pd.DataFrame({"word": words, "n": np.arange(700) % 7})
    model = Synthesizer(size="s", epochs=1, protect=False).fit(rows)
    found = model.sample(300)
    assert set(found["word"]) <= set(words)
    assert model.sample(given=rows[["word"]].iloc[:80])["word"].tolist() == words[:80]
    assert set(model.sample(50, rebalance={"word": {"often": 1.0}})["word"]) == {"often"}
    with pytest.raises(OptionError, match=r"rebalance\['word'\] has the value 'w03', which shares a class with others"):
        model.sample(50, rebalance={"word": {"w03": 1.0}})


@pytest.mark.promise("P30")
@pytest.mark.parametrize("batch", [1, 65536])
def test_all_options_together_do_not_depend_on_the_batch(model: Synthesizer, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences that are continued, given columns, shares, imputation, temperature and top-p, with contexts of Polars."""
    first = make_events(80).groupby("user").head(2)[["user", "state", "score"]].iloc[:40]
    users = pl.from_pandas(make_users(80)).filter(pl.col("user").is_in(first["user"].unique().tolist()))
    options: dict[str, Any] = {
        "impute": ["score"], "rebalance": {"late": {True: 0.9}}, "temperature": 0.7, "top_p": 0.9, "seed": 5,
    }  # fmt: skip
    expected = model.sample(given=first, context=users, **options)
    monkeypatch.setitem(generation.BLOCK, "cpu", batch)
    monkeypatch.setitem(generation.CHUNK, "cpu", batch)
    found = model.sample(given=pl.from_pandas(first), context=users.to_pandas(), **options)
    pd.testing.assert_frame_equal(found, expected)
    alone = model.sample(given=first[first["user"] == 7], context=users.filter(pl.col("user") == 7), **options)
    pd.testing.assert_frame_equal(alone, found[found["user"] == 7].reset_index(drop=True))
    place = found.groupby("user").cumcount()
    known = first.groupby("user").cumcount()
    kept = found.assign(n=place).merge(first.assign(n=known), on=["user", "n"], suffixes=("", "_given"))
    assert len(kept) == len(first)
    assert (kept["state"] == kept["state_given"]).all()
    assert (kept["score"] == kept["score_given"])[kept["score_given"].notna()].all()
    assert kept["score_given"].isna().any()
    assert found["score"].notna().all()
