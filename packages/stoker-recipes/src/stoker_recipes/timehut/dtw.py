"""Dynamic time warping between all pairs of series, and the soft targets that SoftCLT makes of it.

The distance of two series is the square root of the smallest sum of squared differences over all monotone alignments, as tslearn's `dtw`
has it. The kernel fills the table of one series against `LANES` others at once, so that the inner loop runs over neighbours in memory and
is vectorised. Threads take different rows; only half of the pairs is computed.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from stoker.errors import OptionError
from stoker.extend import Array, kernel

LANES = 32


def dtw_distances(series: Array, *, lengths: Array | None = None, threads: int | None = None) -> Array:
    """The distances of all pairs of series.

    Args:
        series: (N, T, D) without NaN in the steps that count.
        lengths: The steps that count of each series, from its first on. Default: T.
        threads: Number of threads. Default: the cores available to this process.

    Returns:
        float64 (N, N), symmetric, 0 on the diagonal.

    Raises:
        OptionError: NaN within a series, or another shape.

    Example:
        >>> dtw_distances(np.array([[[0.0], [1.0], [1.0]], [[0.0], [0.0], [3.0]]])).round(4).tolist()
        [[0.0, 2.8284], [2.8284, 0.0]]
    """
    if series.ndim != 3:
        raise OptionError(f"series has the shape {series.shape}; expected (series, steps, channels).", parameter="series")
    num, steps, _ = series.shape
    lengths = np.full(num, steps, np.int64) if lengths is None else np.asarray(lengths, np.int64)
    counts = np.arange(steps) < lengths[:, None]
    if lengths.min(initial=1) < 1 or np.isnan(series[counts]).any():
        raise OptionError(
            "a series has no steps, or NaN between its first and last step; distances need values. Fill the gaps first.",
            parameter="series",
        )
    values = np.where(counts[..., None], series, 0.0).astype(np.float64)
    distances = np.zeros((num, num))
    lanes = np.ascontiguousarray(values.transpose(1, 2, 0))  # (T, D, N): lanes are neighbours
    workers = threads or len(os.sched_getaffinity(0))
    rows = np.arange(1, num)
    if workers == 1 or num < 2 * LANES:  # starting threads takes longer
        _fill_rows(values, lanes, lengths, rows, distances)
    else:
        with ThreadPoolExecutor(workers) as pool:  # a thread takes every n-th row, as later rows have more pairs
            parts = (np.ascontiguousarray(rows[i::workers]) for i in range(workers))
            list(pool.map(lambda part: _fill_rows(values, lanes, lengths, part, distances), parts))
    return distances + distances.T


@kernel
def _fill_rows(values: Any, lanes: Any, lengths: Any, rows: Any, distances: Any) -> None:
    """found[i, j] for j < i, for the rows i given."""
    steps, channels, _ = lanes.shape
    before = np.empty((steps + 1, LANES))
    now = np.empty((steps + 1, LANES))
    cost = np.empty(LANES)
    for i in rows:
        for first in range(0, i, LANES):
            width = min(LANES, i - first)
            longest = 0
            for lane in range(width):
                longest = max(longest, lengths[first + lane])
            before[:] = np.inf
            before[0] = 0.0
            for s in range(lengths[i]):
                now[0] = np.inf
                for t in range(longest):
                    for lane in range(width):
                        cost[lane] = 0.0
                    for c in range(channels):
                        x = values[i, s, c]
                        for lane in range(width):
                            difference = x - lanes[t, c, first + lane]
                            cost[lane] += difference * difference
                    for lane in range(width):
                        best = before[t, lane]
                        other = before[t + 1, lane]
                        best = other if other < best else best
                        other = now[t, lane]
                        best = other if other < best else best
                        now[t + 1, lane] = cost[lane] + best
                before, now = now, before
            for lane in range(width):
                distances[i, first + lane] = np.sqrt(before[lengths[first + lane], lane])


def instance_targets(data: Array, *, tau: float, alpha: float = 0.5) -> Array:
    """SoftCLT's targets of pairs of series: 2 alpha / (1 + exp(tau * D)) + (1 - alpha) [i = j], (N, N).

    D are the distances of the series, each scaled to 0..1, with the smallest distance on the diagonal, scaled to 0..1 per column.

    Args:
        data: (N, T, D); NaN at both ends of a series is padding, NaN within it is interpolated.
        tau: Sharpness, above 0.
        alpha: Largest target of another series.
    """
    filled, lengths = _fill_gaps(np.asarray(data, np.float64))
    counts = np.where((np.arange(filled.shape[1]) < lengths[:, None])[..., None], filled, np.nan)
    low, high = np.nanmin(counts, 1, keepdims=True), np.nanmax(counts, 1, keepdims=True)
    span = np.where(high > low, high - low, 1.0)
    distance = dtw_distances(np.nan_to_num((counts - low) / span), lengths=lengths)
    num = len(distance)
    if num < 2:
        return np.ones((num, num))
    np.fill_diagonal(distance, distance[~np.eye(num, dtype=bool)].min())
    least, most = distance.min(0), distance.max(0)
    scaled = (distance - least) / np.where(most > least, most - least, 1.0)
    targets: Array = 2 * alpha / (1 + np.exp(tau * scaled)) + (1 - alpha) * np.eye(num)
    return targets


def _fill_gaps(data: Array) -> tuple[Array, Array]:
    """Series moved to their first value, gaps interpolated per channel, and their lengths."""
    num, _, channels = data.shape
    filled, lengths = np.zeros_like(data), np.ones(num, np.int64)
    for i, row in enumerate(data):
        known = np.flatnonzero(~np.isnan(row).all(1))
        if not known.size:
            continue
        begin, end = int(known[0]), int(known[-1]) + 1
        lengths[i] = end - begin
        for c in range(channels):
            values = row[begin:end, c]
            is_known = ~np.isnan(values)
            if is_known.any():
                filled[i, : end - begin, c] = np.interp(np.arange(end - begin), np.flatnonzero(is_known), values[is_known])
    return filled, lengths
