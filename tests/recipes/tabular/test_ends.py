"""What is first or last in all sequences is so in generated ones; the laws of tables are in test_computed.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from benchmarks.tabular.eight_tables import make_table

from stoker_recipes.tabular import Synthesizer
from stoker_recipes.tabular.encodings import Categorical
from stoker_recipes.tabular.ends import find_ends

SMALL: dict[str, Any] = {"size": "s", "epochs": 1, "batch_size": 32}


def test_a_sequence_that_has_ended_is_not_continued() -> None:
    table = make_table("hospital", 200)
    model = Synthesizer(**SMALL).fit(table.rows, key="stay", context=table.context)
    ended = table.rows.groupby("stay").filter(lambda rows: len(rows) <= 4)
    found = model.sample(given=ended, context=table.context[table.context["stay"].isin(ended["stay"].unique())])
    assert len(found) == len(ended)
    begun = table.rows.groupby("stay").head(2)
    begun = begun[~begun["event"].isin(["discharge", "death"])]
    users = table.context[table.context["stay"].isin(begun["stay"].unique())]
    assert set(table.laws(model.sample(given=begun, context=users), users).values()) == {0.0}


def test_ends_are_counted_as_by_the_plain_rule(rng: np.random.Generator) -> None:
    """0 begins, 1 ends, 2 and 3 are anywhere between, and 2 is never last."""
    rows, starts = [], []
    for _ in range(120):
        starts.append(len(rows))
        middle = rng.choice([2, 3], rng.integers(1, 6)).tolist()
        rows += [0, *middle, *([3] if rng.random() < 0.5 else [1])]
    encoding = Categorical(values=["a", "b", "c"], has_null=False, has_rare=True)
    found = find_ends(encoding, np.array(rows), np.array(starts), num_columns=1)
    assert found is not None
    assert (found.first, found.later, found.last, found.earlier) == ([1, 2, 3], [0], [0, 2], [1])
