"""Samples: how the rows of batches are recognised as samples.

LoaderClaims      what a loader says about itself: its dataset, whether it shuffles, and so on
Catalogue         the samples that there should be
ContentIndex      rows identified by their content, where there is no reference
ReferenceIndex    rows looked up in a reference, as a whole and entry by entry
SampleMatcher     which of these is used, settled with the first rows
Reference         the fingerprints of all samples
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stoker._types import Array
from stoker.audit.fingerprints import BatchForm, BatchRows, Hashes, as_array, combine, listed, rows_of, rows_of_items
from stoker.errors import OptionError

if TYPE_CHECKING:
    from stoker.feed.feed import Feed

UNKNOWN = -1
SampleIds = str | Callable[[Any], Any]  # the name of an entry, or a function of the batch


def numbers_of(ids: SampleIds, rows: BatchRows, batch: Any) -> Array:
    """The sample number of each row that is not masked, int64."""
    if callable(ids):
        given = ids(batch)
        array = as_array(given) if hasattr(given, "dtype") else np.asarray(given)
        what = "the function ids"
    else:
        if ids not in rows.entries:
            raise OptionError(f"ids is {ids!r}, but a batch has {listed(rows.entries)}.", parameter="ids")
        array = np.asarray(rows.entries[ids])
        what = f"the entry {ids!r}"
    if array is None or array.shape != (rows.num_rows,) or array.dtype.kind not in "iu":
        shape = "nothing" if array is None else f"{array.dtype} of shape {array.shape}"
        raise OptionError(f"{what} gives {shape}; expected one integer for each of {rows.num_rows:,} rows.", parameter="ids")
    numbers: Array = array.astype(np.int64)
    return numbers if rows.valid is None else numbers[rows.valid]


# The catalogue: the samples that there should be. An identity is a place in it, or a content where there is no catalogue.


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """Samples by identity."""

    numbers: Array  # the (first) sample number of each identity
    counts: Array  # how many samples have this identity: more than one where their contents are equal
    num_samples: int  # all that there are

    @property
    def partial(self) -> bool:
        """Whether only some samples are listed."""
        return int(self.counts.sum()) < self.num_samples

    def ranks(self, identities: Array) -> tuple[Array, int]:
        """Ranks of rows in the order of sample numbers, and how many there are; UNKNOWN for samples of equal content.

        Where only some samples are listed, others may have their content: then only the first row of an identity has a rank.
        """
        single = np.flatnonzero(self.counts == 1)
        rank = np.full(len(self.counts) + 1, UNKNOWN, dtype=np.int64)  # the last place is that of unknown rows
        rank[single[np.argsort(self.numbers[single])]] = np.arange(len(single))
        ranks = rank[identities]
        if self.partial:
            later = np.ones(len(ranks), dtype=bool)
            later[np.unique(identities, return_index=True)[1]] = False
            ranks[later] = UNKNOWN
        return ranks, len(single)


# Claims: what a loader says about itself, which the audit checks. Reads attributes, runs nothing.
#
# A `DataLoader` of torch is understood with its samplers, and a `Feed` with its order. Any other object may say `dataset`,
# `collate_fn`, `shuffled`, `drop_last`, `batch_size` and `num_replicas`.


@dataclass(frozen=True, kw_only=True)
class LoaderClaims:
    """What a loader promises; None where it promises nothing."""

    name: str
    dataset: Any = None  # map-style: has a length, and items by number
    collate: Callable[[Any], Any] | None = None  # makes a batch of a list of items
    items_are_batches: bool = False
    shuffled: bool | None = None
    once: bool = True  # each sample once per epoch; False where the sampler draws with replacement or a number of its own
    expected: Array | None = None  # the samples that the sampler goes through, where these are not all
    num_replicas: int = 1  # processes that share an epoch
    droppable: int = 0  # samples that an epoch may leave out, because its last batch would be short
    num_workers: int = 0
    iterable: bool = False  # whether each worker process runs the whole iterable of the user


def claims_of(batches: Any) -> LoaderClaims:
    """Read what an iterable of batches says of itself."""
    data = sys.modules.get("torch.utils.data")
    if data is not None and isinstance(batches, data.DataLoader):
        return _torch_claims(batches, data)
    feeds = sys.modules.get("stoker.feed.feed")
    if feeds is not None and isinstance(batches, feeds.Feed):
        return _feed_claims(batches)
    dataset = getattr(batches, "dataset", None)
    dataset = dataset if is_map_style(dataset) else None
    shuffled, collate = getattr(batches, "shuffled", None), getattr(batches, "collate_fn", None)
    replicas = getattr(batches, "num_replicas", 1)
    return LoaderClaims(
        name=getattr(batches, "__name__", None) or type(batches).__name__,
        dataset=dataset,
        collate=collate if callable(collate) else None,
        shuffled=shuffled if isinstance(shuffled, bool) else None,
        num_replicas=replicas if isinstance(replicas, int) else 1,
        droppable=_droppable(dataset, batches),
    )


def epoch_setter(batches: Any) -> Callable[[int], None]:
    """Sets the epoch of a loader or its sampler, as a training run does before each one, counted from that of this call."""
    batcher = getattr(batches, "batch_sampler", None)
    places = [batches, getattr(batches, "sampler", None), batcher, getattr(batcher, "sampler", None)]
    owner: Any = next((place for place in places if callable(getattr(place, "set_epoch", None))), None)
    epoch = getattr(owner, "epoch", 0)
    first = epoch if isinstance(epoch, int) else 0

    def set_epoch(number: int) -> None:
        if owner is not None:
            owner.set_epoch(first + number)

    return set_epoch


def is_map_style(dataset: Any) -> bool:
    """Whether items can be had by number, and their number is known."""
    data = sys.modules.get("torch.utils.data")
    if isinstance(dataset, dict | str | bytes) or (data is not None and isinstance(dataset, data.IterableDataset)):
        return False
    return hasattr(type(dataset), "__getitem__") and hasattr(type(dataset), "__len__")


def _feed_claims(feed: Feed) -> LoaderClaims:
    from stoker.sampling.mixture import Mixture
    from stoker.sampling.orders import ByLength, Sequential, Weighted

    order, repeats = feed.order, isinstance(feed.order, Weighted)
    if isinstance(feed.order, Mixture):
        order, repeats = feed.order.order, feed.order.weights is not None
    dataset = None if feed.is_packed else feed.dataset
    return LoaderClaims(
        name=f"Feed of {feed.store.name}",
        dataset=dataset,
        collate=None if dataset is None else dataset.collate,
        # Samples of similar length need not be from everywhere, nor need heavy ones.
        shuffled=None if isinstance(order, ByLength | Weighted) else not isinstance(order, Sequential),
        once=not repeats,
        num_replicas=feed.ranks.world_size,
        droppable=feed.num_samples % (feed.batch_size * feed.ranks.world_size) if feed.drop_last else 0,
    )


def _torch_claims(loader: Any, data: Any) -> LoaderClaims:
    name = f"{type(loader).__name__} over {type(loader.dataset).__name__}"
    if isinstance(loader.dataset, data.IterableDataset):
        return LoaderClaims(name=name, num_workers=loader.num_workers, iterable=True)
    dataset = loader.dataset if is_map_style(loader.dataset) else None
    alone = loader.batch_size is None and loader.batch_sampler is None
    sampler = loader.sampler if alone else getattr(loader.batch_sampler, "sampler", None)
    shuffled, once, expected, replicas = None, True, None, 1
    if isinstance(sampler, data.SequentialSampler):
        shuffled = False
    elif isinstance(sampler, data.RandomSampler):
        shuffled = True
        once = not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    elif isinstance(sampler, data.SubsetRandomSampler):
        shuffled = True
        expected = np.unique(np.asarray(sampler.indices, dtype=np.int64))
    elif isinstance(sampler, data.WeightedRandomSampler):
        once = not sampler.replacement and sampler.num_samples == len(sampler.weights)
    elif isinstance(sampler, data.DistributedSampler):
        shuffled, replicas = bool(sampler.shuffle), int(sampler.num_replicas)
    elif dataset is not None and sampler is not None and hasattr(sampler, "__len__"):
        once = len(sampler) == len(dataset)
    return LoaderClaims(
        name=name,
        dataset=dataset,
        collate=loader.collate_fn,
        items_are_batches=alone,
        shuffled=None if alone else shuffled,  # the order of items says nothing about the rows in them
        once=once,
        expected=None if alone else expected,
        num_replicas=replicas,
        droppable=_droppable(dataset if expected is None else expected, loader.batch_sampler),
        num_workers=loader.num_workers,
    )


def _droppable(samples: Any, batcher: Any) -> int:
    size = getattr(batcher, "batch_size", None)
    if getattr(batcher, "drop_last", False) is not True or not isinstance(size, int) or size < 1 or samples is None:
        return 0
    return len(samples) % size


# Chance: how many rows may look like a sample that was read and yet be another, where only some samples were read.
#
# Contents that are all different in a part of the data need not be so in all of it. How often two samples can be equal at most is
# known from the pairs that were seen, and so is what equal samples can bring about at most. Only more than that is a fault.

SURE = 1e-5  # chance that a number is beyond what is called the most


def at_most(number: float) -> float:
    """The most that a mean can be if `number` events came, and the most that can come if the mean is `number` (Poisson)."""
    return float((math.sqrt(number) + math.sqrt(-math.log(SURE))) ** 2)


def equal_pairs(words: Hashes) -> int:
    """Pairs of rows with the same word."""
    counts = np.unique(words, return_counts=True)[1]
    return int((counts * (counts - 1) // 2).sum())


def most_likely_equal(num_equal: int, num_rows: int) -> float:
    """The most that the chance of two samples to be equal can be, if that many pairs of that many rows are."""
    pairs = num_rows * (num_rows - 1) / 2
    return min(at_most(num_equal) / pairs, 1.0) if pairs else 1.0


class ContentIndex:
    """Identities that are the fingerprints of whole rows, where there is no reference. Equal rows are one, and none has a number."""

    catalogue = None

    def __init__(self, names: tuple[str, ...], table: Hashes) -> None:
        """Settle, from a first table of rows, which entries count: those that every batch has."""
        self._columns = [column for column in range(len(names)) if table[:, column].all()]
        self.entries = tuple(names[column] for column in self._columns)

    def words(self, table: Hashes) -> Hashes:
        """Fingerprints of whole samples, to compare with those that came."""
        return combine(table[:, self._columns])

    def identify(self, table: Hashes) -> Array:
        """Identities of rows."""
        return self.words(table).view(np.int64)

    def came(self, identities: Array) -> tuple[Array, Hashes, Array]:
        """The distinct identities of an epoch, their fingerprints, and how often each came."""
        distinct, counts = np.unique(identities, return_counts=True)
        return distinct, distinct.view(np.uint64), counts


# The reference index: rows are looked up in a reference, as a whole and entry by entry.
#
# Samples of equal content cannot be distinguished; they are counted, never guessed at. A row that the reference does not hold,
# though it holds each of its entries, is mixed of different samples. A row with an entry that is nowhere is foreign. Of a
# reference that was read in part, only what no sample beyond that part can explain is a fault.

MAX_DETAILED = 1000  # mixed and foreign rows that are remembered one by one; the rest is counted
MIN_KNOWN = 0.5  # an entry that a foreign reference knows in fewer rows looks different there, and is set aside
MIN_KNOWN_EXACT = 0.01  # the same for a reference made by the loader's own means


class MixedRow(NamedTuple):
    """A row whose entries belong to different samples."""

    row: int
    sample: int  # whose anchor it has
    entry: str
    other: int  # the first sample that has this entry
    num_others: int


@dataclass(kw_only=True)
class UnmatchedRows:
    """Rows of one epoch that the reference does not hold as they are."""

    num_mixed: int = 0
    mixed: list[MixedRow] = field(default_factory=list)
    num_foreign: int = 0
    foreign: list[tuple[int, str]] = field(default_factory=list)  # rows, and which of their entries are nowhere in the reference
    seen: list[tuple[Hashes, Hashes]] = field(default_factory=list)
    """Anchors and fingerprints of all rows, where the reference was read in part."""


class ReferenceIndex:
    """Identities that are places in the catalogue of a reference."""

    def __init__(self, reference: Reference, names: tuple[str, ...], table: Hashes) -> None:
        """Settle, from a first table of rows, which entries identify a sample."""
        self.partial = reference.partial
        self.aside = dict.fromkeys(reference.unstable, "depends on chance, or on the rest of its batch")
        self.aside |= dict.fromkeys(reference.lacking, "is not in the reference")
        """Entries that do not identify a sample, and why."""
        least = (MIN_KNOWN_EXACT if reference.exact else MIN_KNOWN) * len(reference.numbers) / max(reference.num_samples, 1)
        for column, name in enumerate(names):
            share = float(np.mean(np.isin(table[:, column], reference.table[:, column])))
            if name in self.aside:
                continue
            if not table[:, column].all():
                self.aside[name] = "is missing in some batches"
            elif share < least:
                self.aside[name] = f"is in the reference for {share:.0%} of the rows only"
        self._columns = [column for column, name in enumerate(names) if name not in self.aside]
        self.entries = tuple(names[column] for column in self._columns)
        self._numbers = reference.numbers
        self._table = reference.table[:, self._columns]
        whole = combine(self._table)
        self._words, first, self._identities, counts = np.unique(whole, return_index=True, return_inverse=True, return_counts=True)
        self.catalogue = Catalogue(numbers=reference.numbers[first], counts=counts, num_samples=reference.num_samples)
        self._parts = [np.unique(column, return_index=True, return_counts=True) for column in self._table.T]
        self._anchor = int(np.argmax([len(words) for words, _, _ in self._parts])) if self._parts else 0
        # In a part of the samples an anchor may be alone that is not so in all of them; where one is there twice, others will be.
        self.anchors_tell = bool(self._parts) and (not self.partial or bool(np.all(self._parts[self._anchor][2] == 1)))
        """Whether who has an anchor alone is known by it."""

    @property
    def anchor(self) -> str:
        """The entry that distinguishes most samples."""
        return self.entries[self._anchor]

    def words(self, table: Hashes) -> Hashes:
        """Fingerprints of whole samples, to compare with those that came."""
        return combine(table[:, self._columns])

    def came(self, identities: Array) -> tuple[Array, Hashes, Array]:
        """The distinct identities of an epoch, their fingerprints, and how many samples have each."""
        distinct = np.unique(identities[identities != UNKNOWN])
        return distinct, self._words[distinct], self.catalogue.counts[distinct]

    def identify(self, table: Hashes, row: int, unmatched: UnmatchedRows) -> Array:
        """Identities of rows, the first of which is `row` of its epoch; notes those that are mixed or foreign."""
        place, held = _find(self._words, self.words(table))
        identities = np.where(held, place, UNKNOWN)
        table = table[:, self._columns]
        anchors, lines, owners = self._parts[self._anchor]
        place, anchored = _find(anchors, table[:, self._anchor])
        if self.partial:
            unmatched.seen.append((table[:, self._anchor], combine(table)))
        odd = np.flatnonzero(~held)
        if not len(odd):
            return identities
        known = np.stack([_find(words, table[odd, column])[1] for column, (words, _, _) in enumerate(self._parts)], axis=1)
        mixed = anchored[odd] & (known.all(axis=1) | self.partial) & (len(self._parts) > 1) & self.anchors_tell
        line = lines[place[odd]]
        # Who has this anchor alone is who came, so y of another row does not count as an x that is missing, too.
        owned = mixed & (owners[place[odd]] == 1)
        identities[odd[owned]] = self._identities[line[owned]]
        unmatched.num_mixed += int(np.count_nonzero(mixed))
        for i in np.flatnonzero(mixed)[: MAX_DETAILED - len(unmatched.mixed)].tolist():
            unmatched.mixed.append(self._mixed(table[odd[i]], int(line[i]), row + int(odd[i])))
        if not self.partial:
            unmatched.num_foreign += int(np.count_nonzero(~mixed))
            for i in np.flatnonzero(~mixed)[: MAX_DETAILED - len(unmatched.foreign)].tolist():
                nowhere = [name for name, good in zip(self.entries, known[i], strict=True) if not good]
                unmatched.foreign.append((row + int(odd[i]), listed(nowhere)))
        return identities

    def again_by_chance(self, num_rows: int) -> float:
        """Of `num_rows` rows, those that may seem to have come again, at most, for they are equal to samples that were not read."""
        if not self.partial:
            return 0.0
        num_equal = 0 if self.anchors_tell else equal_pairs(combine(self._table))
        return at_most(num_rows * len(self._table) * most_likely_equal(num_equal, len(self._table)))

    def mixed_by_chance(self, unmatched: UnmatchedRows) -> float:
        """Rows of an epoch that may seem to be mixed, at most, for they share their anchor with samples that were not read."""
        if not self.partial:
            return 0.0
        anchors, whole = (np.concatenate(words) for words in zip(*unmatched.seen, strict=True))
        num_equal = equal_pairs(anchors) - equal_pairs(whole)  # a sample that comes again shares its anchor with itself alone
        likely = min(most_likely_equal(num_equal, len(anchors)), most_likely_equal(0, len(self._table)))
        return at_most(len(anchors) * len(self._table) * likely)

    def shared_by_chance(self, theirs: Hashes) -> float:
        """Samples that may seem to be in other data, at most, for their contents repeat more than the part that was read shows."""
        if not self.partial:
            return 0.0
        whole = combine(self._table)
        ours = most_likely_equal(equal_pairs(whole), len(whole))
        # Between both, contents are equal no more often than the mean of how often they are so within each (Cauchy-Schwarz).
        likely = math.sqrt(ours * most_likely_equal(equal_pairs(theirs), len(theirs)))
        return at_most(len(whole) * len(theirs) * likely)

    def _mixed(self, found: Hashes, line: int, row: int) -> MixedRow:
        column = int(np.flatnonzero(found != self._table[line])[0])
        words, lines, owners = self._parts[column]
        place, held = _find(words, found[column : column + 1])
        other, num_others = (int(self._numbers[lines[place[0]]]), int(owners[place[0]])) if held[0] else (UNKNOWN, 0)
        return MixedRow(row, int(self._numbers[line]), self.entries[column], other, num_others)


def _find(words: Hashes, wanted: Hashes) -> tuple[Array, Array]:
    """Where each wanted word stands in sorted ones, and whether it does."""
    if not len(words):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    place = np.minimum(np.searchsorted(words, wanted), len(words) - 1)
    return place, words[place] == wanted


# The matcher: settles, with the first rows, how samples are recognised.


@dataclass(frozen=True, kw_only=True)
class SampleMatcher:
    """How rows become identities: by number where they carry one, else by a reference, else by content alone."""

    contents: ReferenceIndex | ContentIndex
    catalogue: Catalogue | None  # the samples that there should be
    basis: str
    numbered: bool = (
        False  # whether rows carry the number of their sample: its place in the catalogue, or else itself, is the identity
    )

    def identify(self, table: Hashes, numbers: Array | None, row: int, unmatched: UnmatchedRows) -> Array:
        """Identities of rows, the first of which is `row` of its epoch; notes those that the reference does not hold."""
        contents = self.contents  # asked also where samples are numbered: it notes rows that are of no sample
        identities = contents.identify(table, row, unmatched) if isinstance(contents, ReferenceIndex) else contents.identify(table)
        if not self.numbered or numbers is None:
            return identities
        if self.catalogue is None:
            return numbers
        place, held = _find(self.catalogue.numbers, numbers)
        return np.where(held, place, UNKNOWN)

    def ranks(self, identities: Array) -> tuple[Array, int] | None:
        """Ranks of rows in the order of sample numbers, and how many there are; None without numbers."""
        if self.catalogue is not None:
            return self.catalogue.ranks(identities)
        if not self.numbered:
            return None
        values, ranks = np.unique(identities, return_inverse=True)
        return ranks, len(values)


@dataclass(frozen=True, kw_only=True)
class MatcherSetup:
    """What a matcher is made from: what the user gave, and what the loader says about itself."""

    claims: LoaderClaims
    form: BatchForm
    ids: SampleIds | None
    limit: int
    report: Callable[[float, int], None]  # gets the share of a reference that is read, and the number of items

    def settle(self, reference: Reference | None, table: Hashes, numbers: Array | None) -> SampleMatcher:
        """Decide with the first rows how samples are recognised."""
        contents, basis = self._compare(reference, table)
        if self.ids is None or numbers is None:
            return SampleMatcher(contents=contents, catalogue=contents.catalogue, basis=basis)
        expected = None if reference is None else reference.ids
        if reference is not None and expected is None and not reference.partial and np.isin(numbers, reference.numbers).all():
            expected = reference.numbers  # others are keys of the user's own, of which no list is known
        by, catalogue = repr(self.ids) if isinstance(self.ids, str) else "the function ids", None
        if reference is not None and expected is not None:
            values, counts = np.unique(expected, return_counts=True)
            catalogue = Catalogue(numbers=values, counts=counts, num_samples=reference.num_samples)
            by += f", {reference.num_samples:,} in all"
        return SampleMatcher(contents=contents, catalogue=catalogue, basis=f"Samples are numbered by {by}. {basis}", numbered=True)

    def _compare(self, reference: Reference | None, table: Hashes) -> tuple[ReferenceIndex | ContentIndex, str]:
        contents = ContentIndex(self.form.names, table)
        if reference is None:
            return contents, f"Compared by content: {listed(contents.entries)}, among themselves, because there is no reference."
        known = ReferenceIndex(reference, self.form.names, table)
        aside = "; ".join(f"{name!r} {why}" for name, why in known.aside.items())
        if not known.entries:
            return contents, f"Samples cannot be found in the reference: {aside}. They need numbers (ids)."
        total, left_out = f"{reference.num_samples:,}", f" ({aside})" if aside else ""
        read = f"{len(reference.numbers):,} of {total}, drawn at random" if reference.partial else f"all {total}"
        return known, f"Compared by content: {listed(known.entries)}{left_out}, with the samples of the reference ({read})."

    def read(self, data: Any, role: str = "reference") -> Reference:
        """Fingerprint other data, in the form of the batches: all samples, or `limit` of them, drawn at random."""
        return _ReferenceReader(self, data, role).read()


# The reference: fingerprints of all samples there are, by number. It turns content into sample numbers.
#
# Items go through the loader's own collate function, so that they look as they do in batches. Entries that do not come out the
# same twice (random augmentation, padding that depends on the batch) cannot identify a sample and are set aside.

PART = 256
NUM_PROBED = 64  # items that are read twice, together and alone, to see whether they stay the same


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Fingerprints of samples: line i is that of sample `numbers[i]`."""

    num_samples: int  # all that there are; more than lines where only some were read
    numbers: Array
    table: Hashes
    lacking: tuple[str, ...] = ()  # entries of the batches that are not in it
    unstable: tuple[str, ...] = ()  # entries that differ between two reads
    ids: Array | None = None
    exact: bool = False  # whether it was made by the loader's own means, so that batches have no excuse to differ

    @property
    def partial(self) -> bool:
        """Whether only some of the samples were read."""
        return len(self.numbers) < self.num_samples


class _ReferenceReader:
    """Reads a map-style dataset, or another iterable of batches, as a reference."""

    def __init__(self, setup: MatcherSetup, data: Any, role: str) -> None:
        claims, has_items = setup.claims, is_map_style(data)
        self._setup, self._form, self._data, self._role = setup, setup.form, data, role
        self._is_own = data is claims.dataset
        self._collate = claims.collate if has_items else None
        self._items_are_batches = self._is_own and claims.items_are_batches
        self._has_items = has_items
        self._has_ids = setup.ids is not None and (isinstance(setup.ids, str) or not has_items)  # a function knows no items

    def read(self) -> Reference:
        if self._items_are_batches or not self._has_items or self._holds_batches():
            return self._read(map(self._look, self._batches()), None, 0)
        only = self._setup.claims.expected if self._is_own else None  # the samples that are meant to come, where these are not all
        total, limit = len(self._data) if only is None else len(only), self._setup.limit
        numbers = np.arange(total) if total <= limit else np.unique(np.random.default_rng(0).integers(0, total, limit))
        numbers = numbers if only is None else only[numbers]
        parts = (self._items(numbers[i : i + PART].tolist()) for i in range(0, len(numbers), PART))
        return self._read(parts, numbers, total)

    def _read(self, parts: Iterator[tuple[BatchRows, Any]], numbers: Array | None, total: int) -> Reference:
        tables, ids, count = [np.zeros((0, len(self._form.names)), np.uint64)], [], 0
        lacking: set[str] = set()
        wanted = self._setup.ids
        for rows, batch in parts:
            tables.append(self._form.table(rows))
            lacking.update(self._form.lacking(rows))
            if wanted is not None and self._has_ids and (not isinstance(wanted, str) or wanted in rows.entries):
                ids.append(numbers_of(wanted, rows, batch))
            count += len(tables[-1])
            self._setup.report(count / max(len(numbers), 1) if numbers is not None else 0.0, count)
        table = np.concatenate(tables)
        if numbers is not None and len(table) != len(numbers):
            raise OptionError(
                f"{len(numbers):,} items of the reference become {len(table):,} rows of batches, so an item is not a sample. "
                f"Pass an iterable of batches as the reference.",
                parameter="reference",
            )
        return Reference(
            num_samples=total if numbers is not None else count,
            numbers=numbers if numbers is not None else np.arange(count),
            table=table,
            lacking=tuple(sorted(lacking)),
            unstable=() if numbers is None else self._unstable(numbers, table),
            ids=np.concatenate(ids) if ids else None,
            exact=self._is_own and self._collate is not None,
        )

    def _unstable(self, numbers: Array, table: Hashes) -> tuple[str, ...]:
        """Read some items again, each alone: what differs depends on chance, or on the rest of its batch."""
        probes = np.unique(np.linspace(0, len(numbers) - 1, NUM_PROBED).astype(np.int64)) if len(numbers) else np.arange(0)
        bad = np.zeros(len(self._form.names), dtype=bool)
        for probe in probes.tolist():
            again = self._form.table(self._items([int(numbers[probe])])[0])
            bad |= np.any(again != table[probe], axis=0)
        return tuple(name for name, differs in zip(self._form.names, bad, strict=True) if differs)

    def _holds_batches(self) -> bool:
        """Whether what has items by number, such as a list, has batches for items."""
        return self._collate is None and len(self._data) > 0 and self._form.is_batch(self._data[0])

    def _batches(self) -> Iterable[Any]:
        if not self._items_are_batches:
            return self._data  # type: ignore[no-any-return]
        items = (self._data[i] for i in range(len(self._data)))
        return items if self._collate is None else map(self._collate, items)

    def _look(self, batch: Any) -> tuple[BatchRows, Any]:
        return self._adapt(rows_of(batch)), batch

    def _adapt(self, rows: BatchRows) -> BatchRows:
        adapted = self._form.adapt(rows)
        # The loader's own dataset may be encoded into something else; data that the user names must be comparable.
        if rows.num_rows and not self._is_own and len(self._form.lacking(adapted)) == len(self._form.names):
            names = f"{listed(rows.entries)}, but batches have {listed(self._form.names)}"
            raise OptionError(f"the {self._role} has {names}: there is nothing to compare.", parameter="reference")
        return adapted

    def _items(self, numbers: list[int]) -> tuple[BatchRows, Any]:
        data = self._data
        items = data.__getitems__(numbers) if hasattr(data, "__getitems__") else [data[number] for number in numbers]
        if self._collate is not None:
            return self._look(self._collate(items))
        return self._adapt(rows_of_items(items)), items
