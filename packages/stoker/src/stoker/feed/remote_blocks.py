"""Blocks of remote stores for a feed: leased while a batch is gathered, prefetched in the order of a pass, evicted by their next use.

    LeasedColumns    the blocks that some samples lie in, kept while they are read
    RemoteHints      fetches the units (windows or batches) that a pass comes to next
    Forecast         when each block is used next: known for this epoch and the following one, because an order is a function

Only the lease of the gather is needed for right values. What is prefetched is leased as well until the pass has left its unit. Room is
made by evicting the block whose next use is farthest away (Belady's rule), which no policy can beat for a given order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np

from stoker._types import Array
from stoker.feed.columns import FedColumn
from stoker.feed.read_ahead import Hints, MappedColumn, Units
from stoker.sampling.mixture import JoinedSamples
from stoker.sampling.views import Located, Samples
from stoker.store.block_cache import NEVER, BlockCache, CacheFullError
from stoker.store.remote import cached_file

AHEAD_BYTES = 128 << 20
"""Bytes of blocks that are fetched before they are needed, at most; never more than an eighth of the cache."""
MAX_AHEAD = 32
"""Units that are fetched before they are needed, at most."""
MAX_USES = 1 << 22
"""Uses of blocks that a forecast looks ahead, at most."""

Leases = list[tuple[BlockCache, Array]]


class LeasedColumns:
    """The columns of remote stores among those of a feed."""

    def __init__(self, columns: Sequence[FedColumn], samples: Samples) -> None:
        self._columns = []
        firsts = samples.first_steps.tolist() if isinstance(samples, JoinedSamples) else [0]
        for column in columns:
            for first, piece in zip(firsts, column.pieces, strict=False):
                file = cached_file(piece.values) if column.level == "step" else None
                if file is not None:
                    step_bytes = piece.values.dtype.itemsize * (piece.width or 1)
                    self._columns.append((file, first, len(piece.values), step_bytes))

    @contextlib.contextmanager
    def lease(self, found: Located) -> Iterator[None]:
        """Keep the blocks of these samples while the block of code runs."""
        with contextlib.ExitStack() as stack:
            for file, first, num_steps, step_bytes in self._columns:
                starts = np.clip(found.starts - first, 0, num_steps)
                stops = np.clip(found.starts + found.counts - first, 0, num_steps)
                stack.enter_context(file.cache.lease(file.cache.table.ids(file.file, starts * step_bytes, stops * step_bytes)))
            yield


class Forecast:
    """The next use of each block of a cache, from the unit `position` on. Units of the next epoch are numbered on."""

    def __init__(self, cache: BlockCache, columns: Sequence[MappedColumn], units: Units, following: Units) -> None:
        self.position = 0
        self._cache = cache
        self._columns = [column for column in columns if column.file is not None and column.file.cache is cache]
        self._units = units
        self._following = following
        self._built = False
        self._is_cut = False
        self._first = self._done = 0

    def ids(self, unit: int) -> Array:
        """The blocks of a unit."""
        own = unit < self._units.count
        starts, stops = (self._units if own else self._following).ranges(unit if own else unit - self._units.count)
        blocks = []
        for column in self._columns:
            if column.file is not None:
                begin, end = column.own(starts, stops)
                blocks.append(self._cache.table.ids(column.file.file, begin * column.step_bytes, end * column.step_bytes))
        return np.unique(np.concatenate(blocks)) if len(blocks) > 1 else blocks[0]

    def __call__(self) -> Array:
        """The unit of the next use of each block; `NEVER` where none is known."""
        if not self._built or (self._is_cut and self.position > (self._first + self._end) // 2):
            self._build()
        begin, end = (
            self._starts[min(self._done, self._end) - self._first],
            self._starts[min(self.position, self._end) - self._first],
        )
        # The last assignment counts where a block is used in several of these units.
        self._next[self._blocks[begin:end]] = self._later[begin:end]
        self._done = max(self._done, self.position)
        return self._next

    def _build(self) -> None:
        self._first = self._done = self.position
        total, uses, num_uses = self._units.count + self._following.count, [], 0
        for unit in range(self._first, total):
            uses.append(self.ids(unit))
            num_uses += len(uses[-1])
            if num_uses > MAX_USES:
                break
        self._end = self._first + len(uses)
        self._is_cut = self._end < total
        self._built = True
        self._blocks = np.concatenate([np.zeros(0, dtype=np.int64), *uses])
        lengths = [len(use) for use in uses]
        self._starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
        units = np.repeat(np.arange(self._first, self._end), lengths)
        self._later = np.full(len(units), NEVER, dtype=np.int64)
        order = np.argsort(self._blocks, kind="stable")
        same = self._blocks[order[1:]] == self._blocks[order[:-1]]
        self._later[order[:-1][same]] = units[order[1:][same]]
        self._next = np.full(len(self._cache.table), NEVER, dtype=np.int64)
        self._next[self._blocks[::-1]] = units[::-1]  # the first use is assigned last


def make_hints(columns: list[MappedColumn], units: Units, following: Units) -> Hints:
    """The hints of a pass: with fetching where blocks of a remote column are not there."""
    if all(column.file is None for column in columns):
        return Hints(columns, units)
    if all(column.is_here for column in columns):
        with contextlib.suppress(CacheFullError):  # evicted by another process at this moment
            return CachedHints(columns, units)
    return RemoteHints(columns, units, following)


class CachedHints(Hints):
    """Of a pass whose columns are all in the cache, where they stay until its end, so that a batch needs no lease."""

    def __init__(self, columns: list[MappedColumn], units: Units) -> None:
        super().__init__(columns, units)
        self._kept: Leases = []
        try:
            for file in {column.file for column in columns if column.file is not None}:
                ids = file.cache.table.all_ids(file.file)
                file.cache.acquire(ids, horizon=NEVER)  # fetches what was evicted meanwhile, but evicts nothing for it
                self._kept.append((file.cache, ids))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ask for nothing more, and let the blocks go."""
        super().close()
        kept, self._kept = self._kept, []
        for cache, ids in kept:
            cache.release(ids)


class RemoteHints(Hints):
    """Fetches what a pass needs next, and asks the operating system for what is in the cache already."""

    keeps_all = False

    def __init__(self, columns: list[MappedColumn], units: Units, following: Units) -> None:
        super().__init__(columns, units)
        caches = {column.file.cache for column in columns if column.file is not None}
        self._forecasts = [(cache, Forecast(cache, columns, units, following)) for cache in caches]
        self._removals = [cache.add_forecast(forecast) for cache, forecast in self._forecasts]

    def _begin(self, step: int) -> None:
        super()._begin(step)
        self._leases: dict[int, Leases] = {}
        self._is_first = True
        self._needed = (-1, -1)
        """The units of the last step that waits."""
        self._low = step
        """The first step that has not ended; those that have ended after it are in `_ended`."""
        self._ended: set[int] = set()

    def before(self, step: int) -> None:
        """Called before a step is gathered; waits until all of it was fetched."""
        with self._changed:
            self._needed = max(self._needed, self._units.of(step))
        super().before(step)

    def after(self, step: int) -> None:
        """Called when a step was gathered, or could not be. A unit is given up when all steps before the next unit have ended."""
        with self._changed:
            self._ended.add(step)
            while self._low in self._ended:
                self._ended.remove(self._low)
                self._low += 1
            low = self._low
            self._changed.notify_all()
        if low > self._first_step:
            self._release(self._units.of(low - 1)[1])

    def close(self) -> None:
        """Fetch nothing more, and give up what was fetched."""
        for remove in self._removals:
            remove()
        super().close()
        self._release(None)

    def _release(self, below: int | None) -> None:
        with self._changed:
            gone = [unit for unit in self._leases if below is None or unit < below]
            leases = [lease for unit in gone for lease in self._leases.pop(unit)]
        for cache, ids in leases:
            cache.release(ids)

    def _request(self, unit: int) -> int:
        # The first unit alone, so that the first batch comes soon; then all that may be, so that small units are fetched side by side.
        last = unit if self._is_first else max(unit, self._wanted)
        self._is_first = False
        is_last_try = False
        while not self._stop[0]:
            is_needed = unit <= self._needed[1]
            last = unit if is_needed else last
            try:
                # A block that no batch waits for yet must not evict blocks that are used sooner.
                self._fetch(unit, last, horizon=None if is_needed else last)
                break
            except CacheFullError:
                last = unit
                with self._changed:
                    if not is_needed:
                        self._changed.wait_for(lambda: unit <= self._needed[1] or bool(self._stop[0]), timeout=0.05)
                        continue
                    is_gathering = self._units.of(self._low)[1] < unit
                    if is_gathering:  # a step that needs nothing further; its blocks are given up when it has ended
                        self._changed.wait(timeout=0.05)
                        continue
                if not self._release_passed():
                    if is_last_try:
                        raise
                    is_last_try = True  # a step may have ended, and given up its blocks, since this fetch failed
        for asked in range(unit, last + 1):
            super()._request(asked)
        return last

    def _fetch(self, first: int, last: int, horizon: int | None) -> None:
        for cache, forecast in self._forecasts:
            forecast.position = first
            by_unit = {unit: forecast.ids(unit) for unit in range(first, last + 1)}
            with cache.lease(np.unique(np.concatenate(list(by_unit.values()))), horizon=horizon):
                for unit, ids in by_unit.items():
                    cache.acquire(ids)  # which are there now
                    with self._changed:
                        self._leases.setdefault(unit, []).append((cache, ids))
            num_bytes = int(cache.table.sizes[by_unit[first]].sum())
            self.ahead = max(1, min(MAX_AHEAD, min(AHEAD_BYTES, cache.limit // 8) // max(1, num_bytes)))
        if self._stop[0]:
            self._release(None)

    def _release_passed(self) -> bool:
        """Give up units before those of the step that waits; False where there are none."""
        with self._changed:
            before = len(self._leases)
        self._release(self._needed[0])
        return len(self._leases) < before
