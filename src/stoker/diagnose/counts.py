"""Counts: what a step does, in whole numbers that have nothing to do with time. THE counter of operations.

It stands between the user's program and torch: all that torch dispatches passes through it, the backward pass and the optimizer's
step included. The law: the same program on the same data has the same counts, whatever else the machine does.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stoker.diagnose.measurements import Place
from stoker.diagnose.own import own_frame, place_of

WAITING = {
    "aten._local_scalar_dense",
    "aten.nonzero",
    "aten.masked_select",
    "aten.equal",
    "aten.repeat_interleave",
    "aten.bincount",
    "aten._unique2",
    "aten.unique_dim",
    "aten.unique_consecutive",
    "aten.unique_dim_consecutive",
}
"""Operations after which the host knows a value or a size that only the device can tell."""
MASKING = {"aten.index", "aten.index_put", "aten.index_put_", "aten._index_put_impl_", "aten._unsafe_index"}
"""Operations that do so where a mask is among their indices."""
COPYING = {"aten._to_copy", "aten.copy_", "aten.copy"}


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted in one step."""

    ops: int
    """Operations that torch dispatches."""
    syncs: int
    """Times that the host needs to know what the device has computed (`.item()`, masks, copies back). On a CPU: would need."""
    h2d_copies: int
    h2d_bytes: int
    d2h_copies: int
    d2h_bytes: int
    allocations: int
    """Pieces of memory that tensors were given: of the device, as its allocator says, or of the host."""
    allocated_bytes: int
    kernels: int | None = None
    """On a GPU."""
    recompiles: int | None = None
    """Graphs that torch compiled in this step; None where it compiles nothing."""
    graph_breaks: int | None = None
    """Places at which compiled graphs end early, in all of the program so far."""
    kinds: dict[str, int] = {}
    """Operations by name."""
    places: dict[str, dict[str, int]] = {}
    """Operations, syncs, copies and allocations by line of the user's code, as `key_of` writes it."""


class StepCounter(TorchDispatchMode):
    """Counts all operations of this thread, and of backward passes that it begins, while it is entered; `take` after each step."""

    def __init__(self, *, blame: bool = True) -> None:
        super().__init__()
        self.lines: dict[str, Place] = {}
        """Where each line of `places` stands now."""
        self._blame = blame
        self._on_cuda = torch.cuda.is_available()
        self._clear()

    def _clear(self) -> None:
        self._totals: Counter[str] = Counter()
        self._kinds: Counter[str] = Counter()
        self._places: dict[tuple[Any, int], Counter[str]] = {}
        self._device = _memory() if self._on_cuda else (0, 0)
        self._compiled = _num_compiled()

    def take(self) -> Counts:
        """What was counted since the last time."""
        totals = self._totals
        before, now, compiled = self._device, _memory() if self._on_cuda else (0, 0), _num_compiled()
        counts = Counts(
            ops=totals["ops"],
            syncs=totals["syncs"],
            h2d_copies=totals["h2d_copies"],
            h2d_bytes=totals["h2d_bytes"],
            d2h_copies=totals["d2h_copies"],
            d2h_bytes=totals["d2h_bytes"],
            allocations=totals["allocations"] if not self._on_cuda else now[0] - before[0],
            allocated_bytes=totals["allocated_bytes"] if not self._on_cuda else now[1] - before[1],
            recompiles=None if compiled is None else compiled - (self._compiled or 0),
            graph_breaks=_num_breaks(),
            kinds=dict(self._kinds.most_common()),
            places=self._by_line(),
        )
        self._clear()
        return counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let an operation through, and count it."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func.namespace == "profiler":  # names for profiles: no work
            return result
        name = f"{func.namespace}.{func._opname}"
        found = {"ops": 1}
        given = list(_tensors((args, kwargs)))
        made = list(_tensors(result))
        if self._waits(name, args, given):
            found["syncs"] = 1
        if name in COPYING:
            self._copied(name, args, kwargs, made, found)
        known = {one.untyped_storage()._cdata for one in given}
        for tensor in made:
            storage = tensor.untyped_storage()
            if storage._cdata not in known:
                known.add(storage._cdata)
                found["allocations"] = found.get("allocations", 0) + 1
                found["allocated_bytes"] = found.get("allocated_bytes", 0) + storage.nbytes()
        self._kinds[name] += 1
        self._totals.update(found)
        if self._blame:
            frame = own_frame(sys._getframe(1))
            if frame is not None:
                key = (frame.f_code, frame.f_lineno)
                if key not in self._places:
                    self._places[key] = Counter()
                    self.lines.setdefault(key_of(place := place_of(frame), frame.f_code.co_filename), place)
                self._places[key].update(found)
        return result

    def _waits(self, name: str, args: Any, given: list[torch.Tensor]) -> bool:
        if name in MASKING:
            indices = args[1] if len(args) > 1 else ()
            return any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in indices)
        # What lies on the host is no reason to wait for a device; where there is none, it is counted as if it lay on one.
        return name in WAITING and (not self._on_cuda or any(one.device.type != "cpu" for one in given))

    def _copied(self, name: str, args: Any, kwargs: Any, made: list[torch.Tensor], found: dict[str, int]) -> None:
        """Count a copy between host and device. One back to the host is waited for, unless it says otherwise."""
        source = args[1] if name != "aten._to_copy" else args[0]
        if not made or not isinstance(source, torch.Tensor) or source.device.type == made[0].device.type:
            return
        way = "h2d" if source.device.type == "cpu" else "d2h"
        found[f"{way}_copies"] = 1
        found[f"{way}_bytes"] = source.numel() * source.element_size()
        waits = not (kwargs.get("non_blocking") or (name != "aten._to_copy" and len(args) > 2 and args[2]))
        if waits and (way == "d2h" or not source.is_pinned()):
            found["syncs"] = 1

    def _by_line(self) -> dict[str, dict[str, int]]:
        merged: dict[str, Counter[str]] = {}
        for (code, line), found in self._places.items():
            place = Place(file=code.co_filename, line=line, function=code.co_qualname)
            merged.setdefault(key_of(place, code.co_filename), Counter()).update(found)
        return {key: dict(found) for key, found in sorted(merged.items())}


def key_of(place: Place, file: str) -> str:
    """A line of code by its function and text, which stay when lines are added above it."""
    import linecache
    from pathlib import PurePath

    text = " ".join(linecache.getline(file, place.line).split())
    return f"{PurePath(file).name} {place.function}: {text}"


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of arguments and results, which are lists and tuples at most."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _memory() -> tuple[int, int]:
    """Pieces and bytes that the device's allocator has ever handed out."""
    if not torch.cuda.is_initialized():
        return 0, 0
    stats = torch.cuda.memory_stats()
    return int(stats.get("allocation.all.allocated", 0)), int(stats.get("allocated_bytes.all.allocated", 0))


def _num_compiled() -> int | None:
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None or not dynamo.counters["frames"]["total"]:
        return None
    return int(dynamo.counters["stats"]["unique_graphs"])


def _num_breaks() -> int | None:
    if _num_compiled() is None:
        return None
    return sum(sys.modules["torch._dynamo.utils"].counters["graph_break"].values())
