"""Ragged batches of events: the pulses of each event grouped by sensor (DOM), without padding.

    EventBatch       what a model is fed with; NumPy arrays on the host, tensors on a device
    group_pulses     events of a store, or of a packed batch -> the arrays of an EventBatch
    pad_to           the same batch with room for more DOMs and pulses, for static shapes

The rule is that of the authors' collator. A DOM is a sensor with at least one pulse in the event. DOMs are ordered by sensor number. Its
pulses keep the order of the file, and the first `max_pulses` of them are kept. Of an event with more than `max_doms` DOMs those with
the earliest first pulse are kept; of equal times, the lowest sensor number.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from stoker.errors import BadValueError, OptionError
from stoker.extend import Array, kernel, lowest_bit, prefetch

NUM_SENSORS = 5160
MAX_PULSES = 84
"""Pulses of a DOM that are kept: a token has 4 + 3 * 84 = 256 numbers."""
MAX_DOMS = 128

_AHEAD = 4  # events; with fewer their lines come too late, with more they are gone again
_LINES = 64
_WORDS = (NUM_SENSORS + 63) // 64
_ONE, _SIX, _LOW = np.uint64(1), np.uint64(6), np.uint64(63)


@dataclass(frozen=True, kw_only=True)
class EventBatch:
    """A ragged batch of B events with D DOMs and P kept pulses in all. All fields are arrays, or all are tensors.

    D and P may be larger than the batch needs (see `pad_to`): rows behind `dom_offsets[-1]` and `pulse_offsets[-1]` belong to no event.

    Example:
        >>> batch = EventBatch.of(
        ...     group_pulses(
        ...         np.array([9800, 9900, 9950]), np.array([1.0, 0.5, 2.0]), np.array([7, 3, 7]), np.array([0, 1, 0]), np.array([0, 3])
        ...     ),
        ...     target=np.array([[0.1, 0.2]]), event_id=np.array([24]), num_pulses=np.array([3]),
        ... )
        >>> batch.sensor.tolist(), batch.pulse_offsets.tolist(), batch.time.tolist()
        ([3, 7], [0, 1, 3], [9900.0, 9800.0, 9950.0])
    """

    # First a field with a row per event: from it the trainer takes the number of rows of a batch.
    target: Any
    """float32 (B, 2): azimuth and zenith; NaN where they are unknown, and in rows without an event."""
    event_id: Any
    """int64 (B); -1 in rows without an event."""
    num_pulses: Any
    """int32 (B): all pulses of the event; 0 in rows without an event."""
    dom_offsets: Any
    """int32 (B + 1): the DOMs of event i are rows dom_offsets[i] to dom_offsets[i + 1]."""
    sensor: Any
    """int16 (D): the number of the sensor."""
    dom_pulses: Any
    """int32 (D): all pulses of the DOM, not only the kept ones."""
    pulse_offsets: Any
    """int32 (D + 1): the kept pulses of each DOM."""
    time: Any
    """float32 (P), in ns."""
    charge: Any
    """float32 (P), in photo-electrons."""
    auxiliary: Any
    """uint8 (P)."""

    @classmethod
    def of(cls, grouped: GroupedPulses, *, target: Array, event_id: Array, num_pulses: Array) -> EventBatch:
        """Grouped pulses and the facts of their events."""
        facts = (target, np.float32), (event_id, np.int64), (num_pulses, np.int32)
        target, event_id, num_pulses = (np.ascontiguousarray(values, dtype) for values, dtype in facts)
        return cls(**grouped._asdict(), target=target, event_id=event_id, num_pulses=num_pulses)

    def __len__(self) -> int:
        """Number of events, with rows that hold none."""
        return len(self.event_id)

    def tensors(self) -> EventBatch:
        """The same batch as tensors that share the memory of the arrays."""
        return self._map(lambda values: torch.from_numpy(values) if isinstance(values, np.ndarray) else values)

    def to(self, device: str | torch.device, *, non_blocking: bool = False) -> EventBatch:
        """The same batch as tensors on a device."""
        return self.tensors()._map(lambda values: values.to(device, non_blocking=non_blocking))

    def _map(self, function: Any) -> EventBatch:
        return EventBatch(**{field.name: function(getattr(self, field.name)) for field in fields(self)})


class GroupedPulses(NamedTuple):
    """Pulses grouped by DOM; the fields of an `EventBatch` that depend on pulses."""

    dom_offsets: Array
    sensor: Array
    dom_pulses: Array
    pulse_offsets: Array
    time: Array
    charge: Array
    auxiliary: Array


def group_pulses(
    time: Array,
    charge: Array,
    sensor: Array,
    auxiliary: Array,
    starts: Array,
    stops: Array | None = None,
    *,
    max_pulses: int = MAX_PULSES,
    max_doms: int = MAX_DOMS,
) -> GroupedPulses:
    """Group the pulses of events by DOM.

    Args:
        time: Integers, in ns: a column of a store, or of a packed batch. Likewise `charge`, `sensor` and `auxiliary`.
        charge: In photo-electrons.
        sensor: Sensor numbers, 0 to 5159.
        auxiliary: Flags.
        starts: The first pulse of each event. Without `stops`, the offsets of consecutive events: one more number than events.
        stops: The end of each event.
        max_pulses: Pulses that are kept of each DOM.
        max_doms: DOMs that are kept of each event.

    Raises:
        OptionError: `max_pulses` or `max_doms` is not an integer from 1.
        BadValueError: A sensor number is out of range.
    """
    for name, value in (("max_pulses", max_pulses), ("max_doms", max_doms)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OptionError.expected(name, value, "an integer from 1")
    is_scattered = stops is not None
    if stops is None:
        starts, stops = starts[:-1], starts[1:]
    lengths = stops - starts
    num_doms, num_pulses = int(np.minimum(lengths, max_doms).sum()), int(lengths.sum())
    made = GroupedPulses(
        dom_offsets=np.zeros(len(starts) + 1, dtype=np.int32),
        sensor=np.empty(num_doms, dtype=np.int16),
        dom_pulses=np.empty(num_doms, dtype=np.int32),
        pulse_offsets=np.zeros(num_doms + 1, dtype=np.int32),
        time=np.empty(num_pulses, dtype=np.float32),
        charge=np.empty(num_pulses, dtype=np.float32),
        auxiliary=np.empty(num_pulses, dtype=np.uint8),
    )
    flags = auxiliary.view(np.uint8) if auxiliary.dtype == np.bool_ else auxiliary.astype(np.uint8, copy=False)
    if is_scattered:
        _touch(time, charge, sensor, flags, starts, stops)
    bad = _group(time, charge, sensor, flags, starts, stops, max_pulses, max_doms, *made)
    if bad >= 0:
        raise BadValueError(f"the sensor of pulse {bad:,} is {sensor[bad]}; expected a number from 0 to {NUM_SENSORS - 1}.")
    doms = int(made.dom_offsets[-1])
    pulses = int(made.pulse_offsets[doms])
    by_dom = {"sensor": made.sensor[:doms], "dom_pulses": made.dom_pulses[:doms], "pulse_offsets": made.pulse_offsets[: doms + 1]}
    return made._replace(**by_dom, time=made.time[:pulses], charge=made.charge[:pulses], auxiliary=made.auxiliary[:pulses])


@kernel
def _touch(time: Array, charge: Array, sensor: Array, auxiliary: Array, starts: Array, stops: Array) -> np.int64:
    """Read the ends of all events, so that many translations of pages are looked up at a time, not one by one when they are needed."""
    total = np.int64(0)
    for event in range(len(starts)):
        if starts[event] < stops[event]:
            for pulse in (starts[event], stops[event] - 1):
                total += np.int64(time[pulse]) + np.int64(charge[pulse]) + np.int64(sensor[pulse]) + np.int64(auxiliary[pulse])
    return total


@kernel
def _group(
    time: Array, charge: Array, sensor: Array, auxiliary: Array, starts: Array, stops: Array, max_pulses: int, max_doms: int,
    dom_offsets: Array, dom_sensor: Array, dom_pulses: Array, pulse_offsets: Array, out_time: Array, out_charge: Array, out_flag: Array,
) -> np.int64:  # fmt: skip
    """Fill the arrays of a batch; returns a pulse whose sensor is out of range, or -1."""
    # Indices are unsigned, so that no check for negative ones is compiled. Between events `seen` and `counts` are all 0.
    seen = np.zeros(_WORDS, np.uint64)
    counts = np.zeros(NUM_SENSORS, np.int32)
    firsts, keys = np.empty(NUM_SENSORS, np.int64), np.empty(NUM_SENSORS, np.int64)
    room = np.zeros((NUM_SENSORS, 2), np.int32)  # where the next pulse of a sensor goes, and the end of its places
    dom, place = np.uint64(0), np.int32(0)
    for event in range(len(starts)):
        start, stop = np.uint64(starts[event]), np.uint64(stops[event])
        # Lines of a later event are asked for column by column between the loops: all at once they would delay the loads of this event.
        ahead = min(event + _AHEAD, len(starts) - 1)
        first, last = starts[ahead], stops[ahead]
        _ask(sensor, first, last)
        num_doms = 0
        for pulse in range(start, stop):
            number = np.uint64(sensor[pulse])  # a negative one becomes large
            if number >= NUM_SENSORS:
                return np.int64(pulse)
            seen[number >> _SIX] |= _ONE << (number & _LOW)
            num_doms += counts[number] == 0
            counts[number] += 1

        _ask(time, first, last)
        latest = np.int64(0x7FFFFFFFFFFFFFFF)
        if num_doms > max_doms:
            for back in range(_ONE, stop - start + _ONE):
                firsts[np.uint64(sensor[stop - back])] = time[stop - back]
            # The order by (first time, sensor) as one number.
            size = 0
            for word in range(_WORDS):
                bits = seen[word]
                while bits:
                    number = np.uint64(word * 64 + lowest_bit(bits))
                    keys[size] = firsts[number] * 8192 + np.int64(number)
                    size += 1
                    bits &= bits - _ONE
            latest = np.int64(_select(keys, size, max_doms - 1))

        _ask(charge, first, last)
        _ask(auxiliary, first, last)
        for word in range(_WORDS):
            bits = seen[word]
            seen[word] = 0
            while bits:
                number = np.uint64(word * 64 + lowest_bit(bits))
                bits &= bits - _ONE
                count = counts[number]
                counts[number] = 0
                room[number, 0] = room[number, 1] = place
                if num_doms > max_doms and firsts[number] * 8192 + np.int64(number) > latest:
                    continue
                dom_sensor[dom], dom_pulses[dom] = number, count
                place += min(count, max_pulses)
                room[number, 1] = place
                dom += _ONE
                pulse_offsets[dom] = place
        dom_offsets[event + 1] = dom

        for pulse in range(start, stop):
            number = np.uint64(sensor[pulse])
            if room[number, 0] < room[number, 1]:
                at = np.uint64(room[number, 0])
                room[number, 0] += 1
                out_time[at] = np.float32(time[pulse])
                out_charge[at] = np.float32(charge[pulse])
                out_flag[at] = auxiliary[pulse]
    return np.int64(-1)


@kernel
def _select(keys: Array, size: int, rank: int) -> int:
    """The key of this rank (from 0) among the first `size`, which are reordered (quickselect): 4 times as fast as sorting them."""
    low, high = 0, size - 1
    while low < high:
        a, b, c = keys[low], keys[(low + high) // 2], keys[high]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = low, high
        while i <= j:
            while keys[i] < pivot:
                i += 1
            while keys[j] > pivot:
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                i, j = i + 1, j - 1
        if rank <= j:
            high = j
        elif rank >= i:
            low = i
        else:
            break
    return int(keys[rank])


@kernel
def _ask(column: Any, first: int, last: int) -> None:
    """Ask for the cache lines of an event, at most `_LINES`; the hardware follows a longer run by itself."""
    size = column.itemsize
    for line in range(first * size, min(last * size, first * size + _LINES * 64), 64):
        prefetch(column, line)


def pad_to(batch: EventBatch, *, doms: int, pulses: int) -> EventBatch:
    """The batch (of arrays) with room for `doms` DOMs and `pulses` pulses; those behind the true ones are 0 and belong to no event.

    Raises:
        OptionError: The batch has more DOMs or pulses.
    """
    if doms < len(batch.sensor) or pulses < len(batch.time):
        size = f"{len(batch.sensor):,} DOMs and {len(batch.time):,} pulses"
        raise OptionError(f"doms={doms:,} and pulses={pulses:,} are too small for a batch with {size}.", parameter="doms")
    room = {"sensor": doms, "dom_pulses": doms, "time": pulses, "charge": pulses, "auxiliary": pulses}
    padded = {name: _extend(getattr(batch, name), size, 0) for name, size in room.items()}
    return replace(batch, **padded, pulse_offsets=_extend(batch.pulse_offsets, doms + 1, batch.pulse_offsets[-1]))


def _extend(values: Array, size: int, fill: Any) -> Array:
    longer = np.empty(size, dtype=values.dtype)
    longer[: len(values)], longer[len(values) :] = values, fill
    return longer
