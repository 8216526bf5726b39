"""Predictions: a row per event, the same for any batch; and their score."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import stoker
from stoker.errors import OptionError
from stoker_recipes.icecube.predicting import score_predictions
from stoker_recipes.icecube.training import train

QUICK: dict[str, Any] = {"size": "tiny", "batch_size": 16, "epochs": 1, "warmup": 2, "device": "cpu"}


def test_predictions_are_rows_per_event(ice: Path, tmp_path: Path) -> None:
    train(ice, folder=tmp_path / "run", **QUICK)
    run = stoker.load(tmp_path / "run", device="cpu")
    table = run.predict(ice, batch_size=20)
    store = stoker.open(ice)
    assert table.column_names == ["event_id", "azimuth", "zenith", "kappa"]
    assert table["event_id"].to_pylist() == store.column("event_id").tolist()
    azimuth, zenith, kappa = (table[name].to_numpy() for name in ("azimuth", "zenith", "kappa"))
    assert ((azimuth >= 0) & (azimuth < 2 * math.pi)).all()
    assert ((zenith >= 0) & (zenith <= math.pi)).all()
    assert (kappa > 0).all()
    alone = run.predict(stoker.open(ice), batch_size=7)
    for name in ("azimuth", "zenith", "kappa"):
        np.testing.assert_allclose(alone[name].to_numpy(), table[name].to_numpy(), rtol=1e-4)
    assert set(score_predictions(table, store)) >= {"all", "below 200"}
    with pytest.raises(OptionError, match="horizon is 3, but a run of icecube predicts one direction per event"):
        run.predict(ice, horizon=3)
    with pytest.raises(OptionError, match="expected a store that `stoker pack --recipe icecube` made"):
        run.predict(3)


def test_events_without_a_direction_do_not_count() -> None:
    store = stoker.Store.from_arrays(
        time=[np.arange(3), np.arange(250), np.arange(1200), np.arange(5)],
        azimuth=np.array([0.0, 0.0, 1.0, np.nan]),
        zenith=np.array([1.0, 1.0, 0.5, np.nan]),
    )
    table = pa.table({"azimuth": [0.0, math.pi, 1.0, 0.0], "zenith": [1.0, 1.0, 0.5, 0.0]})
    found = score_predictions(table, store)
    assert {name: one["events"] for name, one in found.items()} == {"all": 3, "below 200": 1, "200 to 999": 1, "from 1000": 1}
    assert [found[name]["mean"] for name in ("below 200", "200 to 999", "from 1000")] == pytest.approx([0, math.degrees(2), 0])
    assert found["all"]["median"] == pytest.approx(0)
