"""Kernels over the numbers of a column: intervals of sorted values, the interval of each value, and counts of subjects.

A search among 1,000 intervals by halving costs some 40 ns, most of it waiting for one load after the other. Here a value finds the few
intervals of its bucket (of 16,384 equal ones over the inner 98 % of intervals) by one multiplication, and compares with one or two of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stoker.extend import Array, kernel

BUCKETS = 2**14


@kernel
def _buckets(values: Array, low: float, scale: float, last: float, buckets: Array) -> None:
    for i in range(len(values)):
        buckets[i] = np.int64(min(max((float(values[i]) - low) * scale, 0.0), last))


@kernel
def _find(highs: Array, firsts: Array, low: float, scale: float, values: Array, places: Array) -> None:
    """The first interval whose end is not below each value; the last end is above all values."""
    last = float(len(firsts) - 2)
    for i in range(len(values)):
        value = values[i]
        bucket = np.uint64(min(max((float(value) - low) * scale, 0.0), last))
        first = np.uint32(firsts[bucket])
        count = np.uint32(firsts[bucket + np.uint64(1)]) - first
        while count > 4:
            half = count >> 1
            if highs[first + half] < value:
                first += count - half
            count = half
        while highs[first] < value:
            first += np.uint32(1)
        places[i] = first


def find_intervals(highs: Array, values: Array) -> Array:
    """As `np.searchsorted(highs, values)`, with the last interval for larger values.

    Args:
        highs: The ends of the intervals, sorted.
        values: Of the same type, without NaN.
    """
    places = np.zeros(len(values), np.int32)
    count = len(highs)
    if count < 2:
        return places
    low, high = float(highs[count // 100]), float(highs[count - 2 - count // 100])
    scale = BUCKETS / (high - low) if high > low else 0.0
    # The bucket is a monotone function of the value, so the ends of lower buckets are below it, and those of higher ones are not.
    of_highs = np.empty(count, np.int64)
    _buckets(highs, low, scale, float(BUCKETS), of_highs)
    firsts = np.minimum(np.searchsorted(of_highs, np.arange(BUCKETS + 2)), count - 1).astype(np.int32)
    top = np.inf if highs.dtype.kind == "f" else np.iinfo(highs.dtype).max
    ends = np.append(highs[:-1], np.array([top], highs.dtype))
    _find(ends, firsts, low, scale, np.ascontiguousarray(values), places)
    return places


@kernel
def number_intervals(number: Array, valid: Array, bins: Array, ranks: Array, has_null: int, codes: Array) -> None:
    """Number intervals by bin and, where a bin has several, by the rank in it; a missing value is 0."""
    for i in range(len(number)):
        codes[i, 0] = (bins[number[i]] + has_null) if valid[i] or has_null == 0 else 0
        if codes.shape[1] > 1:
            codes[i, 1] = ranks[number[i]] if valid[i] else 0


@kernel
def extremes(data: Array, valid: Array, starts: Array, lows: Array, highs: Array) -> int:
    """The least and the largest value of each subject that has one; returns how many do."""
    count = 0
    for subject in range(len(starts)):
        end = starts[subject + 1] if subject + 1 < len(starts) else len(data)
        has_some = False
        for row in range(starts[subject], end):
            if not valid[row]:
                continue
            value = data[row]
            if not has_some:
                lows[count] = highs[count] = value
                has_some = True
            lows[count] = min(lows[count], value)
            highs[count] = max(highs[count], value)
        count += has_some
    return count


@kernel
def count_subjects(codes: Array, starts: Array, last: Array, counts: Array) -> None:
    """Count the subjects that have each code; negative codes are not counted. `last` is -1 of every code."""
    for subject in range(len(starts)):
        end = starts[subject + 1] if subject + 1 < len(starts) else len(codes)
        for row in range(starts[subject], end):
            code = codes[row]
            if code >= 0 and last[code] != subject:
                last[code] = subject
                counts[code] += 1


@kernel
def count_values(
    data: Array, valid: Array, low: float, high: float, place: Array, frequent: Array, starts: Array, last: Array, counts: Array
) -> None:
    """Count the subjects that have each frequent value, of values between bounds; `place` is where each would be."""
    for subject in range(len(starts)):
        end = starts[subject + 1] if subject + 1 < len(starts) else len(data)
        for row in range(starts[subject], end):
            code = place[row]
            if valid[row] and frequent[code] == min(max(data[row], low), high) and last[code] != subject:
                last[code] = subject
                counts[code] += 1


@kernel
def _walk(
    ordered: Array, most: int, least: int, tail: float, refused: Array, lows: Array, highs: Array, sizes: Array, is_own: Array
) -> int:
    """Split sorted values; returns the number of intervals, and writes those that there is room for.

    An interval ends where the integral of 1 / share passes an integer, and around values that have their own.
    """
    total, passed_before, own_before, made, at, skipped = 0.0, 0.0, False, 0, 0, 0
    count = len(ordered)
    while at < count:
        value, first = ordered[at], at
        while at < count and ordered[at] == value:
            at += 1
        below = first / count
        share = max(min(tail * min(below, 1 - below), 1 / most), least / count)
        has_own = at - first >= share * count
        if has_own and skipped < len(refused) and refused[skipped] == value:
            has_own = False
            skipped += 1
        total += (at - first) / count / share
        passed = np.floor(total - (at - first) / count / share)
        if first == 0 or passed != passed_before or has_own or own_before:
            if made < len(lows):
                lows[made], sizes[made], is_own[made] = value, 0, has_own
            made += 1
        if made <= len(lows):
            highs[made - 1] = value
            sizes[made - 1] += at - first
        passed_before, own_before = passed, has_own
    return made


def split_sorted(ordered: Array, *, most: int, least: int, tail: float, refused: Array) -> tuple[Array, Array, Array, Any]:
    """Split sorted values into intervals of nearly equal counts, shorter ones in the tails.

    Args:
        ordered: The values, sorted.
        most: Intervals, if there were no tails.
        least: Values that an interval has at least.
        tail: An interval in a tail holds at most this part of the values beyond it.
        refused: Frequent values that get no interval of their own, sorted.

    Returns:
        The first and the last value of each interval, the number of its values, and whether it is one frequent value.
    """
    room, count = 0, min(len(ordered), 4 * most)
    while count > room:  # at most twice
        room = count
        lows, highs, sizes, is_own = (np.empty(room, kind) for kind in (ordered.dtype, ordered.dtype, np.int64, bool))
        count = _walk(ordered, most, least, tail, refused, lows, highs, sizes, is_own)
    return lows[:count], highs[:count], sizes[:count], is_own[:count]
