"""The meeting: a point of each step that no process of a training passes before all have come to it.

Between the backward pass of a program and the exchange of its gradients. Where all begin to exchange at the same time, nobody waits
for a slow one, and what the exchange itself takes is seen. The law: a process that does not come is not waited for for long, and
never a second time.
"""

from __future__ import annotations

import time
from typing import Any

from stoker.clock import now_ns

PAUSE_SECONDS = 5e-5
"""Between two looks at who has come: a process that spins would take the core of one that is on its way."""
PATIENCE_SECONDS = 5.0


class Meeting:
    """Of so many processes, by a store that they share; one object for all steps of a stretch."""

    def __init__(self, store: Any, number: int, *, name: str) -> None:
        self._store = store
        self._number = number
        self._name = name
        self.held = 0
        """How often all came."""
        self.missed = False
        """Whether somebody did not come."""

    def wait(self) -> None:
        """Until all are here."""
        if self.missed:
            return
        key = f"{self._name}/{self.held}"
        come, until_ns = self._store.add(key, 1), now_ns() + int(PATIENCE_SECONDS * 1e9)
        while come < self._number:
            if now_ns() > until_ns:
                self.missed = True
                return
            time.sleep(PAUSE_SECONDS)
            come = self._store.add(key, 0)
        self.held += 1
