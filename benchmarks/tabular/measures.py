"""How far are events from other events of the same law?

Distances between a real and a synthetic sample: 0 is best, 0.5 for those that are an AUC or a share of nearer records. Accuracies are
those of mostlyai-qa. The others are what these cannot see:

    lengths        events per subject                              gaps          time to the next event
    transitions    which value follows which                       lags          autocorrelation up to 10 events back
    order          where in a sequence a value occurs              subjects      the level and spread of each subject
    values         all events in 200 bins, tails and spikes included
    classifier     the AUC of boosted trees, on single events and on statistics of whole sequences
    closest        the share of records that are nearer to real ones than these are to each other

Numbers are cut into bins at quantiles of the real data; of strings the most frequent have a bin each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from stoker_recipes.tabular import quality

MOST_LAG, NUM_PLACES = 10, 5
FEW, MANY, FINE, STATES = 10, 20, 200, 6
"""Bins of a column: for transitions, for single events, for distances between numbers, and for statistics of sequences."""
LEAST_ROWS = 5
"""A string in fewer rows has no bin of its own."""
TAIL_BINS = ("(empty)", "(other)", "_RARE_", "(n/a)")
TEXT_SHARE = 0.05
"""A column is text, and is compared by its lengths, where more than this share of its strings occur once."""
FIRST_EVENTS, MOST_RECORDS, MOST_CLASSIFIED, FOLDS = 8, 5000, 3000, 3
TREES = {"max_iter": 40, "max_leaf_nodes": 8, "learning_rate": 0.15, "min_samples_leaf": 10, "max_features": 0.5}
BELOW = -1.0
"""A statistic that a sequence does not have, below all ranks."""
Both = tuple[Any, Any]
"""The same of the real and of the synthetic sample."""


def compare(
    rows: pa.Table, synthetic: pa.Table, *, key: str | None, context: pa.Table | None, synthetic_context: pa.Table | None, seed: int
) -> dict[str, float]:
    """Measure all distances between two samples."""
    users = {} if context is None else {"context": context, "synthetic_context": synthetic_context}
    real, other = read(rows, synthetic, key, context, synthetic_context)
    texts = [name for name, column in real.columns.items() if column.kind == "number" and pa.types.is_string(rows[name].type)]
    tables = (_with_lengths(rows, texts), _with_lengths(synthetic, texts))  # mostlyai-qa would compare random tokens of them
    accuracy = quality(*tables, key=key, seed=seed, **users)["accuracy"]
    found = {name: 1 - accuracy[name] for name in ("univariate", "bivariate", "trivariate", "coherence") if name in accuracy}
    is_sequence = key is not None
    if is_sequence:
        found |= compare_sequences(real, other)
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    with threadpool_limits(1):  # results do not depend on the machine
        return found | compare_records(real, other, seed, is_sequence=is_sequence)


def _with_lengths(table: pa.Table, texts: list[str]) -> pa.Table:
    """A table with the lengths of its texts in their place."""
    for name in texts:
        table = table.set_column(table.column_names.index(name), name, pc.utf8_length(table[name]))
    return table


# ---- samples ----


@dataclass(frozen=True, kw_only=True)
class Column:
    """float64 numbers with NaN, times in nanoseconds, or codes of strings with -1."""

    kind: str
    data: Any
    texts: tuple[str, ...] = ()

    @cached_property
    def missing(self) -> Any:
        return (
            np.isnan(self.data) if self.kind == "number" else self.data < 0 if self.texts else self.data == np.iinfo(np.int64).min
        )

    def take(self, rows: Any) -> Column:
        return replace(self, data=self.data[rows])


@dataclass(frozen=True, kw_only=True)
class Events:
    """Events subject by subject; subjects are in the order of their keys."""

    columns: dict[str, Column]
    owner: Any
    lengths: Any

    @cached_property
    def starts(self) -> Any:
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def place(self) -> Any:
        """The position of each event in its sequence."""
        return np.arange(len(self.owner)) - self.starts[self.owner]

    def pairs(self, lag: int) -> tuple[Any, Any]:
        """Events that have another one `lag` later in the same sequence, and those."""
        first = np.flatnonzero(self.lengths[self.owner] > self.place + lag)
        return first, first + lag

    def select(self, subjects: Any) -> Events:
        """Some subjects, sorted, with their events."""
        number = np.full(len(self.lengths), -1)
        number[subjects] = np.arange(len(subjects))
        rows = np.flatnonzero(number[self.owner] >= 0)
        columns = {name: column.take(rows) for name, column in self.columns.items()}
        return Events(columns=columns, owner=number[self.owner[rows]], lengths=self.lengths[subjects])


def read(
    rows: pa.Table, synthetic: pa.Table, key: str | None, context: pa.Table | None, synthetic_context: pa.Table | None
) -> tuple[Events, Events]:
    """Both samples, sorted by subject; strings of both are codes of one list."""
    sides = []
    for table, users in ((rows, context), (synthetic, synthetic_context)):
        frame = table.to_pandas()
        if key is None:
            sides.append((frame, np.arange(len(frame)), len(frame)))
            continue
        known = np.unique((frame if users is None else users.to_pandas())[key])
        owner = np.searchsorted(known, frame[key])
        order = np.argsort(owner, kind="stable")
        sides.append((frame.iloc[order], owner[order], len(known)))
    names = sorted(name for name in rows.column_names if name != key)
    columns: Both = ({}, {})
    for name in names:
        for side, column in zip(columns, _read_column(*(frame[name] for frame, _, _ in sides)), strict=True):
            side[name] = column
    real, other = (
        Events(columns=side, owner=owner, lengths=np.bincount(owner, minlength=count))
        for side, (_, owner, count) in zip(columns, sides, strict=True)
    )
    return real, other


def _read_column(*both: pd.Series) -> list[Column]:
    if pd.api.types.is_datetime64_any_dtype(both[0]):
        return [Column(kind="time", data=one.astype("M8[ns]").to_numpy().view(np.int64)) for one in both]
    if pd.api.types.is_numeric_dtype(both[0]):
        return [Column(kind="number", data=one.to_numpy(np.float64, na_value=np.nan)) for one in both]
    texts = sorted(set().union(*(one.dropna().astype(str) for one in both)))
    codes = [pd.Categorical(one.where(one.isna(), one.astype(str)), categories=texts).codes.astype(np.int64) for one in both]
    columns = [Column(kind="category", data=code, texts=tuple(texts)) for code in codes]
    counts = np.bincount(codes[0][codes[0] >= 0])
    if np.mean(counts[codes[0][codes[0] >= 0]] == 1) <= TEXT_SHARE:
        return columns
    sizes = np.append([len(text) for text in texts], np.nan).astype(np.float64)
    return [Column(kind="number", data=sizes[code]) for code in codes]


# ---- bins ----


@dataclass(frozen=True, kw_only=True)
class Bins:
    """How values become bins; the last bin is that of missing values."""

    size: int
    edges: Any = None
    """Of numbers: bin i holds edges[i] <= value < edges[i + 1]; values outside are clipped."""
    places: Any = None
    """Of strings: the bin of each code; the last one is that of a missing value."""

    def apply(self, column: Column) -> Any:
        if self.places is not None:
            return self.places[column.data]
        found = np.searchsorted(self.edges[:-1], np.clip(column.data, self.edges[0], self.edges[-1]), side="right") - 1
        return np.where(column.missing, self.size - 1, found)


def find_bins(column: Column, count: int) -> Bins:
    """The bins of a column. Of strings that are equally frequent the first stays."""
    if column.kind == "category":
        counts = np.bincount(column.data[column.data >= 0], minlength=len(column.texts))
        first = np.full(len(counts), len(column.data))
        np.minimum.at(first, column.data[column.data >= 0], np.flatnonzero(column.data >= 0))
        frequent = np.lexsort((first, -counts))[:count]
        kept = sorted(i for i in frequent if counts[i] >= LEAST_ROWS and column.texts[i] not in TAIL_BINS)
        places = np.full(len(counts) + 1, len(kept) + TAIL_BINS.index("(other)"))
        for i, text in enumerate(column.texts):
            if text in TAIL_BINS or text == "":
                places[i] = len(kept) + TAIL_BINS.index(text or "(empty)")
        places[kept], places[-1] = np.arange(len(kept)), len(kept) + TAIL_BINS.index("(n/a)")
        return Bins(size=len(kept) + len(TAIL_BINS), places=places)
    known = np.sort(column.data[~column.missing])
    edges = np.unique(known)
    edges = np.append(edges, edges[-1] + 1) if len(edges) <= count else edges
    for size in range(count, max(count + 1, min(1000, len(known) + 1))) if len(edges) > count + 1 else ():
        edges = np.unique(known[np.linspace(0, len(known) - 1, size).astype(int)])
        if len(edges) > count:
            break
    for decimals in range(20):  # the fewest that keep the edges apart
        floors = np.floor(edges * 10**decimals) / 10**decimals
        if len(np.unique(floors)) == len(edges):
            edges = np.append(floors[:-1], edges[-1])
            break
    return Bins(size=len(edges), edges=edges)


def quantile_bins(column: Column, count: int) -> Bins:
    """Up to `count` bins of about equal frequency; single values that are frequent have a bin of their own."""
    known = np.sort(column.data[~column.missing])
    edges = known[np.linspace(0, len(known) - 1, count + 1).astype(np.int64)]
    repeated = np.unique(edges[1:][edges[1:] == edges[:-1]])
    edges = np.unique(np.concatenate([edges, np.nextafter(repeated, np.inf), known[-1:]]))
    edges = np.append(edges, edges[-1] + 1) if len(edges) == 1 else edges
    return Bins(size=len(edges), edges=edges)


def _binned(both: Both, bins: Bins) -> Both:
    return bins.apply(both[0]), bins.apply(both[1])


def _shares(cells: Both, size: int) -> Both:
    real, other = (np.bincount(cell, minlength=size) / max(len(cell), 1) for cell in cells)
    return real, other


def total_variation(cells: Both, size: int) -> float:
    real, other = _shares(cells, size)
    return float(0.5 * np.abs(real - other).sum())


def largest_gap(cells: Both, size: int) -> float:
    """The Kolmogorov-Smirnov distance, for cells in the order of values."""
    real, other = _shares(cells, size)
    return float(np.abs(np.cumsum(real) - np.cumsum(other)).max())


def _distance_of_numbers(real: Any, other: Any) -> float:
    both = (Column(kind="number", data=np.asarray(real, np.float64)), Column(kind="number", data=np.asarray(other, np.float64)))
    bins = quantile_bins(both[0], FINE)
    return largest_gap(_binned(both, bins), bins.size)


# ---- sequences ----


def compare_sequences(real: Events, other: Events) -> dict[str, float]:
    """Distances of times, order and subjects; each is the mean over columns."""
    sides = (real, other)
    found: dict[str, list[float]] = {"lengths": [_distance_of_numbers(real.lengths, other.lengths)]}
    for name, values in real.columns.items():
        both = (values, other.columns[name])
        is_time = values.kind == "time"
        if is_time:
            both = (_gaps(real, both[0]), _gaps(other, both[1]))
        if both[0].kind == "number":
            bins = quantile_bins(both[0], FINE)
            cells = _binned(both, bins)
            found.setdefault("gaps" if is_time else "values", []).append(largest_gap(cells, bins.size))
            ranks = _ranks(cells, bins)
            found.setdefault("lags", []).append(_lags(sides, ranks))
            if not is_time:
                found.setdefault("subjects", []).append(_levels(sides, ranks))
        if not is_time:
            bins = find_bins(both[0], FEW)
            cells = _binned(both, bins)
            found.setdefault("transitions", []).append(_transitions(sides, cells, bins.size))
            found.setdefault("order", []).append(_places(sides, cells, bins.size))
            if both[0].kind == "category":
                found.setdefault("subjects", []).append(_most_frequent(sides, cells, bins.size))
    order = ("lengths", "gaps", "values", "transitions", "lags", "order", "subjects")
    return {name: float(np.mean(found[name])) for name in order if name in found}


def _gaps(side: Events, times: Column) -> Column:
    """Seconds to the next event; missing at the last one."""
    found = np.full(len(times.data), np.nan)
    first, second = side.pairs(1)
    known = ~(times.missing[first] | times.missing[second])
    found[first[known]] = (times.data[second[known]] - times.data[first[known]]) / 1e9
    return Column(kind="number", data=found)


def _ranks(cells: Both, bins: Bins) -> Both:
    """Values as quantiles of the real ones, from -0.5 to 0.5, so that no tail decides a correlation; NaN where missing."""
    counts = np.bincount(cells[0], minlength=bins.size)[:-1]
    middle = np.append((np.cumsum(counts) - counts / 2) / max(counts.sum(), 1) - 0.5, np.nan)
    return middle[cells[0]], middle[cells[1]]


def _transitions(sides: tuple[Events, Events], cells: Both, size: int) -> float:
    """Total variation of the next value given the value, weighted by the shares of real values."""
    counts = []
    for side, codes in zip(sides, cells, strict=True):
        first, second = side.pairs(1)
        counts.append(np.bincount(codes[first] * size + codes[second], minlength=size * size).reshape(size, size))
    real, other = (count / np.maximum(count.sum(axis=1, keepdims=True), 1) for count in counts)
    weights = counts[0].sum(axis=1) / max(counts[0].sum(), 1)
    return float((weights * 0.5 * np.abs(real - other).sum(axis=1)).sum())


def _lags(sides: tuple[Events, Events], ranks: Both) -> float:
    """The mean difference of the correlation with the value 1 to 10 events later."""
    found = []
    for lag in range(1, MOST_LAG + 1):
        correlations = []
        for side, rank in zip(sides, ranks, strict=True):
            first, second = side.pairs(lag)
            known = ~np.isnan(rank[first] + rank[second])
            if known.sum() < 2 * len(sides[0].lengths) / 10:  # too few sequences are that long
                return float(np.mean(found))
            correlations.append(np.corrcoef(rank[first[known]], rank[second[known]])[0, 1])
        found.append(abs(correlations[0] - correlations[1]))
    return float(np.mean(found))


def _places(sides: tuple[Events, Events], cells: Both, size: int) -> float:
    """Total variation of (fifth of the sequence, value), in sequences of at least two events."""
    joint = []
    for side, codes in zip(sides, cells, strict=True):
        lengths = side.lengths[side.owner]
        rows = np.flatnonzero(lengths > 1)
        joint.append(NUM_PLACES * side.place[rows] // lengths[rows] * size + codes[rows])
    return total_variation((joint[0], joint[1]), NUM_PLACES * size)


def _levels(sides: tuple[Events, Events], ranks: Both) -> float:
    """The distance of each subject's mean and of its deviation, for subjects with at least two values."""
    statistics = []
    for side, rank in zip(sides, ranks, strict=True):
        count, mean, deviation = _moments(side, rank)
        statistics.append((mean[count > 1], deviation[count > 1]))
    return float(np.mean([_distance_of_numbers(*both) for both in zip(*statistics, strict=True)]))


def _moments(side: Events, rank: Any) -> tuple[Any, Any, Any]:
    known = ~np.isnan(rank)
    sums = [
        np.bincount(side.owner[known], weights=one, minlength=len(side.lengths)) for one in (None, rank[known], rank[known] ** 2)
    ]
    count = np.maximum(sums[0], 1)
    return sums[0], sums[1] / count, np.sqrt(np.maximum(sums[2] / count - (sums[1] / count) ** 2, 0))


def _most_frequent(sides: tuple[Events, Events], cells: Both, size: int) -> float:
    """The distance of the share of each subject's most frequent value."""
    found = []
    for side, codes in zip(sides, cells, strict=True):
        counts = np.zeros((len(side.lengths), size))
        np.add.at(counts, (side.owner, codes), 1)
        found.append((counts.max(axis=1) / np.maximum(side.lengths, 1))[side.lengths > 1])
    return _distance_of_numbers(*found)


# ---- records ----


def compare_records(real: Events, other: Events, seed: int, *, is_sequence: bool) -> dict[str, float]:
    """Whether a classifier separates records, and whether synthetic ones are too near to real ones."""
    rng = np.random.default_rng(seed)
    sides = (real, other)
    rows = []
    for side in sides:  # one event per subject: several would be near to each other
        subjects = rng.permutation(np.flatnonzero(side.lengths))
        rows.append(side.starts[subjects] + (rng.random(len(subjects)) * side.lengths[subjects]).astype(np.int64))
    size = min(MOST_RECORDS, *map(len, rows))
    columns: list[dict[str, Column]] = []
    for side, place in zip(sides, rows, strict=True):
        columns.append({name: column.take(place[:size]) for name, column in side.columns.items()})
        if is_sequence:
            lengths = side.lengths[side.owner[place[:size]]].astype(np.float64)
            columns[-1]["Sequence Length"] = Column(kind="number", data=lengths)
    points = tuple(point / np.maximum(np.linalg.norm(point, axis=1, keepdims=True), 1e-300) for point in _points(*columns))
    found = {"classifier of events": classifier_auc(*points, seed), "closest events": _nearer(*points)}
    if is_sequence:
        whole = [side.select(np.flatnonzero(side.lengths)) for side in sides]
        size = min(MOST_RECORDS, *(len(side.lengths) for side in whole))
        few = [side.select(np.sort(rng.permutation(len(side.lengths))[:size])) for side in whole]
        gaps = [_with_gaps(side) for side in few]
        found["classifier of sequences"] = classifier_auc(*_sequence_features(few, gaps), seed)
        found["closest sequences"] = _nearer(*_sequence_points(few, gaps))
    return {name: found[name] for name in sorted(found, key=lambda name: ("closest" in name, name))}


def _with_gaps(side: Events) -> dict[str, Column]:
    """Columns, times as the seconds since the event before; the first event has the time itself in another column."""
    columns = dict(side.columns)
    for name in [name for name, column in columns.items() if column.kind == "time"]:
        seconds = columns.pop(name).data / 1e9
        is_first, since = side.place == 0, np.append(np.nan, np.diff(seconds))
        columns[f"{name}: first"] = Column(kind="number", data=np.where(is_first, seconds, np.nan))
        columns[f"{name}: gap"] = Column(kind="number", data=np.where(is_first, np.nan, since))
    return columns


def _points(real: Mapping[str, Column], other: Mapping[str, Column]) -> Both:
    blocks: Both = ([], [])
    for name in real:
        for side, block in zip(blocks, _encode(real[name], other[name]), strict=True):
            side.append(block)
    return np.concatenate(blocks[0], axis=1), np.concatenate(blocks[1], axis=1)


def _encode(*both: Column) -> Both:
    """Numbers and times by their quantile among the real ones, from -0.5 to 0.5; strings one-hot."""
    if both[0].kind == "category":
        bins = find_bins(both[0], MANY)
        real, other = (0.5 * np.eye(bins.size)[one] for one in _binned((both[0], both[1]), bins))
        return real, other
    from sklearn.preprocessing import QuantileTransformer

    floats = [np.where(one.missing, np.nan, one.data.astype(np.float64))[:, None] for one in both]
    scaler = QuantileTransformer(n_quantiles=min(100, len(floats[0])), subsample=None).fit(floats[0])
    blocks = [np.nan_to_num(scaler.transform(one) - 0.5, nan=0.0) for one in floats]
    if any(np.isnan(one).any() for one in floats):
        blocks = [np.column_stack([block, np.isnan(one) - 0.5]) for block, one in zip(blocks, floats, strict=True)]
    return blocks[0], blocks[1]


def _sequence_points(sides: list[Events], columns: list[dict[str, Column]]) -> list[Any]:
    """The first events of each subject end to end, and its length."""
    found = []
    for side, points in zip(sides, _points(*columns), strict=True):
        wide = np.zeros((len(side.lengths), FIRST_EVENTS, points.shape[1]))
        kept = side.place < FIRST_EVENTS
        wide[side.owner[kept], side.place[kept]] = points[kept]
        lengths = np.minimum(side.lengths, FIRST_EVENTS) / FIRST_EVENTS
        found.append(np.column_stack([wide.reshape(len(wide), -1), lengths, np.log1p(side.lengths)]))
    return found


def _nearer(real: Any, synthetic: Any) -> float:
    """The chance that a synthetic record is nearer to a real one than a real one is to the next; equal ones count half."""
    from sklearn.neighbors import NearestNeighbors

    search = NearestNeighbors(n_neighbors=2).fit(real)
    near, among = search.kneighbors(synthetic)[0][:, 0], np.sort(search.kneighbors(real)[0][:, -1])
    less, upto = (np.searchsorted(among, near, side=side) for side in ("left", "right"))
    return float(1 - (less + upto).mean() / (2 * len(among)))


def _sequence_features(sides: list[Events], columns: list[dict[str, Column]]) -> list[Any]:
    """Statistics of each subject: lengths, levels, spreads, first and last values, changes and transitions."""
    blocks: list[list[Any]] = [[side.lengths[:, None].astype(np.float64)] for side in sides]
    for name in columns[0]:
        both = (columns[0][name], columns[1][name])
        if both[0].kind == "category":
            bins = find_bins(both[0], STATES)
            found = [_category_features(codes, side, bins.size) for codes, side in zip(_binned(both, bins), sides, strict=True)]
        else:
            ranks = [block[:, 0] for block in _encode(*both)]
            found = [_number_features(*one) for one in zip(ranks, (one.missing for one in both), sides, strict=True)]
        for several, block in zip(blocks, found, strict=True):
            several.append(block)
    joined = [np.concatenate(several, axis=1) for several in blocks]
    whole = np.concatenate(joined)
    varied = np.flatnonzero(whole.min(axis=0) < whole.max(axis=0))
    return [one[:, varied] for one in joined]


def _category_features(codes: Any, side: Events, size: int) -> Any:
    first, second = side.pairs(1)
    shares, steps = np.zeros((len(side.lengths), size)), np.zeros((len(side.lengths), size * size))
    np.add.at(shares, (side.owner, codes), 1.0)
    np.add.at(steps, (side.owner[first], codes[first] * size + codes[second]), 1.0)
    num_pairs = np.maximum(side.lengths - 1, 1)
    changes = np.bincount(side.owner[first], weights=codes[first] != codes[second], minlength=len(side.lengths)) / num_pairs
    ends = codes[side.starts], codes[side.starts + side.lengths - 1]
    return np.column_stack([shares / side.lengths[:, None], steps / num_pairs[:, None], *ends, changes])


def _number_features(rank: Any, missing: Any, side: Events) -> Any:
    rank, count = np.where(missing, np.nan, rank), len(side.lengths)
    _, mean, deviation = _moments(side, rank)
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    np.fmin.at(low, side.owner, rank)
    np.fmax.at(high, side.owner, rank)
    first, second = side.pairs(1)
    known = ~np.isnan(rank[first] + rank[second])
    first, second = first[known], second[known]
    num_both = np.maximum(np.bincount(side.owner[first], minlength=count), 1)
    change, product = (
        np.bincount(side.owner[first], weights=one, minlength=count) / num_both
        for one in (np.abs(rank[first] - rank[second]), rank[first] * rank[second])
    )
    ends = rank[side.starts], rank[side.starts + side.lengths - 1]
    share = np.bincount(side.owner, weights=missing, minlength=count) / side.lengths
    found = np.column_stack([mean, deviation, low, high, *ends, change, product, share])
    return np.where(np.isfinite(found), found, BELOW)


def classifier_auc(real: Any, other: Any, seed: int) -> float:
    """The cross-validated AUC of boosted trees that separate two samples: 0.5 is chance."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold

    sides = (real[:MOST_CLASSIFIED], other[:MOST_CLASSIFIED])
    rows, labels = np.concatenate(sides), np.repeat([0, 1], [len(side) for side in sides])
    found = []
    for train, test in StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(rows, labels):
        model: Any = HistGradientBoostingClassifier(**TREES, random_state=seed).fit(rows[train], labels[train])
        found.append(roc_auc_score(labels[test], model.predict_proba(rows[test])[:, 1]))
    return float(np.mean(found))
