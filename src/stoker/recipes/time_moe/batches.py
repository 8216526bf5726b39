"""Batches: rows of the training, batch after batch through as many epochs as it takes, resumable anywhere.

A pass has a fixed number of batches, whatever the length of the data: so a training has exactly the steps it was asked for, and is
validated as often as wanted. The state is a few numbers: the pass, the batches given out in it, and the row that comes next.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy.typing as npt

import stoker
from stoker.errors import FeedError, OptionError
from stoker.recipes.time_moe.samples import CompatSamples

Array = npt.NDArray[Any]
Batch = dict[str, Any]

AHEAD = 2
"""Batches that are made ahead for a GPU."""
POOL = 4096


class Rows(Protocol):
    """Rows to train on, in pools, epoch by epoch."""

    num_pools: int
    fingerprint: str
    length: int

    def pool(self, epoch: int, number: int) -> Any:
        """One pool of an epoch; it has `num_rows`."""

    def empty(self, num_rows: int, *, pinned: bool = False) -> Batch:
        """A batch of so many rows of nothing."""

    def gather(self, pool: Any, first: int, batch: dict[str, Array], row: int, num_rows: int) -> None:
        """Write rows of a pool into a batch."""

    def finish(self, batch: Batch) -> Batch:
        """What a model takes."""


@dataclass(frozen=True)
class Place:
    """Which row comes next."""

    epoch: int = 0
    pool: int = 0
    row: int = 0


@dataclass(frozen=True)
class _CompatPool:
    numbers: Array

    @property
    def num_rows(self) -> int:
        return len(self.numbers)


class CompatRows:
    """The authors' windows in a shuffled order, one a row."""

    def __init__(self, samples: CompatSamples, length: int, *, seed: int) -> None:
        self._samples = samples
        self.length = length
        self.num_pools = -(-len(samples) // POOL)
        self.fingerprint = f"{samples.corpus.fingerprint} {length} {len(samples)} compat"
        order: Any = stoker.Shuffle(seed)
        self._plan = order.over(_Numbered(len(samples)), batch_size=1)

    def pool(self, epoch: int, number: int) -> _CompatPool:
        """The numbers of some windows."""
        return _CompatPool(self._plan.numbers(epoch, number * POOL, min((number + 1) * POOL, len(self._samples))))

    def empty(self, num_rows: int, *, pinned: bool = False) -> Batch:
        """A batch of so many rows of nothing."""
        import torch

        shape = (num_rows, self.length)
        floats = {name: torch.zeros(shape, pin_memory=pinned) for name in ("x", "y")}
        return {**floats, "mask": torch.zeros(shape, dtype=torch.bool, pin_memory=pinned)}

    def gather(self, pool: _CompatPool, first: int, batch: dict[str, Array], row: int, num_rows: int) -> None:
        """Write windows into a batch."""
        found = self._samples.gather(pool.numbers[first : first + num_rows])
        for name, theirs in (("x", "input_ids"), ("y", "labels"), ("mask", "loss_masks")):
            batch[name][row : row + num_rows] = found[theirs].numpy()

    def finish(self, batch: Batch) -> Batch:
        """All of it."""
        return batch

    def count_rows(self, epoch: int) -> int:
        """Rows of a whole epoch: that of the windows."""
        return len(self._samples)


@dataclass(frozen=True)
class _Numbered:
    num_samples: int


def assemble(rows: Rows, place: Place, batch_size: int, num_rows: int, *, pinned: bool = False) -> tuple[Batch, Place]:
    """A batch with `num_rows` rows from a place on, and nothing behind them; and the place behind."""
    batch = rows.empty(batch_size, pinned=pinned)
    arrays = {name: tensor.numpy() for name, tensor in batch.items()}
    row = 0
    while row < num_rows:
        pool = rows.pool(place.epoch, place.pool)
        count = min(num_rows - row, pool.num_rows - place.row)
        rows.gather(pool, place.row, arrays, row, count)
        row += count
        place = advance(rows, place, count)
    return rows.finish(batch), place


def advance(rows: Rows, place: Place, count: int) -> Place:
    """The place so many rows later; epochs follow each other without a gap."""
    while count:
        left = rows.pool(place.epoch, place.pool).num_rows - place.row
        if count < left:
            return replace(place, row=place.row + count)
        count -= left
        is_last = place.pool + 1 == rows.num_pools
        place = Place(place.epoch + 1) if is_last else Place(place.epoch, place.pool + 1)
    return place


class Batches:
    """Passes of `steps` batches each, of `batch_size` rows on each rank, on a device; for `stoker.Trainer.fit`.

    With `total`, the pass in which so many batches have been given out ends there.
    """

    def __init__(self, rows: Rows, *, batch_size: int, steps: int, total: int | None = None, device: Any = "cpu") -> None:
        import torch

        for name, value in (("batch_size", batch_size), ("steps", steps)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise OptionError(f"{name} is {value!r}; expected a whole number from 1.")
        self.rows = rows
        self.batch_size = batch_size
        self.device = torch.device(device)
        self._steps = steps
        self._total = total
        self._rank, self._world_size = int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)
        self._pass = self._given = 0
        self._place = Place()

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
        """Batches made by a thread while the device is busy with those before."""
        left = self._length(self._pass) - self._given
        with ThreadPoolExecutor(1, thread_name_prefix="stoker-time-moe") as thread:
            waiting: deque[Future[tuple[Batch, Place]]] = deque()
            # One thread: each call begins where the one before it ended.
            made = [self._place]

            def make() -> tuple[Batch, Place]:
                batch, made[0] = self._make(made[0])
                return batch, made[0]

            try:
                for number in range(left):
                    while len(waiting) < min(AHEAD, left - number):
                        waiting.append(thread.submit(make))
                    batch, place = waiting.popleft().result()
                    there = {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}
                    yield self._hand_out(there, place)
            finally:
                for one in waiting:
                    one.cancel()

    def _hand_out(self, batch: Batch, place: Place) -> Batch:
        self._place = place
        self._given += 1
        if self._given == self._length(self._pass):
            self._pass, self._given = self._pass + 1, 0
        return batch

    def _make(self, place: Place) -> tuple[Batch, Place]:
        """The batch of this rank in the step that begins at a place, and the place of the next step."""
        mine = advance(self.rows, place, self._rank * self.batch_size)
        batch, behind = assemble(self.rows, mine, self.batch_size, self.batch_size, pinned=self.device.type == "cuda")
        return batch, advance(self.rows, behind, (self._world_size - 1 - self._rank) * self.batch_size)

    def state_dict(self) -> dict[str, Any]:
        """Where the batches are: those handed out count as seen."""
        return {"epoch": self._pass, "position": self._given, "place": asdict(self._place), "rows": self.rows.fingerprint}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was saved; the batch size may be another."""
        if state.get("rows") != self.rows.fingerprint:
            raise FeedError(
                f"the state is of other data, or of rows that are made in another way: {state.get('rows')!r} saved, "
                f"{self.rows.fingerprint!r} now. Resume with the same --data, --length and kind of samples."
            )
        self._pass, self._given, self._place = int(state["epoch"]), int(state["position"]), Place(**state["place"])

    def state_after(self, state: Mapping[str, Any], batches: int) -> dict[str, Any]:
        """The state of a pass that began at `state`, once it has handed out so many batches."""
        given = int(state["position"]) + batches
        place = advance(self.rows, Place(**state["place"]), batches * self.batch_size * self._world_size)
        is_over = given >= self._length(int(state["epoch"]))
        return {**state, "epoch": state["epoch"] + is_over, "position": 0 if is_over else given, "place": asdict(place)}


class FirstBatches:
    """The first rows of epoch 0, always the same ones, in at most `most` batches: for validation.

    All batches have one shape: `valid` says which rows of the last one hold something.
    """

    def __init__(self, rows: Rows, *, batch_size: int, most: int, device: Any = "cpu") -> None:
        import torch

        self.rows = rows
        self.device = torch.device(device)
        self._batch_size, self._most = batch_size, most

    def __iter__(self) -> Iterator[Batch]:
        import torch

        left, place = sum(self.rows.pool(0, number).num_rows for number in self._pools()), Place()
        for _ in range(self._most):
            if not left:
                return
            count = min(self._batch_size, left)
            batch, place = assemble(self.rows, place, self._batch_size, count)
            left -= count
            batch["valid"] = torch.arange(self._batch_size) < count
            yield {name: tensor.to(self.device) for name, tensor in batch.items()}

    def _pools(self) -> range:
        """Pools that may be needed: each has a row at least."""
        return range(min(self.rows.num_pools, self._batch_size * self._most))
