"""Events that look like those of IceCube: ragged, long-tailed, grouped by sensor, with a direction that can be learned.

Light moves along the direction of an event, so a pulse that is not noise comes at 10,000 ns minus the position of its sensor along that
direction over the speed of light. The numbers of pulses and sensors follow the quantiles published for the real files.

A file depends only on the seed and its number (and, where the azimuth drifts, on the number of files), so a few files of a large set
can be made by themselves.
"""

from __future__ import annotations

import functools
import io
import json
import os
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stoker.errors import OptionError
from stoker.extend import Array, disk
from stoker.store import Progress, quiet
from stoker_recipes.icecube.batches import NUM_SENSORS

LIGHT_METRES_PER_NS = 0.3
FIRST_TEST_FILE = 661  # files of the training data have the numbers 1 to 660
META_ROW_GROUPS = 2  # as in the file of the competition

# Quantiles of pulses per event.
_SHARES = (0, 0.01, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.975, 0.99, 0.995, 0.9979, 0.999, 0.9999, 0.999985, 1)
_PULSES = (12, 24, 31, 36, 47, 63, 89, 144, 221, 400, 1167, 2500, 10000, 18624, 68431, 100000, 178000)
# Sensors of an event with a given number of pulses.
_SIZES = (12, 24, 36, 63, 89, 144, 221, 1167, 18624, 68431, 178000)
_SENSORS = (12, 21, 30, 49, 65, 92, 120, 242, 872, 1600, 2561)


@functools.cache
def geometry() -> Array:
    """(5160, 3): x, y, z in metres. 78 strings on a hexagonal grid of 125 m, sensors 17 m apart; 8 dense strings among them."""
    grid = np.array([(125 * (q + r / 2), 125 * r * np.sqrt(3) / 2) for q in range(-6, 7) for r in range(-6, 7) if abs(q + r) <= 6])
    outer = grid[np.argsort(np.hypot(*grid.T), kind="stable")][:78]
    angle = np.arange(8) * np.pi / 4
    inner = 60 * np.stack([np.cos(angle), np.sin(angle)], axis=1) + 20
    strings = np.concatenate([outer, inner])
    depth = np.concatenate([np.tile(500 - 17.0 * np.arange(60), (78, 1)), np.tile(-80 - 7.0 * np.arange(60), (8, 1))])
    return np.asarray(np.concatenate([np.repeat(strings, 60, axis=0), depth.reshape(-1, 1)], axis=1).round(2))


def make_file(
    number: int, *, files: int, events: int, seed: int = 0, drift: float = 0.0
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The pulses and the metadata of one file; files are numbered from 1. See `make_events`."""
    rng = np.random.default_rng([seed, number])
    pulses = np.exp(np.interp(rng.random(events), _SHARES, np.log(_PULSES))).astype(np.int64)
    sensors = np.exp(np.interp(np.log(pulses), np.log(_SIZES), np.log(_SENSORS)) + 0.08 * rng.normal(size=events))
    sensors = np.clip(sensors.astype(np.int64), 1, np.minimum(pulses, NUM_SENSORS))

    azimuth = rng.random(events)
    identifies_file = rng.random(events) < drift
    azimuth = 2 * np.pi * np.where(identifies_file, ((number - 1) % files + azimuth) / files, azimuth)
    zenith = np.arccos(rng.uniform(-1, 1, events))

    stops = np.cumsum(pulses)
    starts = stops - pulses
    event = np.repeat(np.arange(events), pulses)
    sensor = _sensors(rng, event, np.arange(stops[-1]) - starts[event], pulses, sensors)
    auxiliary = rng.random(len(event)) < 0.72
    noise = auxiliary & (rng.random(len(event)) < 0.6)
    direction = np.stack([np.sin(zenith) * np.cos(azimuth), np.sin(zenith) * np.sin(azimuth), np.cos(zenith)], axis=1)
    delay = np.einsum("pk,pk->p", geometry()[sensor], direction[event]) / LIGHT_METRES_PER_NS
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


def make_events(
    folder: str | os.PathLike[str],
    *,
    files: int = 66,
    events: int = 1500,
    seed: int = 0,
    drift: float = 0.0,
    split: Literal["train", "test"] = "train",
    progress: Progress = quiet,
) -> Path:
    """Write files in the layout of the competition: `train_meta.parquet`, `train/batch_*.parquet` and `sensor_geometry.csv`.

    Args:
        folder: Where to write. It may hold the other split.
        files: Number of Parquet files with pulses.
        events: Events per file.
        seed: Another seed gives other events.
        drift: The share of events whose azimuth identifies their file. With 1 the data are sorted by azimuth, the worst case for an
            order that does not mix files.
        split: "test" writes `test_meta.parquet` without directions, and `test/batch_661.parquet` and so on.
        progress: Called with "writing", the share that is done (0 to 1), and the pulses so far.

    Returns:
        The folder.

    Raises:
        OptionError: An option is invalid, or the folder has files of this split already.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     made = make_events(folder, files=2, events=10)
        ...     sorted(path.name for path in made.rglob("*.*"))
        ['batch_1.parquet', 'batch_2.parquet', 'sensor_geometry.csv', 'train_meta.parquet']
    """
    for name, value in (("files", files), ("events", events)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OptionError.expected(name, value, "an integer from 1")
    if not 0 <= drift <= 1:
        raise OptionError.expected("drift", drift, "a share from 0 to 1")
    if split not in ("train", "test"):
        raise OptionError.expected("split", split, "'train' or 'test'")
    target = disk.check_path(folder)
    meta_path, pulses_folder = target / f"{split}_meta.parquet", target / split
    if meta_path.exists() or (pulses_folder.is_dir() and any(pulses_folder.iterdir())):
        raise OptionError(f"{target} has {split} files already. Choose another folder.", path=target)
    disk.make_folder(pulses_folder)
    first = 1 if split == "train" else FIRST_TEST_FILE
    tables, rows = [], 0
    for done, number in enumerate(range(first, first + files), start=1):
        columns, meta = make_file(number, files=files, events=events, seed=seed, drift=drift)
        table = _as_pandas_writes(columns)
        _write_parquet(pulses_folder / f"batch_{number}.parquet", table)
        tables.append(pa.table(meta))
        rows += len(table)
        progress("writing", done / files, rows)
    meta = pa.concat_tables(tables)
    if split == "test":
        meta = meta.drop_columns(["azimuth", "zenith"])
    lines = [f"{number},{x:.2f},{y:.2f},{z:.2f}" for number, (x, y, z) in enumerate(geometry())]
    disk.write_file(target / "sensor_geometry.csv", "\n".join(["sensor_id,x,y,z", *lines, ""]).encode())
    _write_parquet(meta_path, meta, row_group_size=-(-len(meta) // META_ROW_GROUPS))  # last: a folder without it is not complete
    return target


def _as_pandas_writes(columns: dict[str, Array]) -> pa.Table:
    """A table with the note that pandas leaves: the files of the competition have `event_id` as the index."""
    noted = [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": kind, "metadata": None}
        for name, kind in ((name, values.dtype.name) for name, values in columns.items())
    ]
    note = {"index_columns": ["event_id"], "column_indexes": [], "columns": noted, "pandas_version": "1.5.0"}
    return pa.table(columns).replace_schema_metadata({"pandas": json.dumps(note)})


def _write_parquet(path: Path, table: pa.Table, row_group_size: int | None = None) -> None:
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, table.schema) as writer:
        writer.write(table, row_group_size)
    disk.write_file(path, buffer.getvalue())
