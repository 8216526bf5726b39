"""Attribution: the time of a step divided among causes. Between the measurements and the verdict; no torch.

1. `attribute` divides a step among causes. On a GPU, `_by_removal` does it by experiments: what a step saved when a suspect was removed
   is the suspect's part, and what is left when all are removed is divided between the host and the device. Where the experiments could
   not be made, and on a CPU, causes are taken away one after the other, in the order in which they hide each other: data, copies,
   waits, Python of the loop, issuing operations, then the work itself. A part is capped by the cause's own measurement, so that noise
   between two windows is not attributed. Parts do not overlap, and their sum is the step.
2. `slow_of` and `slow_of_windows` find rare steps: a few that take far longer than the others (a checkpoint, a validation, an upload).
   A median does not see them, the wall clock does. `Periods` keeps a window open until several were seen; the mean step is then taken
   over whole periods, from one rare step to the next.
3. `at_one_level` brings times of windows that the machine ran at different speeds to one speed. Processors change their speed for seconds
   at a time. A window between two baseline windows ran at their speed, so it is scaled to the usual speed of the baseline.

The letters are those of measurements.py: T the loop, D the loader alone, X copies alone, C cached batches, H issue time, G the device.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import TypeVar

import msgspec

from stoker._clock import now_ns
from stoker.diagnose.measurements import BusyThread, Measurements, Phases, Stretch, WhatIf
from stoker.diagnose.thresholds import RULE

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """Seconds of a step by cause; `unknown` is work of which nothing was counted."""

    data: float = 0.0
    transfer: float = 0.0
    sync: float = 0.0
    host: float = 0.0
    oversubscribed: float = 0.0
    straggler: float = 0.0
    communication: float = 0.0
    launch: float = 0.0
    dispatch: float = 0.0
    optimizer: float = 0.0
    precision: float = 0.0
    compute: float = 0.0
    memory: float = 0.0
    kernel: float = 0.0
    unknown: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Attribution:
    """A step divided among causes."""

    step: float
    parts: Parts
    residual: float  # seconds that the measurements leave unexplained (above 0) or explain twice (below 0)
    host_limits: bool  # GPU: whether the host issues a step more slowly than the device runs it. Then the run can be launch-bound.

    def share(self, name: str) -> float:
        """The share of a cause, between 0 and 1."""
        return min(1.0, max(0.0, getattr(self.parts, name) / self.step)) if self.step > 0 else 0.0


def attribute(measured: Measurements) -> Attribution:
    """Divide the median step among causes."""
    step = measured.loop.median
    if not (math.isfinite(step) and step > 0):
        return Attribution(step=0.0, parts=Parts(), residual=0.0, host_limits=False)
    if measured.ranks:
        return _of_ranks(measured, step)
    if measured.device == "cpu":
        return _on_cpu(measured, step)
    return _by_removal(measured, step) if can_divide_by_removal(measured) else _on_cuda(measured, step)


def _of_ranks(measured: Measurements, step: float) -> Attribution:
    """Several processes: what they lose to each other, and the rest as in the first process alone."""
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
    inner = attribute(msgspec.structs.replace(measured, ranks=[], loop=Stretch(seconds=[own]), cached=None, phases=phases))
    factor = (step - straggler - communication) / own
    parts = {field.name: factor * getattr(inner.parts, field.name) for field in fields(Parts)}
    parts |= {"straggler": straggler, "communication": communication}
    return Attribution(step=step, parts=Parts(**parts), residual=factor * inner.residual, host_limits=inner.host_limits)


def seconds_of(stretch: Stretch | None) -> float | None:
    """The median of a window, if there is one."""
    return stretch.median if stretch is not None and stretch.seconds else None


def scaled_phases(measured: Measurements, step: float) -> Phases:
    """Phases scaled so that their sum is the step: each is a median of its own, and medians do not add up."""
    phases = msgspec.structs.asdict(measured.phases)
    total = sum(phases.values())
    factor = step / total if total > 0 else 0.0
    return Phases(**{name: max(0.0, seconds * factor) for name, seconds in phases.items()})


def _data(measured: Measurements, phases: Phases, step: float) -> float:
    """Seconds that would be saved if batches were free; at most what the loader was measured to take."""
    cached, alone = seconds_of(measured.cached), seconds_of(measured.loader_alone)
    if cached is None:
        return min(step, phases.next)
    # Workers that share the cores of the training take from it all that they compute.
    at_once = min(measured.loader.workers, measured.machine.cores) if measured.loader.workers and crowded(measured) else 1
    gone = min(max(0.0, step - cached), RULE.loader_slowdown * max((alone or 0.0) * at_once, phases.next))
    # A GPU may work while its host waits for a batch; a CPU does nothing else, so all of that wait is lost.
    return max(gone, phases.next) if measured.device == "cpu" else gone


def _on_cpu(measured: Measurements, step: float) -> Attribution:
    phases, cached, alone = scaled_phases(measured, step), seconds_of(measured.cached), seconds_of(measured.loader_alone)
    machine, work = measured.machine, measured.work
    data, oversubscribed = _data(measured, phases, step), 0.0
    is_crowd = measured.loader.workers > 0 and measured.loader.workers + machine.threads > 2 * machine.cores
    if is_crowd and cached is not None and alone is not None and alone <= cached:
        # The loader alone keeps up, and so does the step without it: together they compete for the cores.
        data, oversubscribed = 0.0, max(0.0, step - cached)
    residual = 0.0 if cached is None else step - cached - data - oversubscribed
    if residual > 0 and measured.loader.workers > 0 and crowded(measured):
        # Neither makes the step this long alone: workers and training share the cores.
        oversubscribed, residual = oversubscribed + residual, 0.0
    making = phases.prepare * (1 - _in_forward(measured)) if phases.forward > RULE.min_forward * step else 0.0
    making = min(making, step - data - oversubscribed)
    data += making
    host = min(phases.rest, step - data - oversubscribed)
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
        parts = Parts(data=data, host=host, oversubscribed=oversubscribed, optimizer=optimizer, unknown=core)
        return Attribution(step=step, parts=parts, residual=residual, host_limits=False)
    # Operations of the optimizer are dispatched too, but what they cost is the optimizer's.
    in_core = core / (core + optimizer) if core + optimizer > 0 else 0.0
    around = (work.shares.get("other", 0.0) * (cached or step) - phases.rest - making) * (1 - gain)
    # An operation needs at most `issuing`; more is Python, but for memory from the system. Operations of compiled code are not counted.
    small = work.ops * machine.dispatch_seconds
    issuing = math.inf if measured.compiled else RULE.issue_cost * small
    dispatch = max(min(around + RULE.inside_small * small * in_core, issuing), small * in_core)
    by_batch = gain_of(measured, "batch")
    if by_batch is not None:  # a step of two batches takes longer, but what it takes once is not work on samples
        fixed = (1 + by_batch) * (cached or step) - phases.rest - making - python
        dispatch = max(dispatch, min(fixed * (1 - gain) - optimizer, issuing))
    dispatch = min(core, dispatch)
    between = min(core - dispatch, max(0.0, around - issuing - for_pages))
    host, core = host + between, core - between
    # Matmuls, moving memory, and operations that are neither (factorizations, custom ones).
    matmuls, other = work.shares.get("gemm", 0.0), work.shares.get("other_ops", 0.0)
    total = matmuls + sum(work.shares.get(kind, 0.0) for kind in ("elementwise", "reduce", "search", "copy")) + other
    if total > 0:  # shares of one profile stay the same under load, a rate reached does not
        compute, memory, kernel = matmuls / total, 1 - (matmuls + other) / total, other / total
    else:
        compute, memory, kernel = (1.0, 0.0, 0.0) if flops_seconds(measured) >= RULE.near_peak * core else (0.0, 1.0, 0.0)
    left = core - dispatch
    # In float64, half of what computes, moves memory or updates weights is waste.
    kept = 1 - RULE.float32_gain if measured.precision == "fp64" else 1.0
    compute, memory = left * compute, left * memory
    kinds = {"optimizer": kept * optimizer, "compute": kept * compute, "memory": kept * memory, "kernel": left * kernel}
    kinds |= {"dispatch": dispatch, "precision": (1 - kept) * (optimizer + compute + memory)}
    parts = Parts(data=data, host=host, oversubscribed=oversubscribed, **kinds)
    return Attribution(step=step, parts=parts, residual=residual, host_limits=False)


def _in_forward(measured: Measurements) -> float:
    """Share of the phase `prepare` that is forward pass: `forward` was called as a plain method, which calls no hook."""
    lines = measured.blames.get("prepare", [])
    return min(1.0, sum(one.share for one in lines if one.place.function.rpartition(".")[2] == "forward"))


def interpreter_seconds(measured: Measurements, step: float) -> float:
    """Seconds of a step that the loop waits for a thread that computes in Python: it holds the interpreter lock meanwhile."""
    thread, asleep = measured.busy_thread, measured.asleep
    if thread is None or asleep is None or thread.share < RULE.busy_thread:
        return 0.0
    waits = scaled_phases(measured, step).next
    return min(thread.share * step, max(0.0, (asleep - (measured.waited_for_cores or 0.0)) * step - waits))


def waits_for_interpreter(measured: Measurements) -> bool:
    """Whether the loop waits for such a thread most of the time: a mean over all steps, which may vary however they like."""
    return interpreter_seconds(measured, 1.0) >= RULE.clear_majority


def holding_thread(measured: Measurements, attribution: Attribution) -> BusyThread | None:
    """The thread that makes the loop wait for the interpreter lock, if that is most of the part `host`."""
    seconds = interpreter_seconds(measured, attribution.step)
    return measured.busy_thread if seconds > 0 and 2 * seconds >= attribution.parts.host else None


def crowded(measured: Measurements, *, communicating: bool = True) -> bool:
    """Whether the program has more threads, workers and other processes than cores, so that it competes with itself."""
    processes = max(1, len(measured.ranks))
    more = 1 if measured.ranks and communicating else 0  # one thread sends and receives
    if not measured.loader.workers and measured.own_processes >= RULE.busy_process:
        more += 1  # it makes batches in processes that are not a loader's
    return processes * (measured.machine.threads + measured.loader.workers) + more > measured.machine.cores


def _threads_gain(measured: Measurements) -> float:
    """Share of a step without its data that fewer threads save."""
    threads = measured.machine.threads
    now = measured.fewer_threads.get(str(threads)) or seconds_of(measured.cached)
    fewer = [seconds for number, seconds in measured.fewer_threads.items() if int(number) < threads]
    if not fewer or not now:
        return 0.0
    gain = 1 - min(fewer) / now
    if not crowded(measured):
        # Each has its own core, and may wait for the others: what was measured twice is not chance, nor due to other programs.
        usual, disturbed = min(now, seconds_of(measured.cached) or measured.loop.median), measured.waited_for_cores
        twice = min(1 - min(fewer) / usual, (gain_of(measured, "threads") or 0.0) * measured.loop.median / usual)
        gain = twice - disturbed if disturbed is not None else 0.0
    return gain if gain >= RULE.min_threads_gain else 0.0


def gain_of(measured: Measurements, fix: str, results: Mapping[str, WhatIf] | None = None) -> float | None:
    """Return the fraction of step time that a fix saves (negative if it costs time), or None if it was not measured.

    Measured in alternation with the baseline. `results` are those of fixes by default.
    """
    tried = (measured.what_ifs if results is None else results).get(fix)
    before, after = (seconds_of(tried.as_it_is), seconds_of(tried.with_fix)) if tried is not None else (None, None)
    return 1 - after / before if before is not None and after is not None else None


def flops_seconds(measured: Measurements) -> float:
    """Seconds of the floating-point work of a step at the measured peaks."""
    work, peaks = measured.work, measured.machine.matmul_flops
    if work is None or not peaks:
        return 0.0
    by_dtype = work.flops_by_dtype or {measured.precision: work.flops}
    slowest = min(peaks.values())
    return sum(flops / peak for kind, flops in by_dtype.items() if (peak := peaks.get(kind, slowest)) > 0)


CAUSES_OF_EXPERIMENTS = {"copies": "transfer", "reads": "sync", "callbacks": "host"}
"""The cause that each experiment removes; cached batches remove `data`."""


def removal_ratio(measured: Measurements, experiment: str) -> float | None:
    """Return the time of a step without a suspect over that of the unchanged steps next to it, or None if it was not measured."""
    if experiment == "data":
        step, without = measured.loop.median, seconds_of(measured.cached)
        return without / step if without is not None and step > 0 and not measured.ranks else None
    gain = gain_of(measured, experiment, measured.removed)
    return 1 - gain if gain is not None else None


def removal_range(measured: Measurements, experiment: str) -> tuple[float, float]:
    """Return the least and the greatest speed-up by a removal: of its windows, each next to an unchanged one."""
    if experiment == "data":
        before, after = measured.loop, measured.cached or measured.loop
    else:
        before, after = measured.removed[experiment].as_it_is, measured.removed[experiment].with_fix
    windows = [[middle for _, middle in stretch.by_piece()] for stretch in (before, after)]
    # The first window of the loop has no partner.
    ratios = [old / new for old, new in zip(*(window[-min(map(len, windows)) :] for window in windows), strict=True) if new > 0]
    middle = 1 / (removal_ratio(measured, experiment) or 1.0)
    return min(ratios, default=middle), max(ratios, default=middle)


def can_divide_by_removal(measured: Measurements) -> bool:
    """Whether all suspects were removed together, and the time of the device is known: what `_by_removal` needs."""
    return removal_ratio(measured, "everything") is not None and device_seconds(measured) is not None


def _by_removal(measured: Measurements, step: float) -> Attribution:
    """Divide a step on a GPU by experiments: what the removal of a suspect saved is its part, the rest is host or device."""
    left = min(step, step * (removal_ratio(measured, "everything") or 1.0))
    saved = dict.fromkeys(("data", "transfer", "sync", "host"), 0.0)
    for experiment, cause in {"data": "data", **CAUSES_OF_EXPERIMENTS}.items():
        ratio = removal_ratio(measured, experiment)
        saved[cause] = step * max(0.0, 1 - ratio) if ratio is not None else 0.0
    # All removed together save what they save: one suspect may hide behind another one, and noise may be counted twice.
    total = sum(saved.values())
    saved = {cause: seconds * (step - left) / total for cause, seconds in saved.items()} if total > 0 else saved
    left = step - sum(saved.values())
    busy = min(device_seconds(measured) or 0.0, left)
    host_limits = busy < RULE.device_limits * left
    rest = min(measured.phases_alone.rest if measured.phases_alone is not None else 0.0, left)
    host = min(left - busy, rest) if host_limits else 0.0
    launch = left - busy - host if host_limits else 0.0
    # The most seconds that a host needs for the operations of a step; more is Python between them.
    work, launch_seconds = measured.work, measured.machine.launch_seconds
    count = max(work.ops, work.kernels or 0.0) if work is not None else 0.0
    python = max(0.0, launch - RULE.issue_cost * launch_seconds * count) if launch_seconds and count else 0.0
    python = max(python, min(launch, interpreter_seconds(measured, step)))
    parts = _kernels(measured, left - host - launch, busy)
    parts |= {**saved, "host": saved["host"] + host + python, "launch": launch - python}
    return Attribution(step=step, parts=Parts(**parts), residual=0.0, host_limits=host_limits)


def _on_cuda(measured: Measurements, step: float) -> Attribution:
    phases, cached = scaled_phases(measured, step), seconds_of(measured.cached)
    issue, device = seconds_of(measured.host_issue), device_seconds(measured)
    data = _data(measured, phases, step)
    left = step - data
    transfer = min(left, RULE.copy_slowdown * copies_seconds(measured), phases.prepare or max(0.0, left - (cached or left)))
    left -= transfer
    if device is None:
        return Attribution(step=step, parts=Parts(data=data, transfer=transfer, unknown=left), residual=0.0, host_limits=False)
    behind = issue is not None and issue > device
    device = min(device, left)
    waits = _waits(measured, phases)
    waiting = max(0.0, sum(waits.values()) - transfer)
    in_loop = phases.forward > 0
    issue = left if issue is None else issue - (transfer if in_loop else 0.0)
    if waiting > 0:  # issuing ends when the device does, and takes no longer than the loop but for its waits
        issue = min(issue, left) - waiting
    issue = max(0.0, issue)
    work, launch_seconds = measured.work, measured.machine.launch_seconds
    fills_queue = work is not None and work.kernels is not None and work.kernels > RULE.launch_queue
    stalls = bool(measured.syncs) or (bool(measured.blocked_under_sleep) and not fills_queue)
    own = max(0.0, phases.rest - waits.get("rest", 0.0))
    if stalls and not waits:
        own = 0.0  # it is unknown where it waits; mostly that is where a loss is read, in `rest`
    gap = max(0.0, left - max(issue - own, device))
    # Without a wait, only what the loop does besides its core can lie between the loop and its parts.
    host = min(gap, own if stalls else max(own, left - (cached if cached is not None else left)))
    sync = gap - host if stalls else 0.0
    left -= host + sync
    # Also where only copies make issuing longer than running: kernels that wait for the host are not the bottleneck.
    host_limits = issue - own > device or (issue > device and left > RULE.gpu_idle_with_copies * device) or (behind and not stalls)
    host_limits = host_limits and left > RULE.gpu_idle * device
    # Into an empty queue a step is issued more slowly than behind another one: that difference is not attributed.
    residual = left - max(device, min(issue - own, left) if host_limits else 0.0)
    launch = max(0.0, left - device) if host_limits else 0.0
    # The most seconds that a host needs for the operations of a step; more is Python between them.
    count = max(work.ops, work.kernels or 0.0) if work is not None else 0.0
    issuing = RULE.issue_cost * launch_seconds * count if launch_seconds and count else math.inf
    python = max(0.0, launch - issuing, min(launch, interpreter_seconds(measured, step)))
    host, launch, left = host + python, launch - python, left - python
    parts = _kernels(measured, left - launch, device)
    parts = {**parts, "data": data, "transfer": transfer, "sync": sync, "host": host, "launch": launch}
    return Attribution(step=step, parts=Parts(**parts), residual=residual, host_limits=host_limits)


def device_seconds(measured: Measurements) -> float | None:
    """G: measured behind a sleep; or, for a step that could not be issued meanwhile, from the profile."""
    work = measured.work
    if measured.blocked_under_sleep and work is not None and work.device_seconds is not None:
        return work.device_seconds
    return seconds_of(measured.device_alone)


def copies_seconds(measured: Measurements) -> float:
    """X, or the bytes at the measured rate."""
    copies, work, rate = seconds_of(measured.copies_alone), measured.work, measured.machine.h2d_pageable_bytes
    return copies if copies is not None else work.h2d_bytes / rate if work is not None and rate else 0.0


def _waits(measured: Measurements, phases: Phases) -> dict[str, float]:
    """Seconds that the host spends at lines where it waits for the device, by phase."""
    lines = {(sync.place.file, sync.place.line) for sync in measured.syncs if sync.place is not None}
    waits = {
        phase: min(1.0, sum(blame.share for blame in blames if (blame.place.file, blame.place.line) in lines))
        * getattr(phases, phase, 0.0)
        for phase, blames in measured.blames.items()
    }
    return {phase: seconds for phase, seconds in waits.items() if seconds > 0}


def _kernels(measured: Measurements, seconds: float, device: float) -> dict[str, float]:
    """The kernels of a GPU by cause."""
    work, shares = measured.work, measured.work.shares if measured.work is not None else {}
    phases = measured.device_phases
    whole = sum(phases.values())
    of_optimizer = phases.get("optimizer", 0.0) / max(whole, device) if whole > 0 else shares.get("optimizer", 0.0)
    optimizer = seconds * min(1.0, of_optimizer)
    seconds, device = seconds - optimizer, device * (1 - min(1.0, of_optimizer))
    if work is None:
        return {"optimizer": optimizer, "unknown": seconds}
    reached = min(1.0, flops_seconds(measured) / device) if device > 0 else 0.0
    total = sum(share for kind, share in shares.items() if kind != "optimizer")
    if total > 0:
        products = shares.get("gemm", 0.0) / total
        moving = sum(shares.get(kind, 0.0) for kind in ("elementwise", "reduce", "copy")) / total
        if reached < RULE.near_peak and products < RULE.mostly_matmul:
            products = min(products, reached)  # matmuls far from the peak: their shapes are small or ragged
        if work.moved_bytes is not None and device * moving > 0:
            # Share of the time of memory-moving kernels that the bytes need; all of it where they are fast.
            rate = work.moved_bytes / measured.machine.memcpy_bytes / (device * moving)
            moving *= 1.0 if rate >= RULE.near_peak else rate
    elif reached >= RULE.near_peak:
        products, moving = 1.0, 0.0
    else:
        long = work.kernels is not None and work.kernels > 0 and device / work.kernels >= RULE.long_kernel_seconds
        products, moving = reached, 1 - reached if long else 0.0
    compute, peaks = seconds * products, measured.machine.matmul_flops
    # What float32 matmuls would save in a shorter type of this GPU, and float64 ones at least; nothing where they are short already.
    now, shorter = peaks.get("fp32", 0.0), max(peaks.get("tf32", 0.0), peaks.get("bf16", 0.0))
    saves = measured.precision in ("fp32", "fp64") and now > 0 and shorter >= RULE.faster_dtype * now
    precision = compute * (1 - now / shorter) if saves else 0.0
    kernel = max(0.0, seconds * (1 - products - moving))
    parts = {"optimizer": optimizer, "precision": precision, "compute": compute - precision}
    return {**parts, "memory": seconds * moving, "kernel": kernel}


@dataclass(frozen=True, kw_only=True, slots=True)
class Slow:
    """The slow steps of a window."""

    at: list[int]  # which steps they are
    share: float  # share of all time: what they take longer than the others
    seconds: float  # seconds of one of them
    others: float  # seconds of one of the others
    every: float | None  # steps from one to the next; None where there is only one
    mean: float  # seconds of a step: over whole periods where there is one, else over all steps


def slow_of(seconds: Sequence[float]) -> Slow | None:
    """The slow steps of one window; None where there are none, or too many to be rare."""
    limit = _limit(seconds)
    at = [number for number, one in enumerate(seconds) if one > limit]
    if not at or len(at) > RULE.max_slow_fraction * len(seconds):
        return None
    others = statistics.fmean(one for one in seconds if one <= limit)
    # Whole periods: after the first slow step, up to the last one; but slow steps in a row are a burst, without a period.
    span = at[-1] - at[0]
    periodic = span >= RULE.rare_min_span * len(seconds) and RULE.max_slow_fraction * span >= len(at) - 1
    whole = seconds[at[0] + 1 : at[-1] + 1] if periodic else seconds
    mean = statistics.fmean(whole)
    longer = sum(one - others for one in whole if one > limit)
    return Slow(
        at=at,
        share=longer / sum(whole),
        seconds=statistics.fmean(seconds[number] for number in at),
        others=others,
        every=span / (len(at) - 1) if periodic else len(seconds) / len(at) if len(at) > 1 else None,
        mean=mean,
    )


def slow_of_windows(windows: Sequence[Sequence[float]]) -> Slow | None:
    """The slow steps of several windows: of the window in which they took most time, with at most their share over all windows."""
    # Another program that came and went makes slow steps in one window; a machine that changes its speed makes a slow window.
    found = [slow for window in windows if (slow := slow_of(window))]
    best = max(found, key=lambda slow: len(slow.at) * (slow.seconds - slow.others), default=None)
    if best is None:
        return None
    usual = statistics.median(one for window in windows for one in window)
    levels = [statistics.median(window) if len(window) >= RULE.level_min_steps else usual for window in windows]
    scaled = [one * usual / level for window, level in zip(windows, levels, strict=True) for one in window if level > 0]
    longer = [one - best.others for one in scaled if one > max(RULE.slow_step * usual, (best.others + best.seconds) / 2)]
    share = sum(longer) / sum(scaled)
    if share >= best.share:
        return best
    return replace(best, share=share, mean=statistics.fmean(one for window in windows for one in window))


def _limit(seconds: Sequence[float]) -> float:
    """Seconds above which a step is slow: a third of the excess of those that hold the time, because steps of a busy machine vary."""
    usual = statistics.median(seconds) if seconds else 0.0
    longer = [one - usual for one in seconds if one > RULE.slow_step * usual]
    holding = sum(one * one for one in longer) / sum(longer) if longer else 0.0
    return max(RULE.slow_step * usual, usual + holding / 3)


class Periods:
    """Keeps a window open while rare steps were seen in it, but not often enough."""

    def __init__(self, *, until_ns: int, expected: bool = False) -> None:
        self._until_ns = until_ns
        self._expected = expected  # whether some were seen elsewhere, so that the window waits for the first one
        self._middle: float | None = None
        self._number = 0

    def go_on(self, last: float, steps: Callable[[], list[float]]) -> bool:
        """Whether to continue. Called after each step with its seconds, once the window has lasted its time."""
        if now_ns() >= self._until_ns:
            return False
        if self._middle is None or last > RULE.slow_step * self._middle:
            seconds = steps()
            self._middle = statistics.median(seconds)
            slow = slow_of(seconds)
            self._number = len(slow.at) if slow is not None and slow.share >= RULE.rare_min_share else 0
        return self._number <= RULE.rare_periods and (self._number > 0 or self._expected)


def split(values: Sequence[T], starts: Sequence[int]) -> list[list[T]]:
    """Split values into the pieces that begin at `starts`; one piece if there are no starts."""
    edges = [*(starts or [0]), len(values)]
    return [list(values[begin:end]) for begin, end in pairwise(edges)]


def at_one_level(rounds: Sequence[Sequence[float]], loop: Sequence[Sequence[float]]) -> list[list[float]]:
    """Scale the values of rounds to one speed; round i lies between the pieces i and i + 1 of the loop."""
    medians = [statistics.median(piece) for piece in loop if piece]
    common = statistics.median([seconds for piece in loop for seconds in piece]) if medians else 0.0
    if not common or min(medians) <= 0:
        return [list(values) for values in rounds]
    factors, steady = [], []
    for number in range(len(rounds)):
        before, after = medians[min(number, len(medians) - 1)], medians[min(number + 1, len(medians) - 1)]
        factors.append(2 * common / (before + after))
        steady.append(abs(before - after) <= RULE.level_max_change * (before + after) / 2 and bool(rounds[number]))
    if sum(steady) < RULE.level_min_windows:
        steady = [True] * len(rounds)
    return [[value * factor for value in values] for values, factor, keep in zip(rounds, factors, steady, strict=True) if keep]
