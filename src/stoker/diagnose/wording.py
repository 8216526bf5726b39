"""Every sentence of a finding, and how its numbers are written. Change what a report says here.

- Sentences: `cause`, `evidence`, `no_verdict` and `advice`, from the tables `CAUSES`, `NO_VERDICT`, `ADVICE`, `PATCH` and `TRIAL`.
- Numbers: `percent`, `times`, `duration`, `size`, …

rule.py and advice.py fill the sentences into a finding; finding.py prints it, and report.py makes the HTML page.
"""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import NamedTuple, get_args

from stoker._text import readable_bytes, readable_seconds
from stoker.diagnose.division import (
    Division,
    device_seconds,
    flops_seconds,
    gain_of,
    holding_thread,
    interpreter_seconds,
    removal_ratio,
    scaled_phases,
    seconds_of,
)
from stoker.diagnose.frameworks import switch_sentence
from stoker.diagnose.measurements import Advice, Cause, Measurements, Patch, RareSteps, SourceLine, TrialResult, Verdict
from stoker.diagnose.thresholds import RULE

UNKNOWN = "unknown"
TITLES: dict[str, str] = {name: f"{name}-bound" for name in get_args(Verdict)}
"""The name of each verdict in a report."""
TITLES |= {"oversubscribed": "oversubscribed", "straggler": "held by a straggler", "none": "NO VERDICT"}
KINDS = {"gemm": "matmuls", "elementwise": "element-wise", "search": "sorts", "other_ops": "other operations"}
"""Classes of operations with another name in a report."""


def outcome(tried: TrialResult) -> str:
    """The result of a trial, in a few words."""
    if tried.error is not None:
        return f"could not be tried: {tried.error}"
    return f"tried {interval(tried)}   {losses(tried)}"


def interval(tried: TrialResult) -> str:
    """The speed-up of a trial with its interval: 2.11x (2.02-2.20)."""
    return f"{times(tried.speedup)} ({times(tried.low)}-{times(tried.high)})".replace("x-", "-").replace("x)", ")")


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
        ]
    if patch.file is not None and {"persistent", "workers"} & set(patch.fixes):
        lines.append(PATCH["draws"])
    if patch.file is not None and "gather" in patch.fixes:
        lines.append(PATCH["gathered"])
    if patch.why and patch.left_out:
        lines.append(patch.why)
    return lines + [f"without {name}: {why}" for name, why in patch.left_out.items()]


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
        return f"{duration(self.before)} -> {duration(self.after)}"


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
            after = before * saved * ratio
            rows.append(RemovalRow(what, before, after, f"{times(1 / (saved * ratio))} ({low:.3g}-{high:.3g})"))
    busy = device_seconds(measured) if measured.device == "cuda" else None
    if rows and busy:
        rows.append(RemovalRow("all but GPU kernels", step, busy, f"{times(step / busy)} at best"))
    return rows


def removal_range(measured: Measurements, experiment: str) -> tuple[float, float]:
    """Return the least and the greatest speed-up by a removal: of its windows, each next to an unchanged one."""
    if experiment == "data":
        before, after = measured.loop, measured.cached or measured.loop
    else:
        before, after = measured.removed[experiment].as_it_is, measured.removed[experiment].with_fix
    windows = [[middle for _, middle in stretch.by_piece()] for stretch in (before, after)]
    # The first window of the loop has no partner.
    pairs = zip(*(window[-min(map(len, windows)) :] for window in windows), strict=True)
    ratios = [old / new for old, new in pairs if new > 0]
    middle = 1 / (removal_ratio(measured, experiment) or 1.0)
    return min([middle, *ratios]), max([middle, *ratios])


def removal_lines(measured: Measurements) -> list[str]:
    """Return the rows of the experiments as aligned lines."""
    rows = [(row.name, row.change, row.gain) for row in removal_rows(measured)]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    return [f"{name.ljust(widths[0])}   {change.ljust(widths[1])}   {gain}" for name, change, gain in rows]


def percent(share: float) -> str:
    """0.714 as 71 %; small shares keep a digit."""
    if not math.isfinite(share):
        return UNKNOWN
    return f"{share:.1%}".replace("%", " %") if 0 < abs(share) < 0.095 else f"{share:.0%}".replace("%", " %")


def times(ratio: float) -> str:
    """2.168 as 2.17x; large ones with fewer digits."""
    if not math.isfinite(ratio):
        return UNKNOWN
    return f"{ratio:,.0f}x" if ratio >= 100 else f"{ratio:.1f}x" if ratio >= 10 else f"{ratio:.2f}x"


WIDE_RANGE = 1.2  # high over low from which a number is shown with its range


def predicted(step: Advice) -> str:
    """The predicted speed-up: a number, with its range if that is wide; or only a range or a bound; empty if nothing is predicted."""
    low, high = step.predicted_low, step.predicted_high
    number = times(step.predicted) if step.predicted is not None else ""
    if high is None or low is None:
        return number or (f"at most {times(high)}" if high is not None else "")
    if not number:
        return f"{times(low)[:-1]}-{times(high)}"
    return f"{number} ({times(low)[:-1]}-{times(high)[:-1]})" if high > WIDE_RANGE * low else number


def duration(seconds: float | None) -> str:
    """A time, or `UNKNOWN`."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return UNKNOWN
    return readable_seconds(seconds) if seconds > 0 else "0 s"


def size(num_bytes: float | None) -> str:
    """A number of bytes, or `UNKNOWN`."""
    return readable_bytes(num_bytes) if num_bytes is not None and math.isfinite(num_bytes) else UNKNOWN


def count(number: float | None) -> str:
    """A count, which may be a mean."""
    if number is None or not math.isfinite(number):
        return UNKNOWN
    return f"{number:,.0f}" if number == int(number) or abs(number) >= 100 else f"{number:,.1f}"


def flops(number: float | None) -> str:
    """Floating-point operations with an SI prefix."""
    if number is None or not math.isfinite(number):
        return UNKNOWN
    for prefix, thousand in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= thousand:
            return f"{number / thousand:.3g} {prefix}FLOP"
    return f"{number:.3g} FLOP"


# ---- sentences: causes, why there is no verdict, advice, patches and trials ----

CAUSES: dict[Verdict, str] = {
    "straggler": "{share} of each step the other processes wait for rank {slowest}",
    "communication": "{share} of each step is the all-reduce of gradients between {ranks} processes",
    "data": "{share} of each step waits for the loader",
    "transfer": "{share} of each step copies batches to the GPU",
    "sync": "{share} of each step the host waits for the GPU{waits}",
    "host": "{share} of each step is Python code of the training loop",
    "oversubscribed": "{share} of each step {threads}{workers} on {cores} cores wait for each other",
    "launch": "{share} of each step the GPU is idle: {kernels} kernels are issued more slowly than they run",
    "dispatch": "{share} of each step dispatches {ops} operations that are too small",
    "optimizer": "{share} of each step is the optimizer",
    "precision": "{share} of each step would be saved if matmuls were not in float32",
    "compute": "{share} of each step computes matmuls",
    "memory": "{share} of each step moves memory in element-wise operations, reductions and copies",
    "kernel": "{share} of each step is kernels far below the peak of the GPU",
}
CAUSE_IN_LOOP = "{share} of each step builds its batch in the loop"
CAUSE_FLOAT64 = "{share} of each step would be saved in float32: most matmuls are in float64"
CAUSE_KERNEL_ON_CPU = "{share} of each step is operations that are neither matmuls nor memory traffic"

WASTES = ("data", "transfer", "sync", "host", "launch", "oversubscribed", "straggler", "communication")
WHY_FIRST: dict[str, str] = {
    "optimizer": f"an optimizer comes first from {RULE.optimizer_first:.0%} of the work on".replace("%", " %"),
    "dispatch": "operations that are too small come before the work in them",
    **dict.fromkeys(("precision", "compute", "memory", "kernel"), "the work as a whole takes longer than issuing it"),
    **dict.fromkeys(WASTES, "waste comes before work, because it can be removed"),
    "each_step": "what each step loses comes before what some steps lose",
}
"""Why a cause comes before a second one with a larger share."""

QUIET = "run it again while nothing else uses the machine"
NO_VERDICT = {
    "few_steps": f"only {{steps}} measured, and {RULE.min_steps} are needed: let the program run longer",
    "clock": "the clock of this machine gave times that are zero, negative or not finite",
    "mean_off": f"a step takes {{mean}} by the wall clock, but most steps take {{median}}, and it is not known why: {QUIET}",
    "slow_rank_or_all_reduce": "a slow process cannot be distinguished from a slow all-reduce, because the processes did not begin it "
    "together: measure one process alone, too",
    "not_counted": "the program ended before its work could be counted: let it run longer",
    "spread": f"steps vary too much ({{spread}}, from {{low}} to {{high}}): {QUIET}",
    "other_programs_on_gpu": "for {share} of the time other programs had the GPU: run it again while nothing else uses it",
    "other_programs": "for {share} of the time other programs had the cores: run it again while nothing else uses them",
    "rare_once": "one of {steps} steps took {seconds}{at} where others take {others}, and was not seen again, so it is not known how "
    "often it comes: measure for longer (a larger `seconds`)",
    "rare_unknown": "{share} of all time is in 1 of {every} steps, which take {seconds} where others take {others}, but no line of "
    f"their own explains it{{phase}}{{at}}: {QUIET}",
}

ADVICE = {
    "feed": "pack the data to a store and let stoker.Feed make the batches",
    "cached": "make batches once and keep them, if they fit in memory and need not differ between epochs",
    "cached_at": "do the work of {place} once, before the training, and keep the result (at best, batches take no time)",
    "persistent": "keep worker processes from epoch to epoch ({switch})",
    "workers": "{number} worker {processes} instead of {now} ({switch})",
    "pinned": "batches in pinned memory, copied while the GPU works ({switch})",
    "resident": "keep the columns on the GPU (stoker.Feed, device=...)",
    "sync": "keep metrics on the GPU and read them every 50 steps{where}",
    "host": "do less in the loop outside of the step",
    "host_at": "do it less often or outside of the loop: {place}",
    "host_in_callbacks": "do less in callbacks, loggers and hooks, or call them less often: {place}",
    "interpreter": "move it to another process, or to code that releases the interpreter lock, as NumPy and torch do: {place}",
    "host_in_model": "replace Python in the model by operations on whole tensors, or compute it once before the training: {place}",
    "graph": "capture the step as a CUDA graph (stoker.Trainer does it)",
    "graph_of_model": "CUDA graphs of forward and backward, with a fused optimizer; one of the whole step gains more (stoker.Trainer)",
    "compile": "compile the model ({switch})",
    "compile_launch": "compile the model ({switch})",
    "compile_dispatch": "compile the model, which fuses many operations into few ({switch})",
    "compile_memory": "compile the model, which fuses operations on the same memory ({switch})",
    "batch": "double the batch size; gains are in samples per second (this changes the training: check the losses)",
    "fused": "one kernel for all weights: {switch}",
    "malloc": "keep freed memory in the process ({environment}): {pages} pages per step are requested from the system again",
    "threads": "torch.set_num_threads({best}) instead of {now}, or OMP_NUM_THREADS={best}",
    "tf32": "compute float32 matmuls in TF32 ({switch})",
    "autocast": "compute in bfloat16 ({switch})",
    "balance": "find what rank {slowest} does that others do not, or give it less work: `stoker diagnose` of that process alone shows it",
    "exchange": "all-reduce less: gradients of several batches at once (no_sync), in bfloat16 (a DDP communication hook), larger batches",
    "rare_data": "read the data of the next batches before they are needed: worker processes, or stoker.Feed{where}",
    "rare_between_epochs": "do less between epochs: validate and save less often, on fewer samples, or parallel to the training{where}",
    "rare": "do it less often, or in another thread{where}",
    "rare_compile": "compile once for all shapes (torch.compile(dynamic=True)), or pad batches to a few lengths{where}",
    "rare_model": "find out what slows down some steps of the model{where}",
    "sparse": "sparse gradients for the embedding (nn.Embedding(..., sparse=True) with SGD or SparseAdam): a step uses at most {used} of "
    "{rows} rows, and all get a gradient and an update",
    "float32": "compute in float32 instead of float64 (arrays of NumPy are float64 unless converted: .float(), dtype=np.float32)",
    "sdpa": "attention that does not return its weights (need_weights=False)",
    "cudnn": "let cuDNN choose among its convolutions (torch.backends.cudnn.benchmark = True)",
}
IN_CODE = {
    "persistent": "persistent_workers=True, one DataLoader for all epochs",
    "workers": "num_workers={value}",
    "pinned": "pin_memory=True, .to(device, non_blocking=True)",
    "compile": "torch.compile",
    "compile_launch": "torch.compile, mode='reduce-overhead'",
    "compile_dispatch": "torch.compile",
    "compile_memory": "torch.compile",
    "fused": "{optimizer}(..., fused=True)",
    "tf32": "torch.set_float32_matmul_precision('high')",
    "autocast": "torch.autocast",
}
"""The `{switch}` of an advice, where the framework that runs the loop has none."""
BESIDES = {"sync": "reads", "host": "callbacks"}
"""The switch of a framework that is named after an advice on the user's own code."""
PATCH = {
    "no_advice": "no fix is advised",
    "not_measured": "no step was measured, so no fix could be compared: {why}",
    "no_verdict": "without a verdict, fixes of the likely cause and some that fit most programs were tried, each measured",
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
    "baseline_failed": "the baseline could not be measured: {error}",
    "ended": "the program ended before it could be compared",
    "varies": "times vary too much for one number: it is between {low:.2g} and {high:.2g} times faster",
    "speed_changed": "a baseline step took {before:,.3g} ms when it was diagnosed, and {after:,.3g} ms when fixes were tried: the machine "
    "has changed its speed, and predictions are of the speed before.",
}


def cause(name: Verdict, share: float, measured: Measurements) -> str:
    """The sentence of a cause, with its numbers."""
    work, machine, ranks = measured.work, measured.machine, measured.ranks
    sentence = CAUSES[name]
    step = measured.loop.median
    for removal in EXPERIMENTS_ON.get(name, ()):
        ratio = removal_ratio(measured, removal)
        if not ratio or abs(1 - ratio - share) > RULE.same_share:
            continue
        changed = f"a step takes {duration(step * ratio)} instead of {duration(step)} ({times(1 / ratio)})"
        return f"without {REMOVALS[removal]}, {changed}"
    if name == "data" and measured.loader.kind == "loop":
        sentence = CAUSE_IN_LOOP
    if name == "precision" and measured.precision == "fp64":
        sentence = CAUSE_FLOAT64
    if name == "kernel" and measured.device == "cpu":
        sentence = CAUSE_KERNEL_ON_CPU
    waits = sum(sync.count for sync in measured.syncs)
    return sentence.format(
        share=percent(share),
        slowest=max(ranks, key=lambda one: one.apart_seconds).rank if ranks else 0,
        ranks=len(ranks),
        waits=f", {waits:,.0f} times per step" if waits else "",
        threads=_threads(machine.threads),
        workers=_and_workers(measured),
        cores=machine.cores,
        kernels=f"{work.kernels:,.0f}" if work is not None and work.kernels else "its",
        ops=f"{work.ops:,.0f}" if work is not None and work.ops else "its",
    )


def cause_of_rare_steps(rare: RareSteps) -> str:
    """The sentence of rare steps as the first cause."""
    every = f"{rare.every:,.0f}" if rare.every is not None else "many"
    at = f", {rare.place.file}:{rare.place.line} `{rare.place.function}`" if rare.place is not None else ""
    where = f"passes between epochs, each of {every} steps" if rare.between_epochs else f"is in 1 of {every} steps"
    where = "is in each step" if rare.every == 1 and not rare.between_epochs else where
    where += ", in which torch.compile compiles again" if rare.recompiles else ""
    return f"{percent(rare.share)} of all time {where}{at}"


def why_first(causes: list[Cause]) -> str:
    """Return why the first cause comes before a second one with a larger share; empty if it does not."""
    if len(causes) < 2:
        return ""
    first, second = causes[:2]
    if percent(second.share) == percent(first.share) or second.share <= first.share:
        return ""
    return WHY_FIRST.get("each_step" if first.verdict in WASTES and second.verdict in WASTES else first.verdict, "")


def no_verdict(reason: str, **numbers: str) -> str:
    """Why there is no verdict."""
    return NO_VERDICT[reason].format(**numbers)


def no_verdict_of_rare_steps(reason: str, rare: RareSteps, **numbers: str) -> str:
    """Why rare steps are not the verdict though they have much of the time."""
    return no_verdict(
        reason,
        seconds=duration(rare.seconds),
        others=duration(rare.others),
        share=percent(rare.share),
        every=f"{rare.every:,.0f}" if rare.every is not None else "many",
        at=f" at {rare.place}" if rare.place is not None else "",
        phase=f" in the phase `{rare.phase}`" if rare.phase is not None else "",
        **numbers,
    )


def advice(name: str, *, framework: str | None = None, value: int | None = None, **numbers: object) -> str:
    """The sentence of an advice; with the switch of the framework that runs the loop, where it has one."""
    numbers["value"] = value
    switch = switch_sentence(framework, name.partition("_")[0], value) or IN_CODE.get(name, "").format(**numbers)
    sentence = ADVICE[name].format(switch=switch, **numbers)
    # What the framework does itself comes besides the lines of the user.
    besides = switch_sentence(framework, BESIDES.get(name, ""))
    return f"{sentence}; or {besides}" if besides is not None else sentence


def evidence(verdict: Verdict, place: SourceLine | None, measured: Measurements, division: Division) -> str:
    """The evidence of a verdict: its numbers, and the user's line."""
    numbers = _evidence(verdict, measured, division)
    return f"{place}: {numbers}" if place is not None else numbers


def _evidence(verdict: Verdict, measured: Measurements, division: Division) -> str:
    work, machine, step = measured.work, measured.machine, duration(division.step)
    device = seconds_of(measured.device_alone) or measured.loop.median
    if verdict == "data":
        return _evidence_of_data(measured, division)
    if verdict == "transfer":
        text = f"copies take {duration(division.seconds('transfer'))} of a step of {step}"
        if work is not None and work.h2d_bytes:
            text += f", for {readable_bytes(work.h2d_bytes)} in {count(work.h2d_copies)} copies"
        return text + ("; memory is not pinned" if not measured.loader.pinned else "")
    if verdict == "sync":
        number = sum(sync.count for sync in measured.syncs)
        often = f"{count(number)} values per step" if number else "values"
        return f"the host reads {often} from the GPU and waits for them; a step takes {step}, its kernels {duration(device)}"
    if verdict == "host":
        thread, rest = holding_thread(measured, division), scaled_phases(measured, division.step).rest
        if thread is not None:
            waited = duration(interpreter_seconds(measured, division.step))
            held = f"thread {thread.name} computes in Python for {percent(thread.share)} of the time and holds the interpreter lock"
            return f"{held}, for which the loop waits {waited} of a step of {step}"
        where = f", {duration(rest)} of it after the step of the optimizer" if rest > 0 else ""
        return f"{duration(division.seconds('host'))} of a step of {step} is neither data nor operations of torch{where}"
    if verdict == "oversubscribed":
        text, by_threads = f"{_threads(machine.threads)}{_and_workers(measured)} on {machine.cores} cores", measured.fewer_threads
        best = min(by_threads, key=lambda number: by_threads[number], default=None)
        cached = seconds_of(measured.cached)
        if measured.loader.workers and cached is not None and best in (None, str(machine.threads)):
            text += f"; a step takes {step} while workers run, and {duration(cached)} on cached batches"
        elif best is not None:
            now = by_threads.get(str(machine.threads)) or seconds_of(measured.cached) or division.step
            text += f"; with {best} a step without its data takes {duration(by_threads[best])}, not {duration(now)}"
        return text
    if verdict == "launch":
        kernels = f"{work.kernels:,.0f} kernels" if work is not None and work.kernels else "the kernels"
        left = duration(division.step - division.seconds("data", "transfer", "sync"))
        return f"the host takes {left} to issue {kernels} of a step, and the GPU {duration(device)} to run them"
    if verdict == "dispatch":
        ops, each = work.ops if work is not None else 0.0, duration(machine.dispatch_seconds)
        spent = f"({duration(division.seconds('dispatch'))} of {step})"
        counted = f"{ops:,.0f} operations per step, each of which costs" if ops else "each operation costs"
        by_batch = gain_of(measured.what_ifs.get("batch"))
        larger = f"; a step of twice the batch takes {times(1 - by_batch)} as long" if by_batch is not None else ""
        return f"{counted} at least {each} however small it is {spent}{larger}"
    if verdict in ("straggler", "communication"):
        slowest = sorted(measured.ranks, key=lambda one: -one.apart_seconds)[:4]
        own = ", ".join(f"rank {one.rank} {duration(one.apart_seconds)}" for one in slowest)
        return f"a step takes {step} in all processes, and without the all-reduce between them: {own}"
    if verdict == "optimizer":
        kind = " (not fused)" if measured.optimizer_fused is False else ""
        text = f"{measured.optimizer or 'the optimizer'}{kind} takes {duration(division.seconds('optimizer'))} of a step of {step}"
        return "; ".join([text, *_evidence_of_pages(measured)])
    return _evidence_of_work(measured, device if measured.device == "cuda" else division.step, step)


def evidence_of_rare_steps(rare: RareSteps) -> str:
    """What takes the time, where it is called, and what other steps take."""
    at = f"{rare.place}" if rare.place is not None else ""
    if rare.called is not None:
        at += f", called in {rare.called.file}:{rare.called.line}"
    at += ": " if at else ""
    if rare.every == 1 and not rare.between_epochs:
        return (
            f"{at}a step takes {duration(rare.seconds)}, and {duration(rare.others)} with a batch of a shape that was seen before"
        )
    every = f"{rare.every:,.0f} steps" if rare.every is not None else "some steps"
    took = f"{duration(rare.seconds)} pass after each epoch of {every}" if rare.between_epochs else None
    took = took or f"1 of {every} takes {duration(rare.seconds)}"
    return f"{at}{took}, the others {duration(rare.others)} each"


def _evidence_of_data(measured: Measurements, division: Division) -> str:
    loader, parts, cached = measured.loader, list[str](), seconds_of(measured.cached)
    if loader.functions:
        parts.append(f"{percent(loader.functions[0].share)} of the loader's time")
    starting = measured.between_epochs.get("loader", 0.0)
    if starting >= RULE.mention:
        parts.append(f"{percent(starting)} of the time passes between epochs until it gives batches again")
    if cached is None or not parts:  # else the verdict says it
        parts.append(f"a batch takes {duration(division.seconds('data'))} of a step of {duration(division.step)}")
    return "; ".join(parts)


def _evidence_of_work(measured: Measurements, busy: float, step: str) -> str:
    work = measured.work
    if work is None:
        return f"a step takes {step}"
    parts = []
    if work.shares:
        kinds = sorted(work.shares, key=lambda kind: -work.shares[kind])[:3]
        listed = ", ".join(f"{KINDS.get(kind, kind)} {percent(work.shares[kind])}" for kind in kinds)
        parts.append(f"{listed} of the time of operations")
    if work.flops and busy > 0 and flops_seconds(measured) > 0:
        reached = percent(min(1.0, flops_seconds(measured) / busy))
        parts.append(f"{reached} of the {measured.precision} peak that this machine was measured to reach")
    parts.append(f"{work.ops:,.0f} operations in {duration(busy)}")
    return "; ".join([*parts, *_evidence_of_pages(measured)])


def _evidence_of_pages(measured: Measurements) -> list[str]:
    """The share of a step that gets memory from the system again, if it is worth mentioning."""
    seconds = measured.for_pages("loop")
    share = sum(seconds) / len(seconds) / measured.loop.median if seconds else 0.0
    if share < RULE.mention:
        return []
    return [f"about {percent(min(share, 1.0))} of a step gets memory from the system that was freed before"]


def _threads(number: int) -> str:
    return "1 thread" if number == 1 else f"{number} threads"


def _and_workers(measured: Measurements) -> str:
    workers = measured.loader.workers
    return f" and {workers} worker{'s' if workers > 1 else ''}" if workers else ""
