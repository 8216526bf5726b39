"""The reference: fingerprints of all samples there are, by number. It turns content into sample numbers.

Items go through the loader's own collate function, so that they look as they do in batches. Entries that do not come out the
same twice (random augmentation, padding that depends on the batch) cannot identify a sample and are set aside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker.errors import OptionError
from stoker.feed.auditing.claims import is_map_style
from stoker.feed.auditing.finding import listed
from stoker.feed.auditing.fingerprint import Words
from stoker.feed.auditing.form import Form
from stoker.feed.auditing.leaves import Array
from stoker.feed.auditing.rows import Rows, rows_of, rows_of_items

PART = 256
NUM_PROBED = 64
"""Items that are read twice, together and alone, to see whether they stay the same."""

Collate = Callable[[Any], Any]
Ids = Callable[[Rows, Any], Array | None]
Report = Callable[[float, int], None]
"""Gets the share that is done, and the number of items."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Fingerprints of samples: line i is that of sample `numbers[i]`."""

    num_samples: int
    """Samples that there are; more than lines where only some were read."""
    numbers: Array
    table: Words
    lacking: tuple[str, ...] = ()
    """Entries of the batches that are not in it."""
    unstable: tuple[str, ...] = ()
    """Entries that did not come out the same twice."""
    ids: Array | None = None
    exact: bool = False
    """Whether it was made by the loader's own means, so that batches have no excuse to differ."""

    @property
    def partial(self) -> bool:
        """Whether only some of the samples were read."""
        return len(self.numbers) < self.num_samples


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a reference is read from."""

    data: Any
    """A map-style dataset, or another iterable of batches."""
    form: Form
    collate: Collate | None = None
    items_are_batches: bool = False
    only: Array | None = None
    """The samples that are meant to come, where these are not all."""
    ids: Ids | None = None
    own: bool = False
    """Whether it is the loader's own dataset."""
    role: str = "reference"

    def read(self, *, limit: int, report: Report) -> Reference:
        """Fingerprint all samples, or `limit` of them, drawn at random."""
        if self.items_are_batches or not is_map_style(self.data) or self._holds_batches():
            return self._read(map(self._look, self._batches()), None, 0, report)
        total = len(self.data) if self.only is None else len(self.only)
        numbers = np.arange(total) if total <= limit else np.unique(np.random.default_rng(0).integers(0, total, limit))
        numbers = numbers if self.only is None else self.only[numbers]
        parts = (self._items(numbers[i : i + PART].tolist()) for i in range(0, len(numbers), PART))
        return self._read(parts, numbers, total, report)

    def _read(self, parts: Iterator[tuple[Rows, Any]], numbers: Array | None, total: int, report: Report) -> Reference:
        tables, ids, count = [np.zeros((0, len(self.form.names)), np.uint64)], [], 0
        lacking: set[str] = set()
        for rows, batch in parts:
            tables.append(self.form.table(rows))
            lacking.update(self.form.lacking(rows))
            numbered = self.ids(rows, batch) if self.ids is not None else None
            if numbered is not None:
                ids.append(numbered)
            count += len(tables[-1])
            report(count / max(len(numbers), 1) if numbers is not None else 0.0, count)
        table = np.concatenate(tables)
        if numbers is not None and len(table) != len(numbers):
            raise OptionError(
                f"{len(numbers):,} items of the reference become {len(table):,} rows of batches, so an item is no sample. "
                f"Pass an iterable of batches as the reference."
            )
        return Reference(
            num_samples=total if numbers is not None else count,
            numbers=numbers if numbers is not None else np.arange(count),
            table=table,
            lacking=tuple(sorted(lacking)),
            unstable=() if numbers is None else self._unstable(numbers, table),
            ids=np.concatenate(ids) if ids else None,
            exact=self.own and self.collate is not None,
        )

    def _unstable(self, numbers: Array, table: Words) -> tuple[str, ...]:
        """Read some items again, each alone: what differs depends on chance, or on the rest of its batch."""
        probes = np.unique(np.linspace(0, len(numbers) - 1, NUM_PROBED).astype(np.int64)) if len(numbers) else np.arange(0)
        bad = np.zeros(len(self.form.names), dtype=bool)
        for probe in probes.tolist():
            again = self.form.table(self._items([int(numbers[probe])])[0])
            bad |= np.any(again != table[probe], axis=0)
        return tuple(name for name, differs in zip(self.form.names, bad, strict=True) if differs)

    def _holds_batches(self) -> bool:
        """Whether what has items by number, such as a list, has batches for items."""
        return self.collate is None and len(self.data) > 0 and self.form.is_batch(self.data[0])

    def _batches(self) -> Iterable[Any]:
        if not self.items_are_batches:
            return self.data  # type: ignore[no-any-return]
        items = (self.data[i] for i in range(len(self.data)))
        return items if self.collate is None else map(self.collate, items)

    def _look(self, batch: Any) -> tuple[Rows, Any]:
        return self._adapt(rows_of(batch)), batch

    def _adapt(self, rows: Rows) -> Rows:
        adapted = self.form.adapt(rows)
        # The loader's own dataset may be encoded into something else; data that the user names must be comparable.
        if rows.num_rows and not self.own and len(self.form.lacking(adapted)) == len(self.form.names):
            names = f"{listed(rows.entries)}, but batches have {listed(self.form.names)}"
            raise OptionError(f"the {self.role} has {names}: there is nothing to compare.")
        return adapted

    def _items(self, numbers: list[int]) -> tuple[Rows, Any]:
        data = self.data
        items = data.__getitems__(numbers) if hasattr(data, "__getitems__") else [data[number] for number in numbers]
        if self.collate is not None:
            return self._look(self.collate(items))
        return self._adapt(rows_of_items(items)), items
