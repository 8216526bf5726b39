"""Other batches in place of the program's own: cached ones (the fix `cached`), and those of another iterator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from stoker.diagnose.experiments.base import Fix
from stoker.diagnose.session import Session


class Cached(Fix):
    """The loop gets copies of its first batches again and again: a bound for every fix of the data. The trial hands them out."""

    tolerance = None
    caches = True
    unused_reason = "the batches do not come from an iterable, so they cannot be kept"


class OtherBatches(Fix):
    """Batches from another iterator in place of the loop's own, in all passes of the program that begin meanwhile."""

    with_data = True

    def __init__(self, session: Session, batches: Iterator[Any], *, workers: int | None = None) -> None:
        super().__init__(workers)
        self._session = session
        self._batches = batches
        self.against_cached = workers is None
        self.queue = 2 * (workers or 0)

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        self.used, self._session.replacement = True, self._batches
        self._undo.callback(setattr, self._session, "replacement", None)
