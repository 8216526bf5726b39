"""Overlap: samples that also are in other data, such as validation, where they must not be."""

from __future__ import annotations

import itertools

import numpy as np

from stoker.feed.auditing.finding import Finding, counted, listed, shown
from stoker.feed.auditing.known import Known
from stoker.feed.auditing.leaves import Array
from stoker.feed.auditing.ledger import UNKNOWN, Ledger
from stoker.feed.auditing.recogniser import Recogniser
from stoker.feed.auditing.reference import Reference

NUM_EXAMPLES = 3
FREQUENT = 8
"""Times the usual number of a content, beyond which it is an exception that says nothing of the others."""
BEYOND_CHANCE = 3.0
"""Times what contents that repeat by themselves would share, from which samples are shared for another reason."""


def judge_overlap(ledger: Ledger, recogniser: Recogniser, other: Reference) -> Finding:
    """Compare an epoch with other data: by number where samples have numbers, else by content.

    A content that is frequent on either side (a constant window, an empty row) says nothing about a leak and is left out. Nor do
    contents that are equal no more often between both than within each (labels, categories, small whole numbers).
    """
    lacking = [name for name in recogniser.contents.entries if name in other.lacking]
    if lacking and recogniser.numbered is None:
        text = f"apart_from has no {listed(lacking)}, by which samples are known."
        return Finding(kind="shared samples", severity="unchecked", text=text)
    known = ledger.identities[ledger.identities != UNKNOWN] if recogniser.catalogue is not None else ledger.identities
    if recogniser.numbered is None:
        distinct, keys, counts = recogniser.contents.came(known)
        their_keys = recogniser.contents.words(other.table)
    elif other.ids is None:
        return Finding(kind="shared samples", severity="unchecked", text="Samples are numbered, but those of apart_from are not.")
    else:
        distinct = np.unique(known)
        keys = distinct if recogniser.catalogue is None else recogniser.catalogue.numbers[distinct]
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
    chance = _chance(counts) if recogniser.catalogue is not None else min(_chance(counts), _chance(their_counts))
    explained = BEYOND_CHANCE * chance * float(counts.sum()) * float(their_counts.sum())
    if recogniser.numbered is None and isinstance(recogniser.contents, Known):
        explained = max(explained, recogniser.contents.shared_by_chance(their_keys))
    if num_shared <= explained:
        text = f"Contents are no more often equal in both than within each, so nothing can be said.{aside}"
        return Finding(kind="shared samples", severity="unchecked", text=text)
    pairs = zip(distinct[ours[~frequent]].tolist(), other.numbers[first[theirs[~frequent]]].tolist(), strict=True)
    examples = [_example(identity, there, ledger, recogniser) for identity, there in itertools.islice(pairs, NUM_EXAMPLES)]
    text = f"{num_shared:,} of {counted(len(keys), 'sample')} are in apart_from, too: {shown(examples, num_shared)}{aside}"
    return Finding(kind="shared samples", severity="fault", text=text, count=num_shared)


def _usual(counts: Array) -> float:
    return float(np.median(counts)) if len(counts) else 0.0


def _chance(counts: Array) -> float:
    """How likely two samples of the same data have the same content."""
    usual = counts[counts <= FREQUENT * _usual(counts)].astype(np.float64)
    return float((usual * (usual - 1)).sum() / max(usual.sum() * (usual.sum() - 1), 1.0))


def _example(identity: int, there: int, ledger: Ledger, recogniser: Recogniser) -> str:
    place = ledger.place(int(np.flatnonzero(ledger.identities == identity)[0]))
    catalogue = recogniser.catalogue
    number = f"sample {catalogue.numbers[identity]:,} ({place})" if catalogue is not None else place
    return f"{number} is row {there:,} there"
