"""Advice: what to do next about the causes, each with the speed-up that the measurements predict, alone and from now.

A prediction is a step of which a stretch measured what a fix leaves: steps with the fix switched on, batches that cost nothing,
batches gathered at once. Where that is not sure to about ten per cent there is a range and no prediction, and where nothing was
measured, neither. Nothing is advised that would gain less than two per cent.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from stoker.diagnose.attribution import Division, seconds_of
from stoker.diagnose.hardware import ENVIRONMENT
from stoker.diagnose.measurements import Blame, Cause, Measurements, Place, Rare, Step, Stretch, Verdict, WhatIf
from stoker.diagnose.thresholds import RULE

FUSIBLE = ("Adam", "AdamW", "SGD", "Adagrad")
WITH_DATA = ("threads",)
"""Fixes that were measured on steps with their batches."""
WITHOUT_DATA = ("cached", "feed")
"""Fixes after which batches cost nothing, or next to it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """All that advice is made of."""

    measured: Measurements
    division: Division

    def step(self, name: str, sentence: str, left: float | None = None, error: float = 0.0) -> Step:
        """A thing to do that leaves so many seconds of a step, known to so many seconds (two standard errors)."""
        now = self.division.step
        if left is None or now <= 0:
            return Step(name=name, sentence=sentence, predicted=None)
        left = max(left, now / RULE.max_speedup)
        # What one process gets anew, the next may have kept; steps were seen to take up to twice as long in one as in another.
        pages = min(max(self.measured.for_pages("loop", "cached"), default=0.0), left / 2)
        doubts = [self._run_to_run(name, left), min(1.0, self.measured.loop.error), self._of_threads(name, left) / 2]
        error = math.hypot(error, pages, *(left * 2 * one for one in doubts))
        low, high = now / (left + error), min(RULE.max_speedup, now / max(left - error, now / RULE.max_speedup))
        if high > RULE.max_range * low:
            return Step(name=name, sentence=sentence, predicted=None)
        return Step(
            name=name,
            sentence=sentence,
            predicted=min(RULE.max_speedup, now / left) if high <= RULE.max_prediction_range * low else None,
            predicted_low=low,
            predicted_high=high,
        )

    def _run_to_run(self, name: str, left: float) -> float:
        """By which a step of so many seconds differs from process to process, as a share of it."""
        if self.measured.device == "cuda":
            issue = seconds_of(self.measured.host_issue)
            held_up = issue is not None and left < RULE.waits_for_host * issue and name != "graph"  # which issues all of it at once
            return RULE.run_to_run_launch if held_up else RULE.run_to_run
        parts, work = self.division.parts, max(self.division.step - self.division.parts.data, 1e-9)
        return RULE.run_to_run + RULE.run_to_run_memory * min(1.0, parts.memory / work)

    def _of_threads(self, name: str, left: float) -> float:
        """By how much a prediction would be another one in a minute in which threads wait longer for each other: a share of it."""
        now, rest = self.division.step, self.without_data
        longer = RULE.thread_wait_variation * waiting_threads(self.measured)
        data = 0.0 if name in WITHOUT_DATA else min(now - rest, left)
        of_left = 0.0 if name in WITH_DATA else left - data  # one thread waits for none
        return abs(math.log((1 + longer * rest / now) / (1 + longer * of_left / left)))

    def up_to(self, name: str, sentence: str, left: float) -> Step:
        """A thing to do of which it is only known what it cannot leave less than."""
        now = self.division.step
        high = min(RULE.max_speedup, now / max(left, now / RULE.max_speedup)) if now > 0 else 1.0
        return Step(name=name, sentence=sentence, predicted=None, predicted_high=max(1.0, high))

    def switched_on(self, name: str, sentence: str) -> Step:
        """A fix of which steps were measured in the program itself."""
        what_if = self.measured.what_ifs.get(name)
        if what_if is None:
            return Step(name=name, sentence=sentence, predicted=None)
        changed = self.division.step if name in WITH_DATA else self.without_data
        left = self.division.step - changed * (1 - ratio_of(what_if))
        if self.measured.loader.workers:  # which have no faster batches for a faster step
            left = max(left, seconds_of(self.measured.loader_alone) or 0.0)
        return self.step(name, sentence, left, changed * error_of(what_if, changed))

    @property
    def without_data(self) -> float:
        """C, as far as it is within T."""
        cached = seconds_of(self.measured.cached)
        return self.division.step if cached is None else min(cached, self.division.step)


def ratio_of(what_if: WhatIf) -> float:
    """What is left of a step, as a share: a machine that is slower now than it was before is so for both sides."""
    before, after = what_if.as_it_is.median, what_if.with_fix.median
    if what_if.at_best is not None:
        after = (after + what_if.at_best) / 2  # it lies between the two
    return after / before if before > 0 else 1.0


def error_of(what_if: WhatIf, before: float) -> float:
    """Two standard errors of it; more where steps as they are took another time than `before`, so that something else changed."""
    away = abs(math.log(what_if.as_it_is.median / before)) if what_if.as_it_is.median > 0 and before > 0 else 0.0
    strange = away if away > RULE.baseline_change else 0.0
    slower = what_if.with_fix.median / what_if.at_best if what_if.at_best else 1.0
    half = (slower - 1) / (slower + 1)  # of the way between the two ends, as a share of their middle
    return ratio_of(what_if) * math.hypot(2 * what_if.as_it_is.error, 2 * what_if.with_fix.error, strange, half)


def _doubt(stretch: Stretch | None) -> float:
    return 2 * stretch.error * stretch.median if stretch is not None and stretch.seconds else 0.0


def advise(measured: Measurements, division: Division, causes: list[Cause]) -> list[Step]:
    """What to do, the most useful first: for the verdict, then for the other causes that matter."""
    case = Case(measured=measured, division=division)
    steps: dict[str, Step] = {}
    for place, cause in enumerate(causes):
        if place == 0 or cause.share >= RULE.advise_share:
            for step in _ADVISERS[cause.verdict](case):
                steps.setdefault(step.name, step)
    for step in (*_fused(case), *_threads(case)):
        if step.predicted is not None or (step.predicted_low or 0.0) >= RULE.min_gain:
            steps.setdefault(step.name, step)
    steps.update({step.name: step for step in _malloc(case)})
    return [step for step in steps.values() if _may_gain(step)]


def advise_on(rare: Rare) -> list[Step]:
    """What to do about rare steps. At best they are gone."""
    where = f" ({rare.place.file}:{rare.place.line})" if rare.place is not None else ""
    if rare.phase in ("next", "prepare"):
        sentence = f"have the data of the next batches read before they are needed: worker processes, or stoker.Feed{where}"
    elif rare.between_epochs:
        sentence = f"do less between epochs: validate and save less often, on fewer samples, or beside the training{where}"
    else:
        sentence = f"do it less often, or in a thread beside the training{where}"
    high = min(RULE.max_speedup, 1 / max(1 - rare.share, 1 / RULE.max_speedup))
    return [Step(name="rare", sentence=sentence, predicted=None, predicted_high=high)]


def _may_gain(step: Step) -> bool:
    if step.predicted is not None:
        return step.predicted >= RULE.min_gain
    return step.predicted_high is None or step.predicted_high >= RULE.min_gain


def workers_to_use(measured: Measurements, division: Division) -> int:
    """So many that making a batch hides behind a step, as far as there are cores for them."""
    alone = (seconds_of(measured.loader_alone) or 0.0) * max(1, measured.loader.workers)
    left = max(division.step - division.parts.data, 1e-9)
    return min(RULE.max_workers, max(1, measured.machine.cores - 1), math.ceil(alone / left) + 1)


def _data(case: Case) -> list[Step]:
    cached, gathered = case.measured.cached, case.measured.what_ifs.get("feed")
    steps, sentence = [], "pack the data to a store and let stoker.Feed make the batches"
    if gathered is not None:
        left = case.without_data
        steps.append(case.step("feed", sentence, left * ratio_of(gathered), left * error_of(gathered, left)))
    else:
        steps.append(case.up_to("feed", sentence, case.division.step - case.division.parts.data))
    steps += _persistent(case)
    steps += _workers(case)
    if cached is not None:
        sentence = "make batches once and keep them, if they fit in memory and need not differ between epochs"
        steps.append(case.step("cached", sentence, cached.median, _doubt(cached)))
    return steps


def _persistent(case: Case) -> list[Step]:
    """Of which it is not known what it gives: processes that start slow down the steps beside them, too."""
    loader, starting = case.measured.loader, case.measured.between_epochs.get("loader", 0.0)
    if not loader.workers or loader.persistent or starting < RULE.min_gain - 1:
        return []
    sentence = "keep worker processes from epoch to epoch (persistent_workers=True, one DataLoader for all epochs)"
    return [case.step("persistent", sentence)]


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
    if alone is None:
        return [case.step("workers", sentence)]
    left = max(division.step - division.parts.data, alone * max(1, now) / wanted)
    sharing = busy + wanted >= measured.machine.cores
    if sharing and division.step < RULE.worth_sharing_cores * left:
        return []
    # Nobody measured how cores would be shared, nor what it takes to hand a batch over: up to 2 ms were seen.
    return [case.up_to("workers", sentence, left)]


def _transfer(case: Case) -> list[Step]:
    transfer = case.division.parts.transfer
    sentence = "batches in pinned memory, copied while the GPU works (pin_memory=True, .to(device, non_blocking=True))"
    resident = "keep the columns on the GPU (stoker.Feed, device=...)"
    return [case.switched_on("pinned", sentence), case.step("resident", resident, case.division.step - transfer)]


def _sync(case: Case) -> list[Step]:
    where = [f"{sync.place}" for sync in case.measured.syncs if sync.place is not None][:2]
    sentence = "keep metrics on the GPU and read them every 50 steps" + (f": {', '.join(where)}" if where else "")
    return [case.step("sync", sentence, case.division.step - case.division.parts.sync)]


def _host(case: Case) -> list[Step]:
    place = place_of("host", case.measured)
    sentence = f"do it less often or outside of the loop: {place}" if place else "do less in the loop besides the step"
    return [case.step("host", sentence, case.division.step - case.division.parts.host)]


def _launch(case: Case) -> list[Step]:
    sentence = "capture the step as a CUDA graph (stoker.Trainer does it)"
    if "graph" in case.measured.what_ifs:
        graph = case.switched_on(
            "graph", "CUDA graphs of the model's passes, with a fused optimizer; more by one of the whole step (stoker.Trainer)"
        )
    else:
        graph = case.up_to("graph", sentence, case.division.step - case.division.parts.launch)
    return [graph, _compile("compile the model (torch.compile, mode='reduce-overhead')"), _batch(case), *_fused(case)]


def _dispatch(case: Case) -> list[Step]:
    return [_batch(case), _compile("compile the model, which makes few operations of many (torch.compile)"), *_fused(case)]


def _batch(case: Case) -> Step:
    """Twice as large: batches cost twice as much, and steps what steps of two batches in one were measured to take."""
    sentence = "a batch twice as large, in samples a second (the training itself changes: look at the losses)"
    what_if = case.measured.what_ifs.get("batch")
    if what_if is None:
        return case.step("batch", sentence)
    step, rest = case.division.step, case.without_data
    return case.step("batch", sentence, step - rest * (1 - ratio_of(what_if) / 2), rest * error_of(what_if, rest) / 2)


def _optimizer(case: Case) -> list[Step]:
    return [*_fused(case), _batch(case)]


def _fused(case: Case) -> list[Step]:
    measured = case.measured
    if measured.optimizer_fused or measured.optimizer not in FUSIBLE:
        return []
    return [case.switched_on("fused", f"one kernel for all weights: {measured.optimizer}(..., fused=True)")]


def waiting_threads(measured: Measurements) -> float:
    """How much of a step without its data is threads that wait for each other, from 0, where each gains or one is used, to 1."""
    threads, by_threads = measured.machine.threads, measured.fewer_threads
    if measured.device != "cpu" or measured.cores_used is None or threads < 2:
        return 0.0
    one, all_of_them = by_threads.get("1"), by_threads.get(str(threads))
    ideal = 1 / min(threads, measured.machine.cores)
    lost = (all_of_them / one - ideal) / (1 - ideal) if one and all_of_them and ideal < 1 else 1.0
    return min(1.0, max(0.0, lost)) * min(1.0, max(0.0, measured.cores_used - 1))


def _malloc(case: Case) -> list[Step]:
    pages, seconds = statistics.fmean(case.measured.pages.get("loop") or [0.0]), case.measured.for_pages("loop")
    spent = min(statistics.fmean(seconds or [0.0]), RULE.malloc_max_share * case.division.step)
    if spent < RULE.malloc_share * case.division.step:
        return []
    sentence = f"keep freed memory in the process ({ENVIRONMENT}): {pages:,.0f} pages a step come from the system anew"
    return [case.up_to("malloc", sentence, case.division.step - spent)]


def best_threads(measured: Measurements) -> int | None:
    """The number of threads with the shortest steps, if it is another one than now."""
    by_threads = measured.fewer_threads
    best = min(by_threads, key=lambda number: by_threads[number], default=None)
    return int(best) if best is not None and int(best) != measured.machine.threads else None


def _threads(case: Case) -> list[Step]:
    best, now = best_threads(case.measured), case.measured.machine.threads
    if best is None:
        return []
    return [case.switched_on("threads", f"torch.set_num_threads({best}) in place of {now}, or OMP_NUM_THREADS={best}")]


def _oversubscribed(case: Case) -> list[Step]:
    steps = _threads(case)
    workers, wanted = case.measured.loader.workers, workers_to_use(case.measured, case.division)
    if workers > wanted:
        sentence = f"{wanted} worker {'process' if wanted == 1 else 'processes'} in place of {workers} (num_workers={wanted})"
        steps.append(case.step("workers", sentence))
    return steps


def _precision(case: Case) -> list[Step]:
    peaks, steps = case.measured.machine.matmul_flops, []
    if peaks.get("tf32"):
        steps.append(case.switched_on("tf32", "torch.set_float32_matmul_precision('high')"))
    return [*steps, *_autocast(case)]


def _autocast(case: Case) -> list[Step]:
    peaks, precision = case.measured.machine.matmul_flops, case.measured.precision
    if precision in ("bf16", "fp16") or peaks.get("bf16", 0.0) < RULE.autocast_ratio * peaks.get(precision, math.inf):
        return []  # this machine is no faster in it
    return [case.switched_on("autocast", "compute in bfloat16 (torch.autocast)")]


def _compute(case: Case) -> list[Step]:
    return [*_autocast(case), _compile("compile the model (torch.compile)")]


def _memory(case: Case) -> list[Step]:
    return [_compile("compile the model, which joins operations on the same memory (torch.compile)"), *_autocast(case)]


def _kernel(case: Case) -> list[Step]:
    if case.measured.device == "cpu":  # calls into a library, such as LAPACK: compiling leaves them as they are
        return [_batch(case)]
    return [_compile("compile the model (torch.compile)"), _batch(case)]


def _compile(sentence: str) -> Step:
    return Step(name="compile", sentence=sentence, predicted=None)


def _nothing(case: Case) -> list[Step]:
    return []


def _straggler(case: Case) -> list[Step]:
    slowest = max(case.measured.ranks, key=lambda one: one.apart_seconds).rank
    sentence = f"see what rank {slowest} does more than the others, or give it less: `stoker diagnose` of that process alone tells"
    return [case.up_to("balance", sentence, case.division.step - case.division.parts.straggler)]


def _communication(case: Case) -> list[Step]:
    sentence = "exchange less: gradients of several batches at once (no_sync), in bfloat16 (a hook of DDP), or larger batches"
    return [case.up_to("exchange", sentence, case.division.step - case.division.parts.communication)]


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
    "straggler": _straggler,
    "communication": _communication,
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
