"""`EventFeed`: batches of events for `stoker.Trainer`, in any order of stoker, resumable at every batch.

A `stoker.Feed` does the work: it gathers whole events, threads group their pulses by DOM while the model trains, and the batch is copied
to the device on a stream of its own. So order, ranks, prefetch, reading ahead and resume are those of every feed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

import stoker
from stoker.errors import OptionError
from stoker.extend import Array
from stoker_recipes.icecube.batches import MAX_DOMS, MAX_PULSES, EventBatch, group_pulses, pad_to

PULSE_COLUMNS = ("time", "charge", "sensor_id", "auxiliary")
EVENT_COLUMNS = ("event_id", "azimuth", "zenith")


def check_store(store: stoker.Store) -> None:
    """Raise `OptionError` for a store that is not of events."""
    if missing := [name for name in (*PULSE_COLUMNS, *EVENT_COLUMNS) if name not in store.schema]:
        raise OptionError(
            f"{store.name} has no column {missing[0]!r}; expected a store that `stoker pack --recipe icecube` made.",
            column=missing[0],
        )


_FIELDS = [field.name for field in fields(EventBatch)]


@dataclass(frozen=True, kw_only=True)
class GroupByDom:
    """The transform of an `EventFeed`: whole events end to end -> the fields of an `EventBatch`."""

    max_pulses: int = MAX_PULSES
    max_doms: int = MAX_DOMS
    multiples: tuple[int, int] | None = None

    def __call__(self, batch: dict[str, Array]) -> dict[str, Array]:
        """Group one batch."""
        offsets = batch["cu_seqlens"]
        time, charge, sensor, auxiliary = (batch[name] for name in PULSE_COLUMNS)
        grouped = group_pulses(time, charge, sensor, auxiliary, offsets, max_pulses=self.max_pulses, max_doms=self.max_doms)
        made = EventBatch.of(
            grouped,
            target=np.stack([batch["azimuth"], batch["zenith"]], axis=1),
            event_id=batch["event_id"],
            num_pulses=np.diff(offsets),
        )
        if "valid" in batch:
            made.target[~batch["valid"]], made.event_id[~batch["valid"]] = np.nan, -1
        if self.multiples is not None:
            sizes = zip((len(made.sensor), len(made.time)), self.multiples, strict=True)
            room = [-(-max(size, 1) // multiple) * multiple for size, multiple in sizes]
            made = pad_to(made, doms=room[0], pulses=room[1])
        return {name: getattr(made, name) for name in _FIELDS}


class EventFeed(stoker.Feed):
    """Batches of events as `EventBatch`, every event exactly once per epoch.

    Args:
        store: What `pack_events` returned, or a store with its columns.
        batch_size: Events per batch, on each rank.
        where: Serve only events that fulfil a condition, like "batch_id <= 650 and num_steps >= 500"; see `Store.where`.
        max_pulses: Pulses that are kept of each DOM.
        max_doms: DOMs that are kept of each event, the earliest ones.
        multiples: Round DOMs and pulses of a batch up to multiples of these two numbers, for few different shapes: a CUDA graph is
            captured for each shape.
        options: Options of `stoker.Feed`: `order` (by default `stoker.Sequential()`), `device`, `last_batch` (by default "short"),
            `loading`, `distributed`. With `last_batch="pad"` rows without an event have no DOMs, the
            event_id -1 and the target NaN.

    Raises:
        OptionError: An option is invalid, or the store has no pulses.

    Example:
        >>> store = stoker.Store.from_arrays(
        ...     time=[np.array([5, 6], dtype=np.int32), np.array([7], dtype=np.int32)], charge=[np.ones(2), np.ones(1)],
        ...     sensor_id=[np.array([9, 3], dtype=np.int16), np.array([4], dtype=np.int16)],
        ...     auxiliary=[np.zeros(2, dtype=np.bool_), np.ones(1, dtype=np.bool_)],
        ...     event_id=np.array([24, 41]), azimuth=np.zeros(2), zenith=np.zeros(2),
        ... )
        >>> [batch.sensor.tolist() for batch in EventFeed(store, batch_size=2)]
        [[3, 9, 4]]
    """

    def __init__(
        self,
        store: stoker.Store,
        *,
        batch_size: int,
        where: str | None = None,
        max_pulses: int = MAX_PULSES,
        max_doms: int = MAX_DOMS,
        multiples: tuple[int, int] | None = None,
        **options: Any,
    ) -> None:
        check_store(store)
        if multiples is not None and not all(isinstance(multiple, int) and multiple > 0 for multiple in multiples):
            raise OptionError.expected("multiples", multiples, "two integers from 1, for DOMs and pulses")
        view = stoker.Sequences(max(1, int(store.lengths.max(initial=1))), layout="packed")  # no event is cut
        super().__init__(
            store,
            view,
            batch_size=batch_size,
            subset=None if where is None else stoker.split.where(store, view, where),
            columns=[*PULSE_COLUMNS, *EVENT_COLUMNS],
            transform=GroupByDom(max_pulses=max_pulses, max_doms=max_doms, multiples=multiples),
            **{"last_batch": "short", "dtype": None, **options},
        )

    def __iter__(self) -> Iterator[EventBatch]:  # type: ignore[override]
        """A pass over the rest of the epoch after a resume, otherwise over a new epoch."""
        return _EventBatches(super().__iter__())


class _EventBatches(Iterator[EventBatch]):
    """A pass: the entries of each batch as the fields of an `EventBatch`."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __next__(self) -> EventBatch:
        batch = next(self._batches)
        return EventBatch(**{name: batch[name] for name in _FIELDS})

    def __len__(self) -> int:
        return len(self._batches)

    def close(self) -> None:
        """End the threads and the pass."""
        self._batches.close()
