"""How iceaggr reads events today: whole Parquet files in a small cache, one slice and four small copies an event.

The files are those of `stoker_recipes.icecube.generator`. The two collators are the flat one and the one that groups pulses by sensor
(DOM) and pads; the two samplers are torch's `RandomSampler` and the file by file one.
"""

from __future__ import annotations

import random
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import Dataset, Sampler

Event = dict[str, torch.Tensor]
Batch = dict[str, torch.Tensor]

NUM_SENSORS = 5160


class IceCubeDataset(Dataset[Event]):
    """One event a call, from an LRU cache of `cache_size` whole tables."""

    def __init__(self, folder: Path, *, cache_size: int = 1, max_events: int | None = None) -> None:
        self._folder = folder / "train"
        self.metadata = pq.read_table(folder / "train_meta.parquet").slice(0, max_events)
        column = {name: self.metadata.column(name).to_numpy() for name in self.metadata.column_names}
        self._files, self._ids = column["batch_id"], column["event_id"]
        self._first, self._last = column["first_pulse_index"], column["last_pulse_index"]
        self._azimuth, self._zenith = column["azimuth"], column["zenith"]
        self._cache: OrderedDict[int, pa.Table] = OrderedDict()
        self._cache_size = cache_size
        self.num_decoded = 0

    def __len__(self) -> int:
        return len(self._ids)

    def _table(self, file: int) -> pa.Table:
        if file in self._cache:
            self._cache.move_to_end(file)
            return self._cache[file]
        self.num_decoded += 1
        table = self._cache[file] = pq.read_table(self._folder / f"batch_{file}.parquet")
        if len(self._cache) > self._cache_size:
            self._cache.popitem(last=False)
        return table

    def __getitem__(self, index: int) -> Event:
        first = self._first[index]
        num_pulses = self._last[index] - first + 1
        pulses = self._table(int(self._files[index])).slice(first, num_pulses)
        time, charge, sensor, auxiliary = (pulses.column(n).to_numpy() for n in ("time", "charge", "sensor_id", "auxiliary"))
        features = np.stack([time, charge, sensor, auxiliary.astype(np.float32)], axis=1)
        return {
            "pulse_features": torch.from_numpy(features).float(),
            "event_id": torch.tensor(self._ids[index], dtype=torch.long),
            "n_pulses": torch.tensor(num_pulses, dtype=torch.long),
            "target": torch.from_numpy(np.array([self._azimuth[index], self._zenith[index]], dtype=np.float32)),
        }


class BatchAwareSampler(Sampler[int]):
    """Files in random order; within a file, its events in random order. Events of two files never mix."""

    def __init__(self, metadata: pa.Table, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._events: defaultdict[int, list[int]] = defaultdict(list)
        for index, file in enumerate(metadata.column("batch_id").to_numpy()):
            self._events[file].append(index)
        self._files = list(self._events)
        self._num_events = len(metadata)

    def __iter__(self) -> Iterator[int]:
        self._random.shuffle(self._files)
        for file in self._files:
            events = self._events[file].copy()
            self._random.shuffle(events)
            yield from events

    def __len__(self) -> int:
        return self._num_events


def collate_variable_length(events: list[Event]) -> Batch:
    """All pulses one after another, and which event each belongs to."""
    lengths = torch.tensor([event["n_pulses"].item() for event in events], dtype=torch.long)
    return {
        "pulse_features": torch.cat([event["pulse_features"] for event in events]),
        "pulse_to_event_idx": torch.repeat_interleave(torch.arange(len(events)), lengths),
        "event_lengths": lengths,
        "event_ids": torch.stack([event["event_id"] for event in events]),
        "targets": torch.stack([event["target"] for event in events]),
    }


def sensor_positions(folder: Path) -> torch.Tensor:
    """(5160, 3) float32: x, y, z of each sensor in units of 500 m, as the model is given them."""
    table = np.loadtxt(folder / "sensor_geometry.csv", delimiter=",", skiprows=1, dtype=np.float32)
    positions = torch.zeros(NUM_SENSORS, 3)
    positions[table[:, 0].astype(np.int64)] = torch.from_numpy(table[:, 1:4]) / 500
    return positions


def make_collate_flat(positions: torch.Tensor, *, max_pulses: int = 16, max_doms: int = 128) -> Callable[[list[Event]], Batch]:
    """A collator for one vector a sensor: x, y, z, number of pulses, then time, charge and flag of its first K pulses.

    Of an event with more than `max_doms` sensors, those that were hit first are kept. The result has the shape
    (events, max_doms, 4 + 3 K), sensors by number, zeros behind the last; `padding_mask` says which rows are sensors.
    """

    def collate(events: list[Event]) -> Batch:
        num_events = len(events)
        pulses = torch.cat([event["pulse_features"] for event in events])
        lengths = torch.tensor([len(event["pulse_features"]) for event in events])
        event_of_pulse = torch.repeat_interleave(torch.arange(num_events), lengths)

        # A DOM here is one sensor of one event; they are numbered by event, then by sensor.
        keys, dom_of_pulse, dom_sizes = torch.unique(
            event_of_pulse * NUM_SENSORS + pulses[:, 2].long(), return_inverse=True, return_counts=True, sorted=True
        )
        by_dom = torch.argsort(dom_of_pulse, stable=True)
        dom_starts = _starts(dom_sizes)
        place = torch.empty(len(pulses), dtype=torch.long)
        place[by_dom] = torch.arange(len(pulses)) - dom_starts[dom_of_pulse[by_dom]]

        kept = place < max_pulses
        values, where = pulses[kept], (dom_of_pulse[kept], place[kept])
        vectors = torch.zeros(len(keys), max_pulses, 3)
        vectors[(*where, 0)] = (values[:, 0] - 1e4) / 3e4
        vectors[(*where, 1)] = torch.log10(values[:, 1].clamp(min=1e-6)) / 3.0
        vectors[(*where, 2)] = values[:, 3] - 0.5
        size = (torch.log1p(dom_sizes.float()) / 3.0 - 1.0).unsqueeze(1)
        rows = torch.cat([positions[keys % NUM_SENSORS], size, vectors.flatten(1)], dim=1)

        first = place == 0
        first_time = torch.zeros(len(keys))
        first_time[dom_of_pulse[first]] = pulses[first, 0]
        event_of_dom = keys // NUM_SENSORS
        num_doms = torch.bincount(event_of_dom, minlength=num_events)
        bounds = _starts(num_doms)
        if (num_doms > max_doms).any():
            keep = torch.ones(len(keys), dtype=torch.bool)
            for event in (num_doms > max_doms).nonzero()[:, 0]:
                start, stop = bounds[event], bounds[event + 1]
                earliest = (-first_time[start:stop]).topk(max_doms).indices
                keep[start:stop] = False
                keep[start + earliest] = True
            rows, event_of_dom = rows[keep], event_of_dom[keep]
            bounds = _starts(num_doms.clamp(max=max_doms))

        slot = torch.arange(len(rows)) - bounds[event_of_dom]
        padded = torch.zeros(num_events, max_doms, rows.shape[1])
        mask = torch.zeros(num_events, max_doms, dtype=torch.bool)
        padded[event_of_dom, slot] = rows
        mask[event_of_dom, slot] = True
        return {
            "dom_vectors": padded,
            "padding_mask": mask,
            "event_ids": torch.stack([event["event_id"] for event in events]),
            "targets": torch.stack([event["target"] for event in events]),
        }

    return collate


def _starts(sizes: torch.Tensor) -> torch.Tensor:
    starts = torch.zeros(len(sizes) + 1, dtype=torch.long)
    starts[1:] = sizes.cumsum(0)
    return starts
