"""Numbered samples: rows that carry the number of their sample, in an entry or by a function of the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stoker.errors import OptionError
from stoker.feed.auditing.catalogue import Catalogue
from stoker.feed.auditing.finding import listed
from stoker.feed.auditing.leaves import Array, as_array
from stoker.feed.auditing.ledger import UNKNOWN
from stoker.feed.auditing.rows import Rows

Ids = str | Callable[[Any], Any]
"""The name of an entry, or a function of the batch."""


def numbers_of(ids: Ids, rows: Rows, batch: Any) -> Array:
    """The sample number of each row that is not masked, int64."""
    if callable(ids):
        given = ids(batch)
        found = as_array(given) if hasattr(given, "dtype") else np.asarray(given)
        what = "the function ids"
    else:
        if ids not in rows.entries:
            raise OptionError(f"ids is {ids!r}, but a batch has {listed(rows.entries)}.")
        found = np.asarray(rows.entries[ids])
        what = f"the entry {ids!r}"
    if found is None or found.shape != (rows.num_rows,) or found.dtype.kind not in "iu":
        shape = "nothing" if found is None else f"{found.dtype} of shape {found.shape}"
        raise OptionError(f"{what} gives {shape}; expected one whole number for each of {rows.num_rows:,} rows.")
    numbers: Array = found.astype(np.int64)
    return numbers if rows.valid is None else numbers[rows.valid]


class Numbered:
    """Identities from numbers: places among those that there should be, or the numbers themselves."""

    def __init__(self, expected: Array | None, num_samples: int) -> None:
        self.catalogue: Catalogue | None = None
        if expected is not None:
            values, counts = np.unique(expected, return_counts=True)
            self.catalogue = Catalogue(numbers=values, counts=counts, num_samples=num_samples)

    def identify(self, numbers: Array) -> Array:
        """Identities of rows with these numbers."""
        if self.catalogue is None:
            return numbers
        values = self.catalogue.numbers
        place = np.minimum(np.searchsorted(values, numbers), max(len(values) - 1, 0))
        return np.where(values[place] == numbers, place, UNKNOWN) if len(values) else np.full(len(numbers), UNKNOWN)

    def ranks(self, identities: Array) -> tuple[Array, int]:
        """Ranks of rows in the order of sample numbers, and how many there are."""
        if self.catalogue is not None:
            return self.catalogue.ranks(identities)
        values, ranks = np.unique(identities, return_inverse=True)
        return ranks, len(values)
