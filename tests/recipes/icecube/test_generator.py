"""Made events: the published quantiles, files that depend on nothing but their number, and a direction in the times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from stoker_recipes.icecube import generator, make_events, read_geometry
from stoker_recipes.icecube.generator import make_file


def test_a_file_depends_on_the_seed_and_its_number_alone() -> None:
    pulses, meta = make_file(3, files=4, events=1500)
    again, _ = make_file(3, files=660, events=1500)
    other, _ = make_file(4, files=4, events=1500)
    assert all(np.array_equal(pulses[name], again[name]) for name in pulses)
    assert len(other["time"]) != len(pulses["time"])
    assert meta["last_pulse_index"][-1] == len(pulses["time"]) - 1


def test_written_files_have_the_schema_of_the_competition(tmp_path: Path) -> None:
    folder = make_events(tmp_path / "icecube", files=2, events=20)
    pulses = pd.read_parquet(folder / "train" / "batch_2.parquet")
    assert {name: str(kind) for name, kind in pulses.dtypes.items()} == {
        "sensor_id": "int16", "time": "int64", "charge": "float64", "auxiliary": "bool",
    }  # fmt: skip
    assert pulses.index.name == "event_id"
    meta = pq.read_table(folder / "train_meta.parquet")
    assert meta.column_names == ["batch_id", "event_id", "first_pulse_index", "last_pulse_index", "azimuth", "zenith"]
    assert meta.column("batch_id").to_pylist() == [1] * 20 + [2] * 20
    assert pq.read_metadata(folder / "train_meta.parquet").num_row_groups == 2
    assert read_geometry(folder).tolist() == generator.geometry().tolist()
