"""The catalogue: the samples that there should be. An identity is a place in it, or a content where there is no catalogue."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stoker.feed.auditing.leaves import Array
from stoker.feed.auditing.ledger import UNKNOWN


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
