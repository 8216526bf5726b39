"""Image: the tensors of a part in host memory, byte for byte as they will lie in its file.

It stands between training, which goes on changing the tensors, and the thread that writes. Its memory is used again for the
next save. On a GPU the training stream is held up only for a gather within the device; a second stream then brings that to
pinned memory while the next steps run. Where the device has no room for the gathered copy, tensors are copied directly,
and the training stream, not the host, waits for that: the next update would overwrite what is being copied.

The law: the bytes are those that the current stream would have seen when `capture` was called, whatever comes after.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from stoker.train.layout import Layout, Run, Signature, lay_out, signature

CHUNK_BYTES = 16 << 20
_SPARE_SHARE = 0.5  # of the device memory that is free: more would take it from the next step


class Image:
    """Memory for one part; `capture` fills it, `chunks` gives what to write. One capture at a time."""

    def __init__(self) -> None:
        self._signature: Signature | None = None
        self._layout: Layout = lay_out(())
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._views: list[list[Tensor]] = []  # of each run
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._events: list[torch.cuda.Event] = []
        self._has_room: dict[torch.device, bool] = {}

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return len(self._layout.header) + self._layout.num_bytes

    def capture(self, tensors: Mapping[str, Tensor]) -> None:
        """Take in all tensors as they are now. Returns when they may be changed by work of the current stream."""
        found = signature(tensors)
        if found != self._signature:
            self._arrange(found)
        self._events.clear()
        for run, views in zip(self._layout.runs, self._views, strict=True):
            sources = [tensors[place.name] for place in run.places]
            if run.device.type == "cuda":
                self._capture_cuda(run, views, sources)
            else:
                for view, source in zip(views, sources, strict=True):
                    view.copy_(source.view(run.carrier))

    def wait(self) -> None:
        """Wait until all bytes are here; sleeps, and holds no GIL."""
        for event in self._events:
            event.synchronize()

    def chunks(self) -> Iterator[memoryview]:
        """The bytes of the file, in pieces. They are valid until the next `capture`."""
        yield memoryview(self._layout.header)
        values = memoryview(self._memory.numpy())
        for begin in range(0, self._layout.num_bytes, CHUNK_BYTES):
            yield values[begin : min(begin + CHUNK_BYTES, self._layout.num_bytes)]

    def _arrange(self, found: Signature) -> None:
        self._layout = layout = lay_out(found)
        pinned = any(run.device.type == "cuda" for run in layout.runs)
        if layout.num_bytes != len(self._memory) or pinned != self._memory.is_pinned():
            self._memory = torch.empty(0, dtype=torch.uint8)  # first give back the old
            self._memory = torch.empty(layout.num_bytes, dtype=torch.uint8, pin_memory=pinned)
        self._views = [self._views_of(run) for run in layout.runs]
        self._has_room = {run.device: _has_room(run.device, layout) for run in layout.runs if run.device.type == "cuda"}
        self._signature = found

    def _views_of(self, run: Run) -> list[Tensor]:
        return [self._memory[place.begin : place.end].view(run.carrier).view(place.shape) for place in run.places]

    def _capture_cuda(self, run: Run, views: list[Tensor], sources: list[Tensor]) -> None:
        stream = self._streams.get(run.device)
        if stream is None:
            stream = self._streams[run.device] = torch.cuda.Stream(run.device)  # type: ignore[no-untyped-call]
        training = torch.cuda.current_stream(run.device)
        gathered = self._gather(run, sources)
        stream.wait_stream(training)
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            if gathered is not None:
                self._memory[run.begin : run.end].view(run.carrier).copy_(gathered, non_blocking=True)
                gathered.record_stream(stream)  # its memory is free for training once the copy is done, and not before
            else:
                for view, source in zip(views, sources, strict=True):
                    view.copy_(source.view(run.carrier), non_blocking=True)
            done.record(stream)
        if gathered is None:
            training.wait_event(done)
        self._events.append(done)

    def _gather(self, run: Run, sources: list[Tensor]) -> Tensor | None:
        """All tensors of a run end to end in device memory, by one kernel; None where there is no room for them."""
        if not self._has_room[run.device]:
            return None
        try:
            return torch.cat([source.reshape(-1).view(run.carrier) for source in sources])
        except torch.OutOfMemoryError:
            self._has_room[run.device] = False
            return None


def _has_room(device: torch.device, layout: Layout) -> bool:
    """Whether a second copy of the tensors fits on their device beside what training needs; slow to ask."""
    needed = sum(run.end - run.begin for run in layout.runs if run.device == device)
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return needed <= _SPARE_SHARE * (torch.cuda.mem_get_info(device)[0] + held)
