"""How far are events from the known law of their generator?

Each number is a distance to the law itself, not to a sample: 0 is perfect, and a fresh sample of the law has what its size allows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.tabular.known_tables import BURSTS, RULES, SHOP

TAIL = 0.01
"""The largest amounts, whose mean is compared."""


def shop_errors(users: pd.DataFrame, events: pd.DataFrame) -> dict[str, float]:
    """Distances of users and events to the law of `make_shop`."""
    law = SHOP
    whole = events.merge(users[["user_id", "segment"]], on="user_id")
    segment = whole["segment"].map({name: i for i, name in enumerate(law.segments)}).to_numpy()
    state = whole["state"].map({name: i for i, name in enumerate(law.states)}).to_numpy()
    user, amount = whole["user_id"].to_numpy(), whole["amount"].to_numpy(dtype=float)
    is_next = np.append(user[1:] == user[:-1], False)
    first, second = np.flatnonzero(is_next), np.flatnonzero(is_next) + 1
    minutes = (whole["time"].to_numpy()[second] - whole["time"].to_numpy()[first]) / np.timedelta64(1, "m")
    lengths = users["user_id"].map(events.groupby("user_id").size()).fillna(0).to_numpy()
    found: dict[str, list[float]] = {}

    def add(name: str, value: float) -> None:
        found.setdefault(name, []).append(float(value))

    for s in range(len(law.segments)):
        own = lengths[users["segment"] == law.segments[s]]
        mean = (1 - law.empty_shares[s]) * law.mean_lengths[s]
        add("mean length, relative, by segment", abs(own.mean() / mean - 1))
        add("share without events, by segment", abs((own == 0).mean() - law.empty_shares[s]))
        pairs = segment[first] == s
        counts = np.zeros((6, 6))
        np.add.at(counts, (state[first[pairs]], state[second[pairs]]), 1)
        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        apart = 0.5 * np.abs(shares - law.transitions[s]).sum(1)
        add("transitions, total variation, by segment", apart @ counts.sum(1) / counts.sum())
        for c in range(6):
            gaps = np.sort(minutes[pairs & (state[first] == c)])
            if len(gaps) >= 20:
                add(
                    "gaps, Kolmogorov-Smirnov, by segment and state",
                    _largest_gap(gaps, law.gap_means[s][c], law.gap_deviation),
                )
    for c in range(6):
        add("missing scores, by state", abs(whole["score"][state == c].isna().mean() - law.missing_shares[c]))
    ends = np.abs(amount * 100 - np.floor(amount) * 100 - 99) < 0.5
    add("share of .99", abs(ends.mean() - law.share_99 - (1 - law.share_99) * 0.01))
    rest = np.log(np.maximum(amount, 0.01)) - np.array(law.amount_means)[state]
    add("intraclass correlation of log amounts", abs(_intraclass(rest, user) - law.intraclass_correlation))
    add("mean of the largest amounts, relative", abs(_top(amount) / _shop_top() - 1))
    return {name: float(np.mean(values)) for name, values in found.items()}


def bursts_errors(events: pd.DataFrame) -> dict[str, float]:
    """Distances of events to the law of `make_bursts`."""
    law = BURSTS
    user = events["user_id"].to_numpy()
    minutes = np.append(np.nan, np.diff(events["time"].to_numpy()) / np.timedelta64(1, "m"))
    minutes[np.append(True, user[1:] != user[:-1])] = np.nan
    log = np.log(np.maximum(minutes, 1 / 60_000))
    found = {"mean length, relative": abs(events.groupby("user_id").size().mean() / law.mean_length - 1)}
    for lag in (1, 3, 6):
        both = np.column_stack([log[:-lag], log[lag:]])[user[lag:] == user[:-lag]]
        both = both[np.isfinite(both).all(1)]
        found[f"autocorrelation of log gaps, lag {lag}"] = abs(np.corrcoef(both.T)[0, 1] - law.gap_autocorrelation(lag))
    known = np.sort(minutes[np.isfinite(minutes)])
    shares = np.array([1 - law.burst_share, law.burst_share])
    cdf = 1 - (shares * np.exp(-known[:, None] / np.array(law.mean_minutes))).sum(1)
    found["gaps, Kolmogorov-Smirnov"] = float(np.abs(cdf - (np.arange(len(known)) + 0.5) / len(known)).max())
    amounts = np.sort(events["amount"].to_numpy(dtype=float))
    cdf = sum(
        share * _normal((np.log(np.maximum(amounts, 1e-9)) - mean) / law.amount_deviation)
        for share, mean in zip(shares, law.log_amounts, strict=True)
    )
    found["amounts, Kolmogorov-Smirnov"] = float(np.abs(cdf - (np.arange(len(amounts)) + 0.5) / len(amounts)).max())
    in_burst = minutes < 60
    found["subjects with a burst of 4 in an hour"] = abs(_four_in_an_hour(events) - _bursts_reference())
    later = np.isfinite(minutes)
    found["amount and gap of an event, correlation"] = abs(
        np.corrcoef(np.log(np.maximum(events["amount"].to_numpy(dtype=float)[later], 0.01)), in_burst[later])[0, 1]
        - _bursts_correlation()
    )
    return found


def rules_errors(rows: pd.DataFrame) -> dict[str, float]:
    """Distances of rows to the law of `make_rules`."""
    law = RULES
    currency = rows["country"].map(dict(zip(law.countries, law.currencies, strict=True)))
    days = (rows["end"] - rows["start"]) / pd.Timedelta(days=1)
    found = {
        "rows with the currency of another country": float((currency != rows["currency"]).mean()),
        "rows that end before they start": float((days < 0).mean()),
    }
    plan = rows["plan"].map({name: i for i, name in enumerate(law.plans)})
    found["mean days, relative, by plan"] = float(np.mean([abs(days[plan == p].mean() / law.mean_days[p] - 1) for p in range(3)]))
    channel = rows["channel"].map({name: i for i, name in enumerate(law.channels)})
    country = rows["country"].map({name: i for i, name in enumerate(law.countries)})
    found["channel given country, total variation"] = _conditional(country, channel, law.channel_shares(), law.country_shares)
    shares = np.array(law.country_shares) @ law.channel_shares()
    found["plan given channel, total variation"] = _conditional(channel, plan, np.array(law.plan_shares), shares)
    found["share active, by plan"] = float(
        np.mean([abs(_truth(rows["is_active"])[plan == p].mean() - law.active_shares[p]) for p in range(3)])
    )
    amount = rows["amount"].to_numpy(dtype=float)
    found["share of spikes"] = float(
        np.mean(
            [abs((np.abs(amount - spike) < 1e-9).mean() - share) for spike, share in zip(law.spikes, law.spike_shares, strict=True)]
        )
    )
    found["missing incomes"] = abs(rows["income"].isna().mean() - sum(law.missing_shares) / 2)
    index = law.tail_index
    found["mean of the largest tails, relative"] = abs(
        _top(rows["tail"].to_numpy(dtype=float)) / (TAIL ** (-1 / index) * index / (index - 1)) - 1
    )
    first = rows["product"].isin([f"p{i:04d}" for i in range(20)])
    found["share of the 20 first products"] = abs(first.mean() - law.product_shares()[:20].sum())
    return {name: float(value) for name, value in found.items()}


def _truth(values: pd.Series) -> Any:
    return values.astype(str).str.lower().isin(["true", "1", "1.0"]).to_numpy()


def _conditional(given: Any, values: Any, law: Any, weights: Any) -> float:
    """The total variation of shares given a value, weighted by the law."""
    found = 0.0
    for i, weight in enumerate(weights):
        own = values[given == i]
        shares = np.array([(own == j).mean() for j in range(law.shape[1])]) if len(own) else np.zeros(law.shape[1])
        found += weight * 0.5 * np.abs(shares - law[i]).sum()
    return float(found)


def _normal(values: Any) -> Any:
    return 0.5 * (1 + np.vectorize(math.erf)(np.asarray(values) / math.sqrt(2)))


def _largest_gap(sorted_minutes: Any, mean: float, deviation: float) -> float:
    law = _normal((np.log(np.maximum(sorted_minutes, 1e-9)) - mean) / deviation)
    return float(np.abs(law - (np.arange(len(law)) + 0.5) / len(law)).max())


def _intraclass(values: Any, user: Any) -> float:
    """The share of variance between subjects, by analysis of variance."""
    groups = pd.Series(values).groupby(user)
    sizes, means = groups.size().to_numpy(), groups.mean().to_numpy()
    total, count = sizes.sum(), len(sizes)
    within = ((values - groups.transform("mean").to_numpy()) ** 2).sum() / (total - count)
    between = (sizes * (means - values.mean()) ** 2).sum() / (count - 1)
    size = (total - (sizes**2).sum() / total) / (count - 1)
    effect = max((between - within) / size, 0.0)
    return float(effect / (effect + within))


def _top(values: Any) -> float:
    return float(np.sort(values)[-max(1, round(TAIL * len(values))) :].mean())


_KEPT: dict[str, float] = {}


def _kept(name: str, make: Any) -> float:
    """A number of the law that has no formula, from a large sample; made once."""
    if name not in _KEPT:
        _KEPT[name] = make()
    return _KEPT[name]


def _shop_top() -> float:
    from benchmarks.tabular.known_tables import make_shop

    return _kept("shop", lambda: _top(make_shop(200_000, seed=12345)[1]["amount"].to_numpy()))


def _large_bursts() -> pd.DataFrame:
    from benchmarks.tabular.known_tables import make_bursts

    frame: pd.DataFrame = make_bursts(30_000, seed=12345).to_pandas()
    return frame


def _four_in_an_hour(events: pd.DataFrame) -> float:
    user, at = events["user_id"].to_numpy(), events["time"].to_numpy()
    hit = (user[3:] == user[:-3]) & ((at[3:] - at[:-3]) <= np.timedelta64(1, "h"))
    return len(np.unique(user[3:][hit])) / max(len(np.unique(user)), 1)


def _bursts_reference() -> float:
    return _kept("four", lambda: _four_in_an_hour(_large_bursts()))


def _bursts_correlation() -> float:
    def make() -> float:
        events = _large_bursts()
        user = events["user_id"].to_numpy()
        minutes = np.append(np.nan, np.diff(events["time"].to_numpy()) / np.timedelta64(1, "m"))
        later = np.append(False, user[1:] == user[:-1])
        return float(np.corrcoef(np.log(events["amount"].to_numpy()[later]), minutes[later] < 60)[0, 1])

    return _kept("correlation", make)
