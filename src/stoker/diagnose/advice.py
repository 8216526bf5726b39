"""Advice: what to do next about the causes, each with the speed-up that the measurements predict, alone and from now.

A prediction is a step without the part that a fix was measured to remove; where no stretch measured it, there is none. Nothing is
advised that is predicted to gain less than two per cent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from stoker.diagnose.finding import Cause, Step, Verdict
from stoker.diagnose.measurements import Blame, Measurements, Place
from stoker.diagnose.parts import Division, copies_seconds, scaled_phases, seconds_of

LEAST_GAIN = 1.02
MOST = 50.0
"""Times faster: beyond it, what was left over decides, and nobody measured that."""
ALSO = 0.10
"""Of a step: causes with less are not advised on, unless first."""
FUSIBLE = ("Adam", "AdamW", "SGD", "Adagrad")
GATHER_SECONDS = 1.2e-4
"""Of a batch that is gathered at once, however small: the sampler, a call of the loader, an operation a tensor (bench_tries)."""
HANDOVER_SECONDS = 2e-4
"""Of a batch from a worker process to the training."""
MOST_WORKERS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """All that advice is made of."""

    measured: Measurements
    division: Division

    def without(self, seconds: float) -> float:
        """The speed-up of a step that has lost so much of its time."""
        step = self.division.step
        return min(MOST, step / max(step - seconds, step / MOST))


def advise(measured: Measurements, division: Division, causes: list[Cause]) -> list[Step]:
    """What to do, the most useful first: for the verdict, then for the other causes that matter."""
    case = Case(measured=measured, division=division)
    steps: dict[str, Step] = {}
    for place, cause in enumerate(causes):
        if place == 0 or cause.share >= ALSO:
            for step in _ADVISERS[cause.verdict](case):
                steps.setdefault(step.name, step)
    for step in (*_fused(case), *_threads(case)):
        if step.predicted is not None:
            steps.setdefault(step.name, step)
    return [step for step in steps.values() if step.predicted is None or step.predicted >= LEAST_GAIN]


def workers_to_use(measured: Measurements, division: Division) -> int:
    """So many that making a batch hides behind a step, as far as there are cores for them."""
    alone = (seconds_of(measured.loader_alone) or 0.0) * max(1, measured.loader.workers)
    left = max(division.step - division.parts.data, 1e-9)
    return min(MOST_WORKERS, max(1, measured.machine.cores - 1), math.ceil(alone / left) + 1)


def _data(case: Case) -> list[Step]:
    measured, parts = case.measured, case.division.parts
    used = measured.loader.bytes_used or 0.0
    feed = Step(
        name="feed",
        sentence="pack the data to a store and let stoker.Feed make the batches",
        predicted=case.without(parts.data - GATHER_SECONDS - 2 * used / measured.machine.memcpy_bytes),
    )
    in_loop = scaled_phases(measured, case.division.step).prepare
    steps = [feed, *_workers(case)]
    if measured.cached is not None:
        kept = max(0.0, parts.data - in_loop) if measured.device == "cpu" else parts.data
        sentence = "make batches once and keep them, if they fit in memory and need not differ between epochs"
        steps.append(Step(name="cached", sentence=sentence, predicted=case.without(kept)))
    return steps


def _workers(case: Case) -> list[Step]:
    measured, division = case.measured, case.division
    if measured.loader.kind != "DataLoader":
        return []
    now, wanted = measured.loader.workers, workers_to_use(measured, division)
    if now >= wanted:
        return []
    sentence = f"{wanted} worker {'process' if wanted == 1 else 'processes'} in place of {now} (num_workers={wanted})"
    alone = seconds_of(measured.loader_alone)
    busy = 1 if measured.device == "cuda" else measured.machine.threads
    if alone is None or busy + wanted >= measured.machine.cores:
        return [Step(name="workers", sentence=sentence, predicted=None)]  # they would share cores, and nobody measured how
    left = division.step - division.parts.data + HANDOVER_SECONDS
    behind = alone * max(1, now) / wanted
    return [Step(name="workers", sentence=sentence, predicted=case.without(division.step - max(left, behind)))]


def _transfer(case: Case) -> list[Step]:
    measured, transfer = case.measured, case.division.parts.transfer
    pageable, pinned = measured.machine.h2d_pageable_bytes, measured.machine.h2d_pinned_bytes
    predicted = None
    if pageable and pinned:
        # On the device's own time after that, unless the device waits for the host anyway.
        later = 0.0 if case.division.host_limits else copies_seconds(measured) * min(1.0, pageable / pinned)
        predicted = case.without(max(0.0, transfer - later))
    sentence = "batches in pinned memory, copied while the GPU works (pin_memory=True, .to(device, non_blocking=True))"
    return [
        Step(name="pinned", sentence=sentence, predicted=predicted),
        Step(name="feed", sentence="keep the columns on the GPU (stoker.Feed, device=...)", predicted=case.without(transfer)),
    ]


def _sync(case: Case) -> list[Step]:
    where = [f"{sync.place}" for sync in case.measured.syncs if sync.place is not None][:2]
    sentence = "keep metrics on the GPU and read them every 50 steps" + (f": {', '.join(where)}" if where else "")
    return [Step(name="sync", sentence=sentence, predicted=case.without(case.division.parts.sync))]


def _host(case: Case) -> list[Step]:
    place = place_of("host", case.measured)
    sentence = f"do it less often or outside of the loop: {place}" if place else "do less in the loop besides the step"
    return [Step(name="host", sentence=sentence, predicted=case.without(case.division.parts.host))]


def _launch(case: Case) -> list[Step]:
    sentence = "capture the step as a CUDA graph (stoker.Trainer does it)"
    graph = Step(name="graph", sentence=sentence, predicted=case.without(case.division.parts.launch))
    return [graph, _compile("compile the model (torch.compile, mode='reduce-overhead')"), _batch(case), *_fused(case)]


def _dispatch(case: Case) -> list[Step]:
    return [_batch(case), _compile("compile the model, which makes few operations of many (torch.compile)"), *_fused(case)]


def _batch(case: Case) -> Step:
    """Twice as large: what is paid for each sample doubles, what is paid for each step does not.

    On a CPU nobody knows which operations are paid for by the sample: weights of a small batch are read all the same.
    """
    step, parts = case.division.step, case.division.parts
    doubled = step - parts.sync - parts.host - parts.launch - parts.dispatch - parts.optimizer
    if case.division.host_limits:  # the device has room until it takes as long as the host
        doubled = parts.data + parts.transfer + max(0.0, doubled - parts.data - parts.transfer - parts.launch)
    sentence = "a batch twice as large, in samples a second (the training itself changes: look at the losses)"
    predicted = 2 * step / (step + doubled) if case.measured.device == "cuda" else None
    return Step(name="batch", sentence=sentence, predicted=predicted)


def _optimizer(case: Case) -> list[Step]:
    return [*_fused(case), _batch(case)]


def _fused(case: Case) -> list[Step]:
    measured, ways = case.measured, case.measured.optimizer_ways
    if measured.optimizer_fused or measured.optimizer not in FUSIBLE:
        return []
    predicted = None
    if ways.get("now", 0.0) > 0 and "fused" in ways:
        phases = scaled_phases(measured, case.division.step)
        spent = phases.optimizer if measured.device == "cpu" or case.division.host_limits else case.division.parts.optimizer
        predicted = case.without(spent * (1 - ways["fused"] / ways["now"]))
    return [Step(name="fused", sentence=f"one kernel for all weights: {measured.optimizer}(..., fused=True)", predicted=predicted)]


def _threads(case: Case) -> list[Step]:
    measured = case.measured
    now = measured.fewer_threads.get(str(measured.machine.threads)) or seconds_of(measured.cached)
    if not measured.fewer_threads or not now:
        return []
    best = min(measured.fewer_threads, key=lambda number: measured.fewer_threads[number])
    if int(best) == measured.machine.threads:
        return []
    sentence = f"torch.set_num_threads({best}) in place of {measured.machine.threads}, or OMP_NUM_THREADS={best}"
    return [Step(name="threads", sentence=sentence, predicted=case.without(now - measured.fewer_threads[best]))]


def _oversubscribed(case: Case) -> list[Step]:
    steps = _threads(case)
    workers, wanted = case.measured.loader.workers, workers_to_use(case.measured, case.division)
    if workers > wanted:
        sentence = f"{wanted} worker {'process' if wanted == 1 else 'processes'} in place of {workers} (num_workers={wanted})"
        steps.append(Step(name="workers", sentence=sentence, predicted=None))
    return steps


def _precision(case: Case) -> list[Step]:
    peaks, names = case.measured.machine.matmul_flops, []
    if peaks.get("tf32"):
        names.append(Step(name="tf32", sentence="torch.set_float32_matmul_precision('high')", predicted=None))
    return [*names, *_autocast(case)]


def _autocast(case: Case) -> list[Step]:
    peaks, precision = case.measured.machine.matmul_flops, case.measured.precision
    if precision in ("bf16", "fp16") or peaks.get("bf16", 0.0) < 1.3 * peaks.get(precision, math.inf):
        return []  # this machine is no faster in it
    return [Step(name="autocast", sentence="compute in bfloat16 (torch.autocast)", predicted=None)]


def _compute(case: Case) -> list[Step]:
    return [*_autocast(case), _compile("compile the model (torch.compile)")]


def _memory(case: Case) -> list[Step]:
    return [_compile("compile the model, which joins operations on the same memory (torch.compile)"), *_autocast(case)]


def _kernel(case: Case) -> list[Step]:
    return [_compile("compile the model (torch.compile)"), _batch(case)]


def _compile(sentence: str) -> Step:
    return Step(name="compile", sentence=sentence, predicted=None)


def _nothing(case: Case) -> list[Step]:
    return []


_ADVISERS: dict[Verdict, Callable[[Case], list[Step]]] = {
    "data": _data,
    "transfer": _transfer,
    "sync": _sync,
    "host": _host,
    "launch": _launch,
    "dispatch": _dispatch,
    "oversubscribed": _oversubscribed,
    "optimizer": _optimizer,
    "precision": _precision,
    "compute": _compute,
    "memory": _memory,
    "kernel": _kernel,
    "straggler": _nothing,
    "communication": _nothing,
    "none": _nothing,
}
_PHASES: dict[Verdict, tuple[str, ...]] = {
    "data": ("next", "prepare"),
    "transfer": ("prepare",),
    "sync": ("rest", "forward", "prepare"),
    "host": ("rest", "forward", "prepare"),
    "optimizer": ("optimizer",),
}


def place_of(verdict: Verdict, measured: Measurements) -> Place | None:
    """The line of the user's to blame for a cause."""
    if verdict == "data" and measured.loader.functions:
        return measured.loader.functions[0].place
    if verdict == "sync" and (seen := [sync for sync in measured.syncs if sync.place is not None]):
        return max(seen, key=lambda sync: sync.count).place
    # All of a backward pass has one line of the user's, which says nothing: what it computes was asked for in the forward pass.
    blame = _largest(_PHASES.get(verdict, ("forward",)), measured) or _largest(("backward",), measured)
    return blame.place if blame is not None else measured.loader.place if verdict == "data" else None


def _largest(phases: tuple[str, ...], measured: Measurements) -> Blame | None:
    """Of the lines of some phases, the one with the most time."""
    weighted = [
        (blame.share * getattr(measured.phases, phase, 0.0), blame)
        for phase in phases
        for blame in measured.blames.get(phase, [])[:1]
    ]
    return max(weighted, key=lambda pair: pair[0])[1] if weighted else None
