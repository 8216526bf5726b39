"""A step, divided among causes. Between the measurements and the rule; pure functions, no torch.

`divide` gives each suspect that was removed from running steps what they saved without it: data, copies, reads, callbacks, all of them
together at most what they saved together. What is left when all are removed is the host's or the device's; on a CPU it is divided by
phase of a step and by kind of operation. The functions before it read the measurements.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

import msgspec

from stoker.diagnose.measurements import BusyThread, Measurements, Phases, Stretch, Verdict, WhatIf
from stoker.diagnose.thresholds import RULE

CAUSES_OF_EXPERIMENTS: dict[str, Verdict] = {"data": "data", "copies": "transfer", "reads": "sync", "callbacks": "host"}
"""The cause that each experiment removes."""


# ---- what was measured ----


def seconds_of(stretch: Stretch | None) -> float | None:
    """Return the median of a window, if there is one."""
    return stretch.median if stretch is not None and stretch.seconds else None


def gain_of(what_if: WhatIf | None) -> float | None:
    """Return the fraction of step time that a change saves (negative if it costs time), or None if it was not measured."""
    before, after = (seconds_of(what_if.as_it_is), seconds_of(what_if.with_fix)) if what_if is not None else (None, None)
    return 1 - after / before if before is not None and after is not None else None


def removal_ratio(measured: Measurements, experiment: str) -> float | None:
    """Return the time of a step without a suspect over that of the unchanged steps next to it, or None if it was not measured."""
    if experiment == "data":
        step, without = measured.loop.median, seconds_of(measured.cached)
        return without / step if without is not None and step > 0 and not measured.ranks else None
    gain = gain_of(measured.removed.get(experiment))
    return 1 - gain if gain is not None else None


def scaled_phases(measured: Measurements, step: float) -> Phases:
    """Return the phases scaled so that their sum is the step: each is a median of its own, and medians do not add up."""
    phases = msgspec.structs.asdict(measured.phases)
    total = sum(phases.values())
    factor = step / total if total > 0 else 0.0
    return Phases(**{name: max(0.0, seconds * factor) for name, seconds in phases.items()})


def device_seconds(measured: Measurements) -> float | None:
    """Return how long the GPU works on a step: issued while it slept, or by the profile; a step that waits for the GPU spoils the first."""
    profiled = measured.work.device_seconds if measured.work is not None else None
    known = [seconds for seconds in (seconds_of(measured.device_alone), profiled) if seconds is not None]
    return min(known, default=None)


def flops_seconds(measured: Measurements) -> float:
    """Return the seconds of the floating-point work of a step at the measured peaks."""
    work, peaks = measured.work, measured.machine.matmul_flops
    if work is None or not peaks:
        return 0.0
    by_dtype = work.flops_by_dtype or {measured.precision: work.flops}
    slowest = min(peaks.values())
    return sum(flops / peak for kind, flops in by_dtype.items() if (peak := peaks.get(kind, slowest)) > 0)


def interpreter_seconds(measured: Measurements, step: float) -> float:
    """Return the seconds of a step that the loop waits for a thread that computes in Python: it holds the interpreter lock meanwhile."""
    thread, asleep = measured.busy_thread, measured.asleep
    if thread is None or asleep is None or thread.share < RULE.busy_thread:
        return 0.0
    waits = scaled_phases(measured, step).next
    return min(thread.share * step, max(0.0, (asleep - (measured.waited_for_cores or 0.0)) * step - waits))


def waits_for_interpreter(measured: Measurements) -> bool:
    """Say whether the loop waits for such a thread most of the time: a mean over all steps, which may vary however they like."""
    return interpreter_seconds(measured, 1.0) >= RULE.clear_majority


def crowded(measured: Measurements, *, communicating: bool = True) -> bool:
    """Say whether the program has more threads, workers and other processes than cores, so that it competes with itself."""
    processes = max(1, len(measured.ranks))
    more = 1 if measured.ranks and communicating else 0  # one thread sends and receives
    if not measured.loader.workers and measured.own_processes >= RULE.busy_process:
        more += 1  # it makes batches in processes that are not a loader's
    return processes * (measured.machine.threads + measured.loader.workers) + more > measured.machine.cores


# ---- a step, divided among causes ----


@dataclass(frozen=True, kw_only=True, slots=True)
class Division:
    """A step divided among causes: their seconds add up to it."""

    step: float
    parts: dict[str, float]  # seconds by cause; `unknown` is work of which nothing was counted
    host_limits: bool = False  # GPU: whether the host issues a step more slowly than the device runs it

    def seconds(self, *causes: str) -> float:
        """Return the seconds of some causes together."""
        return sum(self.parts.get(cause, 0.0) for cause in causes)

    def share(self, *causes: str) -> float:
        """Return their share of the step, between 0 and 1."""
        return min(1.0, max(0.0, self.seconds(*causes) / self.step)) if self.step > 0 else 0.0


def divide(measured: Measurements) -> Division:
    """Divide the median step among causes."""
    step = measured.loop.median
    if not (math.isfinite(step) and step > 0):
        return Division(step=0.0, parts={})
    if measured.ranks:
        return _between_ranks(measured, step)
    return _on_cpu(measured, step) if measured.device == "cpu" else _on_gpu(measured, step)


def holding_thread(measured: Measurements, division: Division) -> BusyThread | None:
    """Return the thread that makes the loop wait for the interpreter lock, if that is most of the cause `host`."""
    seconds = interpreter_seconds(measured, division.step)
    return measured.busy_thread if seconds > 0 and 2 * seconds >= division.seconds("host") else None


def _between_ranks(measured: Measurements, step: float) -> Division:
    """Divide a step of several processes: what they lose to each other, and the rest as in the first process alone."""
    apart = [min(step, rank.apart_seconds) for rank in measured.ranks]
    own, slowest = max(apart[0], RULE.min_fraction * step), max(apart)
    straggler, communication = slowest - statistics.median_low(apart), step - slowest
    exchanges = [rank.exchange_seconds for rank in measured.ranks if rank.exchange_seconds is not None]
    if len(exchanges) == len(measured.ranks):
        # The slowest process within the all-reduce waits least in it.
        exchange = min(*exchanges, communication)
        # The all-reduce takes longer where some slept until the last one came: divided between both by their size.
        longer = (communication - exchange) / max(straggler + exchange, RULE.min_fraction * step)
        straggler, communication = straggler * (1 + longer), communication - straggler * longer
    phases = scaled_phases(measured, step)
    phases = msgspec.structs.replace(phases, backward=max(0.0, phases.backward - (step - own)))  # the all-reduce is there
    # Cached batches make the other processes faster, too, so C says nothing about this one.
    inner = divide(msgspec.structs.replace(measured, ranks=[], loop=Stretch(seconds=[own]), cached=None, phases=phases))
    factor = (step - straggler - communication) / own
    parts = {cause: factor * seconds for cause, seconds in inner.parts.items()}
    return Division(
        step=step, parts={**parts, "straggler": straggler, "communication": communication}, host_limits=inner.host_limits
    )


def _on_gpu(measured: Measurements, step: float) -> Division:
    """Divide a step on a GPU: what the removal of a suspect saved is its part, the rest is the host's or the device's."""
    ratios: dict[str, float | None] = {cause: removal_ratio(measured, name) for name, cause in CAUSES_OF_EXPERIMENTS.items()}
    if ratios["data"] is None and "everything" not in measured.removed:
        ratios["data"] = 1 - scaled_phases(measured, step).next / step  # batches cannot be replaced: the wait for them
    # Where batches differ in size, suspects were removed from steps on cached batches.
    base = step * (ratios["data"] or 1.0) if measured.sized else step
    saved = {cause: (step if cause == "data" else base) * max(0.0, 1 - (ratio or 1.0)) for cause, ratio in ratios.items()}
    together = removal_ratio(measured, "everything")
    # All removed together save what they save: a small suspect may hide behind a larger one, or be noise. They save no less than one.
    gone = max(0.0 if together is None else step - base * together, *saved.values())
    for cause in sorted(saved, key=lambda name: -saved[name]):
        saved[cause] = min(saved[cause], gone)
        gone -= saved[cause]
    left = step - sum(saved.values())
    known = device_seconds(measured)
    if known is None:
        return Division(step=step, parts={**saved, "unknown": left})
    busy = min(known, left)
    host_limits = busy < RULE.device_limits * left
    alone = measured.phases_alone or scaled_phases(measured, step)
    # A loop without an iterable of batches makes them before the forward pass.
    making = min(left - busy, alone.prepare) if host_limits and measured.loader.kind == "loop" else 0.0
    saved["data"], left = saved["data"] + making, left - making
    host = min(left - busy, alone.rest) if host_limits else 0.0
    launch = left - busy - host if host_limits else 0.0
    # The most seconds that a host needs for the operations of a step; more is Python between them.
    work, launch_seconds = measured.work, measured.machine.launch_seconds
    count = max(work.ops, work.kernels or 0.0) if work is not None else 0.0
    python = max(0.0, launch - RULE.issue_cost * launch_seconds * count) if launch_seconds and count else 0.0
    python = max(python, min(launch, interpreter_seconds(measured, step)))
    parts = _kernels(measured, left - host - launch, busy)
    parts |= {**saved, "host": saved["host"] + host + python, "launch": launch - python}
    return Division(step=step, parts=parts, host_limits=host_limits)


def _kernels(measured: Measurements, seconds: float, device: float) -> dict[str, float]:
    """Divide the time of a GPU's kernels by cause."""
    work = measured.work
    if work is None:
        return {"unknown": seconds}
    phases = measured.device_phases
    timed = max(sum(phases.values()), device)
    of_optimizer = phases.get("optimizer", 0.0) / timed if phases and timed > 0 else work.shares.get("optimizer", 0.0)
    optimizer = seconds * min(1.0, of_optimizer)
    seconds, device = seconds - optimizer, device * (1 - min(1.0, of_optimizer))
    reached = min(1.0, flops_seconds(measured) / device) if device > 0 else 0.0
    total = sum(share for kind, share in work.shares.items() if kind != "optimizer")
    if total > 0:
        products = work.shares.get("gemm", 0.0) / total
        # What torch compiles are loops over memory, in kernels of no class.
        kinds = ("elementwise", "reduce", "copy", *(["other"] if measured.compiled else []))
        moving = sum(work.shares.get(kind, 0.0) for kind in kinds) / total
        if reached < RULE.near_peak and products < RULE.mostly_matmul:
            products = min(products, reached)  # matmuls far from the peak: their shapes are small or ragged
        if work.moved_bytes is not None and device * moving > 0:
            # Share of the time of memory-moving kernels that the bytes need; all of it where they are fast.
            rate = work.moved_bytes / measured.machine.memcpy_bytes / (device * moving)
            moving *= 1.0 if rate >= RULE.near_peak else rate
    else:  # compiled or captured: kernels without operations
        long = bool(work.kernels) and device / (work.kernels or 1.0) >= RULE.long_kernel_seconds
        products, moving = (1.0, 0.0) if reached >= RULE.near_peak else (reached, 1 - reached if long else 0.0)
    compute, peaks = seconds * products, measured.machine.matmul_flops
    # What float32 matmuls would save in a shorter type of this GPU, and float64 ones at least; nothing where they are short already.
    now, shorter = peaks.get("fp32", 0.0), max(peaks.get("tf32", 0.0), peaks.get("bf16", 0.0))
    saves = measured.precision in ("fp32", "fp64") and now > 0 and shorter >= RULE.faster_dtype * now
    precision = compute * (1 - now / shorter) if saves else 0.0
    kernel = max(0.0, seconds * (1 - products - moving))
    parts = {"optimizer": optimizer, "precision": precision, "compute": compute - precision}
    return {**parts, "memory": seconds * moving, "kernel": kernel}


def _on_cpu(measured: Measurements, step: float) -> Division:
    """Divide a step on a CPU, which does one thing after the other: by what was removed, by phase, and by kind of operation."""
    phases, cached, alone = scaled_phases(measured, step), seconds_of(measured.cached), seconds_of(measured.loader_alone)
    machine, work = measured.machine, measured.work
    data, oversubscribed = min(step, phases.next), 0.0
    if cached is not None:
        # What batches at no cost save beyond what making them takes is due to other things, such as warm caches.
        workers = min(measured.loader.workers, machine.cores) if crowded(measured) else 1
        most = math.inf if alone is None else max(data, RULE.loader_slowdown * alone * max(1, workers))
        data = min(max(0.0, step - cached), most)
    is_crowd = measured.loader.workers > 0 and measured.loader.workers + machine.threads > 2 * machine.cores
    if is_crowd and cached is not None and alone is not None and alone <= cached:
        # The loader alone keeps up, and so does the step without it: together they compete for the cores.
        data, oversubscribed = 0.0, max(0.0, step - cached)
    making = phases.prepare * (1 - _in_forward(measured)) if phases.forward > RULE.min_forward * step else 0.0
    data += min(making, step - data - oversubscribed)
    removed = [step * max(0.0, gain_of(measured.removed.get(name)) or 0.0) for name in ("callbacks", "between")]
    host = min(max(phases.rest, *removed), step - data - oversubscribed)
    busy = step - data - oversubscribed - host
    held = min(busy, interpreter_seconds(measured, step))  # in all phases alike: each operation asks for the lock again
    optimizer = min(phases.optimizer, busy) * (1 - held / busy if busy > 0 else 1.0)
    core = busy - held - optimizer
    python = min(core, work.shares.get("python", 0.0) * (cached or step)) if work is not None else 0.0
    # Memory that a step gets from the system it gave back before, mostly between operations: that takes no longer than to get it.
    for_pages = max(measured.for_pages("cached", "loop"), default=0.0)
    python = max(0.0, python - for_pages)
    host, core = host + held + python, core - python
    gain = _threads_gain(measured)
    oversubscribed += gain * (core + optimizer)
    core, optimizer = core * (1 - gain), optimizer * (1 - gain)
    # Workers are no faster than alone, however many cores they have: what would remain of the step is data.
    behind = min(oversubscribed, max(0.0, (alone or 0.0) - (step - oversubscribed))) if measured.loader.workers else 0.0
    data, oversubscribed = data + behind, oversubscribed - behind
    if work is None:
        parts = {"data": data, "host": host, "oversubscribed": oversubscribed, "optimizer": optimizer, "unknown": core}
        return Division(step=step, parts=parts)
    # Operations of the optimizer are dispatched too, but what they cost is the optimizer's.
    in_core = core / (core + optimizer) if core + optimizer > 0 else 0.0
    around = (work.shares.get("other", 0.0) * (cached or step) - phases.rest - making) * (1 - gain)
    # An operation needs at most `issuing`; more is Python, but for memory from the system. Operations of compiled code are not counted.
    small = work.ops * machine.dispatch_seconds
    issuing = math.inf if measured.compiled else RULE.issue_cost * small
    dispatch = max(min(around + RULE.inside_small * small * in_core, issuing), small * in_core)
    by_batch = gain_of(measured.what_ifs.get("batch"))
    if by_batch is not None:  # a step of two batches takes longer, but what it takes once is not work on samples
        fixed = (1 + by_batch) * (cached or step) - phases.rest - making - python
        dispatch = max(dispatch, min(fixed * (1 - gain) - optimizer, issuing))
    dispatch = min(core, dispatch)
    between = min(core - dispatch, max(0.0, around - issuing - for_pages))
    host, left = host + between, core - dispatch - between
    # Matmuls, moving memory, and operations that are neither (factorizations, custom ones).
    matmuls, other = work.shares.get("gemm", 0.0), work.shares.get("other_ops", 0.0)
    total = matmuls + sum(work.shares.get(kind, 0.0) for kind in ("elementwise", "reduce", "search", "copy")) + other
    if total > 0:  # shares of one profile stay the same under load, a rate reached does not
        compute, memory, kernel = matmuls / total, 1 - (matmuls + other) / total, other / total
    else:
        compute, memory, kernel = (1.0, 0.0, 0.0) if flops_seconds(measured) >= RULE.near_peak * core else (0.0, 1.0, 0.0)
    # In float64, half of what computes, moves memory or updates weights is waste.
    kept = 1 - RULE.float32_gain if measured.precision == "fp64" else 1.0
    parts = {"data": data, "host": host, "oversubscribed": oversubscribed, "dispatch": dispatch, "kernel": left * kernel}
    parts |= {"optimizer": kept * optimizer, "compute": kept * left * compute, "memory": kept * left * memory}
    parts["precision"] = (1 - kept) * (optimizer + left * (compute + memory))
    return Division(step=step, parts=parts)


def _in_forward(measured: Measurements) -> float:
    """Return the share of the phase `prepare` that is forward pass: `forward` was called as a plain method, which calls no hook."""
    lines = measured.blames.get("prepare", [])
    return min(1.0, sum(line.share for line in lines if line.place.function.rpartition(".")[2] == "forward"))


def _threads_gain(measured: Measurements) -> float:
    """Return the share of a step without its data that fewer threads save."""
    threads = measured.machine.threads
    now = measured.fewer_threads.get(str(threads)) or seconds_of(measured.cached)
    fewer = [seconds for number, seconds in measured.fewer_threads.items() if int(number) < threads]
    if not fewer or not now:
        return 0.0
    gain = 1 - min(fewer) / now
    if not crowded(measured):
        # Each has its own core, and may wait for the others: what was measured twice is not chance, nor due to other programs.
        usual, disturbed = min(now, seconds_of(measured.cached) or measured.loop.median), measured.waited_for_cores
        twice = min(1 - min(fewer) / usual, (gain_of(measured.what_ifs.get("threads")) or 0.0) * measured.loop.median / usual)
        gain = twice - disturbed if disturbed is not None else 0.0
    return gain if gain >= RULE.min_threads_gain else 0.0
