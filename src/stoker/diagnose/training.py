"""The training: what a session and the stretches that it runs share of the one training loop that is looked at.

It stands between the two: the session hands batches to the loop and says which iterator they come from, stretches keep copies of
them and say how steps are looked at, and those who started the session ask here for what has been measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stoker.diagnose.boundaries import Boundaries, Times
from stoker.diagnose.copies import copied, num_bytes, num_rows
from stoker.diagnose.ledger import Ledger
from stoker.diagnose.measurements import Device, Machine, Measurements
from stoker.diagnose.plan import CACHED, TRUE, Mode
from stoker.diagnose.ranks import Ranks
from stoker.diagnose.watched import Sources, Watched
from stoker.diagnose.workers import queue_length, wait_for_workers
from stoker.errors import TrainError

MAX_CACHED_BYTES = 256 << 20
MAX_CACHED = 16


class Training:
    """A training loop, and what is known of it."""

    def __init__(self, *, every_turn: bool = False) -> None:
        self.boundaries = Boundaries()
        self.sources = Sources(self.boundaries)
        self.ledger = Ledger()
        self.device: Device = "cpu"
        self.every_turn = every_turn
        """Whether each turn of the loop is a step, whatever happens in it."""
        self.endless = False
        """Whether the loop is ours: its epochs do not end any more."""
        self.light = False
        """Whether steps are so short that their times are taken without looking at their phases."""
        self.light_without_data = False
        """Whether they are where batches cost nothing."""
        self.keeping = False
        """Whether batches are copied as they come: what gives them cannot be begun anew, and may end soon."""
        self.ranks: Ranks | None = None
        """The processes that train together, if this is one of several."""
        self.what_if: str | None = None
        """The fix that is measured now. What the program raises meanwhile is not its own fault."""
        self.looked_at: set[str] = set()
        """Fixes of which it is known what they give, or that it cannot be known."""
        self.watched: Watched | None = None
        """What the loop goes through, since a batch was asked for."""
        self.instead: Iterator[Any] | None = None
        """What the loop gets in place of its own batches, while that is measured."""
        self.batches: list[Any] = []
        """Copies of several distinct batches."""

    def measurements(self, machine: Machine | None = None) -> Measurements:
        """All that is known; raises where that is nothing. The machine is measured unless one is given."""
        return self.ledger.measurements(self.sources, self.boundaries, self.device, machine)

    def agree(self, value: float) -> float:
        """The same for all processes of a training."""
        return value if self.ranks is None else self.ranks.agree(float(value))

    def end_epoch(self, into: list[Times], times: Times) -> None:
        """Keep a step at whose begin an epoch ended, beside those that are written to a list."""
        self.ledger.add_end(into, times, ours=self.endless and self.can_repeat)

    def is_light(self, mode: Mode) -> bool:
        """Whether steps that get this are so short that looking at them costs too much."""
        return self.light_without_data if mode.cached else self.light

    # ---- its batches ----

    @property
    def can_cache(self) -> bool:
        """Whether the loop can be given copies of earlier batches."""
        found = self.sources.found
        return found is not None and found.iterable is not None and found.gives_batches

    @property
    def can_repeat(self) -> bool:
        """Whether there are always more batches."""
        found = self.sources.found
        return found is not None and found.gives_batches and found.can_repeat

    @property
    def without_data(self) -> Mode:
        """What a step gets whose data is to cost nothing, where that can be."""
        return CACHED if self.can_cache else TRUE

    @property
    def queue(self) -> int:
        """Batches that workers make ahead."""
        found = self.sources.found
        return queue_length(found.loader) if found is not None else 0

    def collect(self) -> None:
        """Keep copies of several distinct batches, and wait until workers have nothing to do."""
        watched = self.watched
        while watched is not None and self._has_room and (watched.source.can_repeat or not self.batches):
            self.keep(self._next_of(watched))
        wait_for_workers(watched.iterator if watched is not None else None)

    def keep(self, batch: Any) -> None:
        """Keep a copy of it, if there is room."""
        if self._has_room:
            self.batches.append(copied(batch))
            self.ledger.batch_bytes.append(num_bytes(batch))
            self.ledger.batch_rows = num_rows(batch)

    @property
    def _has_room(self) -> bool:
        return len(self.batches) < MAX_CACHED and num_bytes(self.batches) <= MAX_CACHED_BYTES

    def _next_of(self, watched: Watched) -> Any:
        try:
            return next(watched.iterator)
        except StopIteration:
            if not watched.source.can_repeat:
                raise TrainError("the batches came to an end while they were looked at.") from None
            watched.restart()
            return next(watched.iterator)
