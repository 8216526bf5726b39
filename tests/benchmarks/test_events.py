"""Made events: the published quantiles, files that depend on nothing but their number, and a direction in the times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from benchmarks import events

SMALL = events.Shape(files=4, events_per_file=1500)


@pytest.fixture(scope="module")
def quantiles() -> dict[str, dict[str, float]]:
    return events.quantiles(SMALL)


@pytest.mark.parametrize(
    ("what", "quantile", "low", "high"),
    [
        ("pulses an event", "50 %", 58, 68),
        ("pulses an event", "75 %", 82, 96),
        ("pulses an event", "95 %", 190, 260),
        ("pulses an event", "99 %", 700, 1900),
        ("sensors an event", "50 %", 45, 53),
        ("sensors an event", "95 %", 105, 135),
        ("pulses a sensor", "50 %", 1, 1),
        ("pulses a sensor", "90 %", 3, 5),
    ],
)
def test_quantiles_are_those_of_the_real_files(
    quantiles: dict[str, dict[str, float]], what: str, quantile: str, low: int, high: int
) -> None:
    assert low <= quantiles[what][quantile] <= high


def test_a_file_depends_on_the_seed_and_its_number_alone() -> None:
    pulses, meta = events.make_file(3, SMALL)
    again, _ = events.make_file(3, events.Shape(files=660, events_per_file=1500))
    other, _ = events.make_file(4, SMALL)
    assert all(np.array_equal(pulses[name], again[name]) for name in pulses)
    assert len(other["time"]) != len(pulses["time"])
    assert meta["last_pulse_index"][-1] == len(pulses["time"]) - 1


def test_pulses_stand_in_time_order_and_carry_the_direction() -> None:
    pulses, meta = events.make_file(1, SMALL)
    start, stop = meta["first_pulse_index"][0], meta["last_pulse_index"][0] + 1
    assert (np.diff(pulses["time"][start:stop]) >= 0).all()
    event = pulses["event_id"] - meta["event_id"][0]
    azimuth, zenith = meta["azimuth"][event], meta["zenith"][event]
    direction = np.stack([np.sin(zenith) * np.cos(azimuth), np.sin(zenith) * np.sin(azimuth), np.cos(zenith)], axis=1)
    depth = (events.geometry()[pulses["sensor_id"]] * direction).sum(axis=1)
    signal = ~pulses["auxiliary"]
    assert np.corrcoef(depth[signal], pulses["time"][signal])[0, 1] < -0.99


def test_drift_ties_the_azimuth_to_the_file() -> None:
    shape = events.Shape(files=4, events_per_file=200, drift=1.0)
    for number in range(1, 5):
        azimuth = events.make_file(number, shape)[1]["azimuth"]
        assert ((azimuth >= (number - 1) * np.pi / 2) & (azimuth < number * np.pi / 2)).all()


def test_written_files_have_the_columns_of_the_real_ones(tmp_path: Path) -> None:
    folder = events.write(tmp_path / "events", events.Shape(files=2, events_per_file=20))
    pulses = pq.read_table(folder / "train" / "batch_2.parquet")
    assert {name: str(pulses.schema.field(name).type) for name in pulses.column_names} == {
        "sensor_id": "int16",
        "time": "int64",
        "charge": "double",
        "auxiliary": "bool",
        "event_id": "int64",
    }
    meta = pq.read_table(folder / "train_meta.parquet")
    assert meta.column("batch_id").to_pylist() == [1] * 20 + [2] * 20
    assert len((folder / "sensor_geometry.csv").read_text().splitlines()) == 5161
