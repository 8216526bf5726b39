"""The generators have the law that they state."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from benchmarks.tabular.known_tables import RULES, SHOP, make_rules, make_shop, rules_log_likelihood


def test_the_shop_has_its_law() -> None:
    users, events = make_shop(20_000, seed=0)
    frame = events.to_pandas().merge(users.to_pandas(), on="user_id")
    following = frame.groupby("user_id")["state"].shift(-1)
    minutes = (frame.groupby("user_id")["time"].shift(-1) - frame["time"]).dt.total_seconds() / 60
    for number, segment in enumerate(SHOP.segments):
        rows = (frame["segment"] == segment) & following.notna()
        shares = pd.crosstab(frame["state"][rows], following[rows], normalize="index").reindex(
            index=list(SHOP.states), columns=list(SHOP.states), fill_value=0
        )
        assert np.abs(shares.to_numpy() - SHOP.transitions[number]).max() < 0.05
        for state, name in enumerate(SHOP.states[:4]):
            gaps = np.log(minutes[rows & (frame["state"] == name)])
            assert gaps.mean() == pytest.approx(SHOP.gap_means[number][state], abs=0.06)
            assert gaps.std() == pytest.approx(SHOP.gap_deviation, abs=0.06)
        counts = events.to_pandas().groupby("user_id").size().reindex(users.to_pandas()["user_id"], fill_value=0)
        mine = counts[(users.to_pandas()["segment"] == segment).to_numpy()]
        assert (mine == 0).mean() == pytest.approx(SHOP.empty_shares[number], abs=0.02)
        assert mine[mine > 0].mean() == pytest.approx(SHOP.mean_lengths[number], rel=0.02)
    missing = frame["score"].isna().groupby(frame["state"]).mean()
    assert np.abs(missing[list(SHOP.states)].to_numpy() - SHOP.missing_shares).max() < 0.02
    cents = np.round(frame["amount"] % 1, 2)
    assert (cents == 0.99).mean() == pytest.approx(SHOP.share_99, abs=0.02)


def test_rules_hold_and_the_likelihood_is_that_of_the_law() -> None:
    table = make_rules(4000, seed=0)
    frame = table.to_pandas()
    assert (frame["end"] >= frame["start"]).all()
    assert frame["currency"].equals(frame["country"].map(dict(zip(RULES.countries, RULES.currencies, strict=True))))
    mine = rules_log_likelihood(table)
    assert np.isfinite(mine).all()
    # A law has the largest likelihood on average on its own samples: exchanging a column between rows lowers it.
    rng = np.random.default_rng(0)
    for name in ("plan", "items", "score", "age"):
        spoilt = table.set_column(table.column_names.index(name), name, table[name].take(pa.array(rng.permutation(4000))))
        assert rules_log_likelihood(spoilt).mean() < mine.mean() - 0.05, name
    broken = frame.assign(currency="USD")
    assert (rules_log_likelihood(pa.Table.from_pandas(broken)) == -np.inf).all()


def test_the_likelihood_sums_to_one_over_the_discrete_columns() -> None:
    """With all other columns fixed, the probabilities of country, channel and plan times what follows from them sum to their share."""
    one = make_rules(1, seed=0).to_pandas()
    total = 0.0
    for items in range(40):
        total += float(np.exp(rules_log_likelihood(pa.Table.from_pandas(one.assign(items=items))))[0])
    single = float(np.exp(rules_log_likelihood(pa.Table.from_pandas(one.assign(items=2))))[0])
    mean = {"basic": 1.0, "plus": 2.5, "pro": 6.0}[one["plan"][0]]
    assert single / total == pytest.approx(np.exp(-mean) * mean**2 / 2, rel=1e-6)
