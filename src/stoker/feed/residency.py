"""Residency: where the columns of a feed stay while it runs, and read-ahead for columns that stay on disk.

    choose_residency    "device", "host" or "stream", and the reason
    ReadAhead           asks the operating system for the pages that come next (madvise)

Without hints the kernel assumes that a reader continues where it is, and reads megabytes that are not used. So its own read-ahead
is switched off, and what comes next is requested: a window of blocks where the order has them, otherwise some batches; sorted,
merged, and one such unit ahead. A thread of its own does this, because a request waits for room in the queue of the disk. A batch
is gathered only when all of its unit was requested: a page touched before would be a small read of its own.
"""

from __future__ import annotations

import mmap
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numba import types

from stoker._kernels import kernel
from stoker._text import readable_bytes
from stoker._types import Array
from stoker.errors import OptionError, StoreDamagedError
from stoker.feed.columns import FedColumn
from stoker.feed.prefetch import Steps
from stoker.sampling.orders import BlockPlan
from stoker.sampling.subset import merge_ranges
from stoker.sampling.views import Samples

if TYPE_CHECKING:
    import torch


PAGE = mmap.PAGESIZE
UNIT_BYTES = 8 * 2**20
"""Bytes per request, in batches, where the order has no windows."""
PIECE_BYTES = 4 * 2**20
"""Ranges are asked for in pieces of this size; a closed pass stops after a piece."""

_madvise = types.ExternalFunction("madvise", types.int32(types.uintp, types.uintp, types.int32))


def split(starts: Array, stops: Array, size: int) -> tuple[Array, Array]:
    """Ranges cut into pieces of at most this size."""
    pieces = -(-(stops - starts) // size)
    owner = np.repeat(np.arange(len(starts)), pieces)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begin = starts[owner] + place * size
    return begin, np.minimum(begin + size, stops[owner])


@kernel
def advise(addresses: Array, sizes: Array, advice: int, stop: Array) -> None:
    """Give this advice about ranges of memory, until `stop` is set. The system may ignore it."""
    for i in range(len(addresses)):
        if stop[0]:
            return
        _madvise(addresses[i], sizes[i], advice)


class MappedColumn:
    """The file behind a column, as far as hints go."""

    def __init__(self, column: FedColumn) -> None:
        base: Any = column.values
        while isinstance(base, np.ndarray | memoryview):
            base = base.base if isinstance(base, np.ndarray) else base.obj
        self.num_steps = len(column.values)
        self.step_bytes = column.values.dtype.itemsize * (column.width or 1)
        self.is_on_disk = isinstance(base, mmap.mmap)
        if isinstance(base, mmap.mmap):
            self._mapped = np.frombuffer(base, dtype=np.uint8)  # also keeps the file mapped while its pages are requested
            self._lead = len(self._mapped) - column.values.nbytes  # the header
            self.address: int = self._mapped.ctypes.data
            base.madvise(mmap.MADV_RANDOM)

    def pages(self, starts: Array, stops: Array) -> tuple[Array, Array]:
        """Ranges given in steps, as ranges of the file in bytes: whole pages, sorted and merged."""
        some = stops > starts  # an empty range may begin where the file ends, which cannot be asked for
        first = (starts[some] * self.step_bytes + self._lead) // PAGE * PAGE
        end = -(-(stops[some] * self.step_bytes + self._lead) // PAGE) * PAGE
        return merge_ranges(first, np.minimum(end, len(self._mapped)))


class WindowUnits:
    """What is requested together: the windows of a block order, as a pass comes to them."""

    def __init__(self, steps: Steps, plan: BlockPlan, samples: Samples) -> None:
        self.count = plan.num_windows
        self._steps = steps
        self._plan = plan
        self._samples = samples

    def of(self, step: int) -> tuple[int, int]:
        """The first and the last window that a step has samples of, on any rank."""
        steps, plan = self._steps, self._plan
        return plan.window_of(steps.epoch, steps.end(step - 1)), plan.window_of(steps.epoch, steps.end(step) - 1)

    def ranges(self, unit: int) -> tuple[Array, Array]:
        """Where a window lies, in steps of the columns. A block is a run of samples: its first and last say where it lies."""
        plan = self._plan
        firsts = plan.origins(self._steps.epoch, unit) * plan.block
        lasts = np.minimum(firsts + plan.block, plan.num_positions) - 1
        ends = self._samples.locate(lasts)
        return self._samples.locate(firsts).starts, ends.starts + ends.counts


class BatchUnits:
    """Some batches at a time, of an order that has no windows."""

    def __init__(self, steps: Steps, samples: Samples, sample_bytes: float) -> None:
        self._steps = steps
        self._samples = samples
        self._batches = max(1, int(UNIT_BYTES / max(1.0, sample_bytes * steps.batch_size)))
        self.count = -(-len(steps) // self._batches)

    def of(self, step: int) -> tuple[int, int]:
        """A batch is in one unit."""
        return step // self._batches, step // self._batches

    def ranges(self, unit: int) -> tuple[Array, Array]:
        """Where the samples lie."""
        first = unit * self._batches
        steps = range(first, min(first + self._batches, len(self._steps)))
        found = self._samples.locate(np.concatenate([self._steps.numbers(step) for step in steps]))
        return found.starts, found.starts + found.counts


class Hints:
    """What a pass has asked for. Its threads share it; the thread that asks lives while there is something to ask for."""

    def __init__(self, columns: list[MappedColumn], units: WindowUnits | BatchUnits) -> None:
        self._columns = columns
        self._units = units
        self._stop = np.zeros(1, dtype=np.bool_)
        self._begin(0)

    def _begin(self, step: int) -> None:
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._first_step = step
        self._next = self._wanted = -1  # the unit to be asked for, and the last one that may be
        self._is_asking = False
        self._error: Exception | None = None

    def before(self, step: int) -> None:
        """Called before a step is gathered; waits until all of it was asked for."""
        if os.getpid() != self._process:
            self._begin(step)  # a fork has none of the threads
        _, last = self._units.of(step)
        with self._changed:
            if self._next < 0:
                self._next, _ = self._units.of(self._first_step)
            self._wanted = max(self._wanted, min(last + 1, self._units.count - 1))
            if not self._is_asking and self._next <= self._wanted:
                threading.Thread(target=self._ask, name="stoker-hints", daemon=True).start()
                self._is_asking = True
            self._changed.wait_for(lambda: self._next > last or self._error is not None or self._stop[0])
            if self._error is not None:
                raise self._error

    def close(self) -> None:
        """Ask for nothing more."""
        self._stop[0] = True
        if os.getpid() == self._process:  # in a fork, a thread that is not there may hold the lock
            with self._changed:
                self._changed.notify_all()

    def _ask(self) -> None:
        while True:
            with self._changed:
                unit = self._next
                if unit > self._wanted or self._stop[0] or self._error is not None:
                    self._is_asking = False
                    return
            error = self._ask_for(unit)
            with self._changed:
                self._next, self._error = unit + 1, error
                self._changed.notify_all()

    def _ask_for(self, unit: int) -> Exception | None:
        try:
            starts, stops = self._units.ranges(unit)
            pieces = [split(*column.pages(starts, stops), PIECE_BYTES) for column in self._columns]
            addresses = [first + column.address for (first, _), column in zip(pieces, self._columns, strict=True)]
            sizes = [end - first for first, end in pieces]
            # All in one call: each would wait for the GIL when it comes back.
            advise(np.concatenate(addresses), np.concatenate(sizes), mmap.MADV_WILLNEED, self._stop)
        except StoreDamagedError:
            pass  # the gather of the damaged series raises it, in its batch
        except Exception as error:  # raised in the thread that waits
            return error
        return None


class ReadAhead:
    """Hints for the columns of a feed."""

    def __init__(self, columns: list[FedColumn], samples: Samples) -> None:
        mapped = [MappedColumn(column) for column in columns if column.level == "step"]
        self._columns = [column for column in mapped if column.is_on_disk]
        self._samples = samples

    def over(self, steps: Steps) -> Hints | None:
        """The hints of a pass over these steps; None if there is nothing to ask for."""
        if not self._columns:
            return None
        if isinstance(steps.plan, BlockPlan):
            return Hints(self._columns, WindowUnits(steps, steps.plan, self._samples))
        length = min(self._samples.row, self._columns[0].num_steps / max(1, self._samples.num_series))
        return Hints(self._columns, BatchUnits(steps, self._samples, length * sum(one.step_bytes for one in self._columns)))


# device    on the GPU: uploaded once, batches are gathered there
# host      in memory: batches are gathered by the CPU and copied ahead of their use
# stream    on disk: like host, with hints that read blocks ahead

Where = Literal["device", "host", "stream"]

DEVICE_SHARE = 0.5
"""Of the free memory of a GPU: the model and its activations need room too."""
HOST_SHARE = 0.7
"""Of the available memory of the machine."""


@dataclass(frozen=True)
class Residency:
    """Where the columns stay, and the sentence that says why."""

    where: Where
    reason: str


def choose_residency(asked: str, num_bytes: int, device: torch.device, *, needs_host: str | None, on_disk: bool) -> Residency:
    """The residency that was asked for, or the best that fits."""
    if asked not in (*get_args(Where), "auto"):
        raise OptionError(f"residency is {asked!r}; expected 'device', 'host', 'stream' or 'auto'.")
    size = readable_bytes(num_bytes)
    if asked != "auto":
        if asked == "device" and needs_host:
            raise OptionError(f"residency='device' is not possible, because {needs_host}. Use 'host' or 'auto'.")
        if asked == "stream" and not on_disk:
            raise OptionError("residency='stream' reads from disk, but this store is in memory. Use 'host' or 'auto'.")
        return Residency(asked, "as given")  # type: ignore[arg-type]
    if device.type == "cuda" and not needs_host:
        free = free_device_bytes(device)
        share = f"{DEVICE_SHARE:.0%} of the free GPU memory ({readable_bytes(free)})"
        if num_bytes <= DEVICE_SHARE * free:
            return Residency("device", f"the columns ({size}) fit {share}")
        why = f"the columns ({size}) exceed {share}"
    else:
        why = needs_host or f"batches are for the {device.type}"
    if not on_disk:
        return Residency("host", f"{why}, and the columns ({size}) are in memory already")
    available = available_host_bytes()
    share = f"{HOST_SHARE:.0%} of the available memory ({readable_bytes(available)})"
    if num_bytes <= HOST_SHARE * available:
        return Residency("host", f"{why}, and the columns ({size}) fit {share}")
    return Residency("stream", f"{why}, and the columns ({size}) exceed {share}")


def free_device_bytes(device: torch.device) -> int:
    """What a GPU has left, counting what torch holds but does not use."""
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def available_host_bytes() -> int:
    """What this process may still take, with regard to the limit of its control group."""
    import psutil

    available = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (group / "memory.max").read_text().strip(), (group / "memory.current").read_text().strip()
        return min(available, max(0, int(limit) - int(used)))
    except (OSError, ValueError):  # no such group, or no limit ("max")
        return available
