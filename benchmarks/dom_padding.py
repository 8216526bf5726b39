"""Sensor (DOM) vectors of ragged events in one pass over the pulses: what iceaggr's collator makes with a dozen tensors.

It reads the pulses of an event where they lie, in a packed batch or in a whole column of a store, and writes each
vector once. Pulses of an event have to stand in time order, as they do in the files: the sensors hit first are then
those met first. Values equal the collator's but for the last bit of the logarithm; where two sensors were first hit at
the same time at the limit of `max_doms`, each keeps one of the two.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker._kernels import kernel, prefetch

Array = npt.NDArray[Any]

NUM_SENSORS = 5160
_AHEAD = 4  # events; with fewer their lines come too late, with more they are gone again
_LINES = 64
_WORDS = (NUM_SENSORS + 63) // 64
_SIZES = np.log1p(np.arange(4096.0)).astype(np.float32) / np.float32(3) - np.float32(1)


def pad_doms(
    time: Array,
    charge: Array,
    sensor: Array,
    auxiliary: Array,
    starts: Array,
    stops: Array,
    positions: Array,
    *,
    max_pulses: int = 16,
    max_doms: int = 128,
    out: Array | None = None,
    mask: Array | None = None,
) -> tuple[Array, Array]:
    """(events, max_doms, 4 + 3 max_pulses) float32 and (events, max_doms) bool; of a packed batch, pass `cu[:-1], cu[1:]`.

    `out` and `mask` are filled and returned where they are given: a buffer that is used again saves most page faults.
    """
    if out is None:
        out = np.empty((len(starts), max_doms, 4 + 3 * max_pulses), dtype=np.float32)
    if mask is None:
        mask = np.empty((len(starts), max_doms), dtype=np.bool_)
    _pad(time, charge, sensor, auxiliary, starts, stops, positions, max_pulses, max_doms, out, mask)
    return out, mask


@kernel
def _pad(
    time: Array,
    charge: Array,
    sensor: Array,
    auxiliary: Array,
    starts: Array,
    stops: Array,
    positions: Array,
    max_pulses: int,
    max_doms: int,
    out: Array,
    mask: Array,
) -> None:
    seen = np.zeros(_WORDS, np.uint64)
    slot_of = np.zeros(NUM_SENSORS, np.int32)
    sizes = np.zeros(max_doms, np.int32)
    width = 4 + 3 * max_pulses
    for event in range(len(starts)):
        start, stop = starts[event], stops[event]
        if event + _AHEAD < len(starts):
            first, last = starts[event + _AHEAD], stops[event + _AHEAD]
            _ask(time, first, last)
            _ask(charge, first, last)
            _ask(sensor, first, last)
            _ask(auxiliary, first, last)
        seen[:] = 0
        num_doms = 0
        for pulse in range(start, stop):
            number = np.int64(sensor[pulse])
            bit = np.uint64(1) << np.uint64(number & 63)
            if seen[number >> 6] & bit == 0:
                seen[number >> 6] |= bit
                num_doms += 1
                if num_doms == max_doms:
                    break

        # Sensors stand by number: the set bits, from the lowest.
        slot = 0
        for word in range(_WORDS):
            bits = seen[word]
            while bits:
                lowest = bits & (~bits + np.uint64(1))
                number = (word << 6) + _log2(lowest)
                slot_of[number] = slot
                sizes[slot] = 0
                for axis in range(3):
                    out[event, slot, axis] = positions[number, axis]
                slot += 1
                bits ^= lowest

        for pulse in range(start, stop):
            number = np.int64(sensor[pulse])
            if seen[number >> 6] & (np.uint64(1) << np.uint64(number & 63)) == 0:
                continue
            slot = slot_of[number]
            size = sizes[slot]
            sizes[slot] = size + 1
            if size < max_pulses:
                place = 4 + 3 * size
                out[event, slot, place] = (np.float32(time[pulse]) - np.float32(1e4)) / np.float32(3e4)
                value = max(np.float32(charge[pulse]), np.float32(1e-6))
                out[event, slot, place + 1] = np.float32(math.log10(np.float64(value))) / np.float32(3)
                out[event, slot, place + 2] = np.float32(auxiliary[pulse]) - np.float32(0.5)

        for slot in range(num_doms):
            size = sizes[slot]
            out[event, slot, 3] = (
                _SIZES[size] if size < len(_SIZES) else np.float32(math.log1p(size)) / np.float32(3) - np.float32(1)
            )
            for place in range(4 + 3 * min(size, max_pulses), width):
                out[event, slot, place] = 0
            mask[event, slot] = True
        for slot in range(num_doms, max_doms):
            for place in range(width):
                out[event, slot, place] = 0
            mask[event, slot] = False


@kernel
def _log2(power: Any) -> Any:
    """The place of the one bit that is set; exact, since a power of two is a float64."""
    return np.int64(math.log2(np.float64(power)))


@kernel
def _ask(column: Any, first: int, last: int) -> None:
    """Ask for the cache lines of an event, at most `_LINES`; the hardware follows a longer run by itself."""
    size = column.itemsize
    for line in range(first * size, min(last * size, first * size + _LINES * 64), 64):
        prefetch(column, line)
