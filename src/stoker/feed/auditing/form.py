"""The form of the batches under audit: names and number types of their entries, which everything compared is brought to."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker.feed.auditing.fingerprint import Words, fingerprint
from stoker.feed.auditing.leaves import is_array, leaves_of
from stoker.feed.auditing.rows import Rows


@dataclass(frozen=True, kw_only=True)
class Form:
    """What a batch looks like."""

    names: tuple[str, ...]
    dtypes: dict[str, np.dtype[Any]]
    ndims: dict[str, int]
    """Axes of the entries that are arrays, rows included."""

    @classmethod
    def of(cls, rows: Rows) -> Form:
        """The form of a (first) batch."""
        arrays = {name: cells for name, cells in rows.entries.items() if isinstance(cells, np.ndarray)}
        dtypes = {name: array.dtype for name, array in arrays.items()}
        return cls(names=tuple(rows.entries), dtypes=dtypes, ndims={name: array.ndim for name, array in arrays.items()})

    def is_batch(self, value: Any) -> bool:
        """Whether this is a batch and not a single item: its arrays have as many axes."""
        ndims = {name: leaf.ndim for name, leaf in leaves_of(value).items() if is_array(leaf)}
        if not set(ndims) & set(self.ndims):
            return bool(ndims) and list(ndims.values()) == list(self.ndims.values())
        return all(ndims[name] == ndim for name, ndim in self.ndims.items() if name in ndims)

    def table(self, rows: Rows) -> Words:
        """Fingerprints, one line a sample and one column an entry; 0 for entries that the rows lack."""
        return fingerprint(rows, self.names, self.dtypes)

    def lacking(self, rows: Rows) -> list[str]:
        """Entries that these rows do not have."""
        return [name for name in self.names if name not in rows.entries]

    def adapt(self, rows: Rows) -> Rows:
        """Rows from elsewhere with the names of this form; by position where a dataset of tuples feeds batches of dicts."""
        entries = rows.entries
        if not set(self.names) & set(entries) and len(entries) == len(self.names):
            new = dict(zip(entries, self.names, strict=True))
            renamed = {new[name]: cells for name, cells in entries.items()}
            return dataclasses.replace(rows, entries=renamed, packed=frozenset(new[name] for name in rows.packed))
        return rows
