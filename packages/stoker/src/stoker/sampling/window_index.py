"""The index of windows: how many a series has, and where the window of a number lies. The kernels of `views.WindowSamples`.

count_windows      the windows of a series, a formula of its length
index_series       the number of the first window of each series, or of each group of series
guide_of           a table that makes the search in rising first numbers short
locate_uniform     series of one length: a division
locate_ragged      a search in the first numbers
locate_recorded    a search in records of a cache line, for the runs between gaps
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from stoker._kernels import kernel, prefetch
from stoker._types import Array

DROP, KEEP = 0, 1
"""What becomes of the steps after the last full window: they are left out, or are a window."""


@kernel
def count_windows(num_steps: int, span: int, stride: int, least: int, mode: int) -> int:
    """The number of windows in a series of `num_steps`."""
    full = (num_steps - span) // stride + 1 if num_steps >= span else 0
    if mode == DROP:
        return full
    covered = (full - 1) * stride + span if full > 0 else 0
    if covered < num_steps and num_steps - full * stride >= least:
        return full + 1
    return full


@kernel
def index_series(
    offsets: Array, num_steps: int, span: int, stride: int, least: int, mode: int, group: int, firsts: Array
) -> tuple[int, int, int, int, int]:
    """Sum up the windows; also: most windows in a series, steps left over, series without a window, a damaged series."""
    total, most, left, empty = 0, 0, 0, 0
    for i in range(len(offsets) - 1):
        if i % group == 0:
            firsts[i // group] = total
        if offsets[i] < 0 or offsets[i + 1] < offsets[i] or offsets[i + 1] > num_steps:
            return 0, 0, 0, 0, i
        steps = offsets[i + 1] - offsets[i]
        count = count_windows(steps, span, stride, least, mode)
        total += count
        most = max(most, count)
        left += steps - covered_steps(steps, count, span, stride)
        empty += count == 0
    firsts[len(firsts) - 1] = total
    return total, most, left, empty, -1


@kernel
def covered_steps(num_steps: int, count: int, span: int, stride: int) -> int:
    """Steps of a series that are in some window."""
    if count == 0:
        return 0
    end = min((count - 1) * stride + span, num_steps)
    return end if stride <= span else (count - 1) * span + end - (count - 1) * stride


@kernel
def locate_uniform(
    numbers: Array, length: int, per_series: int, span: int, stride: int, series: Array, starts: Array, counts: Array
) -> None:
    """Find the windows of series of one length, `per_series` each."""
    for i in range(len(numbers)):
        number = numbers[i] // per_series
        offset = (numbers[i] - number * per_series) * stride
        series[i] = number
        starts[i] = number * length + offset
        counts[i] = min(span, length - offset)


# An index of rising first numbers is searched with a guide: for each bucket of 2**shift numbers, the entry in which it begins. So a
# search is a look at the guide and, where entries begin within the bucket, some steps of bisection (10 ns instead of 100).

_AHEAD = 16
GUIDED_ENTRIES = 2**18  # up to here there are two to four buckets for each entry (beyond it one or two), and records: 4 MB


class Guide(NamedTuple):
    """Where to search in an index."""

    entries: Array
    shift: int


def guide_of(firsts: Array) -> Guide:
    """The guide for first numbers that rise; the last of them is the number of all."""
    size, total = len(firsts) - 1, int(firsts[-1])
    buckets = max(1, (2 if size <= GUIDED_ENTRIES else 1) * size)
    shift = max(0, (max(total, 1) // buckets).bit_length() - 1)
    entries = np.empty((total >> shift) + 2, dtype=np.int32 if size < 2**31 else np.int64)
    _fill_guide(firsts, shift, entries)
    return Guide(entries, shift)


@kernel
def _fill_guide(firsts: Array, shift: int, entries: Array) -> None:
    entry, last = 0, max(len(firsts) - 2, 0)
    for bucket in range(len(entries)):
        while entry < last and firsts[entry + 1] <= bucket << shift:
            entry += 1
        entries[bucket] = entry


@kernel
def find_entry(number: Any, firsts: Array, entries: Array, shift: int) -> Any:
    """The last entry of the index that is at most `number`."""
    low, high = np.int64(entries[number >> shift]), np.int64(entries[(number >> shift) + 1])
    while high - low > 1:
        middle = (low + high + 1) >> 1
        if firsts[middle] <= number:
            low = middle
        else:
            high = middle - 1
    return low + (high - low) * (firsts[high] <= number)  # without a branch that the processor would guess wrong half of the time


@kernel
def locate_recorded(
    numbers: Array, records: Array, owners: Array, entries: Array, shift: int, span: int, stride: int,
    series: Array, starts: Array, counts: Array,
) -> None:  # fmt: skip
    """`locate_ragged` for runs: a record of first number and first step for each run, and the series of each.

    A record ends where the next one begins. What is needed soon is asked for, as other work has pushed the index out of the caches.
    """
    last = len(numbers) - 1
    bits, one = np.uint64(shift), np.uint64(1)  # no index is negative, which the compiler need not check then
    for i in range(len(numbers)):
        prefetch(entries, np.int64(np.uint64(numbers[min(i + 2 * _AHEAD, last)]) >> bits) * 4)
        prefetch(records, np.int64(entries[(np.uint64(numbers[min(i + _AHEAD, last)]) >> bits) + one]) * 16)
        number = numbers[i]
        bucket = np.uint64(number) >> bits
        low, high = np.uint64(entries[bucket]), np.uint64(entries[bucket + one])
        while high - low > one:
            middle = (low + high + one) >> one
            if records[middle, 0] <= number:
                low = middle
            else:
                high = middle - one
        low += (high - low) * np.uint64(records[high, 0] <= number)
        first = records[low, 1] + (number - records[low, 0]) * stride
        series[i] = owners[low]
        starts[i] = first
        counts[i] = min(span, records[low + one, 1] - first)


@kernel
def locate_ragged(
    numbers: Array, offsets: Array, num_steps: int, span: int, stride: int, least: int, mode: int, group: int, firsts: Array,
    entries: Array, shift: int, series: Array, starts: Array, counts: Array,
) -> Any:  # fmt: skip
    """Returns a damaged series, or -1. `group` 0 means that each series is one window."""
    for i in range(len(numbers)):
        if group == 0:
            series[i] = numbers[i]
        else:
            series[i] = find_entry(numbers[i], firsts, entries, shift) * group
        prefetch(offsets, series[i] * 8)  # the next loop reads all of them: their misses may overlap
    for i in range(len(numbers)):
        one, left = series[i], np.int64(0)
        start, stop = offsets[one], offsets[one + 1]
        if group:
            left = numbers[i] - firsts[one // group]
            while True:
                count = count_windows(stop - start, span, stride, least, mode)
                if left < count or stop < start or one + 2 == len(offsets):
                    break
                left -= count
                one += 1
                start, stop = stop, offsets[one + 1]
        if start < 0 or stop < start or stop > num_steps or stop - start <= left * stride:
            return one
        series[i] = one
        starts[i] = start + left * stride
        counts[i] = min(span, stop - starts[i])
    return -1
