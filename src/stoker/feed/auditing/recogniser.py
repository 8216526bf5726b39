"""The recogniser: settles, once some rows are there, how samples are told apart, and says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker.feed.auditing.catalogue import Catalogue
from stoker.feed.auditing.claims import Claims, is_map_style
from stoker.feed.auditing.contents import Contents
from stoker.feed.auditing.finding import listed
from stoker.feed.auditing.fingerprint import Words
from stoker.feed.auditing.form import Form
from stoker.feed.auditing.known import Known, Strangers
from stoker.feed.auditing.leaves import Array
from stoker.feed.auditing.numbered import Ids, Numbered, numbers_of
from stoker.feed.auditing.reference import Reference, Report, Source
from stoker.feed.auditing.rows import Rows


@dataclass(frozen=True, kw_only=True)
class Recogniser:
    """How rows become identities: by number where they carry one, else by a reference, else by content alone."""

    contents: Known | Contents
    numbered: Numbered | None
    basis: str

    @property
    def catalogue(self) -> Catalogue | None:
        """The samples that there should be."""
        return self.contents.catalogue if self.numbered is None else self.numbered.catalogue

    def identify(self, table: Words, numbers: Array | None, row: int, strangers: Strangers) -> Array:
        """Identities of rows, the first of which is `row` of its epoch; notes those that the reference does not hold."""
        if isinstance(self.contents, Known):
            identities = self.contents.identify(table, row, strangers)
        else:
            identities = self.contents.identify(table)
        return identities if self.numbered is None or numbers is None else self.numbered.identify(numbers)

    def ranks(self, identities: Array) -> tuple[Array, int] | None:
        """Ranks of rows in the order of sample numbers, and how many there are; None without numbers."""
        if self.numbered is not None:
            return self.numbered.ranks(identities)
        return self.contents.catalogue.ranks(identities) if self.contents.catalogue is not None else None


@dataclass(frozen=True, kw_only=True)
class Means:
    """What a recogniser is made from: what the user gave, and what the loader says of itself."""

    claims: Claims
    form: Form
    ids: Ids | None
    limit: int
    report: Report

    def settle(self, reference: Reference | None, table: Words, numbers: Array | None) -> Recogniser:
        """Decide with the first rows how samples are recognised."""
        contents, basis = self._compare(reference, table)
        if self.ids is None or numbers is None:
            return Recogniser(contents=contents, numbered=None, basis=basis)
        numbered = self._number(reference, numbers)
        by = repr(self.ids) if isinstance(self.ids, str) else "the function ids"
        many = f", {numbered.catalogue.num_samples:,} in all" if numbered.catalogue is not None else ""
        return Recogniser(contents=contents, numbered=numbered, basis=f"Samples are numbered by {by}{many}. {basis}")

    def _compare(self, reference: Reference | None, table: Words) -> tuple[Known | Contents, str]:
        contents = Contents(self.form.names, table)
        if reference is None:
            return contents, f"Compared by content: {listed(contents.entries)}, among themselves, for there is no reference."
        known = Known(reference, self.form.names, table)
        aside = "; ".join(f"{name!r} {why}" for name, why in known.aside.items())
        if not known.entries:
            return contents, f"Samples cannot be found in the reference: {aside}. They need numbers (ids)."
        read = (
            f"{len(reference.numbers):,} of {reference.num_samples:,}, drawn at random"
            if reference.partial
            else f"all {reference.num_samples:,}"
        )
        left_out = f" ({aside})" if aside else ""
        return known, f"Compared by content: {listed(known.entries)}{left_out}, with the samples of the reference ({read})."

    def read(self, data: Any, role: str = "reference") -> Reference:
        """Fingerprint other data, in the form of the batches."""
        own = data is self.claims.dataset
        source = Source(
            data=data,
            form=self.form,
            collate=self.claims.collate if is_map_style(data) else None,
            items_are_batches=own and self.claims.items_are_batches,
            only=self.claims.expected if own else None,
            ids=self._ids if isinstance(self.ids, str) or not is_map_style(data) else None,  # a function knows no items
            own=own,
            role=role,
        )
        return source.read(limit=self.limit, report=self.report)

    def _ids(self, rows: Rows, batch: Any) -> Array | None:
        """The numbers of other data; None where they have none."""
        if self.ids is None or (isinstance(self.ids, str) and self.ids not in rows.entries):
            return None
        return numbers_of(self.ids, rows, batch)

    def _number(self, reference: Reference | None, numbers: Array) -> Numbered:
        if reference is None:
            return Numbered(None, 0)
        if reference.ids is not None:
            return Numbered(reference.ids, reference.num_samples)
        # Numbers that fit are those of the items; others are keys of the user's own, of which no list is known.
        fits = bool(np.all(np.isin(numbers, reference.numbers))) if not reference.partial else False
        return Numbered(reference.numbers if fits else None, reference.num_samples)
