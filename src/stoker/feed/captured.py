"""Captured batches: the gather of a batch as a CUDA graph, or as a part of the user's own.

The graph reads where samples lie from a table on the device, at a place that a counter on the device says, and moves the
counter on. So a step needs nothing of the host but the replay; once in many steps the host fills the table anew.
The tensors of a batch are the same ones at every step: what is to be kept must be copied.

    captured = feed.captured()
    for batch in captured: ...                       # replays a graph of the gather

    with torch.cuda.graph(graph):                    # or one graph of the whole step
        loss = train(captured.enqueue())
    for _ in captured.passes(): graph.replay()
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from stoker.errors import OptionError
from stoker.feed.ahead import Ahead
from stoker.feed.batches import Batch, Steps
from stoker.feed.cursor import Cursor
from stoker.feed.device import DeviceGather, Table
from stoker.feed.layout import Finish
from stoker.feed.producers import DeviceProducer
from stoker.order.sequences import Sequences

if TYPE_CHECKING:
    from stoker.feed.feed import Feed

Array = npt.NDArray[Any]

CAPTURED_STEPS = 256
"""Steps between two visits of the host."""
_WARM_UP = 3


class Captured:
    """Batches of a feed with device residency, in tensors that stay where they are."""

    def __init__(self, feed: Feed, producer: DeviceProducer) -> None:
        view = feed.view
        if isinstance(view, Sequences) and view.buckets != (view.max_length,):
            raise OptionError(
                f"{view} has batches of different shapes, which a graph cannot have. Give buckets=({view.max_length},)."
            )
        if feed.last == "short":
            raise OptionError("last='short' makes a batch of another shape, which a graph cannot have. Use last='mask' or 'drop'.")
        self._feed = feed
        self._producer = producer
        self._gather: DeviceGather = producer.gather
        self._finish: Finish = producer.finish.without_valid()
        self._rows = feed.batch_size
        self._masked = feed.samples.padded or feed.last == "mask"
        device = feed.device
        self._table = torch.zeros(4, CAPTURED_STEPS * self._rows, dtype=torch.int64, device=device)
        self._place = torch.zeros(1, dtype=torch.int64, device=device)
        self._longest = np.array([feed.samples.row], dtype=np.int64)
        self.graph: torch.cuda.CUDAGraph | None = None
        """Of the gather, once somebody has iterated."""
        self.batch: Batch = {}

    def enqueue(self) -> Batch:
        """Gather the next batch: device work only, so that a graph can capture it."""
        table = Table(self._table, rows=self._rows, place=self._place)
        batch = self._finish(self._gather.gather(table, self._longest, masked=self._masked), self._rows)
        if self._feed.last == "mask" and not getattr(self._feed.view, "compat", None):
            batch["valid"] = table.numbers >= 0
        self._place.add_(self._rows)
        return batch

    def rewind(self) -> None:
        """Go back to the first step of the table that is on the device."""
        self._place.zero_()

    def passes(self) -> Iterator[int]:
        """The steps of a pass; each must be followed by one gather. The host's work lies between some of them."""
        steps, cursor = self._feed.begin_pass()
        chunks = Ahead(
            self._make_chunk(steps), -(-len(steps) // CAPTURED_STEPS), threads=self._feed.threads, depth=2, waits=self._feed.waits
        )
        if not len(steps):
            self._advance(steps, cursor, -1)  # less than a batch was left of the epoch
        try:
            for step in range(len(steps)):
                if step % CAPTURED_STEPS == 0:
                    chunk = next(chunks)
                    self._table[:, : chunk.shape[1]].copy_(chunk, non_blocking=True)
                    self.rewind()
                self._advance(steps, cursor, step)  # before: what was handed out counts as seen
                yield step
        finally:
            chunks.close()

    def _make_chunk(self, steps: Steps) -> Any:
        producer, pinned = self._producer, self._feed.device.type == "cuda"

        def make(chunk: int) -> torch.Tensor:
            first = chunk * CAPTURED_STEPS
            tables = [producer.place(steps, step) for step in range(first, min(first + CAPTURED_STEPS, len(steps)))]
            whole = torch.from_numpy(np.concatenate(tables, axis=1))
            return whole.pin_memory() if pinned else whole

        return make

    @staticmethod
    def _advance(steps: Steps, cursor: Cursor, step: int) -> None:
        cursor.epoch, cursor.position = (steps.epoch + 1, 0) if step + 1 == len(steps) else (steps.epoch, steps.end(step))

    def __iter__(self) -> Iterator[Batch]:
        replay = self._capture()
        for _ in self.passes():
            replay()
            yield self.batch

    def _capture(self) -> Any:
        """A function that gathers the next batch into `batch`: the replay of a graph, or (without a GPU) the gather itself."""
        if self._feed.device.type != "cuda":
            return self._gather_in_place
        if self.graph is None:
            stream = torch.cuda.Stream(self._feed.device)  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream(self._feed.device))
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UP):
                    self.enqueue()
                    self.rewind()
            torch.cuda.current_stream(self._feed.device).wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.batch = self.enqueue()
            self.graph = graph
        return self.graph.replay

    def _gather_in_place(self) -> None:
        fresh = self.enqueue()
        if not self.batch:
            self.batch = {name: tensor.clone() for name, tensor in fresh.items()}
        for name, tensor in fresh.items():
            self.batch[name].copy_(tensor)
