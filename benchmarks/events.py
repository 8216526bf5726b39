"""Neutrino events that look like the IceCube files: ragged, long-tailed, grouped by sensor, with a direction to learn.

Any file depends on the seed and its own number alone (and, where the azimuth drifts, on how many files there are), so
a few files of a large set can be made by themselves. Quantiles of pulses and sensors follow those published for the
real files; `python -m benchmarks.events FOLDER` writes a set and prints its quantiles.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

Array = npt.NDArray[Any]

NUM_STRINGS, SENSORS_A_STRING = 86, 60
NUM_SENSORS = NUM_STRINGS * SENSORS_A_STRING
LIGHT_METRES_A_NS = 0.3
QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99, 0.999)

# Quantiles of pulses in an event.
_SHARES = (0, 0.01, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.975, 0.99, 0.995, 0.9979, 0.999, 0.9999, 0.999985, 1)
_PULSES = (12, 24, 31, 36, 47, 63, 89, 144, 221, 400, 1167, 2500, 10000, 18624, 68431, 100000, 178000)
# How many sensors an event with a given number of pulses has.
_SIZES = (12, 24, 36, 63, 89, 144, 221, 1167, 18624, 68431, 178000)
_SENSORS = (12, 21, 30, 49, 65, 92, 120, 242, 872, 1600, 2561)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How many events there are; `drift` is the share of events whose azimuth identifies their file (1: sorted by file)."""

    files: int = 66
    events_per_file: int = 1500
    seed: int = 0
    drift: float = 0.0


CLAIMED = Shape()
"""A tenth of the files that the report speaks of, with fewer events each."""
REALLY_RUN = Shape(files=5, events_per_file=18_000)
"""A tenth of what its training really read."""


def geometry() -> Array:
    """(5160, 3): x, y, z in metres. 78 strings on a hexagonal grid of 125 m, sensors 17 m apart; 8 dense strings amid them."""
    grid = np.array([(125 * (q + r / 2), 125 * r * np.sqrt(3) / 2) for q in range(-6, 7) for r in range(-6, 7) if abs(q + r) <= 6])
    outer = grid[np.argsort(np.hypot(*grid.T), kind="stable")][:78]
    angle = np.arange(8) * np.pi / 4
    inner = 60 * np.stack([np.cos(angle), np.sin(angle)], axis=1) + 20
    strings = np.concatenate([outer, inner])
    depth = np.concatenate([np.tile(500 - 17.0 * np.arange(60), (78, 1)), np.tile(-80 - 7.0 * np.arange(60), (8, 1))])
    return np.concatenate([np.repeat(strings, SENSORS_A_STRING, axis=0), depth.reshape(-1, 1)], axis=1)


def make_file(number: int, shape: Shape) -> tuple[dict[str, Array], dict[str, Array]]:
    """The pulses and the metadata of one file; files are numbered from 1."""
    rng = np.random.default_rng([shape.seed, number])
    events = shape.events_per_file
    pulses = np.exp(np.interp(rng.random(events), _SHARES, np.log(_PULSES))).astype(np.int64)
    sensors = np.exp(np.interp(np.log(pulses), np.log(_SIZES), np.log(_SENSORS)) + 0.08 * rng.normal(size=events))
    sensors = np.clip(sensors.astype(np.int64), 1, np.minimum(pulses, NUM_SENSORS))

    azimuth = rng.random(events)
    tells_file = rng.random(events) < shape.drift
    azimuth = 2 * np.pi * np.where(tells_file, (number - 1 + azimuth) / shape.files, azimuth)
    zenith = np.arccos(rng.uniform(-1, 1, events))

    stops = np.cumsum(pulses)
    starts = stops - pulses
    event = np.repeat(np.arange(events), pulses)
    sensor = _sensors(rng, event, np.arange(stops[-1]) - starts[event], pulses, sensors)
    auxiliary = rng.random(len(event)) < 0.72
    noise = auxiliary & (rng.random(len(event)) < 0.6)
    direction = np.stack([np.sin(zenith) * np.cos(azimuth), np.sin(zenith) * np.sin(azimuth), np.cos(zenith)], axis=1)
    delay = np.einsum("pk,pk->p", geometry()[sensor], direction[event]) / LIGHT_METRES_A_NS
    signal = 1e4 - delay + rng.exponential(60, len(event))
    time = np.where(noise, rng.uniform(6e3, 3e4, len(event)), signal).astype(np.int64)
    charge = np.round(40 * np.exp(0.05 + 0.55 * rng.normal(size=len(event)))) / 40

    order = np.lexsort((time, event))
    ids = (number - 1) * events + np.arange(events)
    columns = {
        "sensor_id": sensor[order].astype(np.int16),
        "time": time[order],
        "charge": charge[order],
        "auxiliary": auxiliary[order],
        "event_id": ids[event],
    }
    meta = {
        "batch_id": np.full(events, number),
        "event_id": ids,
        "first_pulse_index": starts,
        "last_pulse_index": stops - 1,
        "azimuth": azimuth,
        "zenith": zenith,
    }
    return columns, meta


def _sensors(rng: np.random.Generator, event: Array, place: Array, pulses: Array, sensors: Array) -> Array:
    """The first pulses of an event take its sensors one by one; the others prefer the first of them, brighter events more."""
    count = sensors[event]
    power = np.clip(6 - 2.2 * np.log(pulses / sensors), 1.3, 6)[event]
    slot = np.where(place < count, place, (count * rng.random(len(event)) ** power).astype(np.int64))
    steps = np.flatnonzero(np.gcd(np.arange(NUM_SENSORS), NUM_SENSORS) == 1)
    base = rng.integers(0, NUM_SENSORS, len(pulses))
    step = rng.choice(steps, len(pulses))
    return np.asarray((base[event] + slot * step[event]) % NUM_SENSORS)


def write(folder: Path, shape: Shape) -> Path:
    """Write `train/batch_*.parquet`, `train_meta.parquet` and `sensor_geometry.csv`."""
    (folder / "train").mkdir(parents=True)
    tables = []
    for number in range(1, shape.files + 1):
        columns, meta = make_file(number, shape)
        pq.write_table(pa.table(columns), folder / "train" / f"batch_{number}.parquet")
        tables.append(pa.table(meta))
    pq.write_table(pa.concat_tables(tables), folder / "train_meta.parquet")
    lines = [f"{number},{x:.2f},{y:.2f},{z:.2f}" for number, (x, y, z) in enumerate(geometry())]
    (folder / "sensor_geometry.csv").write_text("\n".join(["sensor_id,x,y,z", *lines, ""]))
    return folder


def quantiles(shape: Shape) -> dict[str, Any]:
    """Quantiles of pulses and sensors an event and of pulses a sensor, to hold against the published ones."""
    pulses, sensors, repeats = [], [], []
    for number in range(1, shape.files + 1):
        columns, meta = make_file(number, shape)
        pulses.append(meta["last_pulse_index"] - meta["first_pulse_index"] + 1)
        _, sizes = np.unique(columns["event_id"] * NUM_SENSORS + columns["sensor_id"], return_counts=True)
        keys = np.unique(columns["event_id"] * NUM_SENSORS + columns["sensor_id"]) // NUM_SENSORS
        sensors.append(np.unique(keys, return_counts=True)[1])
        repeats.append(sizes)
    parts = {"pulses an event": pulses, "sensors an event": sensors, "pulses a sensor": repeats}
    return {
        name: {"mean": round(float(np.concatenate(values).mean()), 1)}
        | {f"{100 * q:g} %": int(v) for q, v in zip(QUANTILES, np.quantile(np.concatenate(values), QUANTILES), strict=True)}
        for name, values in parts.items()
    }


def main() -> None:
    """Write a set of files and print its quantiles."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    for name, kind in (("files", int), ("events_per_file", int), ("seed", int), ("drift", float)):
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=getattr(CLAIMED, name))
    options = vars(parser.parse_args())
    folder = options.pop("folder")
    shape = Shape(**options)
    write(folder, shape)
    for name, values in quantiles(shape).items():
        print(name, values)


if __name__ == "__main__":
    main()
