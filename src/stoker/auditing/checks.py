"""Checks of an audit: what is measured in batches and epochs.

Appearance         types, shapes and non-finite values of the entries; gives notes, never faults
Coverage           which samples came more than once in an epoch, and which never
judge_overlap      samples that are also in other data
Order, Recurrence  how an order compares with a uniform permutation, and with that of the epoch before
HeldBatches        batches that change after they were handed out
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stoker._batch import is_tensor
from stoker._types import Array
from stoker.auditing.findings import UNKNOWN, Catalogue, EpochLog, Finding, Severity, counted, listed, shown
from stoker.auditing.fingerprints import Rows, as_array, seal
from stoker.auditing.samples import Reference, ReferenceIndex, SampleMatcher

MAX_ENTRIES = 6
"""Entries that a note names one by one."""


class Appearance:
    """What batches looked like so far."""

    def __init__(self) -> None:
        self._num_batches = 0
        self._first: dict[str, str] = {}
        self._changes: dict[str, tuple[int, str, int]] = {}
        self._nonfinite: dict[str, tuple[int, int, str]] = {}

    def add(self, rows: Rows, index: int) -> None:
        """Look at a batch, the `index`-th of its epoch."""
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
        self._num_batches += 1

    def findings(self) -> Iterator[Finding]:
        """Notes on what changed and what is not finite."""
        if self._changes:
            parts = []
            for name, (batch, look, number) in list(self._changes.items())[:MAX_ENTRIES]:
                share = f"{number:,} of {counted(self._num_batches, 'batch')} differ"
                parts.append(f"{name!r} is {self._first[name]} at first, but {look} in batch {batch:,} ({share})")
            yield Finding(kind="shapes", severity="note", text=shown(parts, len(self._changes)), count=len(self._changes))
        if self._nonfinite:
            parts = [
                f"{name!r} has {nan:,} NaN and {inf:,} infinite values, first in {place}"
                for name, (nan, inf, place) in list(self._nonfinite.items())[:MAX_ENTRIES]
            ]
            total = sum(nan + inf for nan, inf, _ in self._nonfinite.values())
            yield Finding(kind="not finite", severity="note", text=shown(parts, len(self._nonfinite)), count=total)

    def _count(self, name: str, cells: Array, rows: Rows, index: int) -> None:
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
        found = int(np.count_nonzero(bad)) - num_nan
        self._nonfinite[name] = (nan + num_nan, inf + found, place or f"batch {index:,}{row}")


def _look(rows: Rows, name: str) -> str:
    cells = rows.entries[name]
    if isinstance(cells, list):
        return "a list"
    shape = ", ".join(map(str, cells.shape[1:]))
    return f"{cells.dtype}[{shape}]" if shape else str(cells.dtype)


# Coverage: which samples came more than once in an epoch, and which never.

MIN_CONTENTS = 32
"""Fewer distinct contents than this say nothing about how often each was meant to come."""
USUAL = 0.8
"""Share of contents that come equally often before that is a rule and no accident."""


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How an epoch covers the samples."""

    rows_again: Array
    """Rows whose sample had come before, more often than it is there."""
    first_seen: Array
    """For each of these, the row where it came first."""
    num_repeated: int
    """Samples that came too often."""
    most: int
    """How often the most frequent of these came."""
    times: int
    """How often nearly every sample came: 1 is right, 0 is no rule."""
    uneven: bool
    """Whether some came another number of times."""
    missing: Array
    """Identities that came too rarely."""
    num_missing: int
    num_listed: int
    """Samples or contents compared."""

    @property
    def num_again(self) -> int:
        """Rows served again."""
        return len(self.rows_again)


def cover(ledger: EpochLog, catalogue: Catalogue | None) -> Coverage:
    """Count what came against what is there; without a catalogue, each content is taken to be there once."""
    rows = np.flatnonzero(ledger.identities != UNKNOWN)
    identities = ledger.identities[rows]
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
    times = _usual_times(came, rights)
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


def _usual_times(came: Array, rights: Array) -> int:
    """How often nearly every sample came."""
    present = came[came > 0] // rights[came > 0] if len(came) else came
    if not len(present):
        return 0
    times, number = np.unique(present, return_counts=True)
    best = int(np.argmax(number))
    return int(times[best]) if number[best] >= USUAL * len(present) else 0


# Overlap: samples that also are in other data, such as validation, where they must not be.

NUM_EXAMPLES = 3
FREQUENT = 8
"""Times the usual number of a content, beyond which it is an exception that says nothing of the others."""
BEYOND_CHANCE = 3.0
"""Times what contents that repeat by themselves would share, from which samples are shared for another reason."""


def judge_overlap(ledger: EpochLog, matcher: SampleMatcher, other: Reference) -> Finding:
    """Compare an epoch with other data: by number where samples have numbers, else by content.

    A content that is frequent on either side (a constant window, an empty row) says nothing about a leak and is left out. Nor do
    contents that are equal no more often between both than within each (labels, categories, small whole numbers).
    """
    lacking = [name for name in matcher.contents.entries if name in other.lacking]
    if lacking and matcher.numbered is None:
        text = f"apart_from has no {listed(lacking)}, by which samples are known."
        return Finding(kind="shared samples", severity="unchecked", text=text)
    known = ledger.identities[ledger.identities != UNKNOWN] if matcher.catalogue is not None else ledger.identities
    if matcher.numbered is None:
        distinct, keys, counts = matcher.contents.came(known)
        their_keys = matcher.contents.words(other.table)
    elif other.ids is None:
        return Finding(kind="shared samples", severity="unchecked", text="Samples are numbered, but those of apart_from are not.")
    else:
        distinct = np.unique(known)
        keys = distinct if matcher.catalogue is None else matcher.catalogue.numbers[distinct]
        counts = np.ones(len(keys), dtype=np.int64)
        their_keys = other.ids
    values, first, their_counts = np.unique(their_keys, return_index=True, return_counts=True)
    _, ours, theirs = np.intersect1d(keys, values, assume_unique=True, return_indices=True)
    frequent = (counts[ours] > _usual(counts)) | (their_counts[theirs] > _usual(their_counts))
    num_frequent = int(np.count_nonzero(frequent))
    aside = f" {counted(num_frequent, 'content')} that are frequent on either side were left out." if num_frequent else ""
    num_shared = len(ours) - num_frequent
    if not num_shared:
        return Finding(kind="shared samples", severity="passed", text=f"No sample is in apart_from, too.{aside}")
    # Without a reference, samples that come again look like contents that repeat.
    chance = _chance(counts) if matcher.catalogue is not None else min(_chance(counts), _chance(their_counts))
    explained = BEYOND_CHANCE * chance * float(counts.sum()) * float(their_counts.sum())
    if matcher.numbered is None and isinstance(matcher.contents, ReferenceIndex):
        explained = max(explained, matcher.contents.shared_by_chance(their_keys))
    if num_shared <= explained:
        text = f"Contents are no more often equal in both than within each, so nothing can be said.{aside}"
        return Finding(kind="shared samples", severity="unchecked", text=text)
    pairs = zip(distinct[ours[~frequent]].tolist(), other.numbers[first[theirs[~frequent]]].tolist(), strict=True)
    examples = [_example(identity, there, ledger, matcher) for identity, there in itertools.islice(pairs, NUM_EXAMPLES)]
    text = f"{num_shared:,} of {counted(len(keys), 'sample')} are in apart_from, too: {shown(examples, num_shared)}{aside}"
    return Finding(kind="shared samples", severity="fault", text=text, count=num_shared)


def _usual(counts: Array) -> float:
    return float(np.median(counts)) if len(counts) else 0.0


def _chance(counts: Array) -> float:
    """How likely two samples of the same data have the same content."""
    usual = counts[counts <= FREQUENT * _usual(counts)].astype(np.float64)
    return float((usual * (usual - 1)).sum() / max(usual.sum() * (usual.sum() - 1), 1.0))


def _example(identity: int, there: int, ledger: EpochLog, matcher: SampleMatcher) -> str:
    place = ledger.place(int(np.flatnonzero(ledger.identities == identity)[0]))
    catalogue = matcher.catalogue
    number = f"sample {catalogue.numbers[identity]:,} ({place})" if catalogue is not None else place
    return f"{number} is row {there:,} there"


# Shuffle: how an order of sample numbers compares with a uniform permutation of them.
#
# Three measures, each with the value that chance gives: the spread of numbers inside a batch (1.0), the share of the commonest
# step from one sample to the next (1 in n), and the share of neighbours that are neighbours again in the next epoch (1 in n).

MIN_EVENTS = 12
"""Equal steps, or equal neighbours, that chance does not bring about: it brings one on average."""
MIN_SHARE = 0.1
MIN_SPREAD = 0.9
SURE = 6.0
"""Standard deviations between a measured spread and 1 before it is called different."""
GROUP = 32
"""Samples in a row that are looked at together where batches hold a single one."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What an order looks like."""

    spread: float
    """Of numbers inside a batch; 1.0 where batches are drawn from everywhere."""
    error: float
    """The standard deviation that the squared spread of a true shuffle would have."""
    step: int
    """The commonest step from one sample to the next."""
    step_share: float
    num_samples: int
    """Rows with a number of their own."""

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


def measure(ranks: Array, starts: Array, num_samples: int) -> Order:
    """Measure one epoch, from the rank of each row's sample among `num_samples` (-1: unknown) and where batches begin."""
    known = np.flatnonzero(ranks >= 0)
    starts = np.searchsorted(known, starts)
    ranks = ranks[known]
    steps, number = np.unique(np.diff(ranks), return_counts=True)
    best = int(np.argmax(number)) if len(number) else -1
    spread, error = _spread(ranks, starts, num_samples)
    return Order(
        spread=spread,
        error=error,
        step=int(steps[best]) if best >= 0 else 0,
        step_share=float(number[best] / max(len(ranks) - 1, 1)) if best >= 0 else 0.0,
        num_samples=len(ranks),
    )


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


@dataclass(frozen=True, kw_only=True)
class Recurrence:
    """Neighbours of one epoch that are neighbours again in the next."""

    number: int
    share: float
    num_compared: int
    """Samples that came in both epochs and have a content of their own."""


def recurrence(before: Array, now: Array, counts: Array | None) -> Recurrence:
    """Compare the order of two epochs; `counts` says how many samples have an identity, None that identities are contents."""
    before, now = _distinct(before, counts), _distinct(now, counts)
    before, now = before[np.isin(before, now)], now[np.isin(now, before)]
    if len(before) < 2 or len(now) < 2:
        return Recurrence(number=0, share=0.0, num_compared=len(before))
    again = int(np.count_nonzero(np.isin(_pairs(before), _pairs(now))))
    return Recurrence(number=again, share=again / (len(before) - 1), num_compared=len(before))


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


def judge_order(order: Order | None, shuffled: bool | None) -> Finding:
    """The order of an epoch, against what is said of it."""
    if order is None:
        return Finding(kind="order", severity="unchecked", text="Needs sample numbers: by a reference, or by ids.")
    if not order.judged:
        text = f"{counted(order.num_samples, 'row')} had a number of their own: too few to judge their order."
        return Finding(kind="order", severity="unchecked", text=text)
    spread = f"sample numbers inside a batch spread {order.spread:.2f} times as far as after a shuffle"
    if order.stepped:
        text = f"{order.step_share:.0%} of the samples are followed by the {_follower(order.step)}; {spread}."
    elif order.clustered:
        text = f"Batches are drawn from parts of the data: {spread}."
    else:
        return Finding(kind="order", severity="passed", text=f"Shuffled: {spread}, and no step from one to the next is common.")
    if shuffled is False:
        return Finding(kind="order", severity="passed", text=f"Not shuffled, as it says. {text}")
    if shuffled is None:
        return Finding(kind="order", severity="note", text=f"Not shuffled. {text}", count=1)
    return Finding(kind="order", severity="fault", text=f"Said to be shuffled, but is not. {text}", count=1)


def _follower(step: int) -> str:
    if abs(step) == 1:
        return "next one" if step == 1 else "one before"
    return f"one {abs(step):,} {'after' if step > 0 else 'before'} it" if step else "same one"


def judge_recurrence(again: Recurrence, order: Order | None, shuffled: bool | None) -> Finding:
    """The order of one epoch against that of the epoch before."""
    if again.num_compared < MIN_EVENTS:
        text = f"{counted(again.num_compared, 'sample')} of a content of their own came in two epochs: too few to compare."
        return Finding(kind="same order", severity="unchecked", text=text)
    if again.share < MIN_SHARE or again.number < MIN_EVENTS:
        return Finding(kind="same order", severity="passed", text="Each epoch has an order of its own.")
    text = f"{again.share:.0%} of the samples have the same follower in two epochs"
    text = text if again.share < 1 else "Two epochs have the very same order"
    if shuffled is False or (order is not None and order.stepped):
        return Finding(kind="same order", severity="passed", text=f"{text}, as expected of an order that is not shuffled.")
    severity: Severity = "fault" if shuffled else "note"
    return Finding(kind="same order", severity=severity, text=f"{text}: is the seed the same each time?", count=again.number)


# Kept batches: an audit holds on to some of what it was given, and looks again whether it is still the same.
#
# The first batches are held to the end, the latest for a while; a loader that writes into memory it has handed out is caught
# by the hash of that memory.

NUM_KEPT = 8
AGES = (1, 2, 4, 8)
"""After how many further batches a batch is looked at again."""
MAX_BYTES = 2**28
"""Memory that kept batches may hold; at least one is always kept."""


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

    def add(self, rows: Rows) -> None:
        """Hold a batch, and look again at those before it."""
        batch = self._hold(rows)
        for kept in self._held():
            age = batch.number - kept.number
            if age in AGES:
                self._look_again(kept, age, batch)
            if kept.number not in self._changed and _same_memory(kept, batch):
                self._same.setdefault(batch.number, kept.number)
        self._latest = [kept for kept in self._latest if batch.number - kept.number < NUM_KEPT]
        if sum(kept.num_bytes for kept in self._held()) + batch.num_bytes > MAX_BYTES:
            self._latest = self._latest[-1:]
        elif len(self._first) < NUM_KEPT:
            self._first.append(batch)
        self._latest.append(batch)

    def skip(self) -> None:
        """Count a batch without rows."""
        self._num_seen += 1

    def close(self) -> Finding | None:
        """Look at everything held a last time; the finding, if any memory changed or came twice."""
        for kept in self._held():
            self._look_again(kept, self._num_seen - 1 - kept.number, None)
        epoch = f" of epoch {self._epoch}" if self._epoch else ""
        if self._changed:
            number, how = min(self._changed.items())
            text = (
                f"{counted(len(self._changed), 'batch')}{epoch} changed after being handed out: batch {number:,} {how}. "
                f"A program that keeps a batch, or copies it asynchronously, trains on the wrong samples."
            )
            return Finding(kind="reused memory", severity="fault", text=text, count=len(self._changed))
        if self._same:
            later, earlier = min(self._same.items())
            text = (
                f"{counted(len(self._same), 'batch')}{epoch} came in memory that an earlier one had not given back: "
                f"batch {later:,} is the memory and content of batch {earlier:,}."
            )
            return Finding(kind="reused memory", severity="fault", text=text, count=len(self._same))
        return None

    def _held(self) -> list[_Batch]:
        return list({kept.number: kept for kept in (*self._first, *self._latest)}.values())

    def _hold(self, rows: Rows) -> _Batch:
        batch = _Batch(self._num_seen, dict(rows.originals), {}, rows.num_samples)
        for name, tensor in rows.originals.items():
            cells = rows.entries.get(name)
            array = cells if isinstance(cells, np.ndarray) else as_array(tensor)
            if array is not None and array.nbytes:
                batch.seals[name] = seal(array)
                batch.addresses[name] = (_address(tensor), array.nbytes)
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


def _same_memory(one: _Batch, other: _Batch) -> bool:
    """Whether every entry of two batches with more than one row lies at the same place."""
    return bool(one.addresses) and one.num_rows > 1 and one.addresses == other.addresses


def _address(tensor: Any) -> int:
    return int(tensor.data_ptr()) if is_tensor(tensor) else int(tensor.__array_interface__["data"][0])
