"""Hooks in torch that time the phases of a training step, on the host (`StepHooks`) and on a GPU.

session.py installs the hooks, and windows.py uses the classes for GPUs: `StepMarks` times steps on the device's timeline,
`DeviceOnlyStep` the device without waits for the host. None of them synchronises within a step: events are recorded, and read after
the window.

Other modules also use `own_line`, the user's line that called something, and `leaves` and `copied` for batches of any structure.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import stoker
from stoker._batch import entries_of, map_tensors
from stoker._clock import now_ns
from stoker.diagnose.measurements import SourceLine
from stoker.sandbox import original

# ---- the user's code ----

INSTALLED = ("site-packages", "dist-packages")
_FOREIGN = tuple(
    str(Path(folder).resolve()) + os.sep
    for folder in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(Path(stoker.__file__).parent)}
)


@functools.cache
def is_own(file: str) -> bool:
    """Whether a source file is the user's: not part of Python, an installed package or stoker."""
    if not file.endswith(".py"):
        return "ipykernel" in file or file.startswith("<ipython-input")  # the cells of a notebook
    path = os.path.realpath(file)
    return not path.startswith(_FOREIGN) and not any(part in INSTALLED for part in Path(path).parts)


def frames(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and all that called it, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def own_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the user's code."""
    return next((caller for caller in frames(frame) if is_own(caller.f_code.co_filename)), None)


def own_line(frame: FrameType | None) -> SourceLine | None:
    """The line that the innermost frame of the user's code is at; None without one."""
    frame = own_frame(frame)
    if frame is None:
        return None
    code = frame.f_code
    return SourceLine(file=shown(code.co_filename), line=frame.f_lineno or code.co_firstlineno, function=code.co_qualname)


@functools.cache
def shown(file: str) -> str:
    """A path relative to the current folder if the file is below it."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else original(file)


def replace(undo: ExitStack, owner: Any, name: str, by: Any) -> None:
    """Replace an attribute until `undo` is closed."""
    inherited, original = name not in vars(owner), getattr(owner, name)
    setattr(owner, name, by)
    if inherited and name in vars(owner):  # flags of torch are kept elsewhere
        undo.callback(delattr, owner, name)  # so that it is inherited again
    else:
        undo.callback(setattr, owner, name, original)


# ---- the phases of a step ----

NEXT, PREPARE, FORWARD, BACKWARD, OPTIMIZER, REST = range(6)
NAMES = ("next", "prepare", "forward", "backward", "optimizer", "rest")
CLOSURE_RANGE = "stoker.closure"  # in profiles: the range around a closure that an optimizer calls within its step
MAX_ROOTS = 8
UNKNOWN_PRECISION = "unknown"
DTYPES = {torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16"}
MAX_LOSSES = 64


class StepTimes(NamedTuple):
    """Times of one step."""

    phases_ns: tuple[int, ...]
    new_epoch: bool  # whether an epoch ended when this step asked for its batch
    between_ns: int = 0  # part of this time between the end of that epoch and the start of the next (validation, checkpoints)
    batch: int = -1  # the number of the batch that it requested, where batches differ in size
    ours: bool = False  # whether the diagnosis started this epoch, so that no code of the program ran between the two epochs
    device_seconds: float | None = None  # its time on a GPU's timeline

    @property
    def seconds(self) -> float:
        """The whole step."""
        return sum(self.phases_ns) / 1e9

    @property
    def without_data(self) -> float:
        """The step without the wait for its batch."""
        return (sum(self.phases_ns) - self.phases_ns[NEXT]) / 1e9

    def spent(self, *, with_data: bool) -> float:
        """Its time on a GPU's timeline where that is known, else by the host's clock."""
        return self.device_seconds or (self.seconds if with_data else self.without_data)


class StepHooks:
    """Times the phases of the current step by hooks in torch.

    A hook reads the clock and adds, which takes about a microsecond. It never waits, never copies, and never changes a result.
    """

    def __init__(self) -> None:
        self.phase = REST
        self.steps = 0  # optimizer steps so far
        self.stepped = False  # whether an optimizer has stepped since `end_step`
        self.by_hand = False  # whether the program updates its weights without an optimizer: a backward pass is then a step
        self._is_in_backward = self._has_inner_step = False  # whether an optimizer has made its step in the backward pass
        self.trained_on: str | None = None  # the device of the last backward pass
        self.thread: int | None = None  # the thread that called the last backward pass
        self.new_epoch = False
        self.between_ns = 0
        self.batch = -1  # the number of the batch of this step, where batches differ in size
        self.paused = False  # whether the hooks are removed and only iterations of the loop are timed
        self.optimizer: Optimizer | None = None
        self.precision: str | None = None
        self.losses: list[torch.Tensor] = []
        self._last_loss: torch.Tensor | None = None
        self.roots: list[torch.nn.Module] = []  # modules called from outside any other module: their call is the forward pass
        self.on_phase: Callable[[int], None] | None = None  # called with each phase that begins, to record events on a device
        self.on_step: Callable[[], None] | None = None  # called after each optimizer step
        self.on_backward: Callable[[], None] | None = None  # called before each backward pass
        self.clock: Callable[[], int] = now_ns
        self._last_ns = now_ns()
        self._totals = [0] * len(NAMES)
        self._depth = 0
        self._after_backward = REST
        self._at_backward: list[int] | None = None  # `_totals` at the last backward pass since the last update
        self._has_training_mode = False  # whether a forward pass of the training was in training mode
        self._undo, self._undo_search = ExitStack(), ExitStack()
        self._is_capturing = self._has_captured_step = False
        self._without_step: WeakSet[Any] = WeakSet()  # CUDA graphs that are known to hold no step of an optimizer

    def enter(self, phase: int) -> None:
        """End the current phase and begin another."""
        now = self.clock()
        self._totals[self.phase] += now - self._last_ns
        self._last_ns = now
        self.phase = phase
        if self.on_phase is not None:
            self.on_phase(phase)

    def end_step(self) -> StepTimes:
        """Times of the step that ends here. The time until `restart_clock` belongs to no step."""
        now = self.clock()
        self._totals[self.phase] += now - self._last_ns
        times = StepTimes(tuple(self._totals), self.new_epoch, self.between_ns, self.batch)
        self._totals = [0] * len(NAMES)
        self._at_backward = None
        self._last_ns = now
        self.stepped = self.new_epoch = False
        self.between_ns = 0
        return times

    def loss_is_finite(self) -> bool:
        """Whether the last loss that was seen is finite; reading it waits for a GPU."""
        return self._last_loss is None or bool(torch.isfinite(self._last_loss).all())

    def restart_clock(self) -> None:
        """Discard the time since the last phase began."""
        self._last_ns = self.clock()

    def install(self, *, on_step: Callable[[], None] | None = None) -> None:
        """Install the hooks; `on_step` is called after each optimizer step."""
        self.on_step = on_step
        self._undo.callback(register_optimizer_step_pre_hook(self._before_step).remove)
        self._undo.callback(register_optimizer_step_post_hook(self._after_step).remove)
        self._wrap_backward("backward")
        self._wrap_backward("grad")
        self._wrap(torch.nn.utils, "clip_grad_norm_", OPTIMIZER)
        self._wrap(torch.nn.utils, "clip_grad_value_", OPTIMIZER)
        self._wrap(Optimizer, "zero_grad", OPTIMIZER)
        self._wrap(torch.nn.Module, "zero_grad", OPTIMIZER)
        self._wrap_graphs()

    def remove(self) -> None:
        """Remove the hooks: torch is as before."""
        self._undo_search.close()
        self._undo.close()
        self.roots.clear()

    def pause(self) -> None:
        """Remove the hooks until `unpause`."""
        # A few hooks per step cost next to nothing alone, but 30 µs after operations that have filled the caches
        # (benchmarks/diagnose/bench_hooks.py).
        self._undo.close()
        self.paused = True

    def unpause(self) -> None:
        """Install the hooks again."""
        if self.paused:
            self.paused = False
            self.install()
            self._hook_roots()

    def _wrap(self, owner: Any, name: str, phase: int) -> None:
        """Count the time of a function as a phase."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            outer = self.phase
            if outer == phase:  # called by a function that is timed already
                return original(*args, **kwargs)
            self.enter(phase)
            try:
                return original(*args, **kwargs)
            finally:
                self.enter(outer)

        replace(self._undo, owner, name, timed)

    def _wrap_backward(self, name: str) -> None:
        original = getattr(torch.autograd, name)

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if self.phase == BACKWARD:  # called by a function that is timed already
                return original(*args, **kwargs)
            tensors = args[0] if args else kwargs.get("tensors", kwargs.get("outputs"))
            self.thread = threading.get_ident()
            if self.on_backward is not None:
                self.on_backward()
            if isinstance(tensors, torch.Tensor):
                self.trained_on = tensors.device.type
                if tensors.numel() == 1:
                    self._last_loss = tensors.detach()
                is_computed = not self._is_capturing  # a capture only records: its memory has no loss yet, and replays write to it
                if name == "backward" and is_computed and len(self.losses) < MAX_LOSSES and tensors.numel() == 1:
                    self.losses.append(tensors.detach().clone())  # a CUDA graph writes the next one to the same memory
            outer = self.phase if name == "grad" else self._after_backward
            self.enter(BACKWARD)
            self._begin_micro_batch()
            self._is_in_backward = True
            try:
                return original(*args, **kwargs)
            finally:
                self._is_in_backward = False
                self.enter(outer)
                if self.by_hand or self._has_inner_step:
                    self._has_inner_step = False
                    self._count_step()

        replace(self._undo, torch.autograd, name, backward)

    def _wrap_graphs(self) -> None:
        """Count the replay of a CUDA graph as a step, unless an optimizer was not called while the graph was captured."""
        # A graph that was captured while hooks were removed is unknown: then it is the whole step, as no hook sees another.
        kind: Any = torch.cuda.CUDAGraph
        begin, end, replay = kind.capture_begin, kind.capture_end, kind.replay

        @functools.wraps(begin)
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            self._is_capturing, self._has_captured_step = True, False
            return begin(graph, *args, **kwargs)

        @functools.wraps(end)
        def capture_end(graph: Any) -> Any:
            self._is_capturing = False
            if not self._has_captured_step:
                self._without_step.add(graph)
            return end(graph)

        @functools.wraps(replay)
        def replayed(graph: Any) -> Any:
            if graph in self._without_step:
                return replay(graph)
            if self.phase == PREPARE:
                self.enter(FORWARD)
            out = replay(graph)
            self.enter(REST)
            self._count_step()
            return out

        for name, by in (("capture_begin", capture_begin), ("capture_end", capture_end), ("replay", replayed)):
            replace(self._undo, kind, name, by)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Torch passes the returned arguments to the optimizer's step."""
        self._after_backward = OPTIMIZER
        self.enter(OPTIMIZER)
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._timed_closure(args[1]), *args[2:]), kwargs
        if callable(closure := kwargs.get("closure")):
            return args, {**kwargs, "closure": self._timed_closure(closure)}
        return None

    def _timed_closure(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        """Count a closure's forward and backward pass as such, not as work of the optimizer that calls it."""

        @functools.wraps(closure)
        def timed(*args: Any, **kwargs: Any) -> Any:
            profiled = torch._C._autograd._profiler_enabled()
            with torch.autograd.profiler.record_function(CLOSURE_RANGE) if profiled else nullcontext():
                self._after_backward = REST
                self.enter(FORWARD)
                try:
                    return closure(*args, **kwargs)
                finally:
                    self._after_backward = OPTIMIZER
                    self.enter(OPTIMIZER)

        return timed

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._after_backward = REST
        self.enter(BACKWARD if self._is_in_backward else REST)
        self.optimizer = optimizer
        if self._is_in_backward:  # an optimizer per weight, called by hooks of the gradients: all of them are one step
            self._has_inner_step = True
        elif self._is_capturing:  # nothing is computed yet
            self._has_captured_step = True
        elif not self.by_hand:
            self._count_step()

    @property
    def steps_here(self) -> int:
        """Optimizer steps so far, or 0 if another thread trains: a loop that runs beside the training is not the training loop."""
        # The thread is that of the backward pass: an optimizer may step within it, in a thread of autograd.
        return self.steps if self.thread in (None, threading.get_ident()) else 0

    def _begin_micro_batch(self) -> None:
        """Count what ran since the last backward pass of this update as gradients, if it is of the same batch."""
        # Such as per-sample clipping (everyday-private-updates): it is neither the update nor code that comes after it.
        before = self._at_backward
        if before is not None and self._totals[PREPARE] == before[PREPARE]:
            for phase in (OPTIMIZER, REST):
                self._totals[BACKWARD] += self._totals[phase] - before[phase]
                self._totals[phase] = before[phase]
        self._at_backward = self._totals.copy()

    def _count_step(self) -> None:
        self.steps += 1
        self._at_backward = None
        self.stepped = True
        if self.on_step is not None:
            self.on_step()

    def find_roots(self) -> None:
        """Search for the outermost modules, until `keep_roots`."""
        # A hook on every module would take longer than many steps. So all modules are watched for a step or two of the warm-up, and
        # later only the outermost. If torch has compiled modules, these are the outermost: a wrapper would have to be traced.
        if compiled():
            self.roots = objects_of(sys.modules["torch._dynamo.eval_frame"].OptimizedModule)[:MAX_ROOTS]
            self.precision = None if self.roots else UNKNOWN_PRECISION
            return
        original, hooks = torch.nn.Module.__call__, self

        def seen(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:  # a profile with stacks reads the module from `self`
            if hooks._depth == 0:
                if len(hooks.roots) < MAX_ROOTS and not any(self is root for root in hooks.roots):
                    hooks.roots.append(self)
                if hooks.precision is None:
                    hooks.precision = precision_of(self)
                hooks._before_forward(self, ())
            hooks._depth += 1
            try:
                return original(self, *args, **kwargs)
            finally:
                hooks._depth -= 1

        replace(self._undo_search, torch.nn.Module, "__call__", seen)

    def keep_roots(self) -> None:
        """End the search, and hook the modules found."""
        self._undo_search.close()
        self._hook_roots()

    def _hook_roots(self) -> None:
        for module in self.roots:
            self._undo.callback(module.register_forward_pre_hook(BeforeForward(self._before_forward)).remove)

    def _before_forward(self, module: torch.nn.Module, args: Any) -> None:
        phase = self.phase
        # A call without gradients after a step is an evaluation, and so is one in evaluation mode of what is trained in training mode.
        evaluates = not torch.is_grad_enabled() or (self._has_training_mode and not module.training)
        if phase == PREPARE or (phase in (REST, OPTIMIZER) and not evaluates):
            self._has_training_mode = self._has_training_mode or module.training
            if self.precision is None:  # of compiled modules
                self.precision = precision_of(module)
            self.enter(FORWARD)


class BeforeForward:
    """A forward pre-hook that copies and pickles of its module do not have: it would take the diagnosis with it."""

    def __init__(self, call: Callable[[torch.nn.Module, Any], None]) -> None:
        self._call = call

    def __call__(self, module: torch.nn.Module, args: Any) -> None:
        """Call the function."""
        self._call(module, args)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[type, str]]:
        """A copy does nothing."""
        return getattr, (BeforeForward, "_do_nothing")

    @staticmethod
    def _do_nothing(module: torch.nn.Module, args: Any) -> None: ...


def objects_of(kind: type) -> list[Any]:
    """All objects of a class in this process, those of its subclasses included."""
    return [value for value in gc.get_objects() if issubclass(type(value), kind)]  # not isinstance: a proxy's __class__ may raise


def has_optimizer() -> bool:
    """Whether this process has an optimizer of torch."""
    return bool(objects_of(Optimizer))


def frames_compiled() -> int:
    """The number of functions that torch has compiled in this process; a function counts each time that it is compiled."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo.counters["frames"]["total"] if dynamo is not None else 0


def compiled() -> bool:
    """Whether torch has compiled anything in this process."""
    return frames_compiled() > 0


def precision_of(module: torch.nn.Module) -> str:
    """The dtype in which a module's matmuls run now: that of autocast, or of its weights."""
    weight = next((parameter for parameter in module.parameters() if parameter.is_floating_point()), None)
    kind = weight.device.type if weight is not None else "cpu"
    if torch.is_autocast_enabled(kind):
        return DTYPES.get(torch.get_autocast_dtype(kind), "fp32")
    name = DTYPES.get(weight.dtype, "fp32") if weight is not None else "fp32"
    if name == "fp32" and kind == "cuda" and torch.backends.cuda.matmul.allow_tf32:
        return "tf32"
    return name


# ---- the contents of a batch ----

MAX_DEPTH = 6


def leaves(value: Any, depth: int = 0) -> Iterator[Any]:
    """The tensors and arrays in a batch, also those that are attributes of an object of another kind; not what is trained."""
    if isinstance(value, torch.nn.Parameter | torch.nn.Module | Optimizer):
        return  # a loop over them is not one over batches
    if isinstance(value, torch.Tensor | np.ndarray):
        yield value
    elif depth < MAX_DEPTH and not isinstance(value, type):
        for _, part in entries_of(value) or getattr(value, "__dict__", {}).items():
            yield from leaves(part, depth + 1)


def num_bytes(value: Any) -> int:
    """Bytes of all tensors and arrays in a batch."""
    return sum(leaf.nbytes for leaf in leaves(value))


def num_rows(value: Any) -> int | None:
    """The batch size: the first dimension of the first tensor or array."""
    return next((int(leaf.shape[0]) for leaf in leaves(value) if leaf.ndim), None)


def copied(batch: Any, *, tensors: bool = True) -> Any:
    """A copy of a batch; with `tensors=False` only its containers are copied."""
    # Pinned tensors and tensors on a device are not copied: that would hide the copy that is measured.

    def copy_of(value: Any) -> Any:
        if not tensors:
            return value
        if isinstance(value, np.ndarray):
            return value.copy()
        return value if value.device.type != "cpu" or value.is_pinned() else value.detach().clone()

    return map_tensors(batch, copy_of, lambda value: isinstance(value, torch.Tensor | np.ndarray))


# ---- times on a GPU ----

cuda: Any = torch.cuda
MAX_SLEEP_SECONDS = 1.0
CALIBRATION_CYCLES = 20_000_000


def _record_event() -> Any:
    event = cuda.Event(enable_timing=True)
    event.record()
    return event


class StepMarks:
    """Events at the ends of steps: the time between two is a step, idle time included."""

    def __init__(self) -> None:
        self._events = [_record_event()]

    def add(self) -> None:
        """Mark the end of a step."""
        self._events.append(_record_event())

    def seconds(self) -> list[float]:
        """Wait for the device, and return the times of the steps."""
        self._events[-1].synchronize()
        return [before.elapsed_time(after) / 1e3 for before, after in pairwise(self._events)]


class DeviceOnlyStep:
    """One step of which each phase is issued while the device sleeps, so that it then runs without waiting for the host.

    A phase at a time, because only about a thousand kernels can wait for a device.
    """

    def __init__(self, hooks: StepHooks, seconds: float, cycles_per_second: float) -> None:
        self._hooks = hooks
        self._cycles = int(min(seconds, MAX_SLEEP_SECONDS) * cycles_per_second)
        self._phase = 0
        self._begin: Any = None
        self.phases: Counter[str] = Counter()

    @property
    def seconds(self) -> float:
        """How long the device works on the step."""
        return sum(self.phases.values())

    def begin(self) -> None:
        """Begin the first phase. Called when the batch is there."""
        # Events are waited for: an experiment may have removed `torch.cuda.synchronize`.
        _record_event().synchronize()
        self._sleep(self._hooks.phase)
        self._hooks.on_phase = self._next

    def end(self) -> None:
        """End the last phase. Called when the step is issued."""
        self._hooks.on_phase = None
        self._end_phase()

    def _next(self, phase: int) -> None:
        self._end_phase()
        self._sleep(phase)

    def _sleep(self, phase: int) -> None:
        self._phase = phase
        cuda._sleep(self._cycles)
        self._begin = _record_event()

    def _end_phase(self) -> None:
        end = _record_event()
        end.synchronize()
        self.phases[NAMES[self._phase]] += self._begin.elapsed_time(end) / 1e3


def cycles_per_second() -> float:
    """The rate at which the device counts cycles while it sleeps."""
    cuda.synchronize()
    before = _record_event()
    cuda._sleep(CALIBRATION_CYCLES)
    after = _record_event()
    cuda.synchronize()
    return float(CALIBRATION_CYCLES / (before.elapsed_time(after) / 1e3))
