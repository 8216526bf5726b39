"""Every sentence of a finding, and how its numbers are written. Change what a report says here.

- Sentences are templates, filled with the fields of a measurement (`_fields`): `CAUSES`, `EVIDENCE`, `NO_VERDICT`, `ADVICE`, `PATCH`
  and `TRIAL`.
- Numbers: `percent`, `times`, `removal_rows`, …

rule.py and advice.py fill the sentences into a finding; finding.py prints it, and report.py makes the HTML page.
"""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from string import Formatter
from typing import Any, NamedTuple, get_args

from stoker._text import readable_bytes, readable_seconds
from stoker.diagnose.division import (
    Division,
    device_seconds,
    divide,
    flops_seconds,
    holding_thread,
    interpreter_seconds,
    ratios_of,
    removal_of,
    removal_ratio,
    scaled_phases,
)
from stoker.diagnose.frameworks import switch_sentence
from stoker.diagnose.measurements import WORK, Advice, Cause, Measurements, Patch, RareSteps, SourceLine, TrialResult, Verdict, Work
from stoker.diagnose.thresholds import RULE

PARSE = Formatter().parse
UNKNOWN = "unknown"
TITLES: dict[str, str] = {name: f"{name}-bound" for name in get_args(Verdict)}
"""The name of each verdict in a report."""
TITLES |= {"oversubscribed": "oversubscribed", "straggler": "held by a straggler", "none": "NO VERDICT"}
KINDS = {
    "gemm": "matmuls",
    "elementwise": "element-wise",
    "search": "sorts",
    "other_ops": "other operations",
}
"""Classes of operations with another name in a report."""


# ---- numbers ----


def percent(share: float) -> str:
    """0.714 as 71 %; small shares keep a digit."""
    if not math.isfinite(share):
        return UNKNOWN
    return f"{share:.1%}".replace("%", " %") if 0 < abs(share) < 0.095 else f"{share:.0%}".replace("%", " %")


def times(ratio: float) -> str:
    """2.168 as 2.17x; large ones with fewer digits."""
    return f"{ratio:,.0f}x" if ratio >= 100 else f"{ratio:.1f}x" if ratio >= 10 else f"{ratio:.2f}x"


def ranged(middle: float, low: float, high: float) -> str:
    """A speed-up with its range: 2.11x (2.02-2.20)."""
    return f"{times(middle)} ({times(low)[:-1]}-{times(high)[:-1]})"


WIDE_RANGE = 1.2  # high over low from which a number is shown with its range


def predicted(step: Advice) -> str:
    """The predicted speed-up: a number, with its range if that is wide; or only a range or a bound; empty if nothing is predicted."""
    low, high = step.predicted_low, step.predicted_high
    number = times(step.predicted) if step.predicted is not None else ""
    if high is None or low is None:
        return number or (f"at most {times(high)}" if high is not None else "")
    if not number:
        return f"{times(low)[:-1]}-{times(high)}"
    return ranged(step.predicted or low, low, high) if high > WIDE_RANGE * low else number


def count(number: float) -> str:
    """A count, which may be a mean."""
    return f"{number:,.0f}" if number == int(number) or abs(number) >= 100 else f"{number:,.1f}"


def numbered(number: int, thing: str) -> str:
    """A number of things: 1 thread, 2 threads."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


# ---- what was removed ----

REMOVALS = {
    "data": "loading",
    "copies": "uploads",
    "reads": "waits for values",
    "callbacks": "callbacks and loggers",
    "between": "code after the update",
}
"""What each experiment removes."""
EXPERIMENTS_ON: dict[Verdict, tuple[str, ...]] = {
    "data": ("data",),
    "transfer": ("copies",),
    "sync": ("reads",),
    "host": ("callbacks", "between"),
}
"""The experiments that remove a cause."""


class RemovalRow(NamedTuple):
    """An experiment: what was removed, the time of a step with and without it, and the speed-up with its range."""

    name: str
    before: float
    after: float
    gain: str

    @property
    def change(self) -> str:
        """Both times of a step."""
        return f"{readable_seconds(self.before)} -> {readable_seconds(self.after)}"


def removal_rows(measured: Measurements) -> list[RemovalRow]:
    """Return a row per experiment."""
    rows, step = [], measured.loop.median
    # Where batches differ in size, suspects are removed from steps on cached batches: all together save the loading, too.
    by_caching = (removal_ratio(measured, "data") or 1.0) if measured.sized else 1.0
    for name, what in {**REMOVALS, "everything": "all of these"}.items():
        ratio = removal_ratio(measured, name)
        if ratio is not None and ratio > 0:
            before = step * by_caching if name not in ("data", "everything") else step
            saved = by_caching if name == "everything" else 1.0
            low, high = (limit / saved for limit in removal_range(measured, name))
            rows.append(RemovalRow(what, before, before * saved * ratio, ranged(1 / (saved * ratio), low, high)))
    busy = device_seconds(measured) if measured.device == "cuda" else None
    if rows and busy:
        rows.append(RemovalRow("all but GPU kernels", step, busy, f"{times(step / busy)} at best"))
    return rows


def removal_range(measured: Measurements, experiment: str) -> tuple[float, float]:
    """Return the least and the greatest speed-up by a removal: of its windows, each next to an unchanged one."""
    removal, ratio = removal_of(measured, experiment), removal_ratio(measured, experiment) or 1.0
    speedups = [1 / left for left in (ratio, *(ratios_of(removal) if removal is not None else ())) if left > 0]
    return min(speedups), max(speedups)


# ---- causes and their evidence ----

CAUSES: dict[Verdict, tuple[str, ...]] = {
    "straggler": ("{share} of each step the other processes wait for rank {slowest}",),
    "communication": ("{share} of each step is the all-reduce of gradients between {ranks} processes",),
    "data": ("{share} of each step builds its batch in the {loop}", "{share} of each step waits for the loader"),
    "transfer": ("{share} of each step copies batches to the GPU",),
    "sync": (
        "{share} of each step the host waits for the GPU, {reads} times per step",
        "{share} of each step the host waits for the GPU",
    ),
    "host": ("{share} of each step is Python code of the training loop",),
    "oversubscribed": ("{threads} on {cores} cores wait for each other for {share} of each step",),
    "launch": ("{share} of each step the GPU is idle: {kernels} are issued more slowly than they run",),
    "dispatch": ("{share} of each step dispatches {ops} that are too small",),
    "optimizer": ("{share} of each step is the optimizer",),
    "precision": (
        "{share} of each step would be saved in float32: most matmuls are in {float64}",
        "{share} of each step would be saved if matmuls were not in float32",
    ),
    "compute": ("{share} of each step computes matmuls",),
    "memory": ("{share} of each step moves memory in element-wise operations, reductions and copies",),
    "kernel": ("{share} of each step is operations that neither multiply matrices nor move memory, such as sorts",),
}
"""By cause: the first sentence whose fields are all known."""
EVIDENCE: dict[Verdict, tuple[str, ...]] = {
    **dict.fromkeys(
        ("straggler", "communication"), ("a step takes {step} in all processes, and without the all-reduce: {by_rank}",)
    ),
    "data": ("{of_loader} of the loader's time", "{starting} of the time passes between epochs until it gives batches again"),
    "transfer": ("copies take {part} of a step of {step}", "{uploaded} in {uploads} copies", "memory is not pinned: {unpinned}"),
    "sync": ("the host reads {reads} values per step from the GPU and waits for them", "a step takes {step}, its kernels {device}"),
    "host": (
        "thread {thread} computes in Python and holds the interpreter lock, for which the loop waits {held} of a step of {step}",
        "Python code that is neither data nor operations of torch takes {python} of a step of {step}",
        "{after_update} of it after the update of the weights",
    ),
    "oversubscribed": ("{threads} on {cores} cores", "with {best} a step without its data takes {with_best}, not {now}"),
    "launch": ("the host takes {issuing} to issue {kernels} of a step, and the GPU {device} to run them",),
    "dispatch": ("each of {ops} per step costs at least {dispatch}, however small it is",),
    "optimizer": ("{optimizer} takes {part} of a step of {step}", "about {pages} of a step gets memory from the system again"),
    **dict.fromkeys(
        WORK,
        (
            "{kinds} of the time of operations",
            "{reached} of the {precision} peak that this machine was measured to reach",
            "{ops} in {device}",
            "about {pages} of a step gets memory from the system again",
        ),
    ),
}
"""By verdict: the parts of a sentence. One with a field that is not known is left out."""
PART = "a batch takes {part} of a step of {step}"  # where no other part is known

WASTES: tuple[Verdict, ...] = ("data", "transfer", "sync", "host", "launch", "oversubscribed", "straggler", "communication")
WHY_FIRST: dict[str, str] = {
    "optimizer": f"an optimizer comes first from {RULE.optimizer_first:.0%} of the work on".replace("%", " %"),
    **dict.fromkeys(WORK, "the work as a whole takes longer than issuing it"),
    "precision": "a shorter type saves it, and the rest of the work stays",
    **dict.fromkeys(WASTES, "waste comes before work, because it can be removed"),
    "straggler": "ranks that wait for it start the all-reduce late",
}
"""Why a cause comes before a second one with a larger share."""


def _known(write: Callable[[Any], str], value: Any) -> str | None:
    """Write a value, unless it is nothing."""
    return write(value) if value else None


def _fields(measured: Measurements, division: Division, verdict: Verdict) -> dict[str, object]:
    """Return the fields of the sentences about a cause; None where they are not known, or say nothing."""
    machine, loader, work, step = measured.machine, measured.loader, measured.work or Work(ops=0.0, flops=0.0), division.step
    ranks = sorted(measured.ranks, key=lambda rank: -rank.apart_seconds)
    by_threads, now = measured.fewer_threads, measured.fewer_threads.get(str(machine.threads))
    best = min(by_threads, key=lambda number: by_threads[number], default=None) if now is not None else None
    best = None if best == str(machine.threads) else best
    busy = min(device_seconds(measured) or step, step) if measured.device == "cuda" else step
    kinds = [
        f"{KINDS.get(kind, kind)} {percent(work.shares[kind])}" for kind in sorted(work.shares, key=lambda kind: -work.shares[kind])
    ]
    rest, host, thread = scaled_phases(measured, step).rest, division.seconds("host"), holding_thread(measured, division)
    from_system = statistics.fmean(measured.for_pages("loop") or [0.0]) / step
    starting = measured.between_epochs.get("loader", 0.0)
    names_peak = verdict in ("precision", "compute") and measured.precision in machine.matmul_flops
    return {
        "step": readable_seconds(step),
        "part": readable_seconds(division.seconds(verdict)),
        "loop": "loop" if loader.kind == "loop" else None,
        "of_loader": percent(loader.functions[0].share) if loader.functions else None,
        "starting": percent(starting) if starting >= RULE.mention else None,
        "slowest": ranks[0].rank if ranks else None,
        "ranks": len(ranks),
        "by_rank": ", ".join(f"rank {rank.rank} {readable_seconds(rank.apart_seconds)}" for rank in ranks[:4]),
        "reads": _known(count, sum(sync.count for sync in measured.syncs)),
        "uploaded": _known(readable_bytes, work.h2d_bytes),
        "uploads": count(work.h2d_copies),
        "unpinned": "the host waits for each copy" if not loader.pinned else None,
        "thread": thread.name if thread is not None else None,
        "held": readable_seconds(interpreter_seconds(measured, step)),
        "python": readable_seconds(host) if thread is None else None,
        "after_update": readable_seconds(rest) if thread is None and 0 < rest < 0.95 * host else None,
        "threads": numbered(machine.threads, "thread") + (f" and {numbered(loader.workers, 'worker')}" if loader.workers else ""),
        "cores": machine.cores,
        "best": best,
        "with_best": readable_seconds(by_threads[best]) if best is not None else None,
        "now": _known(readable_seconds, now),
        "issuing": readable_seconds(step - division.seconds("data", "transfer", "sync")),
        "device": readable_seconds(busy),
        "dispatch": readable_seconds(machine.dispatch_seconds),
        "kernels": _known(lambda number: f"{number:,.0f} kernels", work.kernels) or "the kernels",
        "ops": _known(lambda number: f"{number:,.0f} operations", work.ops) or "its operations",
        "optimizer": (measured.optimizer or "the optimizer") + (" (not fused)" if measured.optimizer_fused is False else ""),
        "float64": "float64" if measured.precision == "fp64" else None,
        "kinds": ", ".join(kinds[:3]) or None,
        "precision": measured.precision,
        "reached": percent(min(1.0, flops_seconds(measured) / busy)) if names_peak else None,
        "pages": percent(min(1.0, from_system)) if from_system >= RULE.mention else None,
    }


def _known_parts(parts: Iterable[str], fields: dict[str, object]) -> list[str]:
    """Fill in the parts whose fields are all known."""
    return [part.format(**fields) for part in parts if all(fields[name] is not None for _, name, _, _ in PARSE(part) if name)]


def cause(name: Verdict, share: float, measured: Measurements) -> str:
    """The sentence of a cause, with its numbers."""
    step = measured.loop.median
    for removal in EXPERIMENTS_ON.get(name, ()):
        ratio = removal_ratio(measured, removal)
        if ratio and abs(1 - ratio - share) <= RULE.same_share:
            before, after = readable_seconds(step), readable_seconds(step * ratio)
            return f"without {REMOVALS[removal]}, a step takes {after} instead of {before} ({times(1 / ratio)})"
    return _known_parts(CAUSES[name], {"share": percent(share), **_fields(measured, divide(measured), name)})[0]


def evidence(verdict: Verdict, place: SourceLine | None, measured: Measurements, division: Division) -> str:
    """The evidence of a verdict: its numbers, and the user's line."""
    fields = _fields(measured, division, verdict)
    numbers = "; ".join(_known_parts(EVIDENCE[verdict], fields)) or PART.format(**fields)
    return f"{place}: {numbers}" if place is not None else numbers


def cause_of_rare_steps(rare: RareSteps) -> str:
    """The sentence of rare steps as the first cause."""
    every = f"{rare.every:,.0f}" if rare.every is not None else "many"
    where = f"passes between epochs, each of {every} steps" if rare.between_epochs else f"is in 1 of {every} steps"
    where = "is in each step" if rare.every == 1 and not rare.between_epochs else where
    where += ", in which torch.compile compiles again" if rare.recompiles else ""
    return f"{percent(rare.share)} of all time {where}{f', {rare.place}' if rare.place is not None else ''}"


def evidence_of_rare_steps(rare: RareSteps) -> str:
    """What takes the time, where it is called, and what other steps take."""
    at, calls = (f"{place.file}:{place.line}" if place is not None else "" for place in (rare.place, rare.called))
    where = f"{rare.place}{f', called in {calls}' if calls and calls != at else ''}: " if at else ""
    took, others = readable_seconds(rare.seconds), readable_seconds(rare.others)
    every = f"{rare.every:,.0f}" if rare.every is not None else "some"
    if rare.between_epochs:
        return f"{where}{took} pass after each epoch of {every} steps, the others {others} each"
    if rare.every == 1:
        return f"{where}a step takes {took}, and {others} with a batch of a shape that was seen before"
    return f"{where}1 of {every} steps takes {took}, the others {others} each"


def why_first(causes: list[Cause]) -> str:
    """Return why the first cause comes before a second one with a larger share; empty if it does not."""
    if len(causes) < 2:
        return ""
    first, second = causes[:2]
    if percent(second.share) == percent(first.share) or second.share <= first.share:
        return ""
    if second.verdict == "launch" and not first.rare:
        return "what it costs was measured without it; of launches only the idle time of the GPU is known"
    return WHY_FIRST.get(first.verdict, "")


# ---- why there is no verdict ----

QUIET = "run it again while nothing else uses the machine"
NO_VERDICT = {
    "few_steps": f"only {{steps}} measured, and {RULE.min_steps} are needed: let the program run longer",
    "not_counted": "the program ended before its work could be counted: let it run longer",
    "other_programs_on_gpu": f"for {{share}} of the time other programs had the GPU: {QUIET}",
    "other_programs": f"for {{share}} of the time other programs had the cores: {QUIET}",
    "rare_once": "{seen}, so it is not known how often it comes: measure for longer (a larger `seconds`)",
    "rare_unknown": "{share} of all time is in 1 of {every} steps, which take {seconds} where others take {others}, but no line of "
    f"their own explains it{{phase}}{{at}}: {QUIET}",
}


def no_verdict(reason: str, rare: RareSteps | None = None, **numbers: str) -> str:
    """Why there is no verdict."""
    if rare is not None:
        numbers |= {
            "seconds": readable_seconds(rare.seconds),
            "others": readable_seconds(rare.others),
            "share": percent(rare.share),
            "every": f"{rare.every:,.0f}" if rare.every is not None else "many",
            "at": f" at {rare.place}" if rare.place is not None else "",
            "phase": f" in the phase `{rare.phase}`" if rare.phase is not None else "",
        }
    return NO_VERDICT[reason].format(**numbers)


def seen_once(measured: Measurements) -> str:
    """What a slow step took that was not seen again; empty without one."""
    rare = measured.rare
    if rare is None:
        return ""
    at = f" at {rare.place}" if rare.place is not None else ""
    took, others = readable_seconds(rare.seconds), readable_seconds(rare.others)
    return f"one of {len(measured.loop.seconds):,} steps took {took}{at} where others take {others}, and was not seen again"


# ---- advice ----

ADVICE = {
    "feed": "pack the data to a store and let stoker.Feed make the batches",
    "cached": "make batches once and keep them, if they fit in memory and need not differ between epochs",
    "cached_at": "do the work of {place} once, before the training, and keep the result (at best, batches take no time)",
    "persistent": "keep worker processes from epoch to epoch ({switch})",
    "workers": "{number} worker {processes} instead of {now} ({switch})",
    "pinned": "batches in pinned memory, copied while the GPU works ({switch})",
    "resident": "keep the columns on the GPU (stoker.Feed, device=...)",
    "sync": "keep metrics on the GPU and read them every 50 steps{where}",
    "host": "do it less often, or outside of the loop{where}",
    "host_in_callbacks": "do less in callbacks, loggers and hooks, or call them less often{where}",
    "interpreter": "move it to another process, or to code that releases the interpreter lock, as NumPy and torch do: {place}",
    "host_in_model": "replace Python in the model by operations on whole tensors, or compute it once before the training{where}",
    "graph": "capture the step as a CUDA graph (stoker.Trainer does it)",
    "graph_of_model": "CUDA graphs of forward and backward, with a fused optimizer; one of the whole step gains more (stoker.Trainer)",
    **dict.fromkeys(("compile", "compile_launch"), "compile the model, which fuses small operations ({switch})"),
    "batch": "double the batch size; gains are in samples per second (this changes the training: check the losses)",
    "fused": "one kernel for all weights: {switch}",
    "malloc": "keep freed memory in the process ({environment}): {pages} pages per step are requested from the system again",
    "threads": "torch.set_num_threads({best}) instead of {threads}, or OMP_NUM_THREADS={best}",
    "tf32": "compute float32 matmuls in TF32 ({switch})",
    "autocast": "compute in bfloat16 ({switch})",
    "balance": "find what rank {slowest} does that others do not, or give it less work: `stoker diagnose` of that process alone shows it",
    "exchange": "all-reduce less: gradients of several batches at once (no_sync), in bfloat16 (a DDP communication hook), larger batches",
    "rare_data": "read the data of the next batches before they are needed: worker processes, or stoker.Feed{where}",
    "rare_between_epochs": "do less between epochs, or do it after every few epochs only{where}",
    "rare": "do it less often, or make it faster{where}",
    "rare_compile": "compile once for all shapes (torch.compile(dynamic=True)), or pad batches to a few lengths{where}",
    "sparse": "sparse gradients for the embedding (nn.Embedding(..., sparse=True) with SGD or SparseAdam): a step uses at most {used} of "
    "{rows} rows, and all get a gradient and an update",
    "float32": "compute in float32 instead of float64 (arrays of NumPy are float64 unless converted: .float(), dtype=np.float32)",
}
IN_CODE = {
    "persistent": "persistent_workers=True, one DataLoader for all epochs",
    "workers": "num_workers={value}",
    "pinned": "pin_memory=True, .to(device, non_blocking=True)",
    "compile": "torch.compile",
    "compile_launch": "torch.compile, mode='reduce-overhead'",
    "fused": "{optimizer}(..., fused=True)",
    "tf32": "torch.set_float32_matmul_precision('high')",
    "autocast": "torch.autocast",
}
"""The `{switch}` of an advice, where the framework that runs the loop has none."""
BESIDES = {"sync": "reads", "host": "callbacks", "host_in_callbacks": "callbacks"}
"""The switch of a framework that is named after an advice on the user's own code."""
PATCH = {
    "no_advice": "no fix is advised",
    "not_measured": "no step was measured, so no fix could be compared: {why}",
    "no_verdict": "without a verdict, fixes of the likely cause were tried, each measured",
    "no_edit": "cannot be made by editing lines of the program",
    "instead": "it is more than an edit of lines; tried instead: {edits}",
    "nothing": "there is nothing to edit: the lines are already as proposed",
    "no_gain": "no gain was measured: {measured}",
    "no_more": "no further gain was measured: {measured} with it, {before} without",
    "gathered": "gather: the dataset gets a list of indices per batch, and gives the samples of its arrays at once; no store was packed",
    "draws": "persistent workers draw one random seed less per epoch: from the second epoch on, a shuffled order is different",
    "changed": "it is refused, because it changes the training: {losses}",
    "not compared": "its losses cannot be compared: those of the program differ from run to run, or there are none",
}
TRIED_AS = {
    "cached": " (tried as a bound: batches at no cost)",
    "feed": " (tried: every sample read once, batches gathered from memory; no store was packed)",
}
"""What a trial did, where it is not what the advice says."""
TRIAL = {
    "no_time": "there was no time left to try it",
    "speed_changed": "a baseline step took {before:,.3g} ms when it was diagnosed, and {after:,.3g} ms when fixes were tried: the machine "
    "has changed its speed, and predictions are of the speed before.",
}


def advice(name: str, *, framework: str | None = None, value: int | None = None, **numbers: object) -> str:
    """The sentence of an advice; with the switch of the framework that runs the loop, where it has one."""
    numbers["value"] = value
    switch = switch_sentence(framework, name.partition("_")[0], value) or IN_CODE.get(name, "").format(**numbers)
    sentence = ADVICE[name].format(switch=switch, **numbers)
    # What the framework does itself comes besides the lines of the user.
    besides = switch_sentence(framework, BESIDES.get(name, ""))
    return f"{sentence}; or {besides}" if besides is not None else sentence


# ---- patches and trials ----


def outcome(tried: TrialResult) -> str:
    """The result of a trial, in a few words."""
    if tried.error is not None:
        return f"could not be tried: {tried.error}"
    return f"tried {interval(tried)}   {losses(tried)}"


def interval(tried: TrialResult) -> str:
    """The speed-up of a trial with its interval."""
    if not math.isfinite(tried.high):
        return f"{times(tried.speedup)} in too few runs for an interval"
    return ranged(tried.speedup, tried.low, tried.high)


def losses(tried: TrialResult) -> str:
    """How the losses of a trial compare with those of the baseline."""
    difference = tried.largest_difference
    if difference is None or not math.isfinite(difference) or tried.losses in ("equal", "not compared"):
        return f"losses {tried.losses}"
    return f"losses equal to {difference:.1g}" if tried.losses == "within tolerance" else f"losses changed by {percent(difference)}"


def patch_lines(patch: Patch) -> list[str]:
    """The result of `--apply`: what the patch contains, how to apply it, and why other fixes are not in it."""
    lines = ["none was written" if patch.left_out else f"none was written: {patch.why or PATCH['no_advice']}"]
    if patch.file is not None and patch.tried is not None:
        where = f" -C {shlex.quote(patch.folder)}" if patch.folder is not None else ""
        file = str(Path(patch.file).resolve()) if where else patch.file
        lines = [
            f"{patch.file}: {', '.join(patch.fixes)}   {outcome(patch.tried)}",
            f"your files are unchanged; apply it with: git{where} apply {shlex.quote(file)}",
            *patch.tried.receipt.splitlines(),
        ]
    if patch.file is not None and {"persistent", "workers"} & set(patch.fixes):
        lines.append(PATCH["draws"])
    if patch.file is not None and "gather" in patch.fixes:
        lines.append(PATCH["gathered"])
    if patch.why and patch.left_out:
        lines.append(patch.why)
    return lines + [f"without {name}: {why}" for name, why in patch.left_out.items()]
