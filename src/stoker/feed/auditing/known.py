"""Known samples: rows are looked up in a reference, as a whole and entry by entry.

Samples of equal content cannot be told apart; they are counted, never guessed at. A row that the reference does not hold,
though it holds each of its entries, is mixed of different samples. A row with an entry that is nowhere is foreign. Of a reference
that was read in part only what no sample beyond that part can explain is a fault.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from stoker.feed.auditing.catalogue import Catalogue
from stoker.feed.auditing.chance import at_most, equal_pairs, most_likely_equal
from stoker.feed.auditing.finding import listed
from stoker.feed.auditing.fingerprint import Words, combine
from stoker.feed.auditing.leaves import Array
from stoker.feed.auditing.ledger import UNKNOWN
from stoker.feed.auditing.reference import Reference

MAX_DETAILED = 1000
"""Mixed and foreign rows that are remembered one by one; the rest is counted."""
MIN_KNOWN = 0.5
"""An entry that a foreign reference knows in fewer rows looks different there, and is set aside."""
MIN_KNOWN_EXACT = 0.01
"""The same for a reference made by the loader's own means."""


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """A row whose entries belong to different samples."""

    row: int
    sample: int
    """Whose anchor it has."""
    entry: str
    other: int
    """The first sample that has this entry."""
    num_others: int


@dataclass(kw_only=True)
class Strangers:
    """Rows of one epoch that the reference does not hold as they are."""

    num_mixed: int = 0
    mixed: list[Mixed] = field(default_factory=list)
    num_foreign: int = 0
    foreign: list[tuple[int, str]] = field(default_factory=list)
    """Rows, and which of their entries are nowhere in the reference."""
    seen: list[tuple[Words, Words]] = field(default_factory=list)
    """Anchors and fingerprints of all rows, where the reference was read in part."""


class Known:
    """Identities that are places in the catalogue of a reference."""

    def __init__(self, reference: Reference, names: tuple[str, ...], table: Words) -> None:
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
        """The entry that tells most samples apart."""
        return self.entries[self._anchor]

    def words(self, table: Words) -> Words:
        """Fingerprints of whole samples, to compare with those that came."""
        return combine(table[:, self._columns])

    def came(self, identities: Array) -> tuple[Array, Words, Array]:
        """The distinct identities of an epoch, their fingerprints, and how many samples have each."""
        distinct = np.unique(identities[identities != UNKNOWN])
        return distinct, self._words[distinct], self.catalogue.counts[distinct]

    def identify(self, table: Words, row: int, strangers: Strangers) -> Array:
        """Identities of rows, the first of which is `row` of its epoch; notes those that are mixed or foreign."""
        place, held = _find(self._words, self.words(table))
        identities = np.where(held, place, UNKNOWN)
        table = table[:, self._columns]
        anchors, lines, owners = self._parts[self._anchor]
        place, anchored = _find(anchors, table[:, self._anchor])
        if self.partial:
            strangers.seen.append((table[:, self._anchor], combine(table)))
        odd = np.flatnonzero(~held)
        if not len(odd):
            return identities
        known = np.stack([_find(words, table[odd, column])[1] for column, (words, _, _) in enumerate(self._parts)], axis=1)
        mixed = anchored[odd] & (known.all(axis=1) | self.partial) & (len(self._parts) > 1) & self.anchors_tell
        line = lines[place[odd]]
        # Who has this anchor alone is who came, so y of another row does not count as an x that is missing, too.
        owned = mixed & (owners[place[odd]] == 1)
        identities[odd[owned]] = self._identities[line[owned]]
        strangers.num_mixed += int(np.count_nonzero(mixed))
        for i in np.flatnonzero(mixed)[: MAX_DETAILED - len(strangers.mixed)].tolist():
            strangers.mixed.append(self._mixed(table[odd[i]], int(line[i]), row + int(odd[i])))
        if not self.partial:
            strangers.num_foreign += int(np.count_nonzero(~mixed))
            for i in np.flatnonzero(~mixed)[: MAX_DETAILED - len(strangers.foreign)].tolist():
                nowhere = [name for name, good in zip(self.entries, known[i], strict=True) if not good]
                strangers.foreign.append((row + int(odd[i]), listed(nowhere)))
        return identities

    def again_by_chance(self, num_rows: int) -> float:
        """Rows of so many that may seem to have come again, at most, for they are equal to samples that were not read."""
        if not self.partial:
            return 0.0
        num_equal = 0 if self.anchors_tell else equal_pairs(combine(self._table))
        return at_most(num_rows * len(self._table) * most_likely_equal(num_equal, len(self._table)))

    def mixed_by_chance(self, strangers: Strangers) -> float:
        """Rows of an epoch that may seem to be mixed, at most, for they share their anchor with samples that were not read."""
        if not self.partial:
            return 0.0
        anchors, whole = (np.concatenate(words) for words in zip(*strangers.seen, strict=True))
        num_equal = equal_pairs(anchors) - equal_pairs(whole)  # a sample that comes again shares its anchor with itself alone
        likely = min(most_likely_equal(num_equal, len(anchors)), most_likely_equal(0, len(self._table)))
        return at_most(len(anchors) * len(self._table) * likely)

    def shared_by_chance(self, theirs: Words) -> float:
        """Samples that may seem to be in other data, at most, for their contents repeat more than the part that was read shows."""
        if not self.partial:
            return 0.0
        whole = combine(self._table)
        ours = most_likely_equal(equal_pairs(whole), len(whole))
        # Between both, contents are equal no more often than the mean of how often they are so within each (Cauchy-Schwarz).
        likely = math.sqrt(ours * most_likely_equal(equal_pairs(theirs), len(theirs)))
        return at_most(len(whole) * len(theirs) * likely)

    def _mixed(self, found: Words, line: int, row: int) -> Mixed:
        column = int(np.flatnonzero(found != self._table[line])[0])
        words, lines, owners = self._parts[column]
        place, held = _find(words, found[column : column + 1])
        return Mixed(
            row=row,
            sample=int(self._numbers[line]),
            entry=self.entries[column],
            other=int(self._numbers[lines[place[0]]]) if held[0] else UNKNOWN,
            num_others=int(owners[place[0]]) if held[0] else 0,
        )


def _find(words: Words, wanted: Words) -> tuple[Array, Array]:
    """Where each wanted word stands in sorted ones, and whether it does."""
    if not len(words):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    place = np.minimum(np.searchsorted(words, wanted), len(words) - 1)
    return place, words[place] == wanted
