"""Counts: what a step does, in integers that do not depend on time. The same program on the same data has the same counts.

`StepCounter` stands between the program and torch: everything that torch dispatches passes through it, including the backward pass and
the optimizer's step. It extends `stoker.diagnose.ops.Counting` by what a gate needs. `CountedProgram` counts the steps of a script in a
run of the engine (`stoker.compare`).
"""

from __future__ import annotations

import linecache
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import PurePath
from types import CodeType, FrameType, TracebackType
from typing import Any, Self

import msgspec
import torch
from torch.multiprocessing import reductions
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from stoker._batch import tensors_of
from stoker.compare.child import run_main
from stoker.compare.observed import RunRequest
from stoker.diagnose.hooks import StepHooks, own_frame, shown
from stoker.diagnose.measurements import SourceLine
from stoker.diagnose.ops import Counting, Profiling
from stoker.gate.budget import CountAnswer, CountOptions, Counts, summarize

WAITING = {
    "aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten.equal", "aten.repeat_interleave", "aten.bincount",
    "aten._unique2", "aten.unique_dim", "aten.unique_consecutive", "aten.unique_dim_consecutive",
}  # fmt: skip
"""Operations after which the host knows a value or a size that the device computed."""
MASKING = {"aten.index", "aten.index_put", "aten.index_put_", "aten._index_put_impl_", "aten._unsafe_index"}
"""Operations that do so if a mask is among their indices."""
_SUMMED = ("ops", "flops", "syncs", "h2d_copies", "h2d_bytes", "d2h_copies", "d2h_bytes", "allocations", "allocated_bytes")
MASKS = (torch.bool, torch.uint8)
COPYING = {"aten._to_copy", "aten.copy_", "aten.copy"}

RECEIVING_FILE = str(reductions.__file__)
RECEIVING_DEPTH = 6
"""Calls between an operation and the function of torch.multiprocessing that receives a tensor with it."""


class StepCounter(Counting):  # type: ignore[no-untyped-call]
    """A context that counts all operations of this thread and of backward passes that it begins; call `take` after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.on_cuda: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self.lines: dict[str, SourceLine] = {}
        """The current line number of each line of `places`."""
        self.entered = False
        self._profiling: Profiling | None = None
        self._clear()

    def __enter__(self) -> Self:
        self._clear()
        self._begin_profile()
        self.entered = True
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.entered = False
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._end_profile()

    @property
    def device(self) -> str:
        """Where steps run."""
        return "cuda" if self.on_cuda else "cpu"

    def _clear(self) -> None:
        self.ops = self.h2d_copies = self.h2d_bytes = 0
        self.flops_by_dtype.clear()
        self._totals: Counter[str] = Counter()
        self._kinds: Counter[str] = Counter()
        self._places: dict[tuple[CodeType, int], Counter[str]] = {}
        self._memory = _memory() if self.on_cuda else (0, 0)
        self._compiled = _num_compiled()

    def _begin_profile(self) -> None:
        """Only the profiler knows the kernels of a step."""
        if self.on_cuda:
            self._profiling = Profiling("cuda")
            self._profiling.begin()

    def _end_profile(self) -> int | None:
        if self._profiling is None:
            return None
        profiling, self._profiling = self._profiling, None
        profiling.close()
        return None if profiling.kernels is None else int(profiling.kernels)

    def take(self) -> Counts:
        """What was counted since the last call."""
        totals, compiled = dict(self._totals), _num_compiled()
        if self.on_cuda:
            blocks, num_bytes = _memory()
            totals |= {"allocations": blocks - self._memory[0], "allocated_bytes": num_bytes - self._memory[1]}
        counts = Counts(
            **dict.fromkeys(_SUMMED, 0) | totals,
            kernels=self._end_profile(),
            recompiles=None if compiled is None else compiled - (self._compiled or 0),
            graph_breaks=_num_breaks(),
            kinds=dict(self._kinds.most_common()),
            places=self._by_line(),
        )
        self._clear()
        self._begin_profile()
        return counts

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and count it."""
        if func.namespace == "profiler" or _is_received(sys._getframe(1)):  # names for profiles are not work
            return func(*args, **(kwargs or {}))
        flops, h2d_copies, h2d_bytes = self.flops, self.h2d_copies, self.h2d_bytes
        result = super().__torch_dispatch__(func, types, args, kwargs)
        name = f"{func.namespace}.{func._opname}"
        counts = {
            "ops": 1,
            "flops": int(self.flops - flops),
            "h2d_copies": self.h2d_copies - h2d_copies,
            "h2d_bytes": self.h2d_bytes - h2d_bytes,
        }
        given, made = tensors_of((args, kwargs)), tensors_of(result)
        self._count_waits(name, args, kwargs or {}, given, made, counts)
        # Results in memory of their own.
        known = {argument.untyped_storage()._cdata for argument in given if _has_storage(argument)}
        for tensor in made:
            if _has_storage(tensor) and (storage := tensor.untyped_storage())._cdata not in known:
                known.add(storage._cdata)
                counts["allocations"] = counts.get("allocations", 0) + 1
                counts["allocated_bytes"] = counts.get("allocated_bytes", 0) + storage.nbytes()
        counts = {what: number for what, number in counts.items() if number}
        self._kinds[name] += 1
        self._totals.update(counts)
        frame = own_frame(sys._getframe(1))
        if frame is not None:
            self._places.setdefault((frame.f_code, frame.f_lineno), Counter()).update(counts)
        return result

    def _count_waits(
        self,
        name: str,
        args: Any,
        kwargs: dict[str, Any],
        given: list[torch.Tensor],
        made: list[torch.Tensor],
        counts: dict[str, int],
    ) -> None:
        """Count waits of the host for a device, and copies back to the host."""
        if name in COPYING and made:
            source = args[0] if name == "aten._to_copy" else args[1]
            if isinstance(source, torch.Tensor) and source.device.type != "cpu" and made[0].device.type == "cpu":
                counts["d2h_copies"], counts["d2h_bytes"] = 1, source.numel() * source.element_size()
                counts["syncs"] = int(not (kwargs.get("non_blocking") or (name != "aten._to_copy" and len(args) > 2 and args[2])))
            elif counts["h2d_copies"] and not kwargs.get("non_blocking") and not source.is_pinned():
                counts["syncs"] = 1
        # Tensors on the host need no wait for a device. Without a device they are counted as if they lay on one.
        elif not self.on_cuda or any(tensor.device.type != "cpu" for tensor in given):
            masks = name in MASKING and any(argument is not None and argument.dtype in MASKS for argument in args[1])
            counts["syncs"] = int(masks or name in WAITING)

    def _by_line(self) -> dict[str, dict[str, int]]:
        merged: dict[str, Counter[str]] = {}
        for (code, line), found in self._places.items():
            place = SourceLine(file=shown(code.co_filename), line=line, function=code.co_qualname)
            key = key_of(place, code.co_filename)
            self.lines[key] = place
            merged.setdefault(key, Counter()).update(found)
        return {key: dict(found) for key, found in sorted(merged.items())}


def key_of(place: SourceLine, file: str) -> str:
    """A key for a line of code made of its function and text, which stay when lines are added above it."""
    text = " ".join(linecache.getline(file, place.line).split())
    return f"{PurePath(file).name} {place.function}: {text}"


def _is_received(frame: FrameType | None) -> bool:
    """Whether a tensor is received from another process. Batches of workers arrive at any time, so they do not count for a step."""
    for _ in range(RECEIVING_DEPTH):
        if frame is None or frame.f_code.co_filename == RECEIVING_FILE:
            break
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename == RECEIVING_FILE


def _has_storage(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a block of memory: not sparse, not made of other tensors."""
    return tensor.layout is torch.strided and not is_traceable_wrapper_subclass(tensor)


def _memory() -> tuple[int, int]:
    """Blocks and bytes that the device's allocator has handed out so far."""
    stats = torch.cuda.memory_stats()
    return int(stats.get("allocation.all.allocated", 0)), int(stats.get("allocated_bytes.all.allocated", 0))


def _num_compiled() -> int | None:
    """Graphs that torch has compiled in this process; None if it compiles nothing."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None or not dynamo.counters["frames"]["total"]:
        return None
    return int(dynamo.counters["stats"]["unique_graphs"])


def _num_breaks() -> int | None:
    return None if _num_compiled() is None else sum(sys.modules["torch._dynamo.utils"].counters["graph_break"].values())


class CountedProgram:
    """The extension of a run that counts its steps and ends it.

    A step ends when the optimizer's step ends; with several optimizers, that of the one that ended the warm-up.
    """

    def __init__(self, options: str, done: Callable[[], None]) -> None:
        self._options, self._done = msgspec.json.decode(options, type=CountOptions), done
        self._hooks = StepHooks()
        self._counted: list[Counts] = []
        self._counter: StepCounter | None = None
        self._optimizer: torch.optim.Optimizer | None = None

    def run(self, request: RunRequest) -> None:
        """Run the program as the main module."""
        self._hooks.install(on_step=self._count)
        run_main(request)

    def answer(self) -> bytes:
        """Return what was counted. Raises `TrainError` if that are too few steps."""
        self._stop()
        counter = self._counter
        run = summarize(self._counted, device=counter.device if counter else "cpu", torch=str(torch.__version__))
        return msgspec.msgpack.encode(CountAnswer(run=run, lines=counter.lines if counter else {}))

    def _count(self) -> None:
        hooks = self._hooks
        if self._counter is None:
            if hooks.steps < self._options.warmup:
                return
            self._optimizer = hooks.optimizer
            self._counter = StepCounter()
            self._counter.__enter__()
        elif hooks.optimizer is self._optimizer:
            self._counted.append(self._counter.take())
            if len(self._counted) == self._options.steps:
                self._stop()
                self._done()

    def _stop(self) -> None:
        if self._counter is not None and self._counter.entered:
            self._counter.__exit__(None, None, None)
