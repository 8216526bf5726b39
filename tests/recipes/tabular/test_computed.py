"""Columns that follow exactly from others are computed: on tables with such rules, all of them, and on random tables none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from benchmarks.tabular.eight_tables import make_table

from stoker.errors import OptionError
from stoker_recipes.tabular import Synthesizer
from stoker_recipes.tabular.computed import Formula, compute, find_rules
from stoker_recipes.tabular.tables import learn_table

SMALL: dict[str, Any] = {"size": "s", "epochs": 1, "batch_size": 32}


def rules_of(frame: pd.DataFrame, starts: Any = None, *, is_sequence: bool = False) -> dict[str, Formula]:
    table = pa.Table.from_pandas(frame, preserve_index=False)
    starts = np.arange(len(table)) if starts is None else starts
    return find_rules(table, starts, table.column_names, is_sequence=is_sequence)


def make_orders(count: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    price, number = np.round(rng.lognormal(2, 1, count), 2), rng.integers(1, 9, count)
    found = pd.DataFrame(
        {"price": price, "number": number, "total": np.round(price * number, 2), "tax": np.round(rng.random(count) * 20, 2)}
    )
    found["due"] = np.round(found["total"] + found["tax"], 2)
    found["paid"] = found["due"].where(rng.random(count) < 0.8)
    found["again"] = found["paid"]
    found["colour"] = rng.choice(["red", "blue"], count)
    return found.assign(paint=found["colour"])


def test_products_sums_and_copies_are_found_with_missing_values() -> None:
    rules = rules_of(make_orders(400))
    assert {name: (rule.operation, rule.operands) for name, rule in rules.items()} == {
        "total": ("product", ["price", "number"]),
        "due": ("sum", ["total", "tax"]),
        "again": ("copy", ["paid"]),
        "paint": ("copy", ["colour"]),
    }


def test_halves_may_be_rounded_in_any_way() -> None:
    rng = np.random.default_rng(0)
    units, rate = rng.integers(1, 400, 500), rng.choice([0.125, 0.25, 0.375], 500)
    up = np.floor(units * rate * 100 + 0.5) / 100
    assert rules_of(pd.DataFrame({"units": units, "rate": rate, "tax": up}))["tax"].operation == "product"


def test_a_column_with_another_value_in_one_row_is_learned() -> None:
    orders = make_orders(400)
    for name in ("total", "due", "paint"):
        broken = orders.copy()
        broken.loc[7, name] = "green" if name == "paint" else broken.loc[7, name] + 0.02
        assert name not in rules_of(broken)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.promise("P30", control=True)
def test_negative_control_random_tables_have_no_rules(seed: int) -> None:
    """Columns of few values, that agree by chance in many rows, and sequences of random order."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 12, 60)
    starts, count = (np.cumsum(lengths) - lengths)[lengths > 0], int(lengths.sum())
    frame = pd.DataFrame({f"n{i}": rng.integers(0, i + 2, count) for i in range(6)})
    for number in range(3):  # nearly constant ones
        frame[f"rare{number}"] = (np.arange(count) == rng.integers(count)).astype(int)
    frame["x"], frame["y"] = rng.normal(size=count), np.round(rng.normal(size=count), 1)
    frame["letter"], frame["word"] = rng.choice(list("abc"), count), rng.choice(["u", "v"], count, p=[0.98, 0.02])
    assert rules_of(frame, starts, is_sequence=True) == {}
    options: dict[str, Any] = {"context": None, "encodings": {}, "protect": True, "seed": seed, "say": lambda *_: None}
    spec, _ = learn_table(
        None, "events", pa.Table.from_pandas(frame, preserve_index=False), starts=starts, is_sequence=True, **options
    )
    assert [column.ends for column in spec.columns] == [None] * frame.shape[1]
    assert not spec.rules


def test_events_follow_from_the_event_before() -> None:
    found = make_table("ledger", 80)
    starts = np.flatnonzero(~found.rows["account"].duplicated())
    rules = rules_of(found.rows.drop(columns="account").assign(kept=found.rows["account"] % 7), starts, is_sequence=True)
    assert rules["kept"].operation == "constant"
    assert (rules["before"].operation, rules["before"].operands) == ("previous", ["balance"])
    assert (rules["balance"].operation, rules["balance"].operands) == ("sum", ["amount", "before"])
    alone = rules_of(found.rows[["amount", "balance"]], starts, is_sequence=True)
    assert (alone["balance"].operation, alone["balance"].operands) == ("running", ["balance", "amount"])


def plainly_computed(frame: pd.DataFrame, starts: Any) -> pd.DataFrame:
    """Balances, row by row."""
    found = frame.copy()
    for row in range(len(found)):
        if row not in starts:
            found.loc[row, "before"] = found.loc[row - 1, "balance"]
        found.loc[row, "balance"] = round(found.loc[row, "before"] + found.loc[row, "amount"], 2)
    return found


def test_columns_are_computed_as_row_by_row(rng: np.random.Generator) -> None:
    lengths = rng.integers(0, 6, 9)
    starts, count = np.cumsum(lengths) - lengths, int(lengths.sum())
    frame = pd.DataFrame({name: np.round(rng.normal(size=count) * 9, 2) for name in ("amount", "before", "balance")})
    table = pa.Table.from_pandas(frame, preserve_index=False)
    rules = {
        "balance": Formula(operation="sum", operands=["before", "amount"], decimals=2),
        "before": Formula(operation="previous", operands=["balance"]),
    }
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    found = compute(columns, rules, table.schema, starts)
    expected = plainly_computed(frame, set(starts[lengths > 0].tolist()))
    for name in frame:
        assert np.allclose(found[name].to_numpy(), expected[name].to_numpy())


@pytest.mark.parametrize("name", ["retail", "hospital", "ledger", "viewing"])
@pytest.mark.promise("P30")
def test_generated_tables_break_no_law(name: str) -> None:
    table = make_table(name, 150, variant=3)
    model = Synthesizer(**SMALL).fit(table.rows, key=table.key, context=table.context)
    assert set(table.laws(table.rows, table.context).values()) == {0.0}
    context = table.holdout_context
    found = model.sample(None if context is not None else 300, context=context)
    assert set(table.laws(found, context).values()) == {0.0}, table.laws(found, context)
    first = found.groupby(table.key).head(2)
    again = model.sample(given=first, context=context)
    assert set(table.laws(again, context).values()) == {0.0}, table.laws(again, context)
    assert again.groupby(table.key).head(2).reset_index(drop=True).equals(first.reset_index(drop=True))


@pytest.mark.promise("P30", control=True)
def test_negative_control_without_rules_and_ends_laws_are_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker_recipes.tabular.tables.find_rules", lambda *_, **__: {})
    monkeypatch.setattr("stoker_recipes.tabular.tables.find_ends", lambda *_, **__: None)
    for name in ("ledger", "hospital"):
        table = make_table(name, 150, variant=3)
        model = Synthesizer(**SMALL | {"epochs": 2}).fit(table.rows, key=table.key, context=table.context)
        laws = table.laws(model.sample(context=table.holdout_context), table.holdout_context)
        assert sum(share > 0 for share in laws.values()) >= 3, laws


def test_single_rows_are_computed_and_need_what_they_are_computed_from() -> None:
    orders = make_orders(300)
    model = Synthesizer(**SMALL).fit(orders)
    found = model.sample(500)
    assert np.allclose(found["total"], np.round(found["price"] * found["number"], 2))
    assert np.allclose(found["due"], np.round(found["total"] + found["tax"], 2))
    assert found["again"].equals(found["paid"])
    with pytest.raises(OptionError, match="given has 'total' but not 'price'; 'total' is computed from 'price' and 'number'"):
        model.sample(given=orders[["total"]].head(3))


def test_a_column_whose_encoding_is_given_is_learned() -> None:
    orders = make_orders(300)
    model = Synthesizer(**SMALL).fit(orders, encodings={"total": "numeric"})
    assert "total" not in model.trained.spec.target.rules
