"""Graphs: the whole step as CUDA graphs, one per shape of batch, so that a step costs the host one launch.

A graph needs static shapes and addresses. Batches are copied into tensors that stay where they are, or (for a feed that lives on
the device) gathered there by the graph itself. A shape that comes for the first time runs eagerly, and is captured the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from stoker._batch import map_tensors, tensors_of
from stoker._device import sync_debug_mode
from stoker.errors import TrainError
from stoker.train.autotune import reason_of
from stoker.train.step import EagerStep, Readout, StepWork

WARM_UP = 3
MOST_SHAPES = 32
"""Shapes that are captured; more of them would hold too much memory, and rarely come again."""

_is_eager = False


@contextmanager
def eager_steps() -> Iterator[None]:
    """Run steps without their graphs, so that their operations can be counted: a replay is one launch, whatever it computes."""
    global _is_eager
    _is_eager = True
    try:
        yield
    finally:
        _is_eager = False


Signature = tuple[tuple[torch.Size, torch.dtype], ...]


class Graphs(StepWork):
    """Steps replayed from graphs; shapes that come once run eagerly."""

    def __init__(
        self, step: EagerStep, readout: Readout, *, grad_accum_steps: int, preserve: Callable[[], Callable[[], None]]
    ) -> None:
        super().__init__(step, readout)
        self._whole = grad_accum_steps == 1
        self._preserve = preserve
        self._seen: dict[Signature, int] = {}
        self.graphs: dict[Signature, tuple[Any, torch.cuda.CUDAGraph]] = {}
        """Of each shape that was captured, with the tensors that it reads."""
        self._update_graph: torch.cuda.CUDAGraph | None = None
        self._pool: Any = None
        self._was_replayed = False
        if not self._whole:
            step.keep_gradients()

    def micro(self, entry: Any) -> None:
        """Copy a batch to where its graph looks for it, and replay; a shape that comes for the second time is captured."""
        signature = tuple((tensor.shape, tensor.dtype) for tensor in tensors_of(entry))
        recorded = None if _is_eager else self.graphs.get(signature)
        if recorded is None and not _is_eager:
            seen = self._seen[signature] = self._seen.get(signature, 0) + 1
            if seen > 1 and len(self.graphs) < MOST_SHAPES:
                static = map_tensors(entry, torch.clone)
                recorded = self.graphs[signature] = static, self._record(lambda: self._do(static))
        self._was_replayed = recorded is not None
        if recorded is None:
            self._step.micro(entry)
            return
        static, graph = recorded
        torch._foreach_copy_(tensors_of(static), tensors_of(entry), non_blocking=True)
        graph.replay()

    def _do(self, batch: Any) -> None:
        self._step.micro(batch)
        if self._whole:
            self._step.update()

    def _record(self, body: Callable[[], object]) -> torch.cuda.CUDAGraph:
        restore = self._preserve()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP - 1):
                    body()
                with sync_debug_mode("error"):  # a capture that fails may leave generators unusable, so look first
                    body()
            torch.cuda.current_stream().wait_stream(stream)
            restore()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                body()
        except RuntimeError as error:
            raise TrainError(f"the step cannot be a graph: {reason_of(error)}.") from error
        finally:
            restore()
        self._pool = self._pool or graph.pool()
        return graph

    def update(self) -> bool:
        """Update by graph, unless the graph of the micro-batch has done it."""
        if not self._whole and not _is_eager:
            self._update_graph = self._update_graph or self._record(self._step.update)
            self._update_graph.replay()
        elif not self._whole or not self._was_replayed:
            self._step.update()
        self._readout.count += 1
        return True


class Gathering(Graphs):
    """Graphs that gather their batches themselves, from a feed that lives on the device."""

    def __init__(
        self, step: EagerStep, readout: Readout, feed: Any, *, grad_accum_steps: int, preserve: Callable[[], Callable[[], None]]
    ) -> None:
        super().__init__(step, readout, grad_accum_steps=grad_accum_steps, preserve=preserve)
        self._captured = feed.captured()
        self._graph: torch.cuda.CUDAGraph | None = None

    def source(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The steps of a pass of the feed, each of which is a gather within the graph."""
        return iter(self._captured.passes())

    def micro(self, entry: Any) -> None:
        """Replay, the gather included."""
        if self._graph is None:
            self._graph = self._record(lambda: self._do(self._captured.enqueue()))
            self._captured.rewind()
            self._was_replayed = True
        if _is_eager:
            self._do(self._captured.enqueue())
        else:
            self._graph.replay()
