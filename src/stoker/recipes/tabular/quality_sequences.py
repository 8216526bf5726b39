"""What accuracies of single events cannot see: time, order and subjects.

    lengths        events per subject                              gaps          time to the next event
    transitions    which value follows which                       lags          autocorrelation up to 10 events back
    order          where in a sequence a value occurs              subjects      the level and spread of each subject
    values         all events in 200 bins, tails and spikes included

All consecutive events count, not one pair per subject. Each measure is a distance with its noise, see `quality_noise`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stoker._kernels import kernel
from stoker._types import Array
from stoker.recipes.tabular.quality_bins import Bins, find_bins, is_text, quantile_bins, text_lengths
from stoker.recipes.tabular.quality_noise import (
    Distances,
    Measure,
    Splits,
    average,
    count_distances,
    largest_gap,
    measure,
    sum_distances,
)
from stoker.recipes.tabular.quality_tables import ColumnValues, Events

MOST_LAG = 10
NUM_STATES = 10
NUM_FINE = 200
NUM_PLACES = 5
GAP = "time to next event"


@dataclass(frozen=True, kw_only=True)
class SequenceCurve:
    """Real and synthetic values over lags or bins, for the page."""

    title: str
    ticks: tuple[str, ...]
    real: Array
    synthetic: Array


@dataclass(frozen=True, kw_only=True)
class TransitionMatrix:
    """Shares of the next value by value, for the page."""

    column: str
    labels: tuple[str, ...]
    real: Array
    synthetic: Array


@dataclass(frozen=True, kw_only=True)
class SequenceFindings:
    """Measures and what the page draws of them."""

    measures: tuple[Measure, ...]
    autocorrelations: tuple[SequenceCurve, ...]
    gaps: SequenceCurve | None
    transitions: tuple[TransitionMatrix, ...]


def find_time(events: Events) -> str | None:
    """The time of events: the first column of times."""
    return next((name for name, values in events.columns.items() if values.kind == "time"), None)


def compare_sequences(real: Events, synthetic: Events, splits: Splits, *, time: str | None) -> SequenceFindings:
    """All measures of sequences."""
    sides = [_Sorted(real), _Sorted(synthetic)]
    columns = {name: [_plain(one, name) for one in sides] for name in real.columns}
    numbers = {name: both for name, both in columns.items() if both[0].kind == "number"}
    if time is not None:
        numbers[GAP] = [_gaps(one, time) for one in sides]
    states = {name: both for name, both in columns.items() if name != time and both[0].kind != "time"}
    coarse = {name: _cells(both, NUM_STATES, fine=False) for name, both in states.items()}
    fine = {name: _cells(both, NUM_FINE, fine=True) for name, both in numbers.items()}
    ranks = {name: _ranks(cells, bins) for name, (cells, bins) in fine.items()}

    lengths = [ColumnValues(name="length", kind="number", data=one.events.lengths.astype(np.float64)) for one in sides]
    length_cells = _cells(lengths, NUM_FINE, fine=True)
    by_length = count_distances(
        (length_cells[0][0], np.arange(real.num_subjects)), length_cells[0][1], length_cells[1].size, splits, distance=largest_gap
    )
    owner = sides[0].owner
    values = {
        name: count_distances((cells[0], owner), cells[1], bins.size, splits, distance=largest_gap)
        for name, (cells, bins) in fine.items()
    }
    gaps = values.pop(GAP, None)
    matrices, follow = {}, {}
    for name, (cells, bins) in coarse.items():
        matrices[name], follow[name] = _transitions(name, cells, bins, sides, splits)
    curves, lagged = {}, {}
    for name, both in ranks.items():
        curves[name], lagged[name] = _autocorrelation(name, both, sides, splits)
    placed = {name: _places(cells, bins, sides, splits) for name, (cells, bins) in coarse.items()}
    effects = {name: _subjects(both, sides, splits) for name, both in ranks.items() if name != GAP}
    effects |= {name: _category_subjects(cells, sides, splits) for name, (cells, _) in coarse.items() if name not in ranks}
    found = [
        measure("lengths", "Events per subject", {"length": by_length}, splits, tolerance=0.02),
        measure("gaps", "Time to the next event", {GAP: gaps} if gaps else {}, splits, tolerance=0.02),
        measure("values", "Values of all events, tails included", values, splits, tolerance=0.02),
        measure("transitions", "Transitions to the next value", _used(follow), splits, tolerance=0.02),
        measure("lags", f"Autocorrelation, lags 1 to {MOST_LAG}", _used(lagged), splits, tolerance=0.02, smooth=True),
        measure("order", "Order inside sequences", _used(placed), splits, tolerance=0.02),
        measure("subjects", "Level and spread of each subject", _used(effects), splits, tolerance=0.03),
    ]
    return SequenceFindings(
        measures=tuple(one for one in found if one is not None),
        autocorrelations=tuple(curve for curve in curves.values() if curve is not None),
        gaps=_gap_curve(numbers[GAP]) if gaps else None,
        transitions=tuple(one for one in matrices.values() if one is not None),
    )


def _used(several: Mapping[str, Distances | None]) -> dict[str, Distances]:
    return {name: one for name, one in several.items() if one is not None}


class _Sorted:
    """Events subject by subject."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self.owner = events.owner[events.order]
        self.place = np.arange(events.num_rows) - events.offsets[self.owner]

    def pairs(self, lag: int) -> tuple[Array, Array]:
        """Rows that have an event `lag` later in the same sequence, and those events."""
        first = np.flatnonzero(self.events.lengths[self.owner] > self.place + lag)
        return first, first + lag


def _plain(side: _Sorted, name: str) -> ColumnValues:
    values = side.events.columns[name]
    values = text_lengths(values) if is_text(values) else values
    return values.take(side.events.order)


def _gaps(side: _Sorted, time: str) -> ColumnValues:
    """Seconds to the next event; missing at the last one."""
    values = side.events.columns[time].take(side.events.order)
    found = np.full(len(values.data), np.nan)
    first, second = side.pairs(1)
    known = ~(values.missing[first] | values.missing[second])
    found[first[known]] = (values.data[second[known]] - values.data[first[known]]) / 1e9
    return ColumnValues(name=GAP, kind="number", data=found)


def _cells(both: list[ColumnValues], count: int, *, fine: bool) -> tuple[list[Array], Bins]:
    bins = quantile_bins(both[0], count) if fine else find_bins(both[0], count)
    return [bins.apply(one) for one in both], bins


def _ranks(cells: list[Array], bins: Bins) -> list[Array]:
    """Values as quantiles of the real ones, from -0.5 to 0.5, so that no tail decides a correlation; NaN where missing."""
    counts = np.bincount(cells[0], minlength=bins.size)[:-1]
    middle = (np.cumsum(counts) - counts / 2) / max(counts.sum(), 1) - 0.5
    return [np.append(middle, np.nan)[one] for one in cells]


def _transitions(
    name: str, cells: list[Array], bins: Bins, sides: list[_Sorted], splits: Splits
) -> tuple[TransitionMatrix | None, Distances | None]:
    """Total variation of the next value given the value, weighted by the shares of real values."""
    size = bins.size
    joint, owners = [], []
    for side, codes in zip(sides, cells, strict=True):
        first, second = side.pairs(1)
        joint.append(codes[first].astype(np.int32) * size + codes[second])
        owners.append(side.owner[first])
    if not len(joint[0]) or not len(joint[1]):
        return None, None

    def conditional(one: Array, other: Array) -> Array:
        one, other = (counts.reshape(*counts.shape[:-1], size, size) for counts in (one, other))
        weights = one.sum(axis=-1) + 0.0
        weights /= np.maximum(weights.sum(axis=-1, keepdims=True), 1)
        return np.asarray((weights * 0.5 * np.abs(_rows(one) - _rows(other)).sum(axis=-1)).sum(axis=-1))

    distances = count_distances((joint[0], owners[0]), joint[1], size * size, splits, distance=conditional)
    counts = [np.bincount(one, minlength=size * size).reshape(size, size) for one in joint]
    used = np.flatnonzero((counts[0].sum(axis=0) + counts[0].sum(axis=1)) > 0)
    labels = tuple(bins.labels[i] for i in used)
    real, synthetic = (_rows(one[np.ix_(used, used)]) for one in counts)
    return TransitionMatrix(column=name, labels=labels, real=real, synthetic=synthetic), distances


def _rows(counts: Array) -> Array:
    return np.asarray(counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1))


def _autocorrelation(
    name: str, both: list[Array], sides: list[_Sorted], splits: Splits
) -> tuple[SequenceCurve | None, Distances | None]:
    """The correlation with the value `lag` events later, over all pairs."""
    distances, curves = [], []
    for lag in range(1, MOST_LAG + 1):
        sums = [_pair_sums(side, rank, lag) for side, rank in zip(sides, both, strict=True)]
        if min(one[:, 0].sum() for one in sums) < 2 * splits.num_real / 10:  # too few sequences are that long
            break
        distances.append(sum_distances(sums[0], sums[1], splits, _correlation))
        curves.append([float(_correlation(one.sum(axis=0))) for one in sums])
    if not distances:
        return None, None
    real, synthetic = np.array(curves).T
    ticks = tuple(f"lag {lag}" for lag in range(1, len(curves) + 1))
    return SequenceCurve(title=name, ticks=ticks, real=real, synthetic=synthetic), average(distances)


def _pair_sums(side: _Sorted, rank: Array, lag: int) -> Array:
    """Count, sums, squares and product of pairs, for each subject."""
    found = np.zeros((side.events.num_subjects, 6))
    _sum_pairs(rank, side.events.offsets, lag, found)
    return found


@kernel
def _sum_pairs(rank: Array, offsets: Array, lag: int, found: Array) -> None:
    for subject in range(found.shape[0]):
        sums = found[subject]
        for row in range(offsets[subject], offsets[subject + 1] - lag):
            x, y = rank[row], rank[row + lag]
            if not (np.isnan(x) or np.isnan(y)):
                sums[0] += 1
                sums[1] += x
                sums[2] += y
                sums[3] += x * x
                sums[4] += y * y
                sums[5] += x * y


def _correlation(sums: Array) -> Array:
    count, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    count = np.maximum(count, 1)
    spread = np.maximum(xx - x * x / count, 0) * np.maximum(yy - y * y / count, 0)
    return np.asarray((xy - x * y / count) / np.sqrt(np.maximum(spread, 1e-300)))


def _places(cells: list[Array], bins: Bins, sides: list[_Sorted], splits: Splits) -> Distances | None:
    """Total variation of (fifth of the sequence, value), in sequences of at least two events."""
    joint, owners = [], []
    for side, codes in zip(sides, cells, strict=True):
        lengths = side.events.lengths[side.owner]
        rows = np.flatnonzero(lengths > 1)
        fifth = (NUM_PLACES * side.place[rows]) // lengths[rows]
        joint.append((fifth * bins.size + codes[rows]).astype(np.int32))
        owners.append(side.owner[rows])
    if not len(joint[0]) or not len(joint[1]):
        return None
    return count_distances((joint[0], owners[0]), joint[1], NUM_PLACES * bins.size, splits)


def _subjects(both: list[Array], sides: list[_Sorted], splits: Splits) -> Distances | None:
    """Kolmogorov-Smirnov distance of each subject's mean and deviation, of subjects with at least two values."""
    kept, statistics = [], []
    for side, rank in zip(sides, both, strict=True):
        known = ~np.isnan(rank)
        sums = [
            np.bincount(side.owner[known], weights=one, minlength=side.events.num_subjects)
            for one in (None, rank[known], rank[known] ** 2)
        ]
        subjects = np.flatnonzero(sums[0] > 1)
        count, total, squares = (one[subjects] for one in sums)
        kept.append(subjects)
        statistics.append((total / count, np.sqrt(np.maximum(squares / count - (total / count) ** 2, 0))))
    if not len(kept[0]) or not len(kept[1]):
        return None
    return average([_subject_distance(kept[0], [one[i] for one in statistics], splits) for i in range(2)])


def _category_subjects(cells: list[Array], sides: list[_Sorted], splits: Splits) -> Distances | None:
    """The same for the share of a subject's most frequent value."""
    kept, statistics = [], []
    for side, codes in zip(sides, cells, strict=True):
        counts = np.zeros((side.events.num_subjects, int(max(one.max(initial=0) for one in cells)) + 1), dtype=np.int32)
        np.add.at(counts, (side.owner, codes), 1)
        subjects = np.flatnonzero(side.events.lengths > 1)
        kept.append(subjects)
        statistics.append(counts[subjects].max(axis=1) / side.events.lengths[subjects])
    if not len(kept[0]) or not len(kept[1]):
        return None
    return _subject_distance(kept[0], statistics, splits)


def _subject_distance(subjects: Array, both: list[Array], splits: Splits) -> Distances:
    cells, bins = _cells([ColumnValues(name="", kind="number", data=one) for one in both], NUM_FINE, fine=True)
    return count_distances((cells[0], np.arange(len(subjects))), cells[1], bins.size, splits.take(subjects), distance=largest_gap)


def _gap_curve(both: list[ColumnValues]) -> SequenceCurve:
    """Shares of gaps in bins of equal width on a log scale of seconds; gaps of 0 and below come first."""
    known = [one.data[~one.missing] for one in both]
    positive = known[0][known[0] > 0]
    low, high = (np.quantile(positive, q) for q in (0.001, 0.999)) if len(positive) else (1.0, 10.0)
    edges = np.geomspace(max(low, 1e-9), max(high, low * 1.01), 25)
    found = []
    for one in known:
        places = np.where(one <= 0, 0, 1 + np.clip(np.searchsorted(edges, one) - 1, 0, len(edges) - 2))
        found.append(np.bincount(places, minlength=len(edges)) / max(len(one), 1))
    ticks = ("≤ 0", *(_duration(edge) for edge in edges[:-1]))
    return SequenceCurve(title=GAP, ticks=ticks, real=found[0], synthetic=found[1])


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{1000 * seconds:.3g} ms"
