"""Advice: what to do next about each cause, with the speed-up that the measurements predict for it alone.

`advise` collects the advice for the causes of a finding, `advise_on_rare_steps` for rare steps; `_ADVISERS` has one function per
verdict. `line_of` finds the user's line that a cause comes from.

A prediction rests on measured steps: steps with the fix switched on, batches at no cost, batches gathered at once. Where it is
not sure to about twenty per cent (two standard errors), only its range is given. Where no step was measured with a
fix, only its upper limit is known: the share of the time that it could save.

What the measurements do not support is not advised:

1. A fix that gained less than two per cent when it was switched on, however wide its range is, and one that could gain no more.
2. A fix that found nothing to change in this program (`Measurements.unused_fixes`).
3. `torch.compile` on a CPU where less than half of a step, or of its work, is what it can join: operations that are too small, and
   traffic of memory between them. Matmuls and the optimizer stay as they are.

Autocast makes some programs of a CPU slower: where there was no time to measure steps with it, it is not advised.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from stoker.diagnose import wording
from stoker.diagnose.attribution import Attribution, attribute, holding_thread, seconds_of
from stoker.diagnose.measurements import (
    MEDIAN_OF_FEW,
    SIGMA_OF_DISTANCE,
    Advice,
    Blame,
    Cause,
    Measurements,
    RareSteps,
    SourceLine,
    Verdict,
    WhatIf,
)
from stoker.diagnose.thresholds import RULE

KEEP_MEMORY = "MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_MMAP_MAX_=0"  # the settings of `hardware.keep_memory`
RARE_ADVICE = {
    **dict.fromkeys(("next", "prepare"), "rare_data"),
    **dict.fromkeys(("forward", "backward", "optimizer"), "rare_model"),  # what a model needs cannot be done less often
}
"""Advice on rare steps by the phase that takes longer."""
FUSIBLE = ("Adam", "AdamW", "SGD", "Adagrad")
WITH_DATA = ("threads", "workers", "malloc")  # fixes that were measured on steps with their batches
WITHOUT_DATA = ("cached", "feed")  # fixes after which batches are free, or nearly free


def advise(measured: Measurements, attribution: Attribution, causes: list[Cause]) -> list[Advice]:
    """What to do, the most useful first: for the verdict, then for the other causes that matter."""
    predictor = SpeedPredictor(measured=measured, attribution=attribution)
    steps: dict[str, Advice] = {}
    for number, cause in enumerate(causes):
        if number == 0 or cause.share >= RULE.advise_share:
            for step in _ADVISERS[cause.verdict](predictor):
                steps.setdefault(step.name, step)
    for step in (*_fused(predictor), *_threads(predictor)):
        if step.predicted is not None or (step.predicted_low or 0.0) >= RULE.min_gain:
            steps.setdefault(step.name, step)
    steps.update({step.name: step for step in _malloc(predictor)})
    gains = {name: step.predicted if step.predicted is not None else step.predicted_high for name, step in steps.items()}
    return [step for name, step in steps.items() if (gain := gains[name]) is None or gain >= RULE.min_gain]


def advise_on_rare_steps(*events: RareSteps) -> list[Advice]:
    """What to do about each kind of rare steps. At best they are gone."""
    steps = []
    for rare in events:
        kind = "rare_between_epochs" if rare.between_epochs else RARE_ADVICE.get(rare.phase or "", "rare")
        where = f" ({rare.place.file}:{rare.place.line})" if rare.place is not None else ""
        high = min(RULE.max_speedup, 1 / max(1 - rare.share, 1 / RULE.max_speedup))
        steps.append(Advice(name="rare", sentence=wording.advice(kind, where=where), predicted=None, predicted_high=high))
    return steps


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedPredictor:
    """Predicts the remaining time of a step with a fix."""

    measured: Measurements
    attribution: Attribution

    def predict(
        self,
        name: str,
        sentence: str,
        left: float | None = None,
        error: float = 0.0,
        *,
        least: float | None = None,
    ) -> Advice:
        """A fix that leaves `left` seconds of a step, known to `error` seconds (two standard errors); None where that is unknown."""
        # It leaves at least `least` seconds: no fix gains more than the cause that it removes.
        measured, now = self.measured, self.attribution.step
        if left is None or now <= 0:
            return Advice(name=name, sentence=sentence, predicted=None)
        shortest = now / RULE.max_speedup
        least = max(shortest, min(now, least or 0.0))
        left = max(left, least)
        pages = max(variation_of_pages(measured, "loop", name in WITHOUT_DATA), variation_of_pages(measured, "cached"))
        pages = min(pages, left / 2)  # another process may get more memory from the system, or less
        # How much such a step differs from process to process, as a share of it.
        if measured.device == "cuda":
            issue = seconds_of(measured.host_issue)
            waits = issue is not None and left < RULE.waits_for_host * issue and name != "graph"  # which issues all of it at once
            run_to_run = RULE.run_to_run_launch if waits else RULE.run_to_run
        else:
            work = max(now - self.attribution.parts.data, 1e-9)
            for_pages = measured.for_pages("cached" if name in WITHOUT_DATA else "loop")
            moved = self.attribution.parts.memory + statistics.fmean(for_pages or [0.0])  # pages are zeroed
            run_to_run = RULE.run_to_run + RULE.run_to_run_memory * min(1.0, moved / work)
        # How much a prediction would change in a minute in which threads wait longer for each other, as a share of it.
        rest, longer = self.without_data, thread_wait_variation(measured)
        data = 0.0 if name in WITHOUT_DATA else max(0.0, left - rest) if name == "workers" else min(now - rest, left)
        of_left = 0.0 if name == "threads" else left - data  # one thread waits for none
        variation = abs(math.log((1 + longer * rest / now) / (1 + longer * of_left / left)))
        doubts = [run_to_run, min(1.0, measured.loop.error), variation / 2]
        error = math.hypot(error, pages, *(left * 2 * one for one in doubts))
        low, high = now / (left + error), min(RULE.max_speedup, now / max(left - error, shortest))
        if high > RULE.max_range * low:
            return Advice(name=name, sentence=sentence, predicted=None)
        predicted = min(RULE.max_speedup, now / left) if high <= RULE.max_prediction_range * low else None
        return Advice(name=name, sentence=sentence, predicted=predicted, predicted_low=low, predicted_high=min(high, now / least))

    def at_most(self, name: str, sentence: str, left: float) -> Advice:
        """A fix of which only a bound is known: it leaves at least `left` seconds of a step."""
        now = self.attribution.step
        high = min(RULE.max_speedup, now / max(left, now / RULE.max_speedup)) if now > 0 else 1.0
        return Advice(name=name, sentence=sentence, predicted=None, predicted_high=max(1.0, high))

    def from_what_if(self, name: str, sentence: str, saves: float = math.inf, *, needed: bool = False) -> list[Advice]:
        """A fix that was switched on for some steps of the program itself; if it was not, it saves at most `saves` seconds of a step.

        Nothing where it gained nothing, unless something else says that it is `needed`.
        """
        what_if, step = self.measured.what_ifs.get(name), self.attribution.step
        if name in self.measured.unused_fixes:
            return []
        if what_if is None:
            return [self.at_most(name, sentence, step - saves) if saves < math.inf else self.predict(name, sentence)]
        changed = step if name in WITH_DATA else self.without("data")
        samples = 2 if name == "batch" else 1
        then, error = seconds_with(what_if, changed)
        left, error = step - changed + then / samples, error / samples
        if self.measured.loader.workers and name != "workers":  # which have no faster batches for a faster step
            left = max(left, seconds_of(self.measured.loader_alone) or 0.0)
        no_gain = step < RULE.min_gain * left or ratio_of(what_if) >= samples
        if no_gain and not needed:
            return []
        few = len(ratios_of(what_if)) < RULE.min_rounds
        if few and name == "threads" and (known := self.measured.fewer_threads.get(str(best_threads(self.measured)))):
            # Steps with as many threads were measured before, and what they took then is as likely.
            error = math.hypot(error, abs(left - min(left, step - self.without_data) - known))
        found = self.predict(name, sentence, left, error)
        if no_gain:  # the steps beside it did not need it: a number would say nothing about those that do
            found = msgspec.structs.replace(found, predicted=None)
        return [found]

    def without(self, cause: str) -> float:
        """Seconds of a step without one of its causes."""
        return self.attribution.step - float(getattr(self.attribution.parts, cause))

    @property
    def without_data(self) -> float:
        """Seconds of a step on cached batches, as far as they are within a step of the loop."""
        cached = seconds_of(self.measured.cached)
        return self.attribution.step if cached is None else min(cached, self.attribution.step)


def ratios_of(what_if: WhatIf) -> list[float]:
    """What is left of a step, as a share, by each window with the fix and the baseline windows around it."""
    # A machine that is slower for a while is so for windows next to each other.
    before, after = ([middle for _, middle in one.by_piece()] for one in (what_if.as_it_is, what_if.with_fix))
    if not before or len(before) != len(after):
        before, after = [what_if.as_it_is.median], [what_if.with_fix.median]
    around = [before[0], *((one + other) / 2 for one, other in pairwise(before))]
    return [one / other for one, other in zip(after, around, strict=True) if other > 0] or [1.0]


def ratio_of(what_if: WhatIf) -> float:
    """What is left of a step, as a share."""
    ratio = statistics.median(ratios_of(what_if))
    if what_if.at_best is not None:
        ratio = (ratio + ratio * what_if.at_best / what_if.with_fix.median) / 2  # it lies between the two
    return ratio


def seconds_with(what_if: WhatIf, before: float) -> tuple[float, float]:
    """Seconds with the fix of a step that took `before`, and two standard errors of them."""
    slower = what_if.with_fix.median / what_if.at_best if what_if.at_best else 1.0
    half = (slower - 1) / (slower + 1)  # of the way between the two ends, as a share of their middle
    within = math.hypot(what_if.as_it_is.error, what_if.with_fix.error)
    seconds = before * ratio_of(what_if)
    error = seconds * math.hypot(2 * max(within, error_between(ratios_of(what_if))), half)
    # Steps without the fix may have changed since `before`, and it is unknown whether those with it have done so, too.
    unchanged = ratio_of(what_if) * what_if.as_it_is.median
    if len(ratios_of(what_if)) < RULE.min_rounds:
        return (seconds + unchanged) / 2, math.hypot(error, abs(seconds - unchanged) / 2)
    is_other = abs(unchanged - seconds) > RULE.baseline_change * seconds
    return seconds, math.hypot(error, unchanged - seconds) if is_other else error


def error_between(rounds: Sequence[float]) -> float:
    """The standard error of the median of some rounds, as a share of it, by their median distance from it; 0 for one."""
    middle = statistics.median(rounds) if rounds else 0.0
    if len(rounds) < 2 or middle <= 0:
        return 0.0
    if len(rounds) < RULE.min_rounds:
        return (max(rounds) - min(rounds)) / 2 / middle
    return MEDIAN_OF_FEW * SIGMA_OF_DISTANCE * statistics.median(abs(one / middle - 1) for one in rounds) / math.sqrt(len(rounds))


def _data(predictor: SpeedPredictor) -> list[Advice]:
    measured, step = predictor.measured, predictor.attribution.step
    loader, cached, gathered = measured.loader, measured.cached, measured.what_ifs.get("feed")
    unsure = 0.0  # two standard errors of steps on cached batches, as a share
    if cached is not None and cached.seconds:
        unsure = 2 * max(cached.error, error_between([middle for _, middle in cached.by_piece()]))
    if gathered is not None:
        left = predictor.without_data
        least = min(left, predictor.without("data"))
        then, error = seconds_with(gathered, left)
        steps = [predictor.predict("feed", wording.advice("feed"), then, math.hypot(error, unsure * then), least=least)]
    else:
        steps = [predictor.at_most("feed", wording.advice("feed"), predictor.without("data"))]
    starting = measured.between_epochs.get("loader", 0.0)
    if loader.workers and not loader.persistent and starting >= RULE.min_gain - 1:
        # Not predicted: processes that start slow down the steps beside them, too. First where starting them is most of the cost.
        first = 2 * starting * step >= predictor.attribution.parts.data
        steps.insert(0 if first else 1, predictor.predict("persistent", wording.advice("persistent")))
    wanted, alone = workers_to_use(measured, predictor.attribution), seconds_of(measured.loader_alone)
    if loader.kind == "DataLoader" and loader.workers < wanted:
        sentence = _workers_sentence(wanted, loader.workers)
        left = max(predictor.without("data"), (alone or 0.0) * max(1, loader.workers) / wanted)
        busy = 1 if measured.device == "cuda" else measured.machine.threads
        if alone is None:
            steps.append(predictor.predict("workers", sentence))
        elif "workers" in measured.what_ifs:
            steps += predictor.from_what_if("workers", sentence)
        elif busy + wanted < measured.machine.cores or step >= RULE.worth_sharing_cores * left:
            # It was not measured how cores would be shared, nor what it takes to hand a batch over: up to 2 ms were seen.
            steps.append(predictor.at_most("workers", sentence, left))
    if cached is not None:
        least = min(cached.median, predictor.without("data"))
        steps.append(predictor.predict("cached", wording.advice("cached"), cached.median, unsure * cached.median, least=least))
    return steps


def workers_to_use(measured: Measurements, attribution: Attribution) -> int:
    """Enough workers that making a batch hides behind a step, as far as there are cores for them."""
    alone = (seconds_of(measured.loader_alone) or 0.0) * max(1, measured.loader.workers)
    left = max(attribution.step - attribution.parts.data, 1e-9)
    return min(RULE.max_workers, max(1, measured.machine.cores - 1), math.ceil(alone / left) + 1)


def _workers_sentence(wanted: int, now: int) -> str:
    return wording.advice("workers", wanted=wanted, processes="process" if wanted == 1 else "processes", now=now)


def _waits(predictor: SpeedPredictor) -> list[Advice]:
    lines = [f"{sync.place}" for sync in predictor.measured.syncs if sync.place is not None][:2]
    sentence = wording.advice("sync", where=f": {', '.join(lines)}" if lines else "")
    return [_removal(predictor, "sync", sentence)]


def _removal(predictor: SpeedPredictor, cause: Verdict, sentence: str, *, name: str | None = None) -> Advice:
    """A fix that removes a cause, and no more than that."""
    left = predictor.without(cause)
    return predictor.predict(name or cause, sentence, left, least=left)


def _host(predictor: SpeedPredictor) -> list[Advice]:
    thread = holding_thread(predictor.measured, predictor.attribution)
    if thread is not None:
        return [_removal(predictor, "host", wording.advice("interpreter", place=thread.place or thread.name))]
    phase, blame = _largest(_PHASES["host"], predictor.measured) or ("rest", None)
    kind = "host" if blame is None else "host_in_model" if phase == "forward" else "host_at"
    return [_removal(predictor, "host", wording.advice(kind, place=blame.place if blame is not None else None))]


def _launch(predictor: SpeedPredictor) -> list[Advice]:
    # A graph of the model's passes is measured; one of the whole step, which stoker.Trainer makes, is advised also where it is not.
    measured = "graph" in predictor.measured.what_ifs
    graph = predictor.from_what_if(
        "graph", wording.advice("graph_of_model" if measured else "graph"), _saved_by(predictor, "launch")
    )
    return [*graph, *_compile(predictor, "compile_launch"), *_batch(predictor), *_fused(predictor)]


def _batch(predictor: SpeedPredictor) -> list[Advice]:
    """Twice as large: batches cost twice as much, and steps what steps of two batches in one were measured to take."""
    # At best, what a step costs however many samples it has is spent half as often.
    parts = predictor.attribution.parts
    fixed = parts.launch + parts.dispatch + parts.optimizer + parts.host + parts.sync + parts.oversubscribed + parts.kernel
    return predictor.from_what_if("batch", wording.advice("batch"), fixed / 2)


def _fused(predictor: SpeedPredictor) -> list[Advice]:
    measured = predictor.measured
    if measured.optimizer_fused or measured.optimizer not in FUSIBLE:
        return []
    return predictor.from_what_if("fused", wording.advice("fused", optimizer=measured.optimizer), _saved_by(predictor, "optimizer"))


def _saved_by(predictor: SpeedPredictor, *causes: str) -> float:
    """The most that a fix of some causes saves, in seconds of a step. A GPU that waits for its host also waits for the launches of each."""
    parts = predictor.attribution.parts
    return float(sum(getattr(parts, name) for name in {*causes, *(("launch",) if predictor.attribution.host_limits else ())}))


def waiting_threads(measured: Measurements) -> float:
    """How much of a step without its data is threads that wait for each other, from 0, where each gains or one is used, to 1."""
    threads, by_threads = measured.machine.threads, measured.fewer_threads
    if measured.device != "cpu" or measured.cores_used is None or threads < 2:
        return 0.0
    one, all_of_them = by_threads.get("1"), by_threads.get(str(threads))
    ideal = 1 / min(threads, measured.machine.cores)
    lost = (all_of_them / one - ideal) / (1 - ideal) if one and all_of_them and ideal < 1 else 1.0
    return min(1.0, max(0.0, lost)) * min(1.0, max(0.0, measured.cores_used - 1))


def thread_wait_variation(measured: Measurements) -> float:
    """How much longer steps whose threads wait for each other may take in another minute, as a share: more if they did already."""
    steps = measured.cached if measured.cached is not None and len(measured.cached.pieces) > 1 else measured.loop
    seen = steps.drift if len(steps.pieces) > 1 else RULE.thread_wait_variation
    return min(RULE.thread_wait_variation, max(RULE.thread_wait_steady, seen)) * waiting_threads(measured)


def variation_of_pages(measured: Measurements, kind: str, is_loaders: bool = False) -> float:
    """Seconds of a step by which memory from the system may make the next process slower or faster.

    Where it took the same time in each of several windows, it did so in other processes as well (docs/journal.md); else the next
    process may have kept all of it. What each window has to the same extent may be the loader's (`is_loaders`).
    """
    windows = measured.for_pages(kind) or [0.0]
    steady = len(windows) >= RULE.min_rounds or is_loaders
    return max(windows) - (min(windows) if steady else 0.0)


def _malloc(predictor: SpeedPredictor) -> list[Advice]:
    measured, step = predictor.measured, predictor.attribution.step
    pages, seconds = statistics.fmean(measured.pages.get("loop") or [0.0]), measured.for_pages("loop")
    spent = min(statistics.fmean(seconds or [0.0]), RULE.malloc_max_share * step)
    if spent < RULE.malloc_share * step:
        return []
    sentence = wording.advice("malloc", environment=KEEP_MEMORY, pages=f"{pages:,.0f}")
    # Steps beside the fix may have got less memory from the system than those of the loop, and the next process may get as much again.
    needed = spent >= RULE.mention_pages * step
    return predictor.from_what_if("malloc", sentence, spent, needed=needed) if needed or "malloc" in measured.what_ifs else []


def value_of(name: str, measured: Measurements, verdict: Verdict) -> int | None:
    """The value that a fix is measured and tried with: the advised one. `compile` has one where launches are to be saved."""
    if name == "workers":
        return workers_to_use(measured, attribute(measured))
    if name == "threads":
        return best_threads(measured) or measured.machine.threads
    return 1 if name == "compile" and verdict == "launch" else None


def best_threads(measured: Measurements) -> int | None:
    """The number of threads with the shortest steps, if it is another one than now."""
    by_threads = measured.fewer_threads
    best = min(by_threads, key=lambda number: by_threads[number], default=None)
    return int(best) if best is not None and int(best) != measured.machine.threads else None


def _threads(predictor: SpeedPredictor) -> list[Advice]:
    best, now = best_threads(predictor.measured), predictor.measured.machine.threads
    return predictor.from_what_if("threads", wording.advice("threads", best=best, now=now)) if best is not None else []


def _fewer(predictor: SpeedPredictor) -> list[Advice]:
    """Fewer threads, and fewer workers where there are more than a step needs."""
    workers, wanted = predictor.measured.loader.workers, workers_to_use(predictor.measured, predictor.attribution)
    too_many = workers > wanted
    return _threads(predictor) + (predictor.from_what_if("workers", _workers_sentence(wanted, workers)) if too_many else [])


def _autocast(predictor: SpeedPredictor) -> list[Advice]:
    peaks, precision = predictor.measured.machine.matmul_flops, predictor.measured.precision
    if precision in ("bf16", "fp16", "fp64") or peaks.get("bf16", 0.0) < RULE.autocast_ratio * peaks.get(precision, math.inf):
        return []  # this machine is no faster in it
    if "autocast" in predictor.measured.unused_fixes:
        return []
    if predictor.measured.device == "cpu" and "autocast" not in predictor.measured.what_ifs:
        # To convert and lay out what is multiplied takes a CPU time, too: trials gave 0.58 to 2.8 times the speed.
        return [Advice(name="autocast", sentence=wording.advice("autocast_unmeasured"), predicted=None)]
    # At best matmuls run at the other peak, and half as many bytes are moved.
    parts, slower = predictor.attribution.parts, peaks[precision] / peaks["bf16"]
    saves = (parts.compute + parts.precision) * (1 - slower) + parts.memory / 2
    return predictor.from_what_if("autocast", wording.advice("autocast"), saves)


def _compile(predictor: SpeedPredictor, kind: str) -> list[Advice]:
    """Compiling takes longer than all else that is measured: there is a prediction only where it will be tried anyway."""
    parts, step = predictor.attribution.parts, predictor.attribution.step
    joins = parts.memory + parts.dispatch
    stays = parts.compute + parts.precision + parts.optimizer + parts.kernel
    if predictor.measured.device == "cpu" and joins < max(RULE.compile_share * step, stays):
        return []
    return predictor.from_what_if("compile", wording.advice(kind))


def _float32(predictor: SpeedPredictor) -> list[Advice]:
    if predictor.measured.precision != "fp64":
        return []
    return predictor.from_what_if("float32", wording.advice("float32"), _saved_by(predictor, "precision"))


def _sparse(predictor: SpeedPredictor) -> list[Advice]:
    """Sparse gradients where few rows of a large table are looked up: not predicted, because the losses of Adam change with them."""
    work, parts = predictor.measured.work, predictor.attribution.parts
    if work is None or work.table_rows < RULE.unused_rows * max(1.0, work.table_rows_used):
        return []
    sentence = wording.advice("sparse", used=f"{work.table_rows_used:,.0f}", rows=f"{work.table_rows:,.0f}")
    return [predictor.at_most("sparse", sentence, predictor.attribution.step - parts.optimizer - parts.memory)]


def _precision(predictor: SpeedPredictor) -> list[Advice]:
    if predictor.measured.precision == "fp64":
        return _float32(predictor)
    has_tf32 = predictor.measured.machine.matmul_flops.get("tf32")
    tf32 = predictor.from_what_if("tf32", wording.advice("tf32"), _saved_by(predictor, "precision")) if has_tf32 else []
    return [*tf32, *_autocast(predictor)]


def _between_ranks(predictor: SpeedPredictor, name: str, cause: str) -> list[Advice]:
    slowest = max(predictor.measured.ranks, key=lambda one: one.apart_seconds).rank
    return [predictor.at_most(name, wording.advice(name, slowest=slowest), predictor.without(cause))]


_ADVISERS: dict[Verdict, Callable[[SpeedPredictor], list[Advice]]] = {
    "data": _data,
    "transfer": lambda one: [
        *one.from_what_if("pinned", wording.advice("pinned"), _saved_by(one, "transfer", "sync")),
        _removal(one, "transfer", wording.advice("resident"), name="resident"),
    ],
    "sync": _waits,
    "host": _host,
    "launch": _launch,
    "dispatch": lambda one: [*_batch(one), *_compile(one, "compile_dispatch"), *_fused(one)],
    "oversubscribed": _fewer,
    "optimizer": lambda one: [*_sparse(one), *_fused(one), *_batch(one)],
    "precision": _precision,
    "compute": lambda one: [*_autocast(one), *_compile(one, "compile")],
    "memory": lambda one: [*_sparse(one), *_compile(one, "compile_memory"), *_autocast(one)],
    # On a CPU these are calls into a library, such as LAPACK: compiling leaves them as they are.
    "kernel": lambda one: [*(_compile(one, "compile") if one.measured.device == "cuda" else []), *_batch(one)],
    "straggler": lambda one: _between_ranks(one, "balance", "straggler"),
    "communication": lambda one: _between_ranks(one, "exchange", "communication"),
    "none": lambda one: [],
}
_PHASES: dict[Verdict, tuple[str, ...]] = {
    "data": ("next", "prepare"),
    "transfer": ("prepare",),
    "sync": ("rest", "forward", "prepare"),
    "host": ("rest", "forward", "prepare"),
    "optimizer": ("optimizer",),
}
"""The phases in which a cause shows; others show in the forward pass."""


def line_of(verdict: Verdict, measured: Measurements) -> SourceLine | None:
    """The user's line that a cause comes from."""
    if verdict == "data" and measured.loader.functions:
        return measured.loader.functions[0].place
    if verdict == "host" and (thread := holding_thread(measured, attribute(measured))) is not None:
        return thread.place
    if verdict == "sync" and (seen := [sync for sync in measured.syncs if sync.place is not None]):
        return max(seen, key=lambda sync: sync.count).place
    # All of a backward pass has one line of the user's, which says nothing: what it computes was asked for in the forward pass.
    found = _largest(_PHASES.get(verdict, ("forward",)), measured) or _largest(("backward",), measured)
    return found[1].place if found is not None else measured.loader.place if verdict == "data" else None


def _largest(phases: tuple[str, ...], measured: Measurements) -> tuple[str, Blame] | None:
    """Of the lines of some phases, the one with the most time, and its phase."""
    found = [(phase, blame) for phase in phases for blame in measured.blames.get(phase, [])[:1]]
    return max(found, key=lambda pair: pair[1].share * getattr(measured.phases, pair[0], 0.0), default=None)
