"""Three generators of tables whose law is known, to judge models and measures by.

    make_shop      users and their events: a Markov chain with context, and an effect per subject that no column shows
    make_bursts    events in two hidden regimes: the autocorrelation of their gaps is known for every lag
    make_rules     a flat table of 14 columns with rules between them, and its exact log-likelihood

A fresh sample of the same size, made with another seed, is the noise that a perfect model would have.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from stoker._types import Array
from stoker.errors import OptionError

_START = np.datetime64("2023-01-01", "ms").view(np.int64)
_YEAR_MS = 365 * 86_400_000
_DAY_MS = 86_400_000


def _checked(num_subjects: int) -> int:
    if isinstance(num_subjects, bool) or not isinstance(num_subjects, int) or num_subjects < 1:
        raise OptionError(f"the number of rows is {num_subjects!r}; expected an integer of at least 1.")
    return num_subjects


# ---- events of users in a shop ----


def _shop_transitions() -> Array:
    """[segment, state, next state]: each segment prefers another step through the six states."""
    chains = np.full((3, 6, 6), 0.04)
    for segment, (stay, step) in enumerate(((0.5, 1), (0.2, 2), (0.35, 5))):
        for state in range(6):
            chains[segment, state, state] += stay
            chains[segment, state, (state + step) % 6] += 0.76 - stay
    return chains


@dataclass(frozen=True, kw_only=True)
class ShopLaw:
    """The law of `make_shop`."""

    segments: tuple[str, ...] = ("new", "regular", "vip")
    segment_shares: tuple[float, ...] = (0.5, 0.3, 0.2)
    empty_shares: tuple[float, ...] = (0.15, 0.05, 0.0)
    """Subjects without events, by segment."""
    mean_lengths: tuple[float, ...] = (5.0, 10.0, 16.0)
    """1 + Poisson of this number minus 1, where there are events."""
    states: tuple[str, ...] = ("view", "search", "cart", "pay", "return", "help")
    first_states: tuple[tuple[float, ...], ...] = ((0.7, 0.2, 0.1, 0, 0, 0), (0.4, 0.4, 0.2, 0, 0, 0), (0.2, 0.3, 0.3, 0.2, 0, 0))
    transitions: Array = field(default_factory=_shop_transitions)
    gap_means: tuple[tuple[float, ...], ...] = ((3, 2, 1, 4, 6, 5), (2, 1, 0, 3, 5, 4), (1, 0, -1, 2, 4, 3))
    """Mean of the log of the minutes to the next event, by segment and state."""
    gap_deviation: float = 0.8
    amount_means: tuple[float, ...] = (2.0, 2.2, 3.0, 3.5, 3.0, 1.0)
    """Mean of the log amount, by state."""
    subject_deviation: float = 0.6
    amount_deviation: float = 0.5
    share_99: float = 1 / 3
    """Amounts that end in .99."""
    missing_shares: tuple[float, ...] = (0.02, 0.05, 0.1, 0.0, 0.4, 0.6)
    """Missing scores, by state."""

    @property
    def intraclass_correlation(self) -> float:
        """The share of the variance of log amounts, given the state, that is the subject's."""
        return self.subject_deviation**2 / (self.subject_deviation**2 + self.amount_deviation**2)


SHOP = ShopLaw()


def make_shop(num_subjects: int, *, seed: int) -> tuple[pa.Table, pa.Table]:
    """Make users and their events; the law is `SHOP`.

    Args:
        num_subjects: Users.
        seed: Of the sample.

    Returns:
        The context (`user_id`, `segment`, `region`, `age`) and the events (`user_id`, `time`, `state`, `amount`, `score`), in the
        order of users and times.

    Raises:
        OptionError: The number is not valid.

    Example:
        >>> users, events = make_shop(100, seed=0)
        >>> users.num_rows, events.column_names
        (100, ['user_id', 'time', 'state', 'amount', 'score'])
    """
    n, rng, law = _checked(num_subjects), np.random.default_rng(seed), SHOP
    segment = rng.choice(3, n, p=law.segment_shares)
    region = rng.choice(8, n, p=np.arange(8, 0, -1) / 36)
    age = np.clip(np.round(rng.normal(38 + 6 * segment, 12, n)), 18, 90).astype(np.int64)
    lengths = 1 + rng.poisson(np.array(law.mean_lengths)[segment] - 1)
    lengths[rng.random(n) < np.array(law.empty_shares)[segment]] = 0
    owner = np.repeat(np.arange(n), lengths)
    starts = np.cumsum(lengths) - lengths
    states = np.zeros(len(owner), dtype=np.int64)
    for step in range(int(lengths.max(initial=0))):
        alive = np.flatnonzero(lengths > step)
        before = states[starts[alive] + step - 1] if step else None
        shares = np.array(law.first_states)[segment[alive]] if before is None else law.transitions[segment[alive], before]
        states[starts[alive] + step] = _draw(shares, rng)
    log_minutes = rng.normal(np.array(law.gap_means)[segment[owner], states], law.gap_deviation)
    gaps = np.exp(log_minutes) * 60_000
    begins = _START + rng.integers(0, _YEAR_MS, n)
    run = np.cumsum(gaps) - gaps  # time since the first event of all; the gap after an event leads to the next one
    times = begins[owner] + (run - run[starts[owner]]).astype(np.int64)
    effects = rng.normal(0, law.subject_deviation, n)
    amounts = np.exp(rng.normal(np.array(law.amount_means)[states] + effects[owner], law.amount_deviation))
    ends_in_99 = rng.random(len(owner)) < law.share_99
    amounts = np.where(ends_in_99, np.floor(amounts) + 0.99, np.round(amounts, 2))
    score = np.round(rng.normal(states, 1.0), 3)
    missing = rng.random(len(owner)) < np.array(law.missing_shares)[states]
    users = pa.table(
        {
            "user_id": np.arange(n),
            "segment": pa.array(np.array(law.segments)[segment]),
            "region": pa.array(np.char.add("r", region.astype(str))),
            "age": age,
        }
    )
    events = pa.table(
        {
            "user_id": owner,
            "time": pa.array(times.view("M8[ms]")),
            "state": pa.array(np.array(law.states)[states]),
            "amount": amounts,
            "score": pa.array(score, mask=missing),
        }
    )
    return users, events


def _draw(shares: Array, rng: np.random.Generator) -> Array:
    """One class per row of shares."""
    return np.asarray(np.minimum((rng.random((len(shares), 1)) > np.cumsum(shares, axis=1)).sum(axis=1), shares.shape[1] - 1))


# ---- bursts ----


@dataclass(frozen=True, kw_only=True)
class BurstsLaw:
    """The law of `make_bursts`: regime 0 is calm, 1 a burst; each event stays in its regime with `stays`."""

    stays: tuple[float, float] = (0.9, 0.8)
    mean_minutes: tuple[float, float] = (600.0, 5.0)
    """Of the exponential gap before an event, by its regime."""
    log_amounts: tuple[float, float] = (2.0, 3.5)
    amount_deviation: float = 0.5
    mean_length: float = 30.0

    @property
    def burst_share(self) -> float:
        """Events in bursts."""
        return (1 - self.stays[0]) / (2 - sum(self.stays))

    def gap_autocorrelation(self, lag: int) -> float:
        """The autocorrelation of log gaps."""
        between = self.burst_share * (1 - self.burst_share) * np.log(self.mean_minutes[0] / self.mean_minutes[1]) ** 2
        return float(between / (between + np.pi**2 / 6) * (sum(self.stays) - 1) ** lag)


BURSTS = BurstsLaw()


def make_bursts(num_subjects: int, *, seed: int) -> pa.Table:
    """Make events in two hidden regimes; the law is `BURSTS`.

    Args:
        num_subjects: Subjects.
        seed: Of the sample.

    Returns:
        The columns `user_id`, `time`, `amount`, in the order of subjects and times.

    Raises:
        OptionError: The number is not valid.

    Example:
        >>> make_bursts(100, seed=0).column_names
        ['user_id', 'time', 'amount']
        >>> round(BURSTS.gap_autocorrelation(3), 3)
        0.26
    """
    n, rng, law = _checked(num_subjects), np.random.default_rng(seed), BURSTS
    lengths = 1 + rng.poisson(law.mean_length - 1, n)
    owner = np.repeat(np.arange(n), lengths)
    starts = np.cumsum(lengths) - lengths
    regimes = np.zeros(len(owner), dtype=np.int64)
    for step in range(int(lengths.max())):
        alive = np.flatnonzero(lengths > step)
        place = starts[alive] + step
        if step == 0:
            regimes[place] = rng.random(len(alive)) < law.burst_share
        else:
            stays = rng.random(len(alive)) < np.array(law.stays)[regimes[place - 1]]
            regimes[place] = np.where(stays, regimes[place - 1], 1 - regimes[place - 1])
    gaps = rng.exponential(np.array(law.mean_minutes)[regimes]) * 60_000
    run = np.cumsum(gaps)
    begins = _START + rng.integers(0, _YEAR_MS, n)
    times = begins[owner] + (run - run[starts[owner]]).astype(np.int64)
    amounts = np.round(np.exp(rng.normal(np.array(law.log_amounts)[regimes], law.amount_deviation)), 2)
    return pa.table({"user_id": owner, "time": pa.array(times.view("M8[ms]")), "amount": amounts})


# ---- rules between columns ----


@dataclass(frozen=True, kw_only=True)
class RulesLaw:
    """The law of `make_rules`, a Bayesian network."""

    countries: tuple[str, ...] = ("AT", "CH", "CZ", "DE", "DK", "FR", "GB", "PL")
    currencies: tuple[str, ...] = ("EUR", "CHF", "CZK", "EUR", "DKK", "EUR", "GBP", "PLN")
    """Of each country: a rule without exception."""
    country_shares: tuple[float, ...] = (0.1, 0.08, 0.07, 0.3, 0.05, 0.2, 0.12, 0.08)
    channels: tuple[str, ...] = ("app", "mail", "shop", "web")
    plans: tuple[str, ...] = ("basic", "plus", "pro")
    plan_shares: tuple[tuple[float, ...], ...] = ((0.6, 0.3, 0.1), (0.3, 0.4, 0.3), (0.8, 0.15, 0.05), (0.4, 0.4, 0.2))
    """By channel."""
    num_products: int = 2000
    mean_days: tuple[float, ...] = (5.0, 20.0, 60.0)
    """Geometric days from start to end, from 0, by plan."""
    active_shares: tuple[float, ...] = (0.5, 0.7, 0.9)
    spikes: tuple[float, ...] = (0.0, 9.99, 19.99)
    spike_shares: tuple[float, ...] = (0.3, 0.2, 0.1)
    tail_index: float = 2.5
    missing_shares: tuple[float, float] = (0.05, 0.5)
    """Missing incomes, below and above the median."""

    def channel_shares(self) -> Array:
        """[country, channel]."""
        weights = 1 + (np.arange(8)[:, None] + 2 * np.arange(4)[None, :]) % 4
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def product_shares(self) -> Array:
        """Zipf."""
        weights = 1 / np.arange(1, self.num_products + 1) ** 1.1
        return np.asarray(weights / weights.sum())


RULES = RulesLaw()
_NUM_DAYS = 730
_INCOME_MEAN, _INCOME_DEVIATION = 10.0, 0.6
_AGES, _AGE_SHARES = 72, (0.25, 0.35, 0.45)
_ITEM_MEANS = (1.0, 2.5, 6.0)
_AMOUNT_MEAN, _AMOUNT_DEVIATION = 3.0, 1.0


def make_rules(num_rows: int, *, seed: int) -> pa.Table:
    """Make a flat table with rules between its columns; the law is `RULES`.

    Args:
        num_rows: Rows.
        seed: Of the sample.

    Returns:
        14 columns: `currency` follows from `country`, `end` is not before `start`, `product` has 2,000 values, `amount` has three
        spikes, `tail` is heavy, and `income` is missing more often where it is high.

    Raises:
        OptionError: The number is not valid.

    Example:
        >>> make_rules(100, seed=0).num_columns
        14
    """
    n, rng, law = _checked(num_rows), np.random.default_rng(seed), RULES
    country = rng.choice(8, n, p=law.country_shares)
    channel = _draw(law.channel_shares()[country], rng)
    plan = _draw(np.array(law.plan_shares)[channel], rng)
    product = rng.choice(law.num_products, n, p=law.product_shares())
    start = rng.integers(0, _NUM_DAYS, n)
    days = rng.geometric(1 / (1 + np.array(law.mean_days)[plan])) - 1
    age = 18 + rng.binomial(_AGES, np.array(_AGE_SHARES)[plan])
    active = rng.random(n) < np.array(law.active_shares)[plan]
    spike = rng.choice(4, n, p=[*law.spike_shares, 1 - sum(law.spike_shares)])
    amount = np.where(spike < 3, np.append(law.spikes, 0)[spike], np.exp(rng.normal(_AMOUNT_MEAN, _AMOUNT_DEVIATION, n)))
    tail = (1 - rng.random(n)) ** (-1 / law.tail_index)
    normal = rng.normal(size=n)
    missing = rng.random(n) < np.where(normal > 0, law.missing_shares[1], law.missing_shares[0])
    items = rng.poisson(np.array(_ITEM_MEANS)[plan])
    score = rng.normal(plan, 1.0)
    first_day = _START + start * _DAY_MS
    return pa.table(
        {
            "country": pa.array(np.array(law.countries)[country]),
            "currency": pa.array(np.array(law.currencies)[country]),
            "channel": pa.array(np.array(law.channels)[channel]),
            "plan": pa.array(np.array(law.plans)[plan]),
            "product": pa.array(np.char.add("p", np.char.zfill(product.astype(str), 4))),
            "start": pa.array(first_day.view("M8[ms]")),
            "end": pa.array((first_day + days * _DAY_MS).view("M8[ms]")),
            "age": age,
            "is_active": active,
            "amount": amount,
            "tail": tail,
            "income": pa.array(np.exp(_INCOME_MEAN + _INCOME_DEVIATION * normal), mask=missing),
            "items": items,
            "score": score,
        }
    )


def rules_log_likelihood(table: pa.Table) -> Array:
    """The log-likelihood of rows of `make_rules`, in nats; -inf where a rule is broken.

    Args:
        table: A table with the columns of `make_rules`.

    Returns:
        One number per row: log probabilities of the discrete columns plus log densities of the continuous ones.

    Example:
        >>> bool(np.isfinite(rules_log_likelihood(make_rules(10, seed=0))).all())
        True
    """
    law = RULES

    def codes(name: str, values: tuple[str, ...]) -> Array:
        places = {value: i for i, value in enumerate(values)}
        return np.array([places.get(one, -1) for one in table[name].to_pylist()])

    def numbers(name: str) -> Array:
        column = table[name].combine_chunks()
        return np.array(column.cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False))

    country, channel, plan = codes("country", law.countries), codes("channel", law.channels), codes("plan", law.plans)
    product = np.array([int(one[1:]) if one[1:].isdigit() else -1 for one in table["product"].to_pylist()])
    start, end = ((table[name].combine_chunks().cast(pa.int64()).to_numpy() - _START) / _DAY_MS for name in ("start", "end"))
    is_known = (country >= 0) & (channel >= 0) & (plan >= 0) & (product >= 0) & (product < law.num_products)
    keeps_rules = np.array(law.currencies)[country] == np.array(table["currency"].to_pylist())
    keeps_rules &= (end >= start) & (start >= 0) & (start < _NUM_DAYS) & (start % 1 == 0) & (end % 1 == 0)
    age, items = numbers("age") - 18, numbers("items")
    keeps_rules &= (age >= 0) & (age <= _AGES) & (items >= 0)
    quiet = np.where(keeps_rules & is_known, 0, -np.inf)
    log_factorials = np.concatenate([[0], np.cumsum(np.log(np.arange(1, 1 + max(_AGES, int(np.nanmax(items, initial=0))))))])
    end_shares = 1 / (1 + np.array(law.mean_days)[plan])
    age_shares, item_means = np.array(_AGE_SHARES)[plan], np.array(_ITEM_MEANS)[plan]
    active = np.array(law.active_shares)[plan]
    ages = np.clip(age, 0, _AGES).astype(int)
    amount, tail, income, score = numbers("amount"), numbers("tail"), numbers("income"), numbers("score")
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log(np.array(law.country_shares)[country]) + np.log(law.channel_shares()[country, channel])
        found += np.log(np.array(law.plan_shares)[channel, plan]) + np.log(
            law.product_shares()[np.clip(product, 0, law.num_products - 1)]
        )
        found += -np.log(_NUM_DAYS) + np.log(end_shares) + (end - start) * np.log(1 - end_shares)
        found += log_factorials[_AGES] - log_factorials[ages] - log_factorials[_AGES - ages]
        found += ages * np.log(age_shares) + (_AGES - ages) * np.log(1 - age_shares)
        found += np.log(np.where(numbers("is_active") > 0, active, 1 - active))
        found += items * np.log(item_means) - item_means - log_factorials[np.clip(items, 0, len(log_factorials) - 1).astype(int)]
        spikes = np.select([amount == spike for spike in law.spikes], list(np.log(law.spike_shares)), default=np.nan)
        smooth = np.log(1 - sum(law.spike_shares)) + _log_normal(np.log(amount), _AMOUNT_MEAN, _AMOUNT_DEVIATION) - np.log(amount)
        found += np.where(np.isnan(spikes), np.where(amount > 0, smooth, -np.inf), spikes)
        found += np.where(tail >= 1, np.log(law.tail_index) - (law.tail_index + 1) * np.log(tail), -np.inf)
        kept = np.log(1 - np.where(np.log(income) > _INCOME_MEAN, law.missing_shares[1], law.missing_shares[0]))
        density = kept + _log_normal(np.log(income), _INCOME_MEAN, _INCOME_DEVIATION) - np.log(income)
        found += np.where(np.isnan(income), np.log(sum(law.missing_shares) / 2), density)
        found += _log_normal(score, plan, 1.0)
    return np.asarray(np.where(np.isnan(found), -np.inf, found) + quiet)


def _log_normal(value: Array, mean: Array | float, deviation: float) -> Array:
    return np.asarray(-0.5 * ((value - mean) / deviation) ** 2 - np.log(deviation * np.sqrt(2 * np.pi)))
