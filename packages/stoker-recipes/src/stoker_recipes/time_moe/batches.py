"""Rows and batches: pieces of series are packed into rows of equal length with little padding; `Batches` serves rows, resumable.

    row 0    aaaaaaaaaaaaaaaaaaaabbbbbbbbbbbbb.
    row 1    ccccccccccccddddddddddeeeeeeeeffff
    row 2    ffffffffffffffgggggggggghhhhhhhhhh     the series f did not fit: it is cut where the row before ends

Pieces come in pools, in the shuffled order of the epoch. A row repeatedly takes the longest piece of its pool that fits; where none
fits and more than 1/64 of the row is left, the longest piece is cut. So every target is in exactly one row, and a pool depends only on
seed, epoch and its number. Attention must stay within a segment: `segments` has the number of each position's piece.

A pass has a fixed number of batches, whatever the length of the data: so a run has exactly the requested steps, and is validated as
often as requested. The state is the pass, the batches served in it, and the next row.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

import stoker
from stoker.errors import FeedError
from stoker.extend import Array, kernel
from stoker_recipes.time_moe.dataset import CompatSamples, CorpusScales, Pieces, gathered

POOL_ROWS = 128  # approximate rows of a pool; its last row is not full
SLACK_SHARE = 64
LEAST_CUT = 16  # fewest positions on both sides of a cut
WORTH_PACKING = 0.97  # pieces are not packed if at least this share of positions are targets anyway
COUNTED_POOLS = 1024
LOOKED_POOLS = 16
PADDING = -1  # the segment of padding


class Placed(NamedTuple):
    """Pieces, or parts of cut pieces, row by row."""

    pieces: Array
    skips: Array  # positions of the piece in earlier rows
    counts: Array
    bounds: Array  # where each row begins among the pieces, and the end of the last


def pack_rows(counts: Array, length: int) -> Placed:
    """Pack pieces with these numbers of positions (at most `length`) into rows."""
    slack = length // SLACK_SHARE
    least = max(1, min(LEAST_CUT, slack))
    most = len(counts) + int(counts.sum()) // length + 2
    pieces, skips, taken, bounds = (np.empty(most, dtype=np.int64) for _ in range(4))
    num_placed, num_rows = _pack(counts.astype(np.int64), length, slack, least, pieces, skips, taken, bounds)
    bounds[num_rows] = num_placed
    return Placed(pieces[:num_placed], skips[:num_placed], taken[:num_placed], bounds[: num_rows + 1])


@kernel
def _highest(bits: Array, bound: int) -> int:
    """The highest number up to a bound whose bit is set; 0 where there is none."""
    word = bound >> 6
    here = bits[word] & (np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(63 - (bound & 63)))
    while here == 0 and word > 0:
        word -= 1
        here = bits[word]
    if here == 0:
        return 0
    place = 63
    while not (here >> np.uint64(place)) & np.uint64(1):
        place -= 1
    return word * 64 + place


@kernel
def _push(piece: int, size: int, heads: Array, tails: Array, nexts: Array, bits: Array) -> None:
    nexts[piece] = -1
    if heads[size] < 0:
        heads[size] = piece
        bits[size >> 6] |= np.uint64(1) << np.uint64(size & 63)
    else:
        nexts[tails[size]] = piece
    tails[size] = piece


@kernel
def _pop(size: int, heads: Array, nexts: Array, bits: Array) -> int:
    piece: int = heads[size]
    heads[size] = nexts[piece]
    if heads[size] < 0:
        bits[size >> 6] &= ~(np.uint64(1) << np.uint64(size & 63))
    return piece


@kernel
def _pack(
    counts: Array, length: int, slack: int, least: int, pieces: Array, skips: Array, taken: Array, bounds: Array
) -> tuple[int, int]:
    """Returns the numbers of placed parts and of rows. Pieces of one size are a queue."""
    heads, tails = np.full(length + 1, -1, dtype=np.int64), np.empty(length + 1, dtype=np.int64)
    nexts, done = np.empty(len(counts), dtype=np.int64), np.zeros(len(counts), dtype=np.int64)
    bits = np.zeros((length >> 6) + 1, dtype=np.uint64)
    remaining = 0
    for i in range(len(counts)):
        if counts[i] > 0:
            _push(i, counts[i], heads, tails, nexts, bits)
            remaining += 1
    placed, row = 0, 0
    while remaining > 0:
        bounds[row] = placed
        free = length
        while remaining > 0 and free > 0:
            size = _highest(bits, free)
            is_cut = size == 0
            if is_cut:
                size = _highest(bits, length)
            take = min(free, size - least) if is_cut else size
            if is_cut and (free <= slack or take < least):
                break
            piece = _pop(size, heads, nexts, bits)
            pieces[placed], skips[placed], taken[placed] = piece, done[piece], take
            placed += 1
            free -= take
            done[piece] += take
            if is_cut:
                _push(piece, size - take, heads, tails, nexts, bits)
            else:
                remaining -= 1
        row += 1
    return placed, row


@kernel
def _fill(
    values: Array, starts: Array, counts: Array, rows: Array, columns: Array, numbers: Array, centers: Array, divisors: Array,
    x: Array, y: Array, mask: Array, segments: Array,
) -> None:  # fmt: skip
    """Write pieces into their rows: a missing point is 0 as an input, and not a target."""
    for i in range(len(starts)):
        row, column = rows[i], columns[i]
        before = (np.float64(values[starts[i]]) - centers[i]) / divisors[i]
        for t in range(counts[i]):
            after = (np.float64(values[starts[i] + t + 1]) - centers[i]) / divisors[i]
            x[row, column + t] = np.float32(before) if np.isfinite(before) else np.float32(0)
            y[row, column + t] = np.float32(after) if np.isfinite(after) else np.float32(0)
            mask[row, column + t] = np.isfinite(after)
            segments[row, column + t] = numbers[i]
            before = after


class Pool(NamedTuple):
    """The numbers of the rows (or windows) of one pool, in their order; and the pieces of packed rows."""

    order: Array
    series: Array = np.empty(0)
    starts: Array = np.empty(0)
    counts: Array = np.empty(0)
    bounds: Array = np.empty(0)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.order)


def _numbers(seed: int, num_samples: int) -> Callable[[int, int, int], Array]:
    """A shuffled order: called with an epoch and two bounds, it returns the numbers of the samples between these."""
    shuffle: Any = stoker.Shuffle(seed)
    numbers: Callable[[int, int, int], Array] = shuffle.over(SimpleNamespace(num_samples=num_samples), batch_size=1).numbers
    return numbers


class PackedRows:
    """All pieces of a part as rows of `length` positions, packed or (with `packed=False`) one piece per row."""

    def __init__(self, pieces: Pieces, scales: CorpusScales, *, seed: int, packed: bool | None = None) -> None:
        self.pieces = pieces
        self.length = pieces.length
        self.packed = pieces.filled < WORTH_PACKING if packed is None else packed
        self._scales, self._seed = scales, seed
        self._order = _numbers(seed, pieces.num_samples)
        rows = pieces.num_positions / pieces.length if self.packed else pieces.num_samples
        self.num_pools = max(1, min(round(rows / POOL_ROWS), pieces.num_samples))
        self.fingerprint = f"{pieces.corpus.fingerprint} {self.length} {pieces.num_samples} {self.packed} {scales.method}"
        self._latest: tuple[tuple[int, int], Pool] | None = None

    def pool(self, epoch: int, number: int) -> Pool:
        """One pool of an epoch."""
        known = self._latest
        if known is None or known[0] != (epoch, number):
            known = self._latest = (epoch, number), self._make(epoch, number)
        return known[1]

    def _make(self, epoch: int, number: int) -> Pool:
        total = self.pieces.num_samples
        bounds = [total * at // self.num_pools for at in (number, number + 1)]
        series, starts, counts = self.pieces.locate(self._order(epoch, bounds[0], bounds[1]))
        if not self.packed:
            return Pool(np.arange(len(series)), series, starts, counts, np.arange(len(series) + 1))
        packed = pack_rows(counts, self.length)
        num_rows = len(packed.bounds) - 1
        # Each pool has its own key, far from those of the epochs.
        order = _numbers(self._seed, num_rows)(2**40 + epoch * self.num_pools + number, 0, num_rows)
        return Pool(order, series[packed.pieces], starts[packed.pieces] + packed.skips, packed.counts, packed.bounds)

    def gather(self, pool: Pool, first: int, batch: dict[str, Array], row: int, num_rows: int) -> None:
        """Write rows of a pool, from its `first` one on, into a batch from its row `row` on."""
        chosen = pool.order[first : first + num_rows]
        sizes = pool.bounds[chosen + 1] - pool.bounds[chosen]
        ends = np.cumsum(sizes)
        numbers = np.arange(ends[-1]) - np.repeat(ends - sizes, sizes)  # within the row
        at = np.repeat(pool.bounds[chosen], sizes) + numbers
        rows = np.repeat(np.arange(row, row + num_rows), sizes)
        series, starts, counts = pool.series[at], pool.starts[at], pool.counts[at]
        before = np.cumsum(counts) - counts
        columns = before - np.repeat(before[ends - sizes], sizes)
        self._scales.know(series)
        flats = self.pieces.corpus.flat_of(series)
        for flat in np.unique(flats).tolist():
            some = flats == flat
            values, begins = self.pieces.corpus.flats[flat].values, starts[some]
            if values.dtype == np.float16:
                values, begins, _ = gathered(values, begins, begins + counts[some] + 1)
            scales = self._scales.centers[series[some]], self._scales.divisors[series[some]]
            places = (rows[some], columns[some], numbers[some].astype(np.int32))
            _fill(values, begins, counts[some], *places, *scales, batch["x"], batch["y"], batch["mask"], batch["segments"])

    def share_known(self) -> float:
        """The share of targets that are not missing, in the first pool that has any; 0 if none of the first pools has."""
        for number in range(min(self.num_pools, LOOKED_POOLS)):
            pool = self.pool(0, number)
            batch = {name: tensor.numpy() for name, tensor in empty_batch(self, pool.num_rows).items()}
            self.gather(pool, 0, batch, 0, pool.num_rows)
            if batch["mask"].any():
                return float(batch["mask"].sum() / pool.counts.sum())
        return 0.0

    def count_rows(self, epoch: int) -> int:
        """Rows of an epoch; of very many pools, estimated from some that are evenly spaced."""
        numbers = np.unique(np.linspace(0, self.num_pools - 1, min(self.num_pools, COUNTED_POOLS)).astype(np.int64))
        counted = sum(self._make(epoch, number).num_rows for number in numbers.tolist())
        return round(counted * self.num_pools / len(numbers))


# ---- batches ----

Batch = dict[str, Any]

AHEAD = 2  # batches that are prefetched for a GPU
POOL = 4096


@dataclass(frozen=True)
class RowCursor:
    """The next row."""

    epoch: int = 0
    pool: int = 0
    row: int = 0


class CompatRows:
    """The authors' windows in a shuffled order, one per row."""

    packed = False

    def __init__(self, samples: CompatSamples, length: int, *, seed: int) -> None:
        self._samples = samples
        self.length = length
        self.num_pools = -(-len(samples) // POOL)
        self.fingerprint = f"{samples.corpus.fingerprint} {length} {len(samples)} compat"
        self._order = _numbers(seed, len(samples))

    def pool(self, epoch: int, number: int) -> Pool:
        """The numbers of some windows."""
        return Pool(self._order(epoch, number * POOL, min((number + 1) * POOL, len(self._samples))))

    def gather(self, pool: Pool, first: int, batch: dict[str, Array], row: int, num_rows: int) -> None:
        """Write windows into a batch."""
        windows = self._samples.gather(pool.order[first : first + num_rows])
        for name, theirs in (("x", "input_ids"), ("y", "labels"), ("mask", "loss_masks")):
            batch[name][row : row + num_rows] = windows[theirs].numpy()


Rows = PackedRows | CompatRows


def empty_batch(rows: Rows, num_rows: int, *, pinned: bool = False) -> Batch:
    """A batch of `num_rows` padding rows."""
    shape, zeros = (num_rows, rows.length), {"x": torch.float32, "y": torch.float32, "mask": torch.bool}
    batch = {name: torch.zeros(shape, dtype=dtype, pin_memory=pinned) for name, dtype in zeros.items()}
    if isinstance(rows, PackedRows):
        batch["segments"] = torch.full(shape, PADDING, dtype=torch.int32, pin_memory=pinned)
    return batch


def assemble(rows: Rows, place: RowCursor, batch_size: int, num_rows: int, *, pinned: bool = False) -> tuple[Batch, RowCursor]:
    """A batch with `num_rows` rows from `place` on, padded to `batch_size`; and the next row after them."""
    batch = empty_batch(rows, batch_size, pinned=pinned)
    arrays = {name: tensor.numpy() for name, tensor in batch.items()}
    row = 0
    while row < num_rows:
        pool = rows.pool(place.epoch, place.pool)
        count = min(num_rows - row, pool.num_rows - place.row)
        rows.gather(pool, place.row, arrays, row, count)
        row += count
        place = advance(rows, place, count)
    if not rows.packed:
        batch.pop("segments", None)  # rows of one piece need none
    return batch, place


def advance(rows: Rows, place: RowCursor, count: int) -> RowCursor:
    """The row `count` rows later; epochs follow each other without a gap."""
    while count:
        left = rows.pool(place.epoch, place.pool).num_rows - place.row
        if count < left:
            return replace(place, row=place.row + count)
        count -= left
        is_last = place.pool + 1 == rows.num_pools
        place = RowCursor(place.epoch + 1) if is_last else RowCursor(place.epoch, place.pool + 1)
    return place


class Batches:
    """Passes of `steps` batches each, of `batch_size` rows per rank, on a device; for `stoker.Trainer.fit`.

    With `total`, the last pass ends after `total` batches in all.
    """

    def __init__(self, rows: Rows, *, batch_size: int, steps: int, total: int | None = None, device: Any = "cpu") -> None:
        self.rows, self.batch_size, self.device = rows, batch_size, torch.device(device)
        self._steps, self._total = steps, total
        self._rank, self._world_size = int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)
        self._pass = self._given = 0
        self._place = RowCursor()

    def __len__(self) -> int:
        """Batches of a pass."""
        return self._steps

    def _length(self, number: int) -> int:
        """Batches of one pass."""
        left = self._steps if self._total is None else self._total - number * self._steps
        return min(self._steps, left) if left > 0 else self._steps

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the pass."""
        if self.device.type == "cpu":
            while True:
                batch, place = self._make(self._place)
                yield self._hand_out(batch, place)
                if not self._given:
                    return
        yield from self._ahead()

    def _ahead(self) -> Iterator[Batch]:
        """Batches that a thread prefetches while the device works."""
        left = self._length(self._pass) - self._given
        with ThreadPoolExecutor(1, thread_name_prefix="stoker-time-moe") as thread:
            waiting: deque[Future[tuple[Batch, RowCursor]]] = deque()
            # One thread: each call begins where the previous one ended.
            made = [self._place]

            def make() -> tuple[Batch, RowCursor]:
                batch, made[0] = self._make(made[0])
                return batch, made[0]

            try:
                for number in range(left):
                    while len(waiting) < min(AHEAD, left - number):
                        waiting.append(thread.submit(make))
                    batch, place = waiting.popleft().result()
                    moved = {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}
                    yield self._hand_out(moved, place)
            finally:
                for future in waiting:
                    future.cancel()

    def _hand_out(self, batch: Batch, place: RowCursor) -> Batch:
        self._place = place
        self._given += 1
        if self._given == self._length(self._pass):
            self._pass, self._given = self._pass + 1, 0
        return batch

    def _make(self, place: RowCursor) -> tuple[Batch, RowCursor]:
        """The batch of this rank in the step that begins at `place`, and the first row of the next step."""
        mine = advance(self.rows, place, self._rank * self.batch_size)
        batch, behind = assemble(self.rows, mine, self.batch_size, self.batch_size, pinned=self.device.type == "cuda")
        return batch, advance(self.rows, behind, (self._world_size - 1 - self._rank) * self.batch_size)

    def state_dict(self) -> dict[str, Any]:
        """The position: served batches count as seen."""
        return {"epoch": self._pass, "position": self._given, "place": asdict(self._place), "rows": self.rows.fingerprint}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state; the batch size may differ."""
        if state.get("rows") != self.rows.fingerprint:
            raise FeedError(
                f"the state belongs to other data or other rows: {state.get('rows')!r} saved, {self.rows.fingerprint!r} now. "
                f"Resume with the same data, length and samples."
            )
        self._pass, self._given, self._place = int(state["epoch"]), int(state["position"]), RowCursor(**state["place"])

    def state_after(self, state: Mapping[str, Any], batches: int) -> dict[str, Any]:
        """The state of a pass that began at `state`, after `batches` batches."""
        served = int(state["position"]) + batches
        place = advance(self.rows, RowCursor(**state["place"]), batches * self.batch_size * self._world_size)
        is_over = served >= self._length(int(state["epoch"]))
        return {**state, "epoch": state["epoch"] + is_over, "position": 0 if is_over else served, "place": asdict(place)}


class FirstBatches:
    """The first rows of epoch 0, always the same, in at most `most` batches: for validation.

    All batches have one shape: `valid` marks the rows of the last one that are not padding.
    """

    def __init__(self, rows: Rows, *, batch_size: int, most: int, device: Any = "cpu") -> None:
        self.rows, self.device = rows, torch.device(device)
        self._batch_size, self._most = batch_size, most

    def __iter__(self) -> Iterator[Batch]:
        pools = range(min(self.rows.num_pools, self._batch_size * self._most))  # each has at least one row
        left, place = sum(self.rows.pool(0, number).num_rows for number in pools), RowCursor()
        for _ in range(self._most):
            if not left:
                return
            count = min(self._batch_size, left)
            batch, place = assemble(self.rows, place, self._batch_size, count)
            left -= count
            batch["valid"] = torch.arange(self._batch_size) < count
            yield {name: tensor.to(self.device) for name, tensor in batch.items()}
