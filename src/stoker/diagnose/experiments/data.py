"""Other batches in place of the program's own: cached ones (the fix `cached`), those of another iterator, and what a fix makes of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from stoker.diagnose.experiments.base import Fix
from stoker.diagnose.hooks import leaves
from stoker.diagnose.session import Session


class Cached(Fix):
    """The loop gets copies of its first batches again and again: a bound for every fix of the data. The trial hands them out."""

    tolerance = None
    caches = True
    unused_reason = "the batches do not come from an iterable, so they cannot be kept"


class OtherBatches(Fix):
    """Batches from another iterator in place of the loop's own, in all passes of the program that begin meanwhile."""

    with_data = True

    def __init__(self, session: Session, batches: Iterator[Any], *, queue: int = 0) -> None:
        super().__init__()
        self._session = session
        self._batches = batches
        self.queue = queue

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        self.used, self._session.replacement = True, self._batches
        self._undo.callback(setattr, self._session, "replacement", None)


class KeptBatches:
    """What a fix has made of batches, where a loop gets the same objects in each epoch."""

    MAX_BYTES = 1 << 30

    def __init__(self) -> None:
        self._made: dict[tuple[int, ...], tuple[tuple[Any, ...], Any]] = {}  # with the batches, so that their ids stay their own
        self._bytes = 0

    def get(self, make: Callable[..., Any], *batches: Any) -> Any:
        """Return `make` of some batches: of the same ones it is called once, as long as there is room."""
        known = self._made.get(ids := tuple(map(id, batches)))
        if known is not None:
            return known[1]
        made = make(*batches)
        self._bytes += sum(leaf.nbytes for leaf in leaves(made) if isinstance(leaf, torch.Tensor))
        if self._bytes <= self.MAX_BYTES:
            self._made[ids] = (batches, made)
        return made
