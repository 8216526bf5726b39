"""Checks of an audit: what is measured in batches and epochs, and the findings made of it.

AuditFinding       one check and its outcome; EpochLog: which sample each row of an epoch was
Appearance         types, shapes and non-finite values of the entries; gives notes, never faults
Coverage           which samples came more than once in an epoch, and which never
judge_overlap      samples that are also in other data
OrderTraits        how an order compares with a uniform permutation; Recurrence: with that of the epoch before
HeldBatches        batches that change after they were handed out
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from stoker._batch import is_tensor
from stoker._types import Array
from stoker.audit.fingerprints import BatchRows, as_array, listed, seal
from stoker.audit.samples import UNKNOWN, Catalogue, Reference, ReferenceIndex, SampleMatcher, UnmatchedRows

Severity = Literal["fault", "note", "unchecked", "passed"]
Kind = Literal[
    "empty", "seen twice", "never seen", "mixed rows", "foreign rows", "order", "same order", "reused memory", "shared samples",
    "not finite", "shapes", "length",
]  # fmt: skip
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
EXACT = "Contents were compared bit for bit: copies that were rounded, scaled or changed by noise are not found."
"""What a comparison by content leaves out; where samples are numbered, numbers are compared."""
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class AuditFinding:
    """One check and its outcome."""

    kind: Kind
    severity: Severity  # a fault is a bug; a note is worth knowing; what could not be checked says what is needed
    text: str
    count: int = 0  # rows, samples or batches concerned

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"kind": self.kind, "severity": self.severity, "count": self.count, "text": self.text}


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 row, 2 rows, 3 batches."""
    return f"{number:,} {noun}{'' if number == 1 else 'es' if noun.endswith('tch') else 's'}"


def shown(examples: Sequence[str], total: int, between: str = "; ") -> str:
    """Examples at the end of a sentence, with dots where there are more."""
    return between.join(examples) + (f"{between}…" if total > len(examples) else ".")


class EpochLog:
    """Which sample each row of an epoch was, in the order in which they came. Eight bytes per row."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.complete = True  # whether the epoch was followed to its end
        self.unmatched = UnmatchedRows()
        self.num_identified = 0
        self._ends: list[int] = []
        self._identities: list[Array] = []
        self._places: dict[int, Array] = {}

    @property
    def num_batches(self) -> int:
        """Batches so far."""
        return len(self._ends)

    @property
    def num_rows(self) -> int:
        """Rows so far that are not masked."""
        return self._ends[-1] if self._ends else 0

    @property
    def rows(self) -> str:
        """The number of rows, for a message."""
        return f"{counted(self.num_rows, 'row')} of epoch {self.epoch}"

    @property
    def starts(self) -> Array:
        """Where each batch begins, and the end of the last."""
        return np.array([0, *self._ends], dtype=np.int64)

    @property
    def identities(self) -> Array:
        """The identity of each row, or UNKNOWN."""
        if len(self._identities) != 1:
            self._identities = [np.concatenate([np.zeros(0, np.int64), *self._identities])]
        return self._identities[0]

    def add_batch(self, num_rows: int, valid: Array | None) -> None:
        """Note that a batch came, with `num_rows` rows that are samples."""
        if valid is not None and not valid.all():
            self._places[self.num_batches] = np.flatnonzero(valid)
        self._ends.append(self.num_rows + num_rows)

    def add_identities(self, identities: Array) -> None:
        """Note which samples the next rows are."""
        self._identities.append(identities)
        self.num_identified += len(identities)

    def place(self, row: int) -> str:
        """Where a row was, for a message."""
        batch = int(np.searchsorted(self._ends, row, side="right"))
        within = row - (self._ends[batch - 1] if batch else 0)
        if batch in self._places:
            within = int(self._places[batch][within])
        return f"batch {batch:,} row {within:,}"


MAX_ENTRIES = 6  # entries that a note names one by one


class Appearance:
    """What batches looked like so far."""

    def __init__(self) -> None:
        self._num_batches = 0
        self._first: dict[str, str] = {}
        self._changes: dict[str, tuple[int, str, int]] = {}
        self._nonfinite: dict[str, tuple[int, int, str]] = {}
        self._values: dict[str, list[Array]] = {}  # of the first rows, some values of each, by entry

    def add(self, rows: BatchRows, index: int) -> None:
        """Inspect a batch, the `index`-th of its epoch."""
        looks = {name: _look(rows, name) for name in rows.entries} | dict(rows.others)
        for name in {**self._first, **looks}:
            look = looks.get(name, "absent")
            first = self._first.setdefault(name, look if not self._num_batches else "absent")
            if look != first:
                batch, seen, number = self._changes.get(name, (index, look, 0))
                self._changes[name] = (batch, seen, number + 1)
        for name, cells in rows.entries.items():
            if isinstance(cells, np.ndarray) and cells.dtype.kind in "fc":
                self._count(name, cells, rows, index)
                kept = self._values.setdefault(name, [])
                if name not in rows.packed and sum(map(len, kept)) < MEASURED_ROWS:
                    kept.append(
                        cells.reshape(len(cells), -1)[slice(None) if rows.valid is None else rows.valid, :MEASURED_VALUES].copy()
                    )
        self._num_batches += 1

    def are_measurements(self, entries: Iterable[str]) -> bool:
        """Whether one of the entries by which samples are known has several real numbers, which are different in all samples.

        Then no samples are equal by chance. Entries that are drawn again each time, such as augmented inputs, are not among them.
        """
        for kept in (self._values[name] for name in entries if name in self._values):
            if len({values.shape[1:] for values in kept}) == 1:
                distinct = np.unique(np.concatenate(kept), axis=0)
                different = sum(len(np.unique(column)) == len(distinct) for column in distinct.T)
                if len(distinct) >= MIN_MEASURED and different >= 2:
                    return True
        return False

    def findings(self) -> Iterator[AuditFinding]:
        """Notes on what changed and what is not finite."""
        if self._changes:
            parts = []
            for name, (batch, look, number) in list(self._changes.items())[:MAX_ENTRIES]:
                share = f"{number:,} of {counted(self._num_batches, 'batch')} differ"
                parts.append(f"{name!r} is {self._first[name]} at first, but {look} in batch {batch:,} ({share})")
            yield AuditFinding("shapes", "note", shown(parts, len(self._changes)), len(self._changes))
        if self._nonfinite:
            parts = [
                f"{name!r} has {nan:,} NaN and {inf:,} infinite values, first in {place}"
                for name, (nan, inf, place) in list(self._nonfinite.items())[:MAX_ENTRIES]
            ]
            total = sum(nan + inf for nan, inf, _ in self._nonfinite.values())
            yield AuditFinding("not finite", "note", shown(parts, len(self._nonfinite)), total)

    def _count(self, name: str, cells: Array, rows: BatchRows, index: int) -> None:
        with np.errstate(all="ignore"):
            if np.isfinite(cells.sum()):  # one pass without a mask; a sum may overflow, then the values are counted
                return
        by_row = name not in rows.packed
        if by_row and rows.valid is not None:
            cells = np.where(rows.valid.reshape(-1, *[1] * (cells.ndim - 1)), cells, 0)
        bad = ~np.isfinite(cells)
        if not bad.any():
            return
        nan, inf, place = self._nonfinite.get(name, (0, 0, ""))
        row = f" row {int(np.flatnonzero(bad.reshape(len(cells), -1).any(axis=1))[0]):,}" if by_row else ""
        num_nan = int(np.count_nonzero(np.isnan(cells)))
        num_inf = int(np.count_nonzero(bad)) - num_nan
        self._nonfinite[name] = (nan + num_nan, inf + num_inf, place or f"batch {index:,}{row}")


def _look(rows: BatchRows, name: str) -> str:
    cells = rows.entries[name]
    if isinstance(cells, list):
        return "a list"
    shape = ", ".join(map(str, cells.shape[1:]))
    return f"{cells.dtype}[{shape}]" if shape else str(cells.dtype)


# Coverage: which samples came more than once in an epoch, and which never.

MIN_CONTENTS = 32  # fewer distinct contents than this say nothing about how often each was meant to come
USUAL = 0.8  # share of contents that come equally often before that is a rule and no accident


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How an epoch covers the samples."""

    rows_again: Array  # rows whose sample had come before, more often than it is there
    first_seen: Array  # for each of these, the row where it came first
    num_repeated: int  # samples that came too often
    most: int  # how often the most frequent of these came
    times: int  # how often nearly every sample came: 1 is right, 0 is no rule
    uneven: bool  # whether some came another number of times
    missing: Array  # identities that came too rarely
    num_missing: int
    num_listed: int  # samples or contents compared

    @property
    def num_again(self) -> int:
        """Rows served again."""
        return len(self.rows_again)


def cover(log: EpochLog, catalogue: Catalogue | None) -> Coverage:
    """Count what came against what is there; without a catalogue, each content is taken to be there once."""
    rows = np.flatnonzero(log.identities != UNKNOWN)
    identities = log.identities[rows]
    if catalogue is None:
        contents, identities = np.unique(identities, return_inverse=True)
        rights: Array = np.ones(len(contents), dtype=np.int64)
    else:
        rights = catalogue.counts
    came = np.bincount(identities, minlength=len(rights))
    order = np.argsort(identities, kind="stable")
    starts = np.concatenate([[0], np.cumsum(came)])[:-1]
    turn = np.empty(len(rows), dtype=np.int64)  # how many rows of the same identity came before
    turn[order] = np.arange(len(rows)) - starts[identities[order]]
    again = np.flatnonzero(turn >= rights[identities])
    # How often nearly every sample came, if there is such a number.
    numbers, frequency = np.unique(came[came > 0] // rights[came > 0], return_counts=True)
    best = int(np.argmax(frequency)) if len(frequency) else 0
    times = int(numbers[best]) if len(frequency) and frequency[best] >= USUAL * frequency.sum() else 0
    short = np.maximum(rights - came, 0)
    return Coverage(
        rows_again=rows[again],
        first_seen=rows[order[starts[identities[again]]]],
        num_repeated=int(np.count_nonzero(came > rights)),
        most=int(came[came > rights].max(initial=0)),
        times=times,
        uneven=bool(np.any(came != times * rights)),
        missing=np.flatnonzero(short),
        num_missing=int(short.sum()),
        num_listed=int(rights.sum()),
    )


# Overlap: samples that also are in other data, such as validation, where they must not be.

NUM_EXAMPLES = 3
FREQUENT = 8  # times the usual number of a content, beyond which it is an exception that says nothing of the others
MEASURED_ROWS, MEASURED_VALUES, MIN_MEASURED = 2048, 8, 20
MOST_COPIES = 64
SINGLE = 0.1  # share of contents that come once, from which others may be copies
BY_ACCIDENT = 1e-6
BEYOND_CHANCE = 3.0  # times what contents that repeat by themselves would share, from which samples are shared for another reason


def judge_overlap(log: EpochLog, matcher: SampleMatcher, other: Reference, *, are_measurements: bool = False) -> AuditFinding:
    """Compare an epoch with other data: by number where samples have numbers, else by content.

    A content that is frequent on either side (a constant window, an empty row) says nothing about a leak and is left out. Nor do
    contents that are equal no more often between both than within each (labels, categories, small integers), unless they repeat as
    copies do, or are measurements: samples that were copied before the split are in both.
    """
    lacking = [name for name in matcher.contents.entries if name in other.lacking]
    if lacking and not matcher.numbered:
        return AuditFinding("shared samples", "unchecked", f"apart_from has no {listed(lacking)}, by which samples are known.")
    known = log.identities[log.identities != UNKNOWN] if matcher.catalogue is not None else log.identities
    if not matcher.numbered:
        distinct, keys, counts = matcher.contents.came(known)
        their_keys = matcher.contents.words(other.table)
    elif other.ids is None:
        return AuditFinding("shared samples", "unchecked", "Samples are numbered, but those of apart_from are not.")
    else:
        distinct = np.unique(known)
        keys = distinct if matcher.catalogue is None else matcher.catalogue.numbers[distinct]
        counts = np.ones(len(keys), dtype=np.int64)
        their_keys = other.ids
    values, first, their_counts = np.unique(their_keys, return_index=True, return_counts=True)
    _, ours, theirs = np.intersect1d(keys, values, assume_unique=True, return_indices=True)
    _, places = np.unique(np.concatenate([keys, values]), return_inverse=True)
    together = np.bincount(places, weights=np.concatenate([counts, their_counts])).astype(np.int64)
    copied = not matcher.numbered and (are_measurements or are_copies(together))
    usual = MOST_COPIES if copied else 1
    frequent = (counts[ours] > usual * _usual(counts)) | (their_counts[theirs] > usual * _usual(their_counts))
    num_frequent = int(np.count_nonzero(frequent))
    aside = f" {counted(num_frequent, 'content')} that are frequent on either side were left out." if num_frequent else ""
    num_shared = len(ours) - num_frequent
    if not num_shared:
        limits = "" if matcher.numbered else f" {EXACT}"
        return AuditFinding("shared samples", "passed", f"No identical sample is in apart_from.{aside}{limits}")
    # Without a reference, samples that come again look like contents that repeat.
    chance = _chance(counts) if matcher.catalogue is not None else min(_chance(counts), _chance(their_counts))
    explained = BEYOND_CHANCE * chance * float(counts.sum()) * float(their_counts.sum())
    if not matcher.numbered and isinstance(matcher.contents, ReferenceIndex):
        explained = max(explained, matcher.contents.shared_by_chance(their_keys))
    if num_shared <= explained and not copied:
        text = f"Contents are no more often equal in both than within each, so nothing can be said.{aside}"
        return AuditFinding("shared samples", "unchecked", text)
    pairs = zip(distinct[ours[~frequent]].tolist(), other.numbers[first[theirs[~frequent]]].tolist(), strict=True)
    examples = []
    for identity, there in itertools.islice(pairs, NUM_EXAMPLES):
        place = log.place(int(np.flatnonzero(log.identities == identity)[0]))
        here = place if matcher.catalogue is None else f"sample {matcher.catalogue.numbers[identity]:,} ({place})"
        examples.append(f"{here} is row {there:,} there")
    shown_places = shown(examples, num_shared)
    text = f"{num_shared:,} of {counted(len(keys), 'sample')} are in the validation data (apart_from), too: {shown_places}{aside}"
    if copied:
        text += " They repeat as copies do: split the data first, and copy samples (oversampling) of the training part alone."
    return AuditFinding("shared samples", "fault", text, num_shared)


def are_copies(counts: Array) -> bool:
    """Return whether contents that came this often repeat as copies of samples do, not as contents that are equal by chance.

    By chance, the number n[k] of contents that came k times is that of a mixture of Poisson distributions: n[k + 1] is at least
    k / (k + 1) * n[k]^2 / n[k - 1]. Where some samples were copied k times, none comes more often.
    """
    number = np.bincount(counts[counts <= MOST_COPIES], minlength=MOST_COPIES + 2).astype(np.float64)
    if number[1] < SINGLE * number.sum():  # all contents repeat: a design, or a period, in which they are meant to
        return False
    for k in range(2, MOST_COPIES + 1):
        fewest, most = number[k] - 2 * math.sqrt(number[k]), number[k - 1] + 2 * math.sqrt(number[k - 1]) + 1
        expected = k / (k + 1) * max(0.0, fewest) ** 2 / most
        if _at_most(int(number[k + 1]), expected) < BY_ACCIDENT:
            return True
    return False


def _at_most(number: int, expected: float) -> float:
    """Return the probability that a Poisson variable with this mean is at most `number`."""
    if expected <= 0:
        return 1.0
    return math.fsum(math.exp(k * math.log(expected) - expected - math.lgamma(k + 1)) for k in range(number + 1))


def _usual(counts: Array) -> float:
    return float(np.median(counts)) if len(counts) else 0.0


def _chance(counts: Array) -> float:
    """How likely two samples of the same data have the same content."""
    usual = counts[counts <= FREQUENT * _usual(counts)].astype(np.float64)
    return float((usual * (usual - 1)).sum() / max(usual.sum() * (usual.sum() - 1), 1.0))


# Shuffle: how an order of sample numbers compares with a uniform permutation of them.
#
# Three measures, each with the value that chance gives: the spread of numbers inside a batch (1.0), the share of the commonest
# step from one sample to the next (1 in n), and the share of neighbours that are neighbours again in the next epoch (1 in n).

MIN_EVENTS = 12  # equal steps, or equal neighbours, that chance does not bring about: it brings one on average
MIN_SHARE = 0.1
MIN_SPREAD = 0.9
SURE = 6.0  # standard deviations between a measured spread and 1 before it is called different
GROUP = 32  # samples in a row that are compared together where batches hold a single one


class OrderTraits(NamedTuple):
    """What an order looks like."""

    spread: float  # of numbers inside a batch; 1.0 where batches are drawn from everywhere
    error: float  # the standard deviation that the squared spread of a true shuffle would have
    step: int  # the commonest from one sample to the next
    step_share: float
    num_samples: int  # rows with a number of their own

    @property
    def stepped(self) -> bool:
        """Whether samples follow each other at a fixed distance."""
        return self.step_share >= MIN_SHARE and round(self.step_share * (self.num_samples - 1)) >= MIN_EVENTS

    @property
    def clustered(self) -> bool:
        """Whether batches are drawn from parts of the data."""
        return self.spread < MIN_SPREAD and (1 - self.spread**2) > SURE * self.error

    @property
    def judged(self) -> bool:
        """Whether a bad order would have been noticed."""
        return self.stepped or self.clustered or self.num_samples > MIN_EVENTS / MIN_SHARE or SURE * self.error < 1 - MIN_SPREAD**2


def measure(ranks: Array, starts: Array, num_samples: int) -> OrderTraits:
    """Measure one epoch, from the rank of each row's sample among `num_samples` (-1: unknown) and where batches begin."""
    known = np.flatnonzero(ranks >= 0)
    starts = np.searchsorted(known, starts)
    ranks = ranks[known]
    steps, number = np.unique(np.diff(ranks), return_counts=True)
    step, share = 0, 0.0
    if len(number):
        best = int(np.argmax(number))
        step, share = int(steps[best]), float(number[best] / max(len(ranks) - 1, 1))
    return OrderTraits(*_spread(ranks, starts, num_samples), step, share, len(ranks))


def _spread(ranks: Array, starts: Array, num_samples: int) -> tuple[float, float]:
    """The spread inside batches over that of a uniform draw, and the error of its square."""
    sizes = np.diff(starts)
    if len(sizes) and sizes.max() <= 1:
        starts = np.arange(0, len(ranks) + 1, min(GROUP, max(len(ranks), 1)))
        sizes = np.diff(starts)
    full = sizes >= 2
    begins, sizes = starts[:-1][full], sizes[full].astype(np.float64)
    if not len(sizes):
        return 1.0, math.inf
    values = ranks.astype(np.float64) - (num_samples - 1) / 2  # around zero, so that squares keep their digits
    totals = np.concatenate([[0.0], np.cumsum(values)])
    squares = np.concatenate([[0.0], np.cumsum(values**2)])
    ends = begins + sizes.astype(np.int64)
    within = (squares[ends] - squares[begins]) - (totals[ends] - totals[begins]) ** 2 / sizes
    free = sizes - 1
    uniform = num_samples * (num_samples + 1) / 12
    ratio = max(float(within.sum() / free.sum() / uniform), 0.0)
    # The variance of a sample variance of the uniform distribution, whose excess kurtosis is -1.2.
    error = math.sqrt(float((free**2 * (2 / free - 1.2 / sizes)).sum())) / float(free.sum())
    return math.sqrt(ratio), error


class Recurrence(NamedTuple):
    """Neighbours of one epoch that are neighbours again in the next."""

    number: int
    share: float
    num_compared: int  # samples that came in both epochs and have a content of their own


def recurrence(before: Array, now: Array, counts: Array | None) -> Recurrence:
    """Compare the order of two epochs; `counts` says how many samples have an identity, None that identities are contents."""
    before, now = _distinct(before, counts), _distinct(now, counts)
    before, now = before[np.isin(before, now)], now[np.isin(now, before)]
    if len(before) < 2 or len(now) < 2:
        return Recurrence(0, 0.0, len(before))
    again = int(np.count_nonzero(np.isin(_pairs(before), _pairs(now))))
    return Recurrence(again, again / (len(before) - 1), len(before))


def _distinct(identities: Array, counts: Array | None) -> Array:
    """The first row of each sample, without those whose content others have, too."""
    if counts is None:
        values, first, number = np.unique(identities, return_index=True, return_counts=True)
        return identities[np.sort(first[number <= np.median(number)])] if len(values) else identities
    known = identities[identities >= 0]
    _, first = np.unique(known, return_index=True)
    known = known[np.sort(first)]
    alone: Array = known[counts[known] == 1]
    return alone


def _pairs(identities: Array) -> Array:
    words = identities.astype(np.int64).view(np.uint64)
    pairs: Array = (words[:-1] * np.uint64(0x9E3779B97F4A7C15)) ^ (words[1:] * np.uint64(0xBF58476D1CE4E5B9) + np.uint64(1))
    return pairs


# Verdicts on order: is it as shuffled as it is said to be, and does each epoch have another order?


def judge_order(order: OrderTraits | None, shuffled: bool | None) -> AuditFinding:
    """The order of an epoch, against what is said of it."""
    if order is None:
        return AuditFinding("order", "unchecked", "Needs sample numbers: by a reference, or by ids.")
    if not order.judged:
        rows = counted(order.num_samples, "row")
        return AuditFinding("order", "unchecked", f"{rows} had a number of their own: too few to judge their order.")
    spread = f"sample numbers inside a batch spread {order.spread:.2f} times as far as after a shuffle"
    if order.stepped:
        text = f"{order.step_share:.0%} of the samples are followed by the {_follower(order.step)}; {spread}."
    elif order.clustered:
        text = f"Batches are drawn from parts of the data: {spread}."
    else:
        return AuditFinding("order", "passed", f"Shuffled: {spread}, and no step from one to the next is common.")
    if shuffled is False:
        return AuditFinding("order", "passed", f"Not shuffled, as it says. {text}")
    if shuffled is None:
        return AuditFinding("order", "note", f"Not shuffled. {text}", 1)
    return AuditFinding("order", "fault", f"Said to be shuffled, but is not. {text}", 1)


def _follower(step: int) -> str:
    if abs(step) == 1:
        return "next one" if step == 1 else "one before"
    return f"one {abs(step):,} {'after' if step > 0 else 'before'} it" if step else "same one"


def judge_recurrence(again: Recurrence, order: OrderTraits | None, shuffled: bool | None) -> AuditFinding:
    """The order of one epoch against that of the epoch before."""
    if again.num_compared < MIN_EVENTS:
        text = f"{counted(again.num_compared, 'sample')} of a content of their own came in two epochs: too few to compare."
        return AuditFinding("same order", "unchecked", text)
    if again.share < MIN_SHARE or again.number < MIN_EVENTS:
        return AuditFinding("same order", "passed", "Each epoch has an order of its own.")
    some = f"{again.share:.0%} of the samples have the same follower in two epochs"
    text = some if again.share < 1 else "Two epochs have the very same order"
    if shuffled is False or (order is not None and order.stepped):
        return AuditFinding("same order", "passed", f"{text}, as expected of an order that is not shuffled.")
    return AuditFinding("same order", "fault" if shuffled else "note", f"{text}: is the seed the same each time?", again.number)


# Kept batches: an audit holds on to some of what it was given, and looks again whether it is still the same.
#
# The first batches are held to the end, the latest for a while; a loader that writes into memory it has handed out is caught
# by the hash of that memory.

NUM_KEPT = 8
AGES = (1, 2, 4, 8)  # after how many further batches a batch is compared again
MAX_BYTES = 2**28  # memory that kept batches may hold; at least one is always kept


@dataclass
class _Batch:
    number: int
    tensors: dict[str, Any]
    seals: dict[str, int]
    num_rows: int
    addresses: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        return sum(size for _, size in self.addresses.values())


class HeldBatches:
    """Batches of one epoch that are held, with the hash that each had when it came."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._first: list[_Batch] = []
        self._latest: list[_Batch] = []
        self._changed: dict[int, str] = {}
        self._same: dict[int, int] = {}
        self._num_seen = 0

    def add(self, rows: BatchRows) -> None:
        """Hold a batch, and look again at those before it."""
        if not rows.num_rows:
            self._num_seen += 1
            return
        batch = self._hold(rows)
        for kept in self._held():
            age = batch.number - kept.number
            if age in AGES:
                self._look_again(kept, age, batch)
            # Batches of more than one row, every entry of which lies at the same place.
            is_same = bool(kept.addresses) and kept.num_rows > 1 and kept.addresses == batch.addresses
            if kept.number not in self._changed and is_same:
                self._same.setdefault(batch.number, kept.number)
        self._latest = [kept for kept in self._latest if batch.number - kept.number < NUM_KEPT]
        if sum(kept.num_bytes for kept in self._held()) + batch.num_bytes > MAX_BYTES:
            self._latest = self._latest[-1:]
        elif len(self._first) < NUM_KEPT:
            self._first.append(batch)
        self._latest.append(batch)

    def close(self) -> AuditFinding | None:
        """Inspect everything held one last time; the finding, if any memory changed or came twice."""
        for kept in self._held():
            self._look_again(kept, self._num_seen - 1 - kept.number, None)
        epoch = f" of epoch {self._epoch}" if self._epoch else ""
        if self._changed:
            number, how = min(self._changed.items())
            text = (
                f"{counted(len(self._changed), 'batch')}{epoch} changed after being handed out: batch {number:,} {how}. "
                f"A program that keeps a batch, or copies it asynchronously, trains on the wrong samples."
            )
            return AuditFinding("reused memory", "fault", text, len(self._changed))
        if self._same:
            later, earlier = min(self._same.items())
            text = (
                f"{counted(len(self._same), 'batch')}{epoch} came in memory that an earlier one had not given back: "
                f"batch {later:,} is the memory and content of batch {earlier:,}."
            )
            return AuditFinding("reused memory", "fault", text, len(self._same))
        return None

    def _held(self) -> list[_Batch]:
        return list({kept.number: kept for kept in (*self._first, *self._latest)}.values())

    def _hold(self, rows: BatchRows) -> _Batch:
        batch = _Batch(self._num_seen, dict(rows.originals), {}, rows.num_samples)
        for name, tensor in rows.originals.items():
            cells = rows.entries.get(name)
            array = cells if isinstance(cells, np.ndarray) else as_array(tensor)
            if array is not None and array.nbytes:
                batch.seals[name] = seal(array)
                address = tensor.data_ptr() if is_tensor(tensor) else tensor.__array_interface__["data"][0]
                batch.addresses[name] = (int(address), array.nbytes)
        self._num_seen += 1
        return batch

    def _look_again(self, kept: _Batch, age: int, newest: _Batch | None) -> None:
        if age < 1 or kept.number in self._changed:
            return
        for name, before in kept.seals.items():
            array = as_array(kept.tensors[name])
            if array is None or seal(array) == before:
                continue
            now = seal(array)
            others = [batch for batch in (newest, *self._held()) if batch is not None and batch is not kept]
            heir = next((batch.number for batch in others if batch.seals.get(name) == now), None)
            holds = f" and now holds that of batch {heir:,}" if heir is not None else ""
            self._changed[kept.number] = f"had its {name!r} changed by the time {counted(age, 'further batch')} had come{holds}"
            return
