"""Contents: rows told apart by what is in them, where there is no reference. Equal rows are one, and none has a number."""

from __future__ import annotations

import numpy as np

from stoker.feed.auditing.fingerprint import Words, combine
from stoker.feed.auditing.leaves import Array


class Contents:
    """Identities that are the fingerprints of whole rows."""

    catalogue = None

    def __init__(self, names: tuple[str, ...], table: Words) -> None:
        """Settle, from a first table of rows, which entries count: those that every batch has."""
        self._columns = [column for column in range(len(names)) if table[:, column].all()]
        self.entries = tuple(names[column] for column in self._columns)

    def words(self, table: Words) -> Words:
        """Fingerprints of whole samples, to compare with those that came."""
        return combine(table[:, self._columns])

    def identify(self, table: Words) -> Array:
        """Identities of rows."""
        return self.words(table).view(np.int64)

    def came(self, identities: Array) -> tuple[Array, Words, Array]:
        """The distinct identities of an epoch, their fingerprints, and how often each came."""
        distinct, counts = np.unique(identities, return_counts=True)
        return distinct, distinct.view(np.uint64), counts
