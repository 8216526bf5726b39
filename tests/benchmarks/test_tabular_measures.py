"""Measures of generated events: small for two samples of a law, large where events, subjects or copies are spoilt."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from benchmarks.tabular.known_tables import make_bursts, make_shop
from benchmarks.tabular.measures import compare_sequences, read

LIMIT = 0.15
"""Two samples of 200 subjects are nearer than this by every measure of sequences."""


def measured(real: pa.Table, synthetic: pd.DataFrame | pa.Table) -> dict[str, float]:
    table = synthetic if isinstance(synthetic, pa.Table) else pa.Table.from_pandas(synthetic, preserve_index=False)
    return compare_sequences(*read(real, table, "user_id", None, None))


@pytest.mark.parametrize("make", [make_bursts, lambda count, seed: make_shop(count, seed=seed)[1]])
def test_two_samples_are_close_and_spoilt_ones_are_not(make: object) -> None:
    real, other = (make(200, seed=seed) for seed in range(2))  # type: ignore[operator]
    same = measured(real, other)
    assert {name: value for name, value in same.items() if value > LIMIT} == {}
    frame = other.to_pandas()
    shuffled = frame.sample(frac=1, random_state=0).sort_values("user_id", kind="stable")
    assert measured(real, shuffled)["gaps"] > 0.3
    place = frame.groupby("user_id").cumcount().to_numpy()
    ordered, mixed = np.argsort(place, kind="stable"), np.lexsort((np.random.default_rng(0).random(len(frame)), place))
    permuted = frame.copy()
    permuted["amount"] = permuted["amount"].to_numpy(copy=True)
    permuted.loc[ordered, "amount"] = frame.loc[mixed, "amount"].to_numpy()
    assert measured(real, permuted)["subjects"] > same["subjects"]
    assert measured(real, permuted)["lengths"] == same["lengths"]
