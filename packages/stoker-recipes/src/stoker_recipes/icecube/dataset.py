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
from stoker.errors import OptionError
from stoker.extend import ALIGNMENT, Array, kernel
from stoker_recipes.icecube.batches import MAX_DOMS, MAX_PULSES, EventBatch, group_pulses
from stoker_recipes.icecube.data import geometry_of
from stoker_recipes.icecube.feed import PULSE_COLUMNS, check_store
from stoker_recipes.icecube.tokens import pad, read_geometry, scale_geometry

Event = dict[str, torch.Tensor]

_KEPT = 4
"""Batches of padded tokens whose memory may be used again."""
with torch.inference_mode(False):
    _NOTHING = torch.empty(0, device="cpu")


class _Memory:
    """The tokens of one padded batch after the other. The next batch clears only the numbers that the last one wrote (1.6 % of all).

    So a change by its user must be noticed. PyTorch counts the in-place operations on a tensor and on all its views; a tensor without
    data that shares the counter keeps it after the batch is gone. What changes memory without PyTorch (`tokens.numpy()`,
    `tokens.data`) is looked for in a few numbers of each event, which finds a change of all numbers, of padding or of whole rows.
    """

    def __init__(self, shape: tuple[int, int, int]) -> None:
        num_bytes = 4 * math.prod(shape)
        self._owner = np.zeros(num_bytes + ALIGNMENT, dtype=np.uint8)
        lead = -self._owner.ctypes.data % ALIGNMENT
        self.values = self._owner[lead : lead + num_bytes].view(np.float32).reshape(shape)
        self._used = np.zeros(shape[:2], dtype=np.int32)
        self._counter = _NOTHING
        self._num_changes = 0

    def num_references(self) -> int:
        """References to the memory; those of tensors are among them."""
        return sys.getrefcount(self._owner)

    def fill(self, batch: EventBatch, geometry: Array, limits: dict[str, Any]) -> tuple[torch.Tensor, Array]:
        """Tokens of a batch in this memory, and their mask."""
        room, used = self.values[: len(batch)], self._used[: len(batch)]
        if self._counter._version != self._num_changes or _is_changed(self.values, self._used):
            self._used[:] = self.values.shape[2]
        _, mask = pad(batch, geometry, **limits, out=room, used=used)
        with torch.inference_mode(False):  # a tensor of inference mode has no counter
            tokens = torch.from_numpy(room)
            self._counter = tokens.detach()
            self._counter.data = _NOTHING
        self._num_changes = self._counter._version
        return tokens, mask


_ALONE = _Memory((1, 1, 1)).num_references()  # without a tensor


@kernel
def _is_changed(values: Array, used: Array) -> bool:
    """Whether a number is not 0 that must be: the last one of some rows of each event, other rows at each event."""
    num_events, num_rows, width = values.shape
    for event in range(num_events):
        for row in (0, event % num_rows, num_rows - 1):
            if used[event, row] < width and values[event, row, width - 1] != 0:
                return True
    return False


@kernel
def _find_events(
    numbers: Array, offsets: Array, azimuth: Array, zenith: Array, event_id: Array,
    num_pulses: int, out_starts: Array, out_stops: Array, out_target: Array, out_ids: Array,
) -> np.int64:  # fmt: skip
    """Where the pulses of some events are, and their facts; returns an event whose offsets are impossible, or -1.

    One loop, so that many cache misses are under way at a time.
    """
    bad = np.int64(-1)
    for i in range(len(numbers)):
        number = np.uint64(numbers[i])
        out_starts[i], out_stops[i] = offsets[number], offsets[number + np.uint64(1)]
        out_target[i, 0], out_target[i, 1], out_ids[i] = azimuth[number], zenith[number], event_id[number]
        if not 0 <= out_starts[i] <= out_stops[i] <= num_pulses:
            bad = numbers[i]
    return bad


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
        >>> from stoker_recipes.icecube import make_events, pack_events
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
        check_store(self.store)
        count = len(self.store)
        self._events = None if events is None else np.asarray(events, dtype=np.int64)
        if self._events is not None and len(bad := self._events[(self._events < 0) | (self._events >= count)]):
            raise OptionError(
                f"events has the number {bad[0]}; expected numbers from 0 to {count - 1:,} of {self.store.name}.",
                parameter="events",
            )
        self._given: dict[str, Any] = {"events": events, "geometry": geometry, "max_pulses": max_pulses, "max_doms": max_doms}
        self.positions = read_geometry(geometry_of(self.store) if geometry is None else geometry)
        """(5160, 3) float64, in metres."""
        self._scaled = scale_geometry(self.positions).numpy()
        self._limits: dict[str, Any] = {"max_pulses": max_pulses, "max_doms": max_doms}
        self._pulses = [self.store.column(name) for name in PULSE_COLUMNS]
        self._offsets = self.store.offsets
        self._facts = [self.store.column(name) for name in ("azimuth", "zenith", "event_id")]
        self._memory: deque[_Memory] = deque(maxlen=_KEPT)

    def __reduce__(self) -> tuple[Any, ...]:
        """A worker process opens the store again, instead of getting a copy of it."""
        return functools.partial(Dataset, self.store.path or self.store, **self._given), ()

    def __len__(self) -> int:
        return len(self.store) if self._events is None else len(self._events)

    def _numbers(self, indices: Sequence[int] | Array) -> Array:
        """Numbers of events in the store."""
        asked = np.asarray(indices, dtype=np.int64)
        if len(asked) and (asked.min() < 0 or asked.max() >= len(self)):
            asked = np.where(asked < 0, asked + len(self), asked)
            if len(bad := asked[(asked < 0) | (asked >= len(self))]):
                raise IndexError(f"event {bad[0]} of {len(self):,}")
        return asked if self._events is None else self._events[asked]

    def __getitem__(self, index: int) -> Event:
        number = self._numbers([index])[0]
        pulses = slice(self._offsets[number], self._offsets[number + 1])
        event = {name: torch.from_numpy(column[pulses].copy()) for name, column in zip(PULSE_COLUMNS, self._pulses, strict=True)}
        azimuth, zenith, ids = (column[number] for column in self._facts)
        return event | {
            "position": torch.from_numpy(self.positions[event["sensor_id"].numpy()].astype(np.float32)),
            "target": torch.tensor([azimuth, zenith], dtype=torch.float32),
            "event_id": torch.tensor(int(ids)),
        }

    def __getitems__(self, indices: Sequence[int]) -> EventBatch:
        """A ragged batch of arrays; DataLoader calls this, and gives the result to its `collate_fn`."""
        numbers = self._numbers(indices)
        starts, stops, ids = (np.empty(len(numbers), dtype=np.int64) for _ in range(3))
        target = np.empty((len(numbers), 2), dtype=np.float32)
        azimuth, zenith, event_id = self._facts
        bad = _find_events(
            numbers, self._offsets, azimuth, zenith, event_id, self.store.num_steps, starts, stops, target, ids
        )  # fmt: skip
        if bad >= 0:
            self.store[int(bad)]  # raises, and says why
        time, charge, sensor, auxiliary = self._pulses
        grouped = group_pulses(time, charge, sensor, auxiliary, starts, stops, **self._limits)
        return EventBatch.of(grouped, num_pulses=stops - starts, target=target, event_id=ids)

    def collate_ragged(self, events: EventBatch | list[Event]) -> EventBatch:
        """An `EventBatch` of tensors, from a batch or from a list of items."""
        return self._batch(events).tensors()

    def collate_padded(self, events: EventBatch | list[Event]) -> dict[str, torch.Tensor]:
        """What the authors' collator makes: `tokens` (B, max_doms, 4 + 3 max_pulses), `mask`, `target`, `event_id`, `num_pulses`.

        The memory of a batch that nothing refers to any more is used again. You may change a batch with operations of PyTorch. Clone
        `tokens` before other code changes single numbers of it, for example through `tokens.numpy()`: a later batch could have them.
        """
        batch = self._batch(events)
        memory = self._take_memory(len(batch))
        tokens, mask = memory.fill(batch, self._scaled, self._limits)
        self._memory.append(memory)
        made = {"mask": mask, "target": batch.target, "event_id": batch.event_id, "num_pulses": batch.num_pulses}
        return {"tokens": tokens, **{name: torch.from_numpy(values) for name, values in made.items()}}

    def _take_memory(self, num_events: int) -> _Memory:
        """That of a batch that nothing refers to any more, or new memory, whose page faults would cost as much as to fill it."""
        for _ in range(_KEPT):
            try:
                memory = self._memory.popleft()  # no other thread can take it now
            except IndexError:
                break
            if memory.num_references() == _ALONE and len(memory.values) >= num_events:
                return memory
            self._memory.append(memory)
        return _Memory((num_events, self._limits["max_doms"], 4 + 3 * self._limits["max_pulses"]))

    def _batch(self, events: EventBatch | list[Event]) -> EventBatch:
        if isinstance(events, EventBatch):
            return events
        lengths = [len(event["time"]) for event in events]
        time, charge, sensor, auxiliary = (torch.cat([event[name] for event in events]).numpy() for name in PULSE_COLUMNS)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        grouped = group_pulses(time, charge, sensor, auxiliary, offsets, **self._limits)
        target, ids = (torch.stack([event[name] for event in events]).numpy() for name in ("target", "event_id"))
        return EventBatch.of(grouped, target=target, event_id=ids, num_pulses=np.diff(offsets))
