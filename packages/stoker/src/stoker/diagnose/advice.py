"""Advice: what to do next about each cause, with the speed-up that the measurements predict for it alone.

`advise` collects the advice for the causes of a finding, the largest gain first; `_ADVISERS` has one function per verdict.
`line_of` finds the user's line that a cause comes from.

A prediction rests on measured steps: steps with the fix switched on, or without what it removes, in turn with unchanged steps. Its range
is two standard errors of these, and what steps differ from process to process. Where no step was measured with a fix, only its upper
limit is known: the share of the time that it could save. Nothing is advised that was measured and gained less than two per cent, that
changes nothing in this program or failed in it (`Measurements.unused_fixes`), or that could gain no more.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stoker.diagnose import wording
from stoker.diagnose.division import (
    Division,
    divide,
    error_between,
    gain_of,
    has_unused_rows,
    holding_thread,
    ratios_of,
    seconds_of,
)
from stoker.diagnose.measurements import (
    WORK,
    Advice,
    Blame,
    Cause,
    Measurements,
    RareSteps,
    SourceLine,
    Stretch,
    Verdict,
    WhatIf,
)
from stoker.diagnose.thresholds import RULE

KEEP_MEMORY = "MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_MMAP_MAX_=0"  # the settings of `hardware.keep_memory`
FUSIBLE = ("Adam", "AdamW", "SGD", "Adagrad")
WITH_DATA = ("threads", "workers", "malloc")  # fixes that were measured on steps with their batches
ADVISED: dict[Verdict, tuple[str, ...]] = {
    "data": ("cached", "feed", "persistent", "workers"),
    "transfer": ("pinned", "resident"),
    "sync": ("sync",),
    "host": ("host",),
    "launch": ("graph", "compile", "batch", "fused"),
    "dispatch": ("batch", "compile"),
    "oversubscribed": ("threads", "workers"),
    "optimizer": ("sparse", "fused", "batch"),
    "precision": ("float32", "tf32", "autocast"),
    "compute": ("autocast", "compile"),
    "memory": ("sparse", "compile", "autocast"),
    "kernel": ("compile", "batch"),
    "straggler": ("balance",),
    "communication": ("exchange",),
}
"""What is advised on each cause. An advice whose steps were not measured saves at most the causes that it is advised on."""
FITS: dict[str, Callable[[Measurements], bool]] = {
    "persistent": lambda measured: (
        measured.loader.persistent is False and measured.between_epochs.get("loader", 0.0) >= RULE.min_gain - 1
    ),
    # A graph of the model's passes is measured; one of the whole step, which stoker.Trainer makes, only fits where no value is read
    # back, as control flow that depends on data cannot be captured.
    "graph": lambda measured: "graph" in measured.what_ifs or not measured.syncs,
    "fused": lambda measured: not measured.optimizer_fused and measured.optimizer in FUSIBLE,
    "threads": lambda measured: best_threads(measured) is not None,
    "sparse": has_unused_rows,
    "float32": lambda measured: measured.precision == "fp64",
    "tf32": lambda measured: measured.precision == "fp32",
    # On a CPU, where converting takes time, too, trials gave 0.58 to 2.8 times the speed.
    "autocast": lambda measured: measured.device == "cuda" or "autocast" in measured.what_ifs,
}
"""Whether an advice is possible in a program; others always are."""
OWN_CODE = ("cached", "once", "sync", "host", "rare", "workers", "threads", "persistent")  # plain changes of the user's own code


def advise(measured: Measurements, division: Division, causes: list[Cause]) -> list[Advice]:
    """Return what to do, the largest gain first; of equal gains, plain changes of the user's own code first."""
    predictor = SpeedPredictor(measured=measured, division=division)
    hidden = WORK if division.share("launch") >= RULE.waste_first else ()  # faster kernels gain nothing
    steps = [
        step
        for number, cause in enumerate(causes)
        if number == 0 or (cause.share >= RULE.advise_share and cause.verdict not in hidden)
        for name in ADVISED[cause.verdict]
        for step in predictor.advice(name, cause.verdict)
    ]
    for name in measured.what_ifs:  # what was measured may gain whatever the cause is
        steps += predictor.advice(name, "none")
    useful: dict[str, Advice] = {}
    for step in filter(_is_useful, steps):
        useful.setdefault(step.name, step)
    # What was only estimated comes after what was measured.
    return sorted(
        useful.values(),
        key=lambda step: (step.predicted_low is None, -_rounded(expected_gain(step) or 1.0), step.name not in OWN_CODE),
    )


def expected_gain(step: Advice) -> float | None:
    """Return the predicted speed-up, the middle of its range, or its bound; None if nothing is known of it."""
    if step.predicted is None and step.predicted_low is not None and step.predicted_high is not None:
        return math.sqrt(step.predicted_low * step.predicted_high)
    return step.predicted if step.predicted is not None else step.predicted_high


def _is_useful(step: Advice) -> bool:
    """Say whether an advice gains enough: more, where it could be slower."""
    if step.predicted_low is not None and step.predicted_low < 1:
        return (step.predicted or 0.0) >= RULE.same_gain
    gain = expected_gain(step)
    return gain is None or gain >= RULE.min_gain


def _rounded(gain: float) -> int:
    """Return the speed-up in steps of `RULE.same_gain`: within one, two fixes gain as much."""
    return round(math.log(gain) / math.log(RULE.same_gain))


def by_trial(steps: Sequence[Advice]) -> list[Advice]:
    """Order advice: what gained in a trial by its speed-up, then what was not tried as it was, and at last what was refuted."""

    def place(step: Advice) -> tuple[int, int, bool]:
        if step.tried is None or step.tried.error is not None:
            return 1, 0, False
        return 2 * refuted(step), -_rounded(step.tried.speedup), step.name not in OWN_CODE

    return sorted(steps, key=place)


def refuted(step: Advice) -> bool:
    """Say whether a fix was tried and gains nothing, or changes the training."""
    tried = step.tried
    return tried is not None and tried.error is None and (tried.speedup < RULE.trial_min_gain or tried.losses == "changed")


def advise_on_rare_steps(*events: RareSteps) -> list[Advice]:
    """Return what to do about each kind of rare steps. At best they are gone."""
    steps = []
    for rare in events:
        kind = "rare_between_epochs" if rare.between_epochs else "rare_data" if rare.phase in ("next", "prepare") else "rare"
        kind = "rare_compile" if rare.recompiles else kind
        where = f" ({rare.place.file}:{rare.place.line})" if rare.place is not None else ""
        high = 1 / max(1 - rare.share, 1 / RULE.max_speedup)
        steps.append(Advice(name="rare", sentence=wording.advice(kind, where=where), predicted=None, predicted_high=high))
    return steps


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedPredictor:
    """Predicts the remaining time of a step with a fix."""

    measured: Measurements
    division: Division

    def advice(self, name: str, verdict: Verdict) -> list[Advice]:
        """Return an advice on a cause, if it is possible in this program."""
        fits = FITS.get(name)
        if name in self.measured.unused_fixes or (fits is not None and not fits(self.measured)):
            return []
        if name in _ADVISERS:
            return _ADVISERS[name](self, verdict)
        # The step of a framework's loop cannot be captured as a whole, the passes of its model can.
        of_model = name == "graph" and (name in self.measured.what_ifs or self.measured.framework is not None)
        kind = "graph_of_model" if of_model else name
        causes = [cause for cause, names in ADVISED.items() if name in names]
        return self.measured_fix(name, self.sentence(kind), self.division.seconds(*causes))

    def sentence(self, name: str, value: int | None = None, **numbers: object) -> str:
        """Return the sentence of an advice in the words of the framework that runs the loop."""
        measured, work = self.measured, self.measured.work
        numbers |= {
            "optimizer": measured.optimizer,
            "best": best_threads(measured),
            "threads": measured.machine.threads,
            "used": f"{work.table_rows_used:,.0f}" if work is not None else "",
            "rows": f"{work.table_rows:,.0f}" if work is not None else "",
            "environment": KEEP_MEMORY,
            "pages": f"{statistics.fmean(measured.pages.get('loop') or [0.0]):,.0f}",
            "slowest": max(measured.ranks, key=lambda rank: rank.apart_seconds).rank if measured.ranks else 0,
        }
        return wording.advice(name, framework=measured.framework, value=value, **numbers)

    def predict(self, name: str, sentence: str, left: float, error: float = 0.0, *, least: float = 0.0) -> Advice:
        """Predict a fix that leaves `left` seconds of a step, known to `error` seconds (two standard errors), and at least `least`."""
        now = self.division.step
        least = max(now / RULE.max_speedup, min(now, least))
        left = max(left, least)
        # Steps differ from process to process: most where memory comes from the system (everyday-user-vectors), or a host issues them.
        pages = statistics.fmean(self.measured.for_pages("loop") or [0.0]) / now
        of_memory = RULE.run_to_run + RULE.run_to_run_memory * min(1.0, self.division.share("memory") + pages)
        run_to_run = RULE.run_to_run_launch if self.division.share("launch") >= RULE.waste_first else of_memory
        error = math.hypot(error, 2 * left * run_to_run, 2 * left * min(1.0, self.measured.loop.error))
        low, high = now / (left + error), now / max(left - error, least)
        predicted = now / left if high <= RULE.max_prediction_range * low else None
        return Advice(name=name, sentence=sentence, predicted=predicted, predicted_low=low, predicted_high=high)

    def at_most(self, name: str, sentence: str, saves: float) -> Advice:
        """Bound a fix of which nothing was measured: it saves at most `saves` seconds of a step."""
        now = self.division.step
        high = now / max(min(now, now - saves), now / RULE.max_speedup)
        return Advice(name=name, sentence=sentence, predicted=None, predicted_high=high)

    def removal(self, cause: str, sentence: str, *, name: str | None = None) -> Advice:
        """Predict a fix that removes a cause, and no more than that."""
        left = self.division.step - self.division.seconds(cause)
        return self.predict(name or cause, sentence, left, least=left)

    def measured_fix(self, name: str, sentence: str, saves: float = 0.0) -> list[Advice]:
        """Predict a fix that was switched on for some steps; if it was not, it saves at most `saves` seconds of a step."""
        what_if, step = self.measured.what_ifs.get(name), self.division.step
        if what_if is None:
            return [self.at_most(name, sentence, saves)]
        changed = step if name in WITH_DATA else step - self.division.seconds("data")
        samples = 2 if name == "batch" else 1
        ratio, error = ratio_with_error(what_if)
        left, error = step - changed + changed * ratio / samples, changed * error / samples
        if self.measured.loader.workers and name != "workers":  # which have no faster batches for a faster step
            left = max(left, seconds_of(self.measured.loader_alone) or 0.0)
        return [self.predict(name, sentence, left, error)] if step >= RULE.min_gain * left else []


def ratio_with_error(what_if: WhatIf) -> tuple[float, float]:
    """Return what is left of a step, as a share, and two standard errors of it."""
    ratios = ratios_of(what_if)
    ratio = statistics.median(ratios)
    within = math.hypot(what_if.as_it_is.error, what_if.with_fix.error)
    return ratio, 2 * ratio * max(within, error_between(ratios))


def _cached(predictor: SpeedPredictor, verdict: Verdict) -> list[Advice]:
    measured, division, cached = predictor.measured, predictor.division, predictor.measured.cached
    place = _own_line_of_batches(measured)
    sentence = wording.advice("cached_at", place=place) if place is not None else wording.advice("cached")
    if cached is not None and cached.seconds:
        least = min(cached.median, division.step - division.seconds("data"))
        step = predictor.predict("cached", sentence, cached.median, _unsure(cached) * cached.median, least=least)
        # On a busy machine these steps may say nothing; what waits for data still says what could be saved.
        return [step if _is_useful(step) else predictor.at_most("cached", sentence, division.seconds("data"))]
    return [predictor.at_most("once", sentence, division.seconds("data"))] if place is not None else []


def _unsure(cached: Stretch) -> float:
    """Return two standard errors of the steps on cached batches, as a share of them."""
    return 2 * max(cached.error, error_between([middle for _, middle in cached.by_piece()]))


def _feed(predictor: SpeedPredictor, verdict: Verdict) -> list[Advice]:
    division, cached, gathered = predictor.division, predictor.measured.cached, predictor.measured.what_ifs.get("feed")
    if gathered is None or cached is None:
        return [predictor.at_most("feed", wording.advice("feed"), division.seconds("data"))]
    ratio, error = ratio_with_error(gathered)
    left, error = min(cached.median, division.step) * ratio, math.hypot(error, _unsure(cached) * ratio)
    least = min(left, division.step - division.seconds("data"))
    return [predictor.predict("feed", wording.advice("feed"), left, left / ratio * error, least=least)]


def _own_line_of_batches(measured: Measurements) -> SourceLine | None:
    """Return the user's line that makes batches; None if it only calls the loop or the loader, and others do the work."""
    place = line_of("data", measured)
    return None if place is None or place == measured.loader.place or place in _callers(measured) else place


def _callers(measured: Measurements) -> list[SourceLine]:
    """Return the user's lines that call the backward pass or the optimizer: in a framework, the line that calls its loop."""
    return [blame.place for phase in ("backward", "optimizer") for blame in measured.blames.get(phase, [])]


def workers_to_use(measured: Measurements, division: Division) -> int:
    """Return enough workers that making a batch hides behind a step, as far as there are cores for them."""
    alone = (seconds_of(measured.loader_alone) or 0.0) * max(1, measured.loader.workers)
    left = max(division.step - division.seconds("data"), 1e-9)
    return min(RULE.max_workers, max(1, measured.machine.cores - 1), math.ceil(alone / left) + 1)


def _workers(predictor: SpeedPredictor, verdict: Verdict) -> list[Advice]:
    """Advise another number of workers: the one that was measured, or more if each has a core."""
    measured, now = predictor.measured, predictor.measured.loader.workers
    is_measured = "workers" in measured.what_ifs
    wanted = measured.fix_values.get("workers", 0) if is_measured else workers_to_use(measured, predictor.division)
    processes = "process" if wanted == 1 else "processes"
    sentence = predictor.sentence("workers", value=wanted, number=wanted or "no", processes=processes, now=now)
    if is_measured:
        return predictor.measured_fix("workers", sentence)
    busy = 1 if measured.device == "cuda" else measured.machine.threads
    if measured.loader.kind != "DataLoader" or now >= wanted or busy + wanted > measured.machine.cores:
        return []
    # A batch is made no sooner than all workers together can make it.
    making = (seconds_of(measured.loader_alone) or 0.0) * max(1, now) / wanted
    saves = min(predictor.division.seconds("data"), max(0.0, predictor.division.step - making))
    return [predictor.at_most("workers", sentence, saves)]


def _resident(predictor: SpeedPredictor, verdict: Verdict) -> list[Advice]:
    return [predictor.removal("transfer", wording.advice("resident"), name="resident")]


def _sync(predictor: SpeedPredictor, verdict: Verdict) -> list[Advice]:
    lines = [f"{sync.place}" for sync in predictor.measured.syncs if sync.place is not None][:2]
    return [predictor.removal("sync", predictor.sentence("sync", where=f": {', '.join(lines)}" if lines else ""))]


def _host(predictor: SpeedPredictor, verdict: Verdict) -> list[Advice]:
    measured, division = predictor.measured, predictor.division
    thread, seconds = holding_thread(measured, division), division.seconds("host")
    if thread is not None:
        return [predictor.removal("host", wording.advice("interpreter", place=thread.place or thread.name))]
    phase, blame = _largest(_PHASES["host"], measured) or ("rest", None)
    # Where callbacks are most of it, it gains no more than was measured without them.
    without = division.step * (gain_of(measured.removed.get("callbacks")) or 0.0)
    by_callbacks = 2 * without >= seconds
    left = division.step - (min(seconds, without) if by_callbacks else seconds)
    # A line that only calls a framework's loop has no Python of the model in it.
    in_model = phase == "forward" and blame is not None and blame.place not in _callers(measured)
    kind = "host_in_callbacks" if by_callbacks else "host_in_model" if in_model else "host"
    where = f": {blame.place}" if blame is not None else ""
    return [predictor.predict("host", predictor.sentence(kind, where=where), left, least=left)]


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


def _batch(predictor: SpeedPredictor, verdict: Verdict) -> list[Advice]:
    """Advise twice the batch: steps cost what steps of two batches in one were measured to take."""
    # At best, what a step costs however many samples it has is spent half as often.
    fixed = predictor.division.seconds("launch", "dispatch", "optimizer", "host", "sync", "oversubscribed", "kernel")
    return predictor.measured_fix("batch", wording.advice("batch"), fixed / 2)


def _autocast(predictor: SpeedPredictor, verdict: Verdict) -> list[Advice]:
    peaks, precision = predictor.measured.machine.matmul_flops, predictor.measured.precision
    if precision in ("bf16", "fp16", "fp64") or peaks.get("bf16", 0.0) < RULE.autocast_ratio * peaks.get(precision, math.inf):
        return []  # this machine is no faster in it
    # At best matmuls run at the other peak, and half as many bytes are moved.
    saves = predictor.division.seconds("compute", "precision") * (1 - peaks[precision] / peaks["bf16"])
    return predictor.measured_fix("autocast", predictor.sentence("autocast"), saves + predictor.division.seconds("memory") / 2)


def _compile(predictor: SpeedPredictor, verdict: Verdict) -> list[Advice]:
    """Advise to compile: a number is known only where it will be tried anyway, as compiling takes longer than all else."""
    measured, division = predictor.measured, predictor.division
    # Matmuls and the optimizer stay as they are: measured 0.7 to 1.2 times as fast where they are most of the work of a CPU.
    joins, stays = division.seconds("memory", "dispatch"), division.seconds("compute", "precision", "optimizer", "kernel")
    if measured.device == "cpu" and (verdict == "kernel" or joins < max(RULE.compile_share * division.step, stays)):
        return []
    sentence = predictor.sentence("compile_launch" if verdict == "launch" else "compile")
    if "compile" in measured.what_ifs:
        return predictor.measured_fix("compile", sentence)
    return [Advice(name="compile", sentence=sentence, predicted=None)] if not measured.compiled else []


_ADVISERS: dict[str, Callable[[SpeedPredictor, Verdict], list[Advice]]] = {
    "cached": _cached,
    "feed": _feed,
    "workers": _workers,
    "resident": _resident,
    "sync": _sync,
    "host": _host,
    "batch": _batch,
    "autocast": _autocast,
    "compile": _compile,
}
"""Advice that is more than a sentence and the causes it saves."""
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
