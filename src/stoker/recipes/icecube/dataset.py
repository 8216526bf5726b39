"""`Dataset`: events of a store as a map-style dataset, for `torch.utils.data.DataLoader`, GraphNeT and other loops of your own.

Any event is read without decoding a file, so a `RandomSampler` costs no more than a sequential one. A DataLoader that asks for a whole
batch (`__getitems__`) gets it from one call of a kernel.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import stoker
from stoker._kernels import ALIGNMENT
from stoker._types import Array
from stoker.errors import OptionError
from stoker.recipes.icecube.batches import MAX_DOMS, MAX_PULSES, EventBatch, group_pulses
from stoker.recipes.icecube.feed import EVENT_COLUMNS, PULSE_COLUMNS
from stoker.recipes.icecube.packing import geometry_of
from stoker.recipes.icecube.tokens import pad, read_geometry, scale_geometry

Event = dict[str, torch.Tensor]

_KEPT = 4
"""Batches of padded tokens whose memory may be used again."""


def _references(held: list[Array]) -> int:
    return sys.getrefcount(held[0])


_ALONE = _references([np.empty(1)])  # of memory that only its list refers to


class Dataset(torch.utils.data.Dataset[Event]):
    """Events by number. An item is a dict with all pulses of an event; batches are made by `collate_ragged` or `collate_padded`.

    An item has `time`, `charge`, `sensor_id`, `auxiliary` (one value per pulse), `position` (x, y, z of each pulse's sensor in metres),
    `target` (azimuth, zenith) and `event_id`.

    Args:
        store: What `pack_events` returned, or the path of a store.
        events: Numbers of the events to serve, like `store.where("batch_id <= 650 and num_steps >= 500")` (default: all).
        geometry: `sensor_geometry.csv` (default: the one in the folder of the store).
        max_pulses: Pulses of a DOM that batches keep.
        max_doms: DOMs of an event that batches keep, the earliest ones.

    Raises:
        OptionError: An option is invalid, or the store lacks a column.
        SourceNotFoundError: There is no geometry.

    Example:
        >>> import tempfile
        >>> from torch.utils.data import DataLoader
        >>> from stoker.recipes.icecube import make_events, pack_events
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = pack_events(make_events(f"{folder}/icecube", files=1, events=8), f"{folder}/ice.stoker")
        ...     events = Dataset(f"{folder}/ice.stoker")
        ...     loader = DataLoader(events, batch_size=4, shuffle=True, collate_fn=events.collate_padded)
        ...     batch = next(iter(loader))
        >>> {name: tuple(tensor.shape) for name, tensor in batch.items()}
        {'tokens': (4, 128, 256), 'mask': (4, 128), 'target': (4, 2), 'event_id': (4,), 'num_pulses': (4,)}
    """

    def __init__(
        self,
        store: stoker.Store | str | os.PathLike[str],
        *,
        events: Sequence[int] | Array | None = None,
        geometry: str | os.PathLike[str] | None = None,
        max_pulses: int = MAX_PULSES,
        max_doms: int = MAX_DOMS,
    ) -> None:
        self.store = store if isinstance(store, stoker.Store) else stoker.open(store)
        missing = [name for name in (*PULSE_COLUMNS, *EVENT_COLUMNS) if name not in self.store.schema]
        if missing:
            raise OptionError(
                f"{self.store.name} has no column {missing[0]!r}; expected a store that `stoker pack --recipe icecube` made."
            )
        count = len(self.store)
        self._events = None if events is None else np.asarray(events, dtype=np.int64)
        if self._events is not None and len(bad := self._events[(self._events < 0) | (self._events >= count)]):
            raise OptionError(f"events has the number {bad[0]}; expected numbers from 0 to {count - 1:,} of {self.store.name}.")
        self._given: dict[str, Any] = {"events": events, "geometry": geometry, "max_pulses": max_pulses, "max_doms": max_doms}
        self.positions = read_geometry(geometry_of(self.store) if geometry is None else geometry)
        """(5160, 3) float64, in metres."""
        self._scaled = scale_geometry(self.positions).numpy()
        self._limits: dict[str, Any] = {"max_pulses": max_pulses, "max_doms": max_doms}
        self._pulses = [self.store.column(name) for name in PULSE_COLUMNS]
        self._offsets = self.store.offsets
        self._memory: deque[list[Array]] = deque(maxlen=_KEPT)  # of tokens, each in a list of its own

    def __reduce__(self) -> tuple[Any, ...]:
        """A worker process opens the store again, instead of getting a copy of it."""
        return functools.partial(Dataset, self.store.path or self.store, **self._given), ()

    def __len__(self) -> int:
        return len(self.store) if self._events is None else len(self._events)

    def _numbers(self, indices: Sequence[int] | Array) -> Array:
        """Numbers of events in the store."""
        asked = np.asarray(indices, dtype=np.int64)
        asked = np.where(asked < 0, asked + len(self), asked)
        if len(bad := asked[(asked < 0) | (asked >= len(self))]):
            raise IndexError(f"event {bad[0]} of {len(self):,}")
        return asked if self._events is None else self._events[asked]

    def __getitem__(self, index: int) -> Event:
        number = self._numbers([index])[0]
        pulses = slice(self._offsets[number], self._offsets[number + 1])
        event = {name: torch.from_numpy(column[pulses].copy()) for name, column in zip(PULSE_COLUMNS, self._pulses, strict=True)}
        facts = self._facts(np.array([number]))
        return event | {
            "position": torch.from_numpy(self.positions[event["sensor_id"].numpy()].astype(np.float32)),
            "target": torch.from_numpy(facts["target"][0].astype(np.float32)),
            "event_id": torch.tensor(int(facts["event_id"][0])),
        }

    def _facts(self, numbers: Array) -> dict[str, Array]:
        azimuth, zenith, ids = (self.store.column(name)[numbers] for name in ("azimuth", "zenith", "event_id"))
        return {"target": np.stack([azimuth, zenith], axis=1), "event_id": ids}

    def __getitems__(self, indices: Sequence[int]) -> EventBatch:
        """A ragged batch of arrays; DataLoader calls this, and gives the result to its `collate_fn`."""
        numbers = self._numbers(indices)
        starts, stops = self._offsets[numbers], self._offsets[numbers + 1]
        time, charge, sensor, auxiliary = self._pulses
        grouped = group_pulses(time, charge, sensor, auxiliary, starts, stops, **self._limits)
        return EventBatch.of(grouped, num_pulses=stops - starts, **self._facts(numbers))

    def collate_ragged(self, events: EventBatch | list[Event]) -> EventBatch:
        """An `EventBatch` of tensors, from a batch or from a list of items."""
        return self._batch(events).tensors()

    def collate_padded(self, events: EventBatch | list[Event]) -> dict[str, torch.Tensor]:
        """What the authors' collator makes: `tokens` (B, max_doms, 4 + 3 max_pulses), `mask`, `target`, `event_id`, `num_pulses`."""
        batch = self._batch(events)
        shape = (len(batch), self._limits["max_doms"], 4 + 3 * self._limits["max_pulses"])
        tokens, mask = pad(batch, self._scaled, **self._limits, out=self._room(shape))
        made = {"tokens": tokens, "mask": mask, "target": batch.target, "event_id": batch.event_id, "num_pulses": batch.num_pulses}
        return {name: torch.from_numpy(values) for name, values in made.items()}

    def _room(self, shape: tuple[int, int, int]) -> Array:
        """Memory of a batch that nothing refers to any more, or new memory, whose page faults would cost as much as to fill it."""
        num_bytes = 4 * math.prod(shape)
        chosen: list[Array] = []
        for _ in range(_KEPT):
            try:
                held = self._memory.popleft()  # removed first, so that no other thread takes it
            except IndexError:
                break
            if _references(held) == _ALONE and len(held[0]) >= num_bytes + ALIGNMENT:
                chosen = held
                break
            self._memory.append(held)
        if not chosen:
            chosen.append(np.empty(num_bytes + ALIGNMENT, dtype=np.uint8))
        lead = -chosen[0].ctypes.data % ALIGNMENT
        room = chosen[0][lead : lead + num_bytes].view(np.float32).reshape(shape)
        self._memory.append(chosen)
        return room

    def _batch(self, events: EventBatch | list[Event]) -> EventBatch:
        if isinstance(events, EventBatch):
            return events
        lengths = [len(event["time"]) for event in events]
        time, charge, sensor, auxiliary = (torch.cat([event[name] for event in events]).numpy() for name in PULSE_COLUMNS)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        grouped = group_pulses(time, charge, sensor, auxiliary, offsets, **self._limits)
        target, ids = (torch.stack([event[name] for event in events]).numpy() for name in ("target", "event_id"))
        return EventBatch.of(grouped, target=target, event_id=ids, num_pulses=np.diff(offsets))
