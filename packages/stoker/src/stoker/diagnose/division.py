"""A step, divided among causes. Between the measurements and the rule; pure functions, no torch.

`divide` gives each suspect that was removed from running steps what they saved without it: data, copies, reads, callbacks, all of them
together at most what they saved together. What is left when all are removed is the host's or the device's; on a CPU it is divided by
phase of a step and by kind of operation. The functions before it read the measurements.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from stoker.diagnose.measurements import (
    MEDIAN_OF_FEW,
    SIGMA_OF_DISTANCE,
    BusyThread,
    Measurements,
    Phases,
    Stretch,
    Verdict,
    WhatIf,
    Work,
)
from stoker.diagnose.thresholds import RULE

CAUSES_OF_EXPERIMENTS: dict[str, Verdict] = {"data": "data", "copies": "transfer", "reads": "sync", "callbacks": "host"}
"""The cause that each experiment removes."""
SHORTER_TYPES = {"fp64": ("float32",), "fp32": ("tf32", "autocast")}
"""The fixes that compute in a shorter type, by the type of most matmuls."""
MOVING = ("elementwise", "reduce", "copy")
"""Classes of operations that move memory."""


# ---- what was measured ----


def seconds_of(stretch: Stretch | None) -> float | None:
    """Return the median of a window, if there is one."""
    return stretch.median if stretch is not None and stretch.seconds else None


def ratios_of(what_if: WhatIf) -> list[float]:
    """Return what is left of a step, as a share, by each window with the change and the unchanged windows around it."""
    # A machine that is slower for a while is so for windows next to each other.
    before, after = ([middle for _, middle in stretch.by_piece()] for stretch in (what_if.as_it_is, what_if.with_fix))
    if not before or not 0 <= len(before) - len(after) <= 1:
        before, after = [what_if.as_it_is.median], [what_if.with_fix.median]
    around = [(earlier + later) / 2 for earlier, later in pairwise(before)]
    around = around if len(before) > len(after) else [before[0], *around]
    return [ratio / other for ratio, other in zip(after, around, strict=True) if other > 0] or [1.0]


def error_between(rounds: Sequence[float]) -> float:
    """Return the standard error of the median of some rounds, as a share of it, by their median distance from it; 0 for one."""
    middle = statistics.median(rounds) if rounds else 0.0
    if len(rounds) < 2 or middle <= 0:
        return 0.0
    if len(rounds) < RULE.min_rounds:
        return (max(rounds) - min(rounds)) / 2 / middle
    distance = statistics.median(abs(ratio / middle - 1) for ratio in rounds)
    return MEDIAN_OF_FEW * SIGMA_OF_DISTANCE * distance / math.sqrt(len(rounds))


def gain_of(what_if: WhatIf | None) -> float | None:
    """Return the fraction of step time that a change saves (negative if it costs time), or None if it was not measured."""
    return 1 - statistics.median(ratios_of(what_if)) if what_if is not None and what_if.with_fix.seconds else None


def fix_gain_of(measured: Measurements, *names: str) -> float | None:
    """Return the largest share of a step without its data that one of these fixes saves, or None if none was measured."""
    return max((gain for name in names if (gain := gain_of(measured.what_ifs.get(name))) is not None), default=None)


def precision_gain(measured: Measurements) -> float | None:
    """Return the same of a type shorter than the program's, or None if none was measured."""
    gain = fix_gain_of(measured, *SHORTER_TYPES.get(measured.precision, ()))
    # To convert each batch from float64 takes time that a program in float32 does not need (apart-dust-particles).
    return None if measured.precision == "fp64" and gain is not None and gain < 0 else gain


def removal_of(measured: Measurements, experiment: str) -> WhatIf | None:
    """Return the steps without a suspect and those next to them; None if they were not measured."""
    if experiment != "data":
        return measured.removed.get(experiment)
    known = measured.cached if measured.cached is not None and measured.cached.seconds and not measured.ranks else None
    return WhatIf(as_it_is=measured.loop, with_fix=known) if known is not None else None


def removal_ratio(measured: Measurements, experiment: str) -> float | None:
    """Return the time of a step without a suspect over that of the unchanged steps next to it, or None if it was not measured."""
    removal = removal_of(measured, experiment)
    if removal is None:
        return None
    # T and C are numbers of their own.
    return removal.with_fix.median / removal.as_it_is.median if experiment == "data" else statistics.median(ratios_of(removal))


def saved_by_removal(measured: Measurements) -> dict[Verdict, float]:
    """Return the share of a step that was saved without each cause, by its largest removal, as far as it was measured."""
    saved: dict[Verdict, float] = {}
    for name, cause in {**CAUSES_OF_EXPERIMENTS, "between": "host"}.items():
        if (ratio := removal_ratio(measured, name)) is not None:
            saved[cause] = max(saved.get(cause, 0.0), 1 - ratio)
    return saved


def scaled_phases(measured: Measurements, step: float) -> Phases:
    """Return the phases scaled so that their sum is the step: each is a median of its own, and medians do not add up."""
    phases = msgspec.structs.asdict(measured.phases)
    total = sum(phases.values())
    factor = step / total if total > 0 else 0.0
    return Phases(**{name: max(0.0, seconds * factor) for name, seconds in phases.items()})


def device_seconds(measured: Measurements) -> float | None:
    """Return how long the GPU works on a step: by its profile, else by events of a step that was issued while it slept."""
    profiled = measured.work.device_seconds if measured.work is not None else None
    return profiled if profiled is not None else seconds_of(measured.device_alone)


def flops_seconds(measured: Measurements) -> float:
    """Return the seconds of the floating-point work of a step at the measured peak of its main type."""
    work, peaks = measured.work, measured.machine.matmul_flops
    if work is None or not peaks:
        return 0.0
    return work.flops / (peaks.get(measured.precision) or min(peaks.values()) or math.inf)


def has_unused_rows(measured: Measurements) -> bool:
    """Say whether embeddings have many more rows than a step looks up, so that sparse gradients would save most of their update."""
    work = measured.work
    return work is not None and work.table_rows >= RULE.unused_rows * max(1.0, work.table_rows_used)


def interpreter_seconds(measured: Measurements, step: float) -> float:
    """Return the seconds of a step that the loop waits for a thread that computes in Python: it holds the interpreter lock meanwhile."""
    thread, asleep = measured.busy_thread, measured.asleep
    if thread is None or asleep is None:
        return 0.0
    return min(thread.share * step, max(0.0, asleep * step - scaled_phases(measured, step).next))


def waits_for_interpreter(measured: Measurements) -> bool:
    """Say whether the loop waits for such a thread most of the time: a mean over all steps, which may vary however they like."""
    return interpreter_seconds(measured, 1.0) >= 0.5


def crowded(measured: Measurements, *, communicating: bool = True) -> bool:
    """Say whether the program has more threads, workers and other processes than cores, so that it competes with itself."""
    # One thread sends and receives (communication-mlp, straggler-mlp); batches may be made in processes that are not a loader's.
    more = bool(measured.ranks and communicating) + (not measured.loader.workers and measured.own_processes >= 0.1)
    return max(1, len(measured.ranks)) * (measured.machine.threads + measured.loader.workers) + more > measured.machine.cores


def comparable(measured: Measurements) -> Measurements:
    """Return the measurements of a disturbed machine without windows that contradict each other."""
    # Cached batches cannot make a step longer: the machine was slower meanwhile. The phases of the loop's own steps say more.
    slower = measured.cached is not None and measured.cached.median > measured.loop.median
    return msgspec.structs.replace(measured, cached=None) if slower else measured


# ---- a step, divided among causes ----


@dataclass(frozen=True, kw_only=True, slots=True)
class Division:
    """A step divided among causes: their seconds add up to it."""

    step: float
    parts: dict[str, float]  # seconds by cause; `unknown` is work of which nothing was counted

    def seconds(self, *causes: str) -> float:
        """Return the seconds of some causes together."""
        return sum(self.parts.get(cause, 0.0) for cause in causes)

    def share(self, *causes: str) -> float:
        """Return their share of the step, between 0 and 1."""
        return min(1.0, max(0.0, self.seconds(*causes) / self.step))

    @property
    def host_limits(self) -> bool:
        """Whether a GPU waits for its host."""
        return self.share("launch", "host") >= RULE.waste_first


def divide(measured: Measurements) -> Division:
    """Divide the median step among causes."""
    step = measured.loop.median
    if measured.ranks:
        return Division(step=step, parts=_between_ranks(measured, step))
    return Division(step=step, parts=_on_cpu(measured, step) if measured.device == "cpu" else _on_gpu(measured, step))


def holding_thread(measured: Measurements, division: Division) -> BusyThread | None:
    """Return the thread that makes the loop wait for the interpreter lock, if that is most of the cause `host`."""
    seconds = interpreter_seconds(measured, division.step)
    return measured.busy_thread if seconds > 0 and 2 * seconds >= division.seconds("host") else None


def _between_ranks(measured: Measurements, step: float) -> dict[str, float]:
    """Divide a step of several processes: what they lose to each other, and the rest as in the first process alone."""
    apart = [min(step, rank.apart_seconds) for rank in measured.ranks]
    slowest = max(apart)
    straggler, communication = slowest - statistics.median_low(apart), step - slowest
    phases = scaled_phases(measured, step)
    phases = msgspec.structs.replace(phases, backward=max(0.0, phases.backward - (step - apart[0])))  # the all-reduce is there
    # Cached batches make the other processes faster, too, so C says nothing about this one.
    inner = divide(msgspec.structs.replace(measured, ranks=[], loop=Stretch(seconds=[apart[0]]), cached=None, phases=phases))
    factor = (step - straggler - communication) / apart[0]
    parts = {cause: factor * seconds for cause, seconds in inner.parts.items()}
    return {**parts, "straggler": straggler, "communication": communication}


def _on_gpu(measured: Measurements, step: float) -> dict[str, float]:
    """Divide a step on a GPU: what the removal of a suspect saved is its part, the rest is the host's or the device's."""
    ratios: dict[str, float | None] = {cause: removal_ratio(measured, name) for name, cause in CAUSES_OF_EXPERIMENTS.items()}
    if ratios["data"] is None and "everything" not in measured.removed:
        ratios["data"] = 1 - scaled_phases(measured, step).next / step  # batches cannot be replaced: the wait for them
    # Where batches differ in size, suspects were removed from steps on cached batches.
    base = step * (ratios["data"] or 1.0) if measured.sized else step
    saved = {cause: (step if cause == "data" else base) * max(0.0, 1 - (ratio or 1.0)) for cause, ratio in ratios.items()}
    together = removal_ratio(measured, "everything")
    # All removed together save what they save: a small suspect hides behind a larger one, or is noise (gpu-activation-hooks).
    gone = max(0.0 if together is None else step - base * together, *saved.values())
    if measured.loader.on_gpu:  # without loading, nothing is uploaded: what is uploaded while a batch is made is no loading
        saved["data"] = max(0.0, saved["data"] - saved["transfer"])
    for cause in sorted(saved, key=lambda name: -saved[name]):
        saved[cause] = min(saved[cause], gone)
        gone -= saved[cause]
    left = step - sum(saved.values())
    busy = device_seconds(measured)
    if busy is None or measured.work is None:
        return {**saved, "unknown": left}
    busy, alone = min(busy, left), measured.phases_alone or scaled_phases(measured, step)
    idle = left - busy
    # A loop without an iterable of batches makes them before the forward pass (gpu-bank-columns).
    making = min(idle, alone.prepare) if measured.loader.kind == "loop" else 0.0
    # Without the code after the update, nothing waits for its kernels either (gpu-risk-scores).
    without = step * (gain_of(measured.removed.get("between")) or 0.0)
    rest = min(idle - making, max(alone.rest, without))
    launch = idle - making - rest
    # More than launches take is Python between them (host-gpu-gru), or waits for a thread that computes in Python.
    most = RULE.issue_cost * (measured.machine.launch_seconds or 0.0) * max(measured.work.ops, measured.work.kernels or 0.0)
    python = max(launch - most if most > 0 else 0.0, min(launch, interpreter_seconds(measured, step)))
    parts = {**_kernels(measured, measured.work, busy), **saved, "launch": launch - python}
    if (shorter := precision_gain(measured)) is not None:
        parts = _in_shorter_type(parts, max(0.0, shorter) * (step - saved["data"]))
    return parts | {"data": saved["data"] + making, "host": saved["host"] + rest + python}


def _kernels(measured: Measurements, work: Work, seconds: float) -> dict[str, float]:
    """Divide the time of a GPU's kernels by cause."""
    phases, shares = measured.device_phases, work.shares
    timed = max(sum(phases.values()), seconds)  # by events of the device; a profile misses kernels (gpu-many-scales)
    optimizer = seconds * (phases.get("optimizer", 0.0) / timed if phases and timed > 0 else shares.get("optimizer", 0.0))
    seconds -= optimizer
    total = sum(share for kind, share in shares.items() if kind != "optimizer")
    if total > 0:
        matmuls, moving = shares.get("gemm", 0.0) / total, sum(shares.get(kind, 0.0) for kind in MOVING) / total
    else:  # kernels of a captured graph have no classes
        matmuls = min(1.0, flops_seconds(measured) / seconds) if seconds > 0 else 1.0
        moving = 1 - matmuls
    compute, peaks = seconds * matmuls, measured.machine.matmul_flops
    # What float32 matmuls would save in a shorter type of this GPU; nothing where they are short already.
    now, shorter = peaks.get("fp32", 0.0), max(peaks.get("tf32", 0.0), peaks.get("bf16", 0.0))
    precision = compute * (1 - now / shorter) if measured.precision in ("fp32", "fp64") and 0 < now < shorter else 0.0
    parts = {"optimizer": optimizer, "precision": precision, "compute": compute - precision, "memory": seconds * moving}
    return {**parts, "kernel": max(0.0, seconds * (1 - matmuls - moving))}


def _in_shorter_type(parts: dict[str, float], seconds: float) -> dict[str, float]:
    """Divide the work of a GPU again, where the seconds that a shorter type saves are known: of matmuls first."""
    divided = {**parts, "compute": parts["compute"] + parts["precision"], "precision": 0.0}
    for cause in ("compute", "memory", "kernel", "optimizer"):
        saved = min(seconds - divided["precision"], divided[cause])
        divided[cause] -= saved
        divided["precision"] += saved
    return divided


def _on_cpu(measured: Measurements, step: float) -> dict[str, float]:
    """Divide a step on a CPU, which does one thing after the other: by what was removed, by phase, and by kind of operation."""
    phases, cached, alone = scaled_phases(measured, step), seconds_of(measured.cached), seconds_of(measured.loader_alone)
    machine, work, workers = measured.machine, measured.work, measured.loader.workers
    data, oversubscribed = min(step, phases.next), 0.0
    if cached is not None:
        # More than batches take to make is due to other things, such as warm caches (mixed-host-memory). Next to the training they
        # take up to a quarter longer than alone (data-mlp).
        most = math.inf if alone is None else max(data, RULE.loader_slowdown * alone * max(1, workers))
        data = min(max(0.0, step - cached), most)
        if alone is not None and alone <= cached and workers and workers + machine.threads > 2 * machine.cores:
            # Each alone keeps up with the other: together they compete for the cores (other-gram-matrices).
            data, oversubscribed = 0.0, max(0.0, step - cached)
    # Without a module, the forward pass is a part of `prepare`, too.
    making = min(phases.prepare, step - data - oversubscribed) if phases.forward > RULE.min_forward * step else 0.0
    data += making
    removed = [step * max(0.0, gain_of(measured.removed.get(name)) or 0.0) for name in ("callbacks", "between")]
    host = min(max(phases.rest, *removed), step - data - oversubscribed)
    left = step - data - oversubscribed - host
    held = min(left, interpreter_seconds(measured, step))  # everyday-busy-thread
    optimizer = min(phases.optimizer, left - held)
    # Between operations, tensors are freed: pages that go back to the system take time there (everyday-fresh-buffers).
    freeing = RULE.page_return * statistics.fmean(measured.for_pages("cached") or measured.for_pages("loop") or [0.0])
    pauses = max(0.0, work.shares.get("python", 0.0) * (cached or step) - freeing) if work is not None else 0.0
    python = min(left - optimizer - held, pauses)
    host, core = host + held + python, left - optimizer - held - python
    gain = _threads_gain(measured)
    if not crowded(measured) and gain < RULE.uncrowded_gain:
        gain = 0.0  # small operations are no faster with a second thread (everyday-online-layers)
    oversubscribed += gain * (core + optimizer)
    core, optimizer = core * (1 - gain), optimizer * (1 - gain)
    parts = {"data": data, "host": host, "oversubscribed": oversubscribed, "optimizer": optimizer}
    if work is None:
        return parts | {"unknown": core}
    # Time around operations is their dispatch, and a half of what the least ones take is inside (dispatch-gru: twice the batch takes
    # as long). More than their number explains is Python (everyday-set-matching), but for compiled code, which is not counted.
    least = work.ops * machine.dispatch_seconds
    most = math.inf if measured.compiled else RULE.issue_cost * least
    around = (work.shares.get("other", 0.0) * (cached or step) - phases.rest - making - freeing) * (1 - gain)
    dispatch = min(core, max(least, min(around + RULE.inside_small * least, most)))
    between = min(core - dispatch, max(0.0, around - most))
    worked = core - dispatch - between
    total = sum(work.shares.get(kind, 0.0) for kind in ("gemm", "other_ops", "search", *MOVING))
    matmuls = worked * work.shares.get("gemm", 0.0) / total if total > 0 else min(worked, flops_seconds(measured))
    other = worked * work.shares.get("other_ops", 0.0) / total if total > 0 else 0.0
    memory = worked - matmuls - other
    # In float64, half of what computes, moves memory or updates weights is waste (everyday-table-regression).
    wasted = RULE.float32_gain if measured.precision == "fp64" else 0.0
    parts |= {
        "host": host + between,
        "optimizer": (1 - wasted) * optimizer,
        "compute": (1 - wasted) * matmuls,
        "memory": (1 - wasted) * memory,
    }
    return parts | {"dispatch": dispatch, "kernel": other, "precision": wasted * (optimizer + matmuls + memory)}


def _threads_gain(measured: Measurements) -> float:
    """Return the share of a step without its data that fewer threads save."""
    threads = measured.machine.threads
    now = measured.fewer_threads.get(str(threads)) or seconds_of(measured.cached)
    fewer = [seconds for number, seconds in measured.fewer_threads.items() if int(number) < threads]
    saved = 1 - min(fewer) / now if fewer and now else 0.0
    in_turn = gain_of(measured.what_ifs.get("threads"))  # which is sure: a window of its own may have been a lucky one
    return max(0.0, saved if in_turn is None else min(saved, in_turn))
