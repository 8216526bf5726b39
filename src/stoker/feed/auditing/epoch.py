"""One epoch under audit: batches come in, rows become identities, and at the end there are findings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stoker.feed.auditing.finding import Finding
from stoker.feed.auditing.fingerprint import Words
from stoker.feed.auditing.form import Form
from stoker.feed.auditing.kept import Kept
from stoker.feed.auditing.known import Strangers
from stoker.feed.auditing.leaves import Array
from stoker.feed.auditing.ledger import Ledger
from stoker.feed.auditing.numbered import Ids, numbers_of
from stoker.feed.auditing.recogniser import Recogniser
from stoker.feed.auditing.rows import Rows

PENDING_ROWS = 2**18
"""Rows whose fingerprints are held before they become identities. The first of them settle how samples are recognised."""

Settle = Callable[[Words, Array | None], Recogniser]


class Epoch:
    """What came in one epoch."""

    def __init__(self, number: int, *, settle: Settle, ids: Ids | None) -> None:
        self.ledger = Ledger(number)
        self.strangers = Strangers()
        self._kept = Kept(number)
        self._settle = settle
        self._ids = ids
        self._tables: list[Words] = []
        self._numbers: list[Array] = []
        self._num_pending = 0
        self._num_identified = 0

    def add(self, rows: Rows, batch: Any, form: Form) -> None:
        """Take a batch."""
        table = form.table(rows)
        self._kept.add(rows)
        self._tables.append(table)
        if self._ids is not None:
            self._numbers.append(numbers_of(self._ids, rows, batch))
        self.ledger.add_batch(len(table), rows.valid)
        self._num_pending += len(table)
        if self._num_pending >= PENDING_ROWS:
            self._identify()

    def skip(self) -> None:
        """Take a batch without rows."""
        self._kept.skip()
        self.ledger.add_batch(0, None)

    def close(self) -> list[Finding]:
        """Identify the last rows; findings about memory, which need the batches themselves."""
        if self._tables:
            self._identify()
        found = self._kept.close()
        fine = Finding(kind="reused memory", severity="passed", text="Batches that were kept did not change.")
        return [found or fine]

    def _identify(self) -> None:
        table = np.concatenate(self._tables)
        numbers = np.concatenate(self._numbers) if self._numbers else None
        recogniser = self._settle(table, numbers)
        self.ledger.add_identities(recogniser.identify(table, numbers, self._num_identified, self.strangers))
        self._num_identified += len(table)
        self._num_pending = 0
        self._tables.clear()
        self._numbers.clear()
