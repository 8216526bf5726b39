"""Advice: what to do next about each cause, with the speed-up that the measurements predict for it alone.

`advise` collects the advice for the causes of a finding, the largest gain first; `_ADVISERS` has one function per verdict.
`line_of` finds the user's line that a cause comes from.

A prediction rests on measured steps: steps with the fix switched on, or without what it removes, in turn with unchanged steps. Its range
is two standard errors of these, and what steps differ from process to process. Where no step was measured with a fix, only its upper
limit is known: the share of the time that it could save. Nothing is advised that was measured and gained less than two per cent, that
changes nothing in this program (`Measurements.unused_fixes`), or that could gain no more.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from stoker.diagnose import wording
from stoker.diagnose.division import Division, divide, holding_thread, removal_ratio, seconds_of
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
OWN_CODE = ("cached", "once", "sync", "host", "rare", "workers", "threads", "persistent")  # plain changes of the user's own code


def advise(measured: Measurements, division: Division, causes: list[Cause]) -> list[Advice]:
    """Return what to do, the largest gain first; of equal gains, plain changes of the user's own code first."""
    predictor = SpeedPredictor(measured=measured, division=division)
    steps: dict[str, Advice] = {}
    for number, cause in enumerate(causes):
        if number == 0 or cause.share >= RULE.advise_share:
            for step in _ADVISERS[cause.verdict](predictor):
                steps.setdefault(step.name, step)
    for step in (*_fused(predictor), *_threads(predictor), *_workers(predictor), *_malloc(predictor)):
        if step.predicted is not None or (step.predicted_low or 0.0) >= RULE.min_gain:
            steps.setdefault(step.name, step)
    # What was only estimated comes after what was measured and gains as much.
    useful = [step for step in steps.values() if (gain := expected_gain(step)) is None or gain >= RULE.min_gain]
    return sorted(
        useful, key=lambda step: (_has_no_low_end(step), -_rounded(expected_gain(step) or 1.0), step.name not in OWN_CODE)
    )


def expected_gain(step: Advice) -> float | None:
    """Return the predicted speed-up, the middle of its range, or its bound; None if nothing is known of it."""
    if step.predicted is not None:
        return step.predicted
    if step.predicted_low is not None and step.predicted_high is not None:
        return math.sqrt(step.predicted_low * step.predicted_high)
    return step.predicted_high


def _has_no_low_end(step: Advice) -> bool:
    return step.predicted is None and step.predicted_low is None


def _rounded(gain: float) -> int:
    """Return the speed-up in steps of `RULE.same_gain`: within one, two fixes gain as much."""
    return round(math.log(gain) / math.log(RULE.same_gain))


def advise_on_rare_steps(*events: RareSteps) -> list[Advice]:
    """Return what to do about each kind of rare steps. At best they are gone."""
    steps = []
    for rare in events:
        kind = "rare_between_epochs" if rare.between_epochs else RARE_ADVICE.get(rare.phase or "", "rare")
        kind = "rare_compile" if rare.recompiles else kind
        where = f" ({rare.place.file}:{rare.place.line})" if rare.place is not None else ""
        high = min(RULE.max_speedup, 1 / max(1 - rare.share, 1 / RULE.max_speedup))
        steps.append(Advice(name="rare", sentence=wording.advice(kind, where=where), predicted=None, predicted_high=high))
    return steps


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedPredictor:
    """Predicts the remaining time of a step with a fix."""

    measured: Measurements
    division: Division

    def sentence(self, name: str, value: int | None = None, **numbers: object) -> str:
        """Return the sentence of an advice in the words of the framework that runs the loop."""
        return wording.advice(name, framework=self.measured.framework, value=value, **numbers)

    def predict(self, name: str, sentence: str, left: float, error: float = 0.0, *, least: float = 0.0) -> Advice:
        """Predict a fix that leaves `left` seconds of a step, known to `error` seconds (two standard errors), and at least `least`."""
        measured, now = self.measured, self.division.step
        if now <= 0:
            return Advice(name=name, sentence=sentence, predicted=None)
        shortest = now / RULE.max_speedup
        least = max(shortest, min(now, least))
        left = max(left, least)
        # Steps differ from process to process: those that get memory pages from the system most.
        pages = statistics.fmean(measured.for_pages("loop") or [0.0]) / now
        moved = min(1.0, self.division.share("memory") + pages)
        run_to_run = RULE.run_to_run_launch if self.division.host_limits else RULE.run_to_run + RULE.run_to_run_memory * moved
        error = math.hypot(error, 2 * left * run_to_run, 2 * left * min(1.0, measured.loop.error))
        low, high = now / (left + error), min(RULE.max_speedup, now / max(left - error, shortest))
        if high > RULE.max_range * low:
            return Advice(name=name, sentence=sentence, predicted=None)
        predicted = min(RULE.max_speedup, now / left) if high <= RULE.max_prediction_range * low else None
        return Advice(name=name, sentence=sentence, predicted=predicted, predicted_low=low, predicted_high=min(high, now / least))

    def at_most(self, name: str, sentence: str, saves: float) -> Advice:
        """Bound a fix of which nothing was measured: it saves at most `saves` seconds of a step."""
        now = self.division.step
        high = min(RULE.max_speedup, now / max(now - saves, now / RULE.max_speedup)) if now > 0 else 1.0
        return Advice(name=name, sentence=sentence, predicted=None, predicted_high=max(1.0, high))

    def removal(self, cause: str, sentence: str, *, name: str | None = None) -> Advice:
        """Predict a fix that removes a cause, and no more than that."""
        left = self.division.step - self.division.seconds(cause)
        return self.predict(name or cause, sentence, left, least=left)

    def measured_fix(self, name: str, sentence: str, saves: float = math.inf) -> list[Advice]:
        """Predict a fix that was switched on for some steps; if it was not, it saves at most `saves` seconds of a step."""
        what_if, step = self.measured.what_ifs.get(name), self.division.step
        if name in self.measured.unused_fixes:
            return []
        if what_if is None:
            return [self.at_most(name, sentence, saves)] if saves < math.inf else []
        changed = step if name in WITH_DATA else step - self.division.seconds("data")
        samples = 2 if name == "batch" else 1
        ratio, error = ratio_with_error(what_if)
        left, error = step - changed + changed * ratio / samples, changed * error / samples
        if self.measured.loader.workers and name != "workers":  # which have no faster batches for a faster step
            left = max(left, seconds_of(self.measured.loader_alone) or 0.0)
        if step < RULE.min_gain * left:
            return []
        return [self.predict(name, sentence, left, error)]

    @property
    def without_data(self) -> float:
        """Seconds of a step on cached batches, as far as they are within a step of the loop."""
        cached = seconds_of(self.measured.cached)
        return self.division.step if cached is None else min(cached, self.division.step)


def ratios_of(what_if: WhatIf) -> list[float]:
    """Return what is left of a step, as a share, by each window with the fix and the baseline windows around it."""
    # A machine that is slower for a while is so for windows next to each other.
    before, after = ([middle for _, middle in stretch.by_piece()] for stretch in (what_if.as_it_is, what_if.with_fix))
    if not before or len(before) != len(after):
        before, after = [what_if.as_it_is.median], [what_if.with_fix.median]
    around = [before[0], *((earlier + later) / 2 for earlier, later in pairwise(before))]
    return [ratio / other for ratio, other in zip(after, around, strict=True) if other > 0] or [1.0]


def ratio_with_error(what_if: WhatIf) -> tuple[float, float]:
    """Return what is left of a step, as a share, and two standard errors of it."""
    ratios = ratios_of(what_if)
    ratio = statistics.median(ratios)
    within = math.hypot(what_if.as_it_is.error, what_if.with_fix.error)
    return ratio, 2 * ratio * max(within, error_between(ratios))


def error_between(rounds: Sequence[float]) -> float:
    """Return the standard error of the median of some rounds, as a share of it, by their median distance from it; 0 for one."""
    middle = statistics.median(rounds) if rounds else 0.0
    if len(rounds) < 2 or middle <= 0:
        return 0.0
    if len(rounds) < RULE.min_rounds:
        return (max(rounds) - min(rounds)) / 2 / middle
    distance = statistics.median(abs(ratio / middle - 1) for ratio in rounds)
    return MEDIAN_OF_FEW * SIGMA_OF_DISTANCE * distance / math.sqrt(len(rounds))


def _data(predictor: SpeedPredictor) -> list[Advice]:
    measured, cached = predictor.measured, predictor.measured.cached
    steps, least, unsure = list[Advice](), predictor.division.step - predictor.division.seconds("data"), 0.0
    if cached is not None and cached.seconds:
        unsure = 2 * max(cached.error, error_between([middle for _, middle in cached.by_piece()]))
        place = _own_line_of_batches(measured)
        sentence = wording.advice("cached_at", place=place) if place is not None else wording.advice("cached")
        steps.append(predictor.predict("cached", sentence, cached.median, unsure * cached.median, least=min(cached.median, least)))
    elif (place := _own_line_of_batches(measured)) is not None:
        steps.append(predictor.at_most("once", wording.advice("cached_at", place=place), predictor.division.seconds("data")))
    if (gathered := measured.what_ifs.get("feed")) is not None:
        left = predictor.without_data
        ratio, error = ratio_with_error(gathered)
        error = math.hypot(error, unsure * ratio)
        steps.append(predictor.predict("feed", wording.advice("feed"), left * ratio, left * error, least=min(left, least)))
    else:
        steps.append(predictor.at_most("feed", wording.advice("feed"), predictor.division.seconds("data")))
    starting = measured.between_epochs.get("loader", 0.0)
    if measured.loader.workers and not measured.loader.persistent and starting >= RULE.min_gain - 1:
        # Not predicted: processes that start slow down the steps beside them, too.
        steps.append(predictor.at_most("persistent", predictor.sentence("persistent"), predictor.division.seconds("data")))
    return [*steps, *_workers(predictor)]


def _own_line_of_batches(measured: Measurements) -> SourceLine | None:
    """Return the user's line that makes batches; None if it only calls the loop or the loader, and others do the work."""
    place = line_of("data", measured)
    callers = [blame.place for phase in ("backward", "optimizer") for blame in measured.blames.get(phase, [])]
    return None if place is None or place == measured.loader.place or place in callers else place


def workers_to_use(measured: Measurements, division: Division) -> int:
    """Return enough workers that making a batch hides behind a step, as far as there are cores for them."""
    alone = (seconds_of(measured.loader_alone) or 0.0) * max(1, measured.loader.workers)
    left = max(division.step - division.seconds("data"), 1e-9)
    return min(RULE.max_workers, max(1, measured.machine.cores - 1), math.ceil(alone / left) + 1)


def _workers(predictor: SpeedPredictor) -> list[Advice]:
    """Advise another number of workers: the one that was measured, or more if each has a core."""
    measured, now = predictor.measured, predictor.measured.loader.workers
    if "workers" in measured.what_ifs:
        wanted = measured.fix_values.get("workers", 0)
        sentence = _workers_sentence(predictor, wanted)
        if wanted == 0 and measured.between_epochs.get("loader", 0.0) >= RULE.min_gain - 1:
            # Workers that start in each epoch are gone, too: those steps were measured in the middle of epochs.
            steps = measured.what_ifs["workers"].with_fix
            return [predictor.predict("workers", sentence, steps.median, 2 * steps.error * steps.median)]
        return predictor.measured_fix("workers", sentence)
    wanted, busy = workers_to_use(measured, predictor.division), 1 if measured.device == "cuda" else measured.machine.threads
    if measured.loader.kind != "DataLoader" or now >= wanted or busy + wanted > measured.machine.cores:
        return []
    # A batch is made no sooner than all workers together can make it.
    making = (seconds_of(measured.loader_alone) or 0.0) * max(1, now) / wanted
    saves = min(predictor.division.seconds("data"), max(0.0, predictor.division.step - making))
    return [predictor.at_most("workers", _workers_sentence(predictor, wanted), saves)]


def _workers_sentence(predictor: SpeedPredictor, wanted: int) -> str:
    processes, now = "process" if wanted == 1 else "processes", predictor.measured.loader.workers
    return predictor.sentence("workers", value=wanted, number=wanted or "no", processes=processes, now=now)


def _waits(predictor: SpeedPredictor) -> list[Advice]:
    lines = [f"{sync.place}" for sync in predictor.measured.syncs if sync.place is not None][:2]
    where = f": {', '.join(lines)}" if lines else ""
    return [predictor.removal("sync", predictor.sentence("sync", where=where))]


def _host(predictor: SpeedPredictor) -> list[Advice]:
    thread = holding_thread(predictor.measured, predictor.division)
    if thread is not None:
        return [predictor.removal("host", wording.advice("interpreter", place=thread.place or thread.name))]
    phase, blame = _largest(_PHASES["host"], predictor.measured) or ("rest", None)
    if blame is None:
        return [predictor.removal("host", predictor.sentence("host"))]
    seconds, step = predictor.division.seconds("host"), predictor.division.step
    # Where callbacks are most of it, it gains no more than was measured without them.
    without = (1 - (removal_ratio(predictor.measured, "callbacks") or 1.0)) * step
    by_callbacks = without > 0 and 2 * without >= seconds
    left = step - (min(seconds, without) if by_callbacks else seconds)
    kind = "host_in_callbacks" if by_callbacks else "host_in_model" if phase == "forward" else "host_at"
    return [predictor.predict("host", predictor.sentence(kind, place=blame.place), left, least=left)]


def _launch(predictor: SpeedPredictor) -> list[Advice]:
    # A graph of the model's passes is measured; one of the whole step, which stoker.Trainer makes, is advised also where it is not.
    kind = "graph_of_model" if "graph" in predictor.measured.what_ifs else "graph"
    graph = predictor.measured_fix("graph", wording.advice(kind), predictor.division.seconds("launch"))
    return [*graph, *_compile(predictor, "compile_launch"), *_batch(predictor), *_fused(predictor)]


def _batch(predictor: SpeedPredictor) -> list[Advice]:
    """Advise twice the batch: steps cost what steps of two batches in one were measured to take."""
    # At best, what a step costs however many samples it has is spent half as often.
    fixed = predictor.division.seconds("launch", "dispatch", "optimizer", "host", "sync", "oversubscribed", "kernel")
    return predictor.measured_fix("batch", wording.advice("batch"), fixed / 2)


def _fused(predictor: SpeedPredictor) -> list[Advice]:
    measured = predictor.measured
    if measured.optimizer_fused or measured.optimizer not in FUSIBLE:
        return []
    # It also saves launches, which are the limit where the GPU waits for its host.
    sentence, saves = predictor.sentence("fused", optimizer=measured.optimizer), predictor.division.seconds("optimizer", "launch")
    return predictor.measured_fix("fused", sentence, saves)


def _malloc(predictor: SpeedPredictor) -> list[Advice]:
    pages = statistics.fmean(predictor.measured.pages.get("loop") or [0.0])
    sentence = wording.advice("malloc", environment=KEEP_MEMORY, pages=f"{pages:,.0f}")
    return predictor.measured_fix("malloc", sentence)


def value_of(name: str, measured: Measurements, verdict: Verdict) -> int | None:
    """Return the value that a fix is measured and tried with. `compile` has one where launches are to be saved."""
    if name == "workers":
        return measured.fix_values.get("workers", workers_to_use(measured, divide(measured)))
    if name == "threads":
        return best_threads(measured) or measured.machine.threads
    return 1 if name == "compile" and verdict == "launch" else None


def best_threads(measured: Measurements) -> int | None:
    """Return the number of threads with the shortest steps, if it is another one than now."""
    by_threads = measured.fewer_threads
    best = min(by_threads, key=lambda number: by_threads[number], default=None)
    return int(best) if best is not None and int(best) != measured.machine.threads else None


def _threads(predictor: SpeedPredictor) -> list[Advice]:
    best, now = best_threads(predictor.measured), predictor.measured.machine.threads
    if best is None:
        return []
    sentence = wording.advice("threads", best=best, now=now)
    return predictor.measured_fix("threads", sentence, predictor.division.seconds("oversubscribed"))


def _autocast(predictor: SpeedPredictor) -> list[Advice]:
    peaks, precision = predictor.measured.machine.matmul_flops, predictor.measured.precision
    if precision in ("bf16", "fp16", "fp64") or peaks.get("bf16", 0.0) < RULE.autocast_ratio * peaks.get(precision, math.inf):
        return []  # this machine is no faster in it
    if predictor.measured.device == "cpu":  # converting takes a CPU time, too: trials gave 0.58 to 2.8 times the speed
        return predictor.measured_fix("autocast", predictor.sentence("autocast"))
    # At best matmuls run at the other peak, and half as many bytes are moved.
    slower = peaks[precision] / peaks["bf16"]
    saves = predictor.division.seconds("compute", "precision") * (1 - slower) + predictor.division.seconds("memory") / 2
    return predictor.measured_fix("autocast", predictor.sentence("autocast"), saves)


def _compile(predictor: SpeedPredictor, kind: str) -> list[Advice]:
    """Advise to compile: a number is known only where it will be tried anyway, as compiling takes longer than all else."""
    measured, division = predictor.measured, predictor.division
    # Matmuls and the optimizer stay as they are: measured 0.7 to 1.2 times as fast where they are most of the work of a CPU.
    joins, stays = division.seconds("memory", "dispatch"), division.seconds("compute", "precision", "optimizer", "kernel")
    if "compile" in measured.unused_fixes or (measured.device == "cpu" and joins < max(RULE.compile_share * division.step, stays)):
        return []
    if "compile" in measured.what_ifs:
        return predictor.measured_fix("compile", predictor.sentence(kind))
    return [Advice(name="compile", sentence=predictor.sentence(kind), predicted=None)] if not measured.compiled else []


def _sparse(predictor: SpeedPredictor) -> list[Advice]:
    """Advise sparse gradients where few rows of a large table are looked up: the losses of Adam change with them."""
    work = predictor.measured.work
    if work is None or work.table_rows < RULE.unused_rows * max(1.0, work.table_rows_used):
        return []
    sentence = wording.advice("sparse", used=f"{work.table_rows_used:,.0f}", rows=f"{work.table_rows:,.0f}")
    return [predictor.at_most("sparse", sentence, predictor.division.seconds("optimizer", "memory"))]


def _precision(predictor: SpeedPredictor) -> list[Advice]:
    if predictor.measured.precision == "fp64":
        return predictor.measured_fix("float32", wording.advice("float32"), predictor.division.seconds("precision"))
    has_tf32 = predictor.measured.machine.matmul_flops.get("tf32")
    tf32 = predictor.measured_fix("tf32", predictor.sentence("tf32"), predictor.division.seconds("precision")) if has_tf32 else []
    return [*tf32, *_autocast(predictor)]


def _between_ranks(predictor: SpeedPredictor, name: str, cause: str) -> list[Advice]:
    slowest = max(predictor.measured.ranks, key=lambda rank: rank.apart_seconds).rank
    return [predictor.at_most(name, wording.advice(name, slowest=slowest), predictor.division.seconds(cause))]


_ADVISERS: dict[Verdict, Callable[[SpeedPredictor], list[Advice]]] = {
    "data": _data,
    "transfer": lambda predictor: [
        *predictor.measured_fix("pinned", predictor.sentence("pinned"), predictor.division.seconds("transfer", "sync")),
        predictor.removal("transfer", wording.advice("resident"), name="resident"),
    ],
    "sync": _waits,
    "host": _host,
    "launch": _launch,
    "dispatch": lambda predictor: [*_batch(predictor), *_compile(predictor, "compile_dispatch"), *_fused(predictor)],
    "oversubscribed": lambda predictor: [*_threads(predictor), *_workers(predictor)],
    "optimizer": lambda predictor: [*_sparse(predictor), *_fused(predictor), *_batch(predictor)],
    "precision": _precision,
    "compute": lambda predictor: [*_autocast(predictor), *_compile(predictor, "compile")],
    "memory": lambda predictor: [*_sparse(predictor), *_compile(predictor, "compile_memory"), *_autocast(predictor)],
    # On a CPU these are calls into a library, such as LAPACK: compiling leaves them as they are.
    "kernel": lambda predictor: [
        *(_compile(predictor, "compile") if predictor.measured.device == "cuda" else []),
        *_batch(predictor),
    ],
    "straggler": lambda predictor: _between_ranks(predictor, "balance", "straggler"),
    "communication": lambda predictor: _between_ranks(predictor, "exchange", "communication"),
    "none": lambda predictor: [],
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
    """Return the user's line that a cause comes from."""
    if verdict == "data" and measured.loader.functions:
        return measured.loader.functions[0].place
    if verdict == "host" and (thread := holding_thread(measured, divide(measured))) is not None:
        return thread.place
    if verdict == "sync" and (seen := [sync for sync in measured.syncs if sync.place is not None]):
        return max(seen, key=lambda sync: sync.count).place
    # All of a backward pass has one line of the user's, which says nothing: what it computes was asked for in the forward pass.
    largest = _largest(_PHASES.get(verdict, ("forward",)), measured) or _largest(("backward",), measured)
    return largest[1].place if largest is not None else measured.loader.place if verdict == "data" else None


def _largest(phases: tuple[str, ...], measured: Measurements) -> tuple[str, Blame] | None:
    """Return the line with the most time of some phases, and its phase."""
    lines = [(phase, blame) for phase in phases for blame in measured.blames.get(phase, [])[:1]]
    return max(lines, key=lambda pair: pair[1].share * getattr(measured.phases, pair[0], 0.0), default=None)
