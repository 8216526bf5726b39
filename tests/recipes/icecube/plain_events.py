"""The rules of batches and tokens in plain Python, as slow and obvious as they can be written; and events to try them on."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from stoker._types import Array

Pulses = tuple[Array, Array, Array, Array]


def random_pulses(
    rng: np.random.Generator, lengths: list[int], *, num_sensors: int = 5160, ties: bool = False
) -> tuple[Pulses, Array]:
    """Time, charge, sensor and auxiliary of events with these numbers of pulses, in time order; and their offsets."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    count = int(offsets[-1])
    time = rng.integers(6_000, 6_050 if ties else 30_000, count)
    for start, stop in itertools.pairwise(offsets):
        time[start:stop].sort()
    charge = (rng.integers(1, 400, count) / 40).astype(np.float32)
    sensor = rng.integers(0, num_sensors, count).astype(np.int16)
    return (time.astype(np.int32), charge, sensor, rng.random(count) < 0.7), offsets


def plain_doms(pulses: Pulses, start: int, stop: int, *, max_doms: int) -> dict[int, list[int]]:
    """The kept DOMs of an event by sensor number, each with all of its pulses in file order."""
    time, _, sensor, _ = pulses
    doms: dict[int, list[int]] = {}
    for pulse in range(start, stop):
        doms.setdefault(int(sensor[pulse]), []).append(pulse)
    earliest = sorted(doms, key=lambda number: (int(time[doms[number][0]]), number))[:max_doms]
    return {number: doms[number] for number in sorted(earliest)}


def collate(
    pulses: Pulses, offsets: Array, geometry: torch.Tensor, *, max_pulses: int, max_doms: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The authors' rule in whole tensors: sort by (event, sensor), scatter, rank DOMs by (first time, sensor), pad."""
    time, charge, sensor, auxiliary = (torch.from_numpy(np.ascontiguousarray(one)) for one in pulses)
    num_events = len(offsets) - 1
    event = torch.repeat_interleave(torch.arange(num_events), torch.from_numpy(np.diff(offsets)))
    keys, dom, sizes = torch.unique(event * 5160 + sensor.long(), return_inverse=True, return_counts=True)
    by_dom = torch.argsort(dom, stable=True)
    place = torch.empty_like(dom)
    place[by_dom] = torch.arange(len(dom)) - (sizes.cumsum(0) - sizes)[dom[by_dom]]
    kept = place < max_pulses
    values = torch.stack(
        [(time.float() - 1e4) / 3e4, torch.log10(charge.float().clamp(min=1e-6)) / 3.0, auxiliary.float() - 0.5], dim=1
    )
    slots = torch.zeros(len(keys), max_pulses, 3)
    slots[dom[kept], place[kept]] = values[kept]
    size = torch.log1p(sizes.float()) / 3.0 - 1.0
    rows = torch.cat([geometry[keys % 5160], size[:, None], slots.flatten(1)], dim=1)

    first_time = torch.zeros(len(keys), dtype=torch.long)
    first_time[dom[place == 0]] = time[place == 0].long()
    owner = keys // 5160
    num_doms = torch.bincount(owner, minlength=num_events)
    ranked = torch.argsort(first_time, stable=True)  # keys rise with the sensor, so a stable sort breaks ties by it
    ranked = ranked[torch.argsort(owner[ranked], stable=True)]
    rank = torch.empty_like(ranked)
    rank[ranked] = torch.arange(len(keys)) - (num_doms.cumsum(0) - num_doms)[owner[ranked]]
    keep = rank < max_doms
    rows, owner = rows[keep], owner[keep]
    num_doms = num_doms.clamp(max=max_doms)
    slot = torch.arange(len(rows)) - (num_doms.cumsum(0) - num_doms)[owner]
    padded, mask = torch.zeros(num_events, max_doms, rows.shape[1]), torch.zeros(num_events, max_doms, dtype=torch.bool)
    padded[owner, slot], mask[owner, slot] = rows, True
    return padded, mask
