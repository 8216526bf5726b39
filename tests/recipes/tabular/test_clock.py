"""The clock of generation has the dates that the decoder writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.tabular.eight_tables import make_table

from stoker_recipes.tabular import Synthesizer
from stoker_recipes.tabular.clock import Clock, DatedColumn
from stoker_recipes.tabular.dates import Relative
from stoker_recipes.tabular.encodings import Subjects, fit_numeric
from stoker_recipes.tabular.rhythm import Rhythm
from stoker_recipes.tabular.values import Values

SMALL: dict[str, Any] = {"size": "s", "epochs": 1, "batch_size": 32}
DAY = 86_400


@pytest.mark.parametrize("count", [60, 900, 40_000])
def test_gaps_of_the_clock_are_those_of_the_decoder(rng: np.random.Generator, count: int) -> None:
    """Of one level, of intervals that are drawn, and of intervals that are learned."""
    data = (rng.lognormal(2, 1, count) * DAY).astype(np.int64)
    data[: count // 4] = 7 * DAY
    values = Values(family="number", data=data, valid=np.arange(count) % 9 > 0)
    gap = fit_numeric(values, Subjects(starts=np.arange(count), num_rows=count, least=0 if count == 60 else 5))
    assert gap is not None
    start = fit_numeric(
        Values(family="number", data=data, valid=np.ones(count, bool)), Subjects(starts=np.arange(count), num_rows=count, least=0)
    )
    assert start is not None
    encoding = Relative(start=start, gap=gap, has_null=False, rhythm=Rhythm(per_day=DAY))
    clock = Clock(DatedColumn(column=0, encoding=encoding, bounds={}), 0, torch.device("cpu"))
    codes = gap.encode(values, np.arange(count)).astype(np.int64)
    uniform = rng.random(count).astype(np.float32).astype(np.float64)
    expected, valid = gap.numbers(codes, uniform)
    fine = torch.from_numpy(codes[:, 1].copy()) if codes.shape[1] > 1 else None
    found = clock.gaps(torch.from_numpy(codes[:, 0].copy()), fine, torch.from_numpy(uniform)).numpy()
    assert (found[valid] == expected[valid]).all()


def test_a_subject_has_the_same_events_in_any_number_of_subjects() -> None:
    table = make_table("viewing", 150)
    model = Synthesizer(**SMALL).fit(table.rows, key="viewer")
    assert model.trained.spec.target.columns[0].encoding.rhythm is not None  # type: ignore[union-attr]
    many, few = model.sample(200), model.sample(20)
    assert many[many["viewer"] < 20].reset_index(drop=True).equals(few)
