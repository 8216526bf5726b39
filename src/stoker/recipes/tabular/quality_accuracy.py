"""The accuracies of mostlyai-qa: distributions of one, two and three columns, and coherence within sequences.

One row per subject is compared: its context, its number of events, one random event and the event after it. An accuracy is 1 minus
half the sum of |share in real - share in synthetic| over the cells of binned columns. Coherence is the mean of three: pairs of a
column and its next value, distinct values per sequence, and sequences per value.

Random numbers are drawn in the order of mostlyai-qa, so the same seed picks the same events and gives the same numbers. One thing is
different: strings that mostly occur once are compared by their number of characters, where mostlyai-qa draws a token of a language model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from stoker._kernels import kernel
from stoker._types import Array
from stoker.recipes.tabular.quality_bins import OTHER, Bins, find_bins, is_text, text_lengths
from stoker.recipes.tabular.quality_noise import Distances, Measure, Splits, average, count_distances, measure
from stoker.recipes.tabular.quality_tables import ColumnValues, Events, join

LENGTH = "Sequence Length"
MOST_COLUMNS, MOST_TRIPLES = 300, 10_000
NUM_BINS, NUM_COHERENCE_BINS = 10, 30
MOST_EVENTS = 100
"""Events per sequence that count for coherence."""
MOST_VALUES = 9
MOST_NOISE = 200
"""Pairs or triples whose noise is measured."""
TITLES = {
    "univariate": "Distributions of columns",
    "bivariate": "Pairs of columns",
    "trivariate": "Triples of columns",
    "coherence": "Coherence of sequences",
}
TOLERANCES = {"univariate": 0.01, "bivariate": 0.02, "trivariate": 0.03, "coherence": 0.02}


@dataclass(frozen=True, kw_only=True)
class AccuracyScore:
    """One accuracy, and the one that a sample of the real law would have by the formula of mostlyai-qa."""

    value: float
    maximum: float


@dataclass(frozen=True, kw_only=True)
class Marginal:
    """The shares of one column's bins, for the page."""

    column: str
    labels: Sequence[str]
    real: Array
    synthetic: Array
    accuracy: AccuracyScore


@dataclass(frozen=True, kw_only=True)
class Accuracies:
    """All of them; `parts` are by name, as far as they exist."""

    overall: AccuracyScore
    parts: Mapping[str, AccuracyScore]
    measures: Sequence[Measure]
    marginals: Sequence[Marginal]
    pairs: Mapping[tuple[str, str], AccuracyScore]
    """Of two columns; a context column has the prefix `context: `, and a column paired with itself is its next value."""


def compare_accuracy(real: Sequence[Events], synthetic: Events, splits: Splits, *, seed: int, is_sequence: bool) -> Accuracies:
    """The accuracies of a synthetic table; `real` are training and holdout tables."""
    random = np.random.RandomState(seed)
    picked = [_pick(one, random, is_sequence=is_sequence) for one in (*real, synthetic)]
    texts = [name for name, values in picked[0].items() if is_text(values)]
    for one in picked:
        one.update({name: text_lengths(one[name]) for name in texts})
    rows, other = _binned(picked[:-1], picked[-1])
    names = list(rows.bins)
    target = [i for i, name in enumerate(names) if name.startswith("tgt::")]
    triples = _few(list(combinations(target, 3)), MOST_TRIPLES, random)
    pairs = [*combinations(target, 2), *((one, i) for one in target for i, name in enumerate(names) if name.startswith("ctx::"))]
    following = [(i, names.index(f"nxt::{names[i][5:]}")) for i in target if f"nxt::{names[i][5:]}" in names]
    # Rows lie in the order in which they were drawn; the splits know subjects by number.
    mine = splits.take(rows.subjects)
    groups: dict[str, Sequence[tuple[int, ...]]] = {
        "univariate": [(one,) for one in target],
        "bivariate": pairs,
        "trivariate": triples,
    }
    parts: dict[str, AccuracyScore] = {}
    distances: dict[str, dict[str, Distances]] = {}
    single: dict[tuple[int, ...], AccuracyScore] = {}
    for group, combos in groups.items():
        if combos:
            found = _compare(rows.codes, other.codes, rows.sizes, combos)
            single |= dict(zip(combos, found, strict=True))
            parts[group] = _mean(found)
            few = _few(list(combos), MOST_NOISE, np.random.RandomState(seed))
            scores = {combo: 1 - one.value for combo, one in zip(combos, found, strict=True)}
            distances[group] = {_title(names, combo): _noisy(rows, other, combo, mine, scores[combo]) for combo in few}
    if is_sequence and following:
        found = _compare(rows.codes, other.codes, rows.sizes, following)
        single |= {(one, one): accuracy for (one, _), accuracy in zip(following, found, strict=True)}
        three = [_mean(found)]
        noise = [average([_noisy(rows, other, combo, mine, 1 - one.value) for combo, one in zip(following, found, strict=True)])]
        for accuracies, several in _coherence(join(real), synthetic, splits, random):
            three.append(_mean(accuracies))
            noise.append(average(several))
        parts["coherence"] = _mean(three)
        distances["coherence"] = dict(zip(("next event", "values per sequence", "sequences per value"), noise, strict=True))
    measures = [
        replace(mean, score=1 - parts[group].value)
        for group, several in distances.items()
        if (mean := measure(group, TITLES[group], several, splits, tolerance=TOLERANCES[group])) is not None
    ]
    return Accuracies(
        overall=_mean(list(parts.values())),
        parts=parts,
        measures=measures,
        marginals=[_marginal(names[i], rows, other, i, single[(i,)]) for i in target],
        pairs={
            (_plain(names[one]), _plain(names[two])): single[(one, two)] for one, two in [*pairs, *((i, i) for i, _ in following)]
        },
    )


def _mean(several: Sequence[AccuracyScore]) -> AccuracyScore:
    return AccuracyScore(
        value=float(np.mean([one.value for one in several])), maximum=float(np.mean([one.maximum for one in several]))
    )


def _few(combos: list[tuple[int, ...]], most: int, random: np.random.RandomState) -> list[tuple[int, ...]]:
    return [combos[i] for i in np.sort(random.permutation(len(combos))[:most])] if len(combos) > most else combos


def _plain(name: str) -> str:
    return f"context: {name[5:]}" if name.startswith("ctx::") else name[5:]


def _title(names: Sequence[str], combo: Sequence[int]) -> str:
    return " and ".join(_plain(names[i]) for i in combo)


# ---- one row per subject ----


def _pick(events: Events, random: np.random.RandomState, *, is_sequence: bool) -> dict[str, ColumnValues]:
    """A random event of each subject and the one after it, in a random order of subjects; subjects without events are left out."""
    presented = events.first_rows[random.permutation(events.num_subjects)]
    drawn = np.zeros(events.num_subjects)
    filled = events.lengths > 0
    drawn[filled] = random.random_sample(int(filled.sum()))
    presented = presented[filled[presented]]
    place = ((events.lengths - 1) * drawn).astype(np.int64)[presented]
    rows = events.order[events.offsets[presented] + place]
    following = np.full(len(rows), -1)
    has_next = place + 1 < events.lengths[presented]
    following[has_next] = events.order[events.offsets[presented[has_next]] + place[has_next] + 1]
    names = sorted(events.columns)[:MOST_COLUMNS]
    found = {f"ctx::{name}": events.context[name].take(presented) for name in sorted(events.context)[:MOST_COLUMNS]}
    if is_sequence or not names:
        lengths = events.lengths[presented].astype(np.float64)
        found[f"tgt::{LENGTH}"] = ColumnValues(name=LENGTH, kind="number", data=lengths)
    found |= {f"tgt::{name}": events.columns[name].take(rows) for name in names}
    if is_sequence:
        found |= {f"nxt::{name}": events.columns[name].take(following) for name in names}
    found["subjects"] = ColumnValues(name="subjects", kind="number", data=presented.astype(np.float64))
    return found


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """Binned columns of one row per subject."""

    codes: Array  # [columns, rows]
    bins: Mapping[str, Bins]
    subjects: Array

    @property
    def sizes(self) -> Array:
        return np.array([one.size for one in self.bins.values()])

    def cells(self, combo: Sequence[int]) -> tuple[Array, int]:
        """The cell of each row for some columns, and how many there are."""
        cells, num_cells = np.zeros(self.codes.shape[1], dtype=np.int32), 1
        for column in combo:
            size = int(self.sizes[column])
            cells, num_cells = cells * size + self.codes[column], num_cells * size
        return cells, num_cells


def _binned(real: Sequence[Mapping[str, ColumnValues]], synthetic: Mapping[str, ColumnValues]) -> tuple[_Rows, _Rows]:
    starts = np.concatenate([[0], np.cumsum([len(one["subjects"].data) for one in real])])
    subjects = np.concatenate([one["subjects"].data + start for one, start in zip(real, starts, strict=False)]).astype(np.int64)
    names = [name for name in real[0] if name != "subjects"]
    bins, mine, theirs = {}, [], []
    for name in names:
        values = replace(real[0][name], data=np.concatenate([one[name].data for one in real]))
        bins[name] = find_bins(values, NUM_BINS)
        mine.append(bins[name].apply(values))
        theirs.append(bins[name].apply(synthetic[name]))
    return (
        _Rows(codes=np.stack(mine).astype(np.uint8), bins=bins, subjects=subjects),
        _Rows(codes=np.stack(theirs).astype(np.uint8), bins=bins, subjects=synthetic["subjects"].data.astype(np.int64)),
    )


def _marginal(name: str, real: _Rows, synthetic: _Rows, column: int, accuracy: AccuracyScore) -> Marginal:
    size = int(real.sizes[column])
    shares = [np.bincount(rows.codes[column], minlength=size) / max(rows.codes.shape[1], 1) for rows in (real, synthetic)]
    used = (shares[0] > 0) | (shares[1] > 0)
    labels = [label for label, is_used in zip(real.bins[name].labels, used, strict=True) if is_used]
    return Marginal(column=_plain(name), labels=labels, real=shares[0][used], synthetic=shares[1][used], accuracy=accuracy)


def _noisy(real: _Rows, synthetic: _Rows, combo: Sequence[int], splits: Splits, score: float) -> Distances:
    cells, num_cells = real.cells(combo)
    found = count_distances((cells, np.arange(len(cells))), synthetic.cells(combo)[0], num_cells, splits)
    return replace(found, score=score)


def _compare(real: Array, synthetic: Array, sizes: Array, combos: Sequence[tuple[int, ...]]) -> list[AccuracyScore]:
    """The accuracies of columns together, rounded to 5 decimals as in mostlyai-qa."""
    wide = np.full((len(combos), 3), -1, dtype=np.int64)
    for row, combo in enumerate(combos):
        wide[row, : len(combo)] = combo
    largest = max(int(np.prod([int(sizes[i]) for i in combo])) for combo in combos)
    found = np.zeros((len(combos), 2))
    _compare_cells(real, synthetic, sizes, wide, np.zeros((2, largest), dtype=np.int64), found)
    return [AccuracyScore(value=float(value), maximum=float(maximum)) for value, maximum in np.round(1 - found / 2, 5)]


def accuracy_of_counts(real: Array, synthetic: Array) -> AccuracyScore:
    """The accuracy of counts of the same cells."""
    n_real, n_synthetic = max(real.sum(), 1), max(synthetic.sum(), 1)
    shares = real / n_real
    observed = np.abs(shares - synthetic / n_synthetic).sum()
    expected = np.sqrt(shares * (1 - shares) * (1 / n_real + 1 / n_synthetic) * 2 / np.pi).sum()
    return AccuracyScore(value=round(float(1 - observed / 2), 5), maximum=round(float(1 - expected / 2), 5))


@kernel
def _compare_cells(real: Array, synthetic: Array, sizes: Array, combos: Array, counts: Array, found: Array) -> None:
    """The L1 distance of shares, and its expectation for two samples of the real law, for each combination of columns."""
    for row in range(combos.shape[0]):
        first, second, third = combos[row]
        step = sizes[second] if second >= 0 else 1
        last = sizes[third] if third >= 0 else 1
        used = sizes[first] * step * last
        counts[:, :used] = 0
        for side in range(2):
            codes = real if side == 0 else synthetic
            for i in range(codes.shape[1]):
                cell = np.int64(codes[first, i])
                if second >= 0:
                    cell = cell * step + codes[second, i]
                if third >= 0:
                    cell = cell * last + codes[third, i]
                counts[side, cell] += 1
        n_real, n_synthetic = real.shape[1], synthetic.shape[1]
        observed = expected = 0.0
        for place in range(used):
            share = counts[0, place] / n_real
            observed += abs(share - counts[1, place] / n_synthetic)
            expected += np.sqrt(share * (1 - share) * (1 / n_real + 1 / n_synthetic) * 2 / np.pi)
        found[row, 0], found[row, 1] = observed, expected


# ---- coherence beyond the next event ----


def _coherence(
    real: Events, synthetic: Events, splits: Splits, random: np.random.RandomState
) -> list[tuple[list[AccuracyScore], list[Distances]]]:
    """Distinct values per sequence, and sequences per value, each for every column."""
    mine, theirs = _shuffled(real, random), _shuffled(synthetic, random)
    filled, others = np.flatnonzero(real.lengths), np.flatnonzero(synthetic.lengths)
    few = splits.take(filled)
    everyone = np.arange(len(filled))
    distinct: tuple[list[AccuracyScore], list[Distances]] = ([], [])
    spread: tuple[list[AccuracyScore], list[Distances]] = ([], [])
    for name in sorted(real.columns)[:MOST_COLUMNS]:
        column, other = real.columns[name], synthetic.columns[name]
        if is_text(column):
            column, other = text_lengths(column), text_lengths(other)
        bins = find_bins(column.take(mine), NUM_COHERENCE_BINS)
        held = _held(bins.apply(column.take(mine)), real.owner[mine], real.num_subjects, bins.size)[filled]
        held_other = _held(bins.apply(other.take(theirs)), synthetic.owner[theirs], synthetic.num_subjects, bins.size)[others]
        counts, counts_other = held.sum(axis=1).astype(np.float64), held_other.sum(axis=1).astype(np.float64)
        narrow = find_bins(ColumnValues(name=name, kind="number", data=counts), NUM_BINS)
        cells, cells_other = (narrow.apply(ColumnValues(name=name, kind="number", data=one)) for one in (counts, counts_other))
        distances = count_distances((cells, everyone), cells_other, narrow.size, few)
        distinct[0].append(
            accuracy_of_counts(np.bincount(cells, minlength=narrow.size), np.bincount(cells_other, minlength=narrow.size))
        )
        distinct[1].append(distances)
        held, held_other = (_most_common(one, held.sum(axis=0), bins.labels) for one in (held, held_other))
        spread[0].append(accuracy_of_counts(held.sum(axis=0), held_other.sum(axis=0)))
        owners, values = np.nonzero(held)
        spread[1].append(count_distances((values, owners), np.nonzero(held_other)[1], held.shape[1], few))
    return [distinct, spread]


def _shuffled(events: Events, random: np.random.RandomState) -> Array:
    """Rows in a random order, at most 100 of a subject."""
    random.permutation(int((events.lengths > 0).sum()))  # mostlyai-qa draws an order of the subjects first
    rows = random.permutation(events.num_rows)
    if events.lengths.max(initial=0) <= MOST_EVENTS:
        return rows
    owner = events.owner[rows]
    order = np.argsort(owner, kind="stable")
    place = np.empty(len(rows), dtype=np.int64)
    place[order] = np.arange(len(rows)) - events.offsets[owner[order]]
    return rows[place < MOST_EVENTS]


def _held(codes: Array, owner: Array, num_subjects: int, size: int) -> Array:
    """Which bins each subject has."""
    held = np.zeros((num_subjects, size), dtype=np.bool_)
    held[owner, codes] = True
    return held


def _most_common(held: Array, counts: Array, labels: Sequence[str]) -> Array:
    """The bins that most sequences have, and the others as one."""
    top = np.sort(np.argsort(-counts, kind="stable")[:MOST_VALUES])
    rest = np.setdiff1d(np.arange(held.shape[1]), top)
    other = held[:, rest].any(axis=1)
    kept = held[:, top]
    if OTHER in labels and (place := np.flatnonzero(top == labels.index(OTHER))).size:
        kept[:, place[0]] |= other
        return kept
    return np.column_stack([kept, other])
