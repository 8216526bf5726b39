"""Findings of an audit, the log of an epoch, and the catalogue of samples that the rows are compared with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from stoker._types import Array
from stoker.auditing.fingerprints import Hashes, combine

Severity = Literal["fault", "note", "unchecked", "passed"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)

Kind = Literal[
    "empty",
    "seen twice",
    "never seen",
    "mixed rows",
    "foreign rows",
    "order",
    "same order",
    "reused memory",
    "shared samples",
    "not finite",
    "shapes",
    "length",
]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One check and its outcome."""

    kind: Kind
    severity: Severity
    """A fault is a bug; a note is worth knowing; what could not be checked says what is needed."""
    text: str
    count: int = 0
    """Rows, samples or batches concerned."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"kind": self.kind, "severity": self.severity, "count": self.count, "text": self.text}


def listed(names: Iterable[str]) -> str:
    """Names in a sentence."""
    quoted = [repr(name) for name in names]
    return ", ".join(quoted[:-1]) + " and " + quoted[-1] if len(quoted) > 1 else quoted[0] if quoted else "nothing"


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 row, 2 rows, 3 batches."""
    return f"{number:,} {noun}{'' if number == 1 else 'es' if noun.endswith('tch') else 's'}"


def shown(examples: Sequence[str], total: int, between: str = "; ") -> str:
    """Examples at the end of a sentence, with dots where there are more."""
    return between.join(examples) + (f"{between}…" if total > len(examples) else ".")


# The log of an epoch: which sample each row was, batch by batch. Eight bytes per row.

UNKNOWN = -1


class EpochLog:
    """Rows in the order in which they came."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.complete = True
        """Whether the epoch was followed to its end."""
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

    def place(self, row: int) -> str:
        """Where a row was, for a message."""
        batch = int(np.searchsorted(self._ends, row, side="right"))
        within = row - (self._ends[batch - 1] if batch else 0)
        if batch in self._places:
            within = int(self._places[batch][within])
        return f"batch {batch:,} row {within:,}"


# The catalogue: the samples that there should be. An identity is a place in it, or a content where there is no catalogue.


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """Samples by identity."""

    numbers: Array
    """The (first) sample number of each identity."""
    counts: Array
    """How many samples have this identity: more than one where their contents are equal."""
    num_samples: int
    """All samples that there are."""

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


# Chance: how many rows may look like a sample that was read and yet be another, where only some samples were read.
#
# Contents that are all different in a part of the data need not be so in all of it. How often two samples can be equal at most is
# known from the pairs that were seen, and so is what equal samples can bring about at most. Only more than that is a fault.

SURE = 1e-5
"""Chance that a number is beyond what is called the most."""


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


# Contents: rows told apart by what is in them, where there is no reference. Equal rows are one, and none has a number.


class ContentIndex:
    """Identities that are the fingerprints of whole rows."""

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
