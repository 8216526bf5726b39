"""Coverage: which samples came more than once in an epoch, and which never."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stoker.feed.auditing.catalogue import Catalogue
from stoker.feed.auditing.leaves import Array
from stoker.feed.auditing.ledger import UNKNOWN, Ledger

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


def cover(ledger: Ledger, catalogue: Catalogue | None) -> Coverage:
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
