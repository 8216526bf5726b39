"""`stoker.load(run).predict(data)` for a Time-MoE: the forecasts of `forecast`, with names and times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import stoker
from stoker.errors import OptionError
from stoker_recipes.time_moe.predicting import forecast, load_model
from stoker_recipes.time_moe.training import train

HOUR = 3_600_000_000_000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("moe")
    rng = np.random.default_rng(0)
    stoker.Store.from_arrays(x=rng.normal(size=(3, 200))).save(folder / "d.stoker")
    quick = {"size": "tiny", "length": 32, "batch_size": 2, "steps": 2, "precision": "fp32", "graph": False, "device": "cpu"}
    train(str(folder / "d.stoker"), folder=folder / "run", progress=False, **quick)  # type: ignore[arg-type]
    return folder / "run"


@pytest.fixture
def store(tmp_path: Path) -> stoker.Store:
    lengths = {"a": 50, "b": 20}
    table = {
        "shop": pa.array([name for name, count in lengths.items() for _ in range(count)]),
        "ts": pa.array(np.concatenate([np.arange(count) for count in lengths.values()]) * HOUR, pa.timestamp("ns")),
        "x": np.random.default_rng(1).normal(size=70) + 7,
        "y": np.random.default_rng(2).normal(size=70),
    }
    return stoker.pack(table, tmp_path / "new.stoker", series="shop", time="ts")


@pytest.mark.promise("P27")
def test_the_forecasts_of_the_model_with_names_and_times(run: Path, store: stoker.Store) -> None:
    loaded = load_model(run)
    found = stoker.load(run, device="cpu").predict(store, horizon=5)
    assert found.column_names == ["series", "time", "step", "ahead", "column", "prediction"]
    assert len(found) == 2 * 2 * 5
    for row in range(2):
        for column in ("x", "y"):
            rows = [one for one in found.to_pylist() if (one["series"], one["column"]) == ("ab"[row], column)]
            values = np.asarray(store[row][column], dtype=np.float64)
            assert [one["prediction"] for one in rows] == pytest.approx(forecast(loaded, values[None, -32:], 5)[0])
            assert [one["step"] for one in rows] == list(range(len(values), len(values) + 5))
            assert [one["time"].value // HOUR for one in rows] == [one["step"] for one in rows]
            assert [one["ahead"] for one in rows] == [1, 2, 3, 4, 5]


def test_every_window(run: Path, store: stoker.Store) -> None:
    loaded, opened = load_model(run), stoker.load(run, device="cpu")
    with pytest.raises(OptionError, match=r"series 'b:x' of .* is too short: it has 20 points, and a forecast needs 32"):
        opened.predict(store, which="all", horizon=4)
    found = opened.predict(store, which="all", horizon=4, stride=9, short="skip", batch_size=2)
    rows = [one for one in found.to_pylist() if one["column"] == "x"]
    assert [one["step"] - one["ahead"] + 1 for one in rows[::4]] == [32, 41, 50]
    values = np.asarray(store[0]["x"], dtype=np.float64)
    assert [one["prediction"] for one in rows[4:8]] == pytest.approx(forecast(loaded, values[None, 9:41], 4)[0])
