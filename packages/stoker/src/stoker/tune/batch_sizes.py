"""The batch size by throughput: the smallest batch within 5 % of the best samples per second that fits into memory.

1. Double the size until it does not fit, a limit is reached, or throughput has not grown for some doublings.
2. Bisect between the largest size that fits and the smallest that does not, where throughput still grows.
3. Measure the sizes beside the best, then bisect between the last size that is too slow and the first that is fast enough.
4. Measure the sizes that are about as fast again, in turn. Other programs then slow all of them down alike.

On a CPU each trial is a fork of this process under a memory limit, so a size that does not fit ends the child alone. On a GPU a
trial runs here; what it allocates is freed, and model, optimizer and random states are put back.
"""

from __future__ import annotations

import gc
import math
import os
import resource
import statistics
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from operator import attrgetter
from typing import Annotated, Any, Literal, TypeVar

import psutil
import torch
from msgspec import Meta
from torch import nn

from stoker._batch import map_tensors, num_rows, tensors_of
from stoker._clock import RunQueueDelay, thread_busy_ns
from stoker._text import readable_bytes
from stoker._types import Count, converted
from stoker.errors import OptionError

TOLERANCE = 0.05
MIN_STEPS_PER_EPOCH = 20
LARGEST = 1 << 16
WARM_UP = 2
ROUNDS, ROUND_SECONDS, MOST_STEPS = 5, 0.05, 1000
"""A trial has this many rounds of about that time; the fastest counts, as other programs only ever slow a round down."""
GPU_ROUND_SECONDS = 0.01
"""On a GPU, which no other program is expected to share."""
FLAT_DOUBLINGS, GROWTH = 2, 1.02
"""Doubling ends after this many sizes in a row that are not that much faster."""
MEMORY_SHARE = 0.8
"""Of the free memory, that a trial on a CPU may use."""
ABOUT, MOST_IN_TURN, IN_TURN_ROUNDS = 0.85, 8, 12
"""Sizes from this share of the wanted throughput, at most that many, are measured in turn for some rounds, because other programs
make sizes that are measured one after the other look faster or slower than they are."""

T = TypeVar("T")
_RATE, _SIZE = attrgetter("samples_per_second"), attrgetter("size")
Limit = Literal["throughput", "memory", "epoch", "largest"]


@dataclass(frozen=True, kw_only=True)
class BatchPoint:
    """One measured batch size.

    Args:
        size: Samples per batch.
        samples_per_second: Throughput; 0 where it does not fit.
        memory: Peak bytes that a step adds.
        fits: Whether it fits into memory.

    Example:
        >>> BatchPoint(size=8, samples_per_second=1000.0, memory=4096).fits
        True
    """

    size: int
    samples_per_second: float
    memory: int
    fits: bool = True


@dataclass(frozen=True, kw_only=True)
class BatchSizeChoice:
    """The batch size that was found.

    Args:
        size: Samples per batch.
        samples_per_second: Throughput at that size, of the step alone.
        memory: Peak bytes that a step of that size adds.
        curve: All sizes that were measured, in order.
        limit: What bounds the size: `"throughput"` where larger batches are not faster, `"memory"`, `"epoch"` where an epoch would have
            too few steps, or `"largest"`.
        grad_accum_steps: Batches per update that keep the effective batch that was asked for.
        notes: Sentences about the choice.

    Example:
        >>> point = BatchPoint(size=8, samples_per_second=1000.0, memory=4096)
        >>> choice = BatchSizeChoice(size=8, samples_per_second=1000.0, memory=4096, curve=(point,), limit="largest")
        >>> choice.scaled_lr(1e-3, batch_size=2, rule="sqrt")
        0.002
    """

    size: int
    samples_per_second: float
    memory: int
    curve: tuple[BatchPoint, ...]
    limit: Limit
    grad_accum_steps: int = 1
    notes: tuple[str, ...] = field(default=())

    def scaled_lr(self, lr: float, *, batch_size: int, rule: Literal["linear", "sqrt"] = "linear") -> float:
        """A learning rate for the effective batch of this choice. It is an offer: nothing here changes an optimizer.

        Args:
            lr: The learning rate that was tuned for `batch_size`.
            batch_size: The effective batch so far.
            rule: `"linear"`, as usual for SGD, or `"sqrt"`, as usual for Adam.

        Returns:
            The scaled rate.
        """
        factor = self.size * self.grad_accum_steps / batch_size
        return lr * (factor if rule == "linear" else math.sqrt(factor))

    def __str__(self) -> str:
        lines = [f"{'batch':>8}{'samples/s':>14}{'memory':>12}"]
        for point in self.curve:
            mark = "  <- chosen" if point.size == self.size else ""
            rate = (
                f"{point.samples_per_second:>14,.0f}{readable_bytes(point.memory):>12}" if point.fits else f"{'does not fit':>26}"
            )
            lines.append(f"{point.size:>8,}{rate}{mark}")
        return "\n".join([*lines, *self.notes])


def batch_size(
    make_step: Callable[[], Callable[[Any], Any]],
    sample_batch: Any,
    *,
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    device: str | torch.device | None = None,
    tolerance: float = TOLERANCE,
    largest: int | None = None,
    num_samples: int | None = None,
    min_steps_per_epoch: int = MIN_STEPS_PER_EPOCH,
    effective_batch: int | None = None,
    memory: int | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> BatchSizeChoice:
    """Find the smallest batch that loses no throughput.

    Args:
        make_step: Returns a function that makes one training step of a batch. It is called once per trial.
        sample_batch: A batch, whose rows are repeated to other sizes; or a function of a size that returns a batch.
        model: What the step trains, where `make_step` does not make a new one; it is left as it was.
        optimizer: The optimizer of that model, likewise.
        device: Where steps run; by default where the tensors of the batch are.
        tolerance: How much slower than the best size the choice may be.
        largest: The largest size to try.
        num_samples: Samples of an epoch.
        min_steps_per_epoch: With `num_samples`: steps that an epoch keeps.
        effective_batch: Samples per update to keep: the size then divides it, and `grad_accum_steps` says how many batches make one.
        memory: Bytes that a trial on a CPU may use; by default 80 % of what is free.
        report: Gets a line per measured size.

    Returns:
        The choice, with all sizes that were measured.

    Raises:
        OptionError: Not even one sample fits, or an option is invalid.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(8, 1)
        >>> def make_step():
        ...     return lambda batch: model(batch).sum().backward()
        >>> choice = batch_size(make_step, torch.ones(4, 8), model=model, largest=4)
        >>> choice.size in (1, 2, 3, 4)
        True
    """
    tolerance = converted("tolerance", tolerance, Annotated[float, Meta(ge=0, lt=1)])
    largest, num_samples = converted("largest", largest, Count | None), converted("num_samples", num_samples, Count | None)
    effective_batch = converted("effective_batch", effective_batch, Count | None)
    min_steps_per_epoch = converted("min_steps_per_epoch", min_steps_per_epoch, Count)
    make_batch = sample_batch if callable(sample_batch) else _repeating(sample_batch)
    if device is None:
        tensors = tensors_of(make_batch(1))
        device = tensors[0].device if tensors else "cpu"
    limit, bound = _bound(largest, num_samples, min_steps_per_epoch, effective_batch)
    place = torch.device(device)
    with _kept(model, optimizer, place):
        measure = _Measure(make_step, make_batch, place, memory, report)
        _double(measure, bound)
        if not measure.fitting():
            raise OptionError(
                "not even a batch of 1 sample fits into memory. Make the model smaller, or its sequences shorter.",
                parameter="sample_batch",
            )
        _bisect_memory(measure, bound)
        size = _knee(measure, tolerance, bound)
    sizes = measure.fitting()
    best = max(sizes, key=_RATE)
    reason: Limit = "throughput"
    if size == sizes[-1].size:
        is_full = any(not point.fits for point in measure.points.values()) and not measure.errors
        reason = "memory" if is_full else limit if size >= bound else "largest" if measure.errors else "throughput"
    grad_accum_steps = 1
    if effective_batch is not None:
        size = next(
            divisor
            for divisor in _divisors(effective_batch)
            if divisor >= min(size, effective_batch) or divisor == _divisors(effective_batch)[-1]
        )
        if size > sizes[-1].size:
            size = max(divisor for divisor in _divisors(effective_batch) if divisor <= sizes[-1].size)
        grad_accum_steps = effective_batch // size
        measure(size)
    chosen = measure.points[size]
    notes = [
        f"chosen: {size:,} samples, {chosen.samples_per_second / best.samples_per_second:.0%} of the best throughput "
        f"({best.samples_per_second:,.0f} samples/s at {best.size:,})".replace("%", " %")
    ]
    if reason == "epoch":
        notes.append(f"limited by the epoch: {num_samples:,} samples in at least {min_steps_per_epoch} steps")
    elif reason == "memory":
        notes.append("limited by memory: throughput still grows at the largest size that fits")
    if measure.errors:
        failed = min(measure.errors)
        notes.append(f"a batch of {failed:,} fails: {measure.errors[failed]}")
    if grad_accum_steps > 1:
        notes.append(f"{grad_accum_steps} batches per update keep the effective batch of {effective_batch:,}")
    return BatchSizeChoice(
        size=size,
        samples_per_second=chosen.samples_per_second,
        memory=chosen.memory,
        curve=tuple(sorted(measure.points.values(), key=_SIZE)),
        limit=reason,
        grad_accum_steps=grad_accum_steps,
        notes=tuple(notes),
    )


def _bound(largest: int | None, num_samples: int | None, min_steps: int, effective: int | None) -> tuple[Limit, int]:
    """The largest size to try, and what bounds it."""
    bounds: list[tuple[int, Limit]] = [(largest if largest is not None else LARGEST, "largest")]
    if num_samples is not None:
        bounds.append((max(1, num_samples // min_steps), "epoch"))
    if effective is not None:
        bounds.append((effective, "largest"))
    bound, limit = min(bounds)
    return limit, bound


def _divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


def _repeating(batch: Any) -> Callable[[int], Any]:
    """Batches of any size from the rows of one."""
    rows = num_rows(batch)
    if not rows:
        raise OptionError(
            "sample_batch has no rows; expected a batch with tensors, or a function of a size that returns one.",
            parameter="sample_batch",
        )

    def make(size: int) -> Any:
        def resize(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.dim() or len(tensor) != rows:
                return tensor
            return tensor[torch.arange(size, device=tensor.device) % rows]

        return map_tensors(batch, resize)

    return make


# ---- the search over sizes ----


def _double(measure: _Measure, bound: int) -> None:
    # From 2, because layers such as batch norm cannot train on 1 sample.
    best, flat, size = 0.0, 0, min(2, bound)
    while True:
        point = measure(size)
        if not point.fits:
            if size == 2:
                measure(1)
            return
        flat = 0 if point.samples_per_second > GROWTH * best else flat + 1
        best = max(best, point.samples_per_second)
        if size >= bound or flat > FLAT_DOUBLINGS:
            return
        size = min(2 * size, bound)


def _bisect_memory(measure: _Measure, bound: int) -> None:
    """Where throughput still grows when memory ends, find the largest size that fits, to an eighth of it."""
    fitting = measure.fitting()
    too_large = [point.size for point in measure.points.values() if not point.fits]
    if not too_large or len(fitting) < 2 or fitting[-1].samples_per_second < GROWTH * max(map(_RATE, fitting[:-1])):
        return
    low, high = fitting[-1].size, min(too_large)
    while high - low > max(1, low // 8):
        middle = (low + high) // 2
        low, high = (middle, high) if measure(middle).fits else (low, middle)


def _knee(measure: _Measure, tolerance: float, bound: int) -> int:
    """Return the smallest size whose throughput is within the tolerance of the best."""

    def wanted(points: Sequence[BatchPoint]) -> float:
        return (1 - tolerance) * max(point.samples_per_second for point in points)

    def first_fast(points: Sequence[BatchPoint]) -> int:
        return next(point.size for point in points if point.samples_per_second >= wanted(points))

    # Throughput need not be smooth: the best size may lie between two powers of two.
    top = max(measure.fitting(), key=_RATE).size
    for near in (3 * top // 4, 3 * top // 2):
        if 2 <= near <= bound:
            measure(near)
    size = first_fast(measure.fitting())
    low = max((fit.size for fit in measure.fitting() if fit.size < size), default=0)
    while low and size - low > max(1, low // 4):
        middle = _round_size((low + size) // 2, low, size)
        if middle in measure.points:
            break
        low, size = (low, middle) if measure(middle).samples_per_second >= wanted(measure.fitting()) else (middle, size)
    # What was measured once may be luck. Only sizes that were measured in turn can be compared to a few percent.
    best = max(measure.fitting(), key=_RATE).size
    about = ABOUT * wanted(measure.fitting())
    close = [fit.size for fit in measure.fitting() if fit.samples_per_second >= about and fit.size != best]
    compared = [*_spread(close, MOST_IN_TURN - 1), best]
    is_compared = bool(close) and measure.in_turn(compared)
    return first_fast([fit for fit in measure.fitting() if fit.size in compared or not is_compared])


def _spread(sizes: Sequence[int], most: int) -> list[int]:
    """At most `most` of the sizes, from the first to the last."""
    if len(sizes) <= most:
        return list(sizes)
    return [sizes[round(number * (len(sizes) - 1) / (most - 1))] for number in range(most)]


def _round_size(size: int, low: int, high: int) -> int:
    """A multiple of 8 between two sizes, where there is one: matmuls are fastest there."""
    rounded = size - size % 8
    return rounded if low < rounded < high else size


# ---- one trial ----


@dataclass(eq=False)
class _Measure:
    """Measures sizes, each once; then some of them in turn."""

    make_step: Callable[[], Callable[[Any], Any]]
    make_batch: Callable[[int], Any]
    device: torch.device
    memory: int | None
    report: Callable[[str], None]
    points: dict[int, BatchPoint] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    """Of sizes that a kernel refuses, though smaller ones work."""

    def __post_init__(self) -> None:
        # The first optimizer of a process loads 800 modules of torch. Here, so that no child has to.
        torch.optim.SGD([torch.zeros(1, requires_grad=True)])

    def fitting(self) -> list[BatchPoint]:
        """Sizes that fit, in order."""
        return sorted((point for point in self.points.values() if point.fits), key=_SIZE)

    def __call__(self, size: int) -> BatchPoint:
        if size in self.points:
            return self.points[size]
        measured = self.alone(size)
        point = BatchPoint(size=size, samples_per_second=0.0, memory=0, fits=False)
        if measured is not None:
            seconds, memory = measured
            point = BatchPoint(size=size, samples_per_second=size / max(seconds, 1e-12), memory=memory)
        self.points[size] = point
        what = f"{point.samples_per_second:,.0f} samples/s, {readable_bytes(point.memory)}" if point.fits else "does not fit"
        what = f"fails: {self.errors[size]}" if size in self.errors else what
        self.report(f"batch {size:,}: {what}")
        return point

    def in_turn(self, sizes: Sequence[int]) -> bool:
        """Measure sizes round by round, and correct the rates of all but the last by what they are relative to it; False where they do
        not fit together."""
        rounds = self.rounds(sizes)
        if rounds is None:
            return False
        last = sizes[-1]
        for i, size in enumerate(sizes[:-1]):
            share = statistics.median(seconds[-1] / max(seconds[i], 1e-12) for seconds in rounds) * size / last
            rate = share * self.points[last].samples_per_second
            self.points[size] = replace(self.points[size], samples_per_second=rate)
            self.report(f"batch {size:,}: {share:.0%} of the throughput of {last:,}, in turn".replace("%", " %"))
        return True

    def rounds(self, sizes: Sequence[int]) -> list[list[float]] | None:
        """Seconds per step of each size, round by round; None where they do not fit together."""
        return self._run(sizes, lambda: self._time(sizes, IN_TURN_ROUNDS))

    def alone(self, size: int) -> tuple[float, int] | None:
        """Seconds per step of a size, and the bytes that a step adds; None where it does not fit."""

        def work() -> tuple[float, int]:
            before = _memory_now(self.device)
            seconds = min(seconds for [seconds] in self._time([size], ROUNDS))
            return seconds, max(0, _memory_peak(self.device) - before)

        return self._run([size], work)

    def _time(self, sizes: Sequence[int], num_rounds: int) -> list[list[float]]:
        steps = [self.make_step() for _ in sizes]
        batches = [self.make_batch(size) for size in sizes]
        return _time_steps(list(zip(steps, batches, strict=True)), num_rounds, device=self.device)

    def _run(self, sizes: Sequence[int], work: Callable[[], T]) -> T | None:
        """What `work` returns; None where it needs more memory than there is, or where a kernel refuses the largest of the sizes."""
        if self.device.type != "cuda":
            return self._forked(sizes, work)
        try:
            return work()
        except torch.OutOfMemoryError:
            return None
        except RuntimeError as error:
            self._note_error(max(sizes), str(error))
            return None
        finally:
            _free(self.device)

    def _note_error(self, size: int, text: str) -> None:
        """Some kernels have a largest batch; an error at the smallest size is one of the step."""
        reason = (text.splitlines() or ["no message"])[0]
        if not any(point.size < size for point in self.fitting()):
            raise OptionError(f"a step with a batch of {size:,} failed: {reason}", parameter="sample_batch")
        self.errors[size] = reason

    def _forked(self, sizes: Sequence[int], work: Callable[[], T]) -> T | None:
        """What `work` returns in a fork of this process under a limit of memory; None where it needs more."""
        budget = self.memory if self.memory is not None else int(MEMORY_SHARE * psutil.virtual_memory().available)

        def under_limit() -> T:
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (psutil.Process().memory_info().data + budget, hard))
            return work()

        ours, theirs = Pipe(duplex=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: the child works in a thread of its own
            pid = os.fork()
        if pid == 0:
            _child(theirs, under_limit)
        theirs.close()
        try:
            kind, value = ours.recv()
        except EOFError:  # killed, by the system or by an allocation that nothing could catch
            kind, value = "full", None
        finally:
            ours.close()
            os.waitpid(pid, 0)
        if kind == "error":
            self._note_error(max(sizes), str(value))
        return value if kind == "done" else None


def _child(connection: Connection, work: Callable[[], Any]) -> None:
    """The life of a child process. In a thread of its own: the pool of OpenMP threads of the first one is that of the parent."""

    def run() -> None:
        try:
            connection.send(("done", work()))
        except MemoryError:
            connection.send(("full", None))
        except Exception as error:
            # torch has no type for an allocation on the CPU that fails.
            text = (str(error).splitlines() or [type(error).__name__])[0]
            is_full = isinstance(error, RuntimeError) and ("DefaultCPUAllocator" in str(error) or "bad_alloc" in str(error))
            connection.send(("full", None) if is_full else ("error", f"{type(error).__name__}: {text}"))

    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        os._exit(0)


def _time_steps(pairs: Sequence[tuple[Callable[[Any], Any], Any]], num_rounds: int, *, device: torch.device) -> list[list[float]]:
    """Seconds per step of each pair of a step and its batch, round by round."""
    time_round, seconds = (_time_on_gpu(device), GPU_ROUND_SECONDS) if device.type == "cuda" else (_time_on_cpu, ROUND_SECONDS)
    for step, batch in pairs:
        for _ in range(WARM_UP):
            step(batch)
    counts = [max(1, min(MOST_STEPS, math.ceil(seconds / time_round(*pair, 1)[1]))) for pair in pairs]
    return [[time_round(*pair, count)[0] for pair, count in zip(pairs, counts, strict=True)] for _ in range(num_rounds)]


def _time_on_gpu(device: torch.device) -> Callable[[Callable[[Any], Any], Any, int], tuple[float, float]]:
    """A function that measures steps as in a run, where the host is ahead of the GPU and the caches have data of this size: an
    additional step comes first, and the GPU takes the times. Otherwise a round of few steps would seem up to 20 % slower."""

    def time_round(step: Callable[[Any], Any], batch: Any, count: int) -> tuple[float, float]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        with torch.cuda.device(device):
            step(batch)
            start.record()
            for _ in range(count):
                step(batch)
            end.record()
        end.synchronize()
        seconds = max(start.elapsed_time(end) / 1e3, 1e-9)
        return seconds / count, seconds

    return time_round


def _time_on_cpu(step: Callable[[Any], Any], batch: Any, count: int) -> tuple[float, float]:
    """Seconds per step, without the time for which threads waited for cores of other programs, and of all steps, with it."""
    waiting, busy_ns = RunQueueDelay(), thread_busy_ns()
    for _ in range(count):
        step(batch)
    waited_ns, spent_ns = waiting.end()
    # A wait that began before the round may be counted as a whole, so the work of this thread is the least that it took.
    own_ns = max(spent_ns - (waited_ns or 0), thread_busy_ns() - busy_ns, 1)
    return own_ns / 1e9 / count, spent_ns / 1e9


def _memory_now(device: torch.device) -> int:
    """Bytes in use, from which the peak of `_memory_peak` is counted; of a CPU the peak so far."""
    if device.type != "cuda":
        return _memory_peak(device)
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _memory_peak(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _free(device: torch.device) -> None:
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()


@contextmanager
def _kept(model: nn.Module | None, optimizer: torch.optim.Optimizer | None, device: torch.device) -> Iterator[None]:
    """Put model, optimizer and random states back at the end. On a CPU only children change them."""
    if device.type != "cuda":
        yield
        return
    from stoker.train import state_dict
    from stoker.train.engine import Snapshot

    random = state_dict.capture()
    empty = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    snapshot = Snapshot(model, optimizer if optimizer is not None else empty) if model is not None else None
    gradients = (
        [(parameter, None if parameter.grad is None else parameter.grad.clone()) for parameter in model.parameters()]
        if model is not None
        else []
    )
    _free(device)
    freezes = not gc.get_freeze_count()
    if freezes:
        gc.freeze()  # collections after each trial then walk through what the trials have made, and not through all objects of the program
    try:
        yield
    finally:
        if freezes:
            gc.unfreeze()
        if snapshot is not None:
            snapshot.restore()
        for parameter, gradient in gradients:
            parameter.grad = gradient
        state_dict.restore(random)
        del snapshot, gradients
        _free(device)
