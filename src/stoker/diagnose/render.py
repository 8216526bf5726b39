"""The words of a finding: names and numbers as people read them, the same on a terminal and in a report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from stoker._text import printable, readable_bytes, readable_seconds
from stoker.diagnose.measurements import Finding, Loader, Machine, Measurements, Place, Reads, Step, Stretch, Tried, WhatIf, Work

if TYPE_CHECKING:
    from rich.console import Console

UNKNOWN = "unknown"
TITLES = {
    "data": "data-bound",
    "transfer": "transfer-bound",
    "sync": "sync-bound",
    "host": "host-bound",
    "launch": "launch-bound",
    "optimizer": "optimizer-bound",
    "compute": "compute-bound",
    "precision": "precision-bound",
    "memory": "memory-bound",
    "kernel": "kernel-bound",
    "dispatch": "dispatch-bound",
    "oversubscribed": "oversubscribed",
    "straggler": "held by a straggler",
    "communication": "communication-bound",
    "none": "NO VERDICT",
}
"""What each verdict is called."""
SAME = 1.005
"""A rung less than this times the one below it is not told: nothing is to be won there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """One rung of the ladder."""

    name: str
    rate: float
    gain: float
    """Times the rung before it; 1 for the first."""


def headline(finding: Finding) -> str:
    """The verdict in one sentence; why there is none where there is none."""
    title = TITLES.get(finding.verdict, finding.verdict)
    told = finding.causes[0].sentence if finding.causes else finding.why
    return f"{title}: {told}" if told else title


def certainty(finding: Finding) -> str:
    """How sure it is."""
    sure = "" if finding.verdict == "none" else f"confidence {finding.confidence}, "
    return f"{sure}spread {percent(finding.spread)}"


def place_beside(finding: Finding) -> Place | None:
    """The line to look at, where `why` does not name it."""
    place = finding.place
    return None if place is None or f"{place.file}:{place.line}" in finding.why else place


def rungs(finding: Finding) -> list[Rung]:
    """The ladder from below, without the rungs at which nothing is won and those without a number."""
    found: list[Rung] = []
    for name, rate in finding.ladder.items():
        if not (math.isfinite(rate) and rate > 0):
            continue
        gain = rate / found[-1].rate if found else 1.0
        if not found or gain >= SAME:
            found.append(Rung(name=name.replace("_", " "), rate=rate, gain=gain))
    return found


def outcome(tried: Tried) -> str:
    """What a try came to, in a few words."""
    if tried.error is not None:
        return f"could not be tried: {tried.error}"
    return f"tried {interval(tried)}   {losses(tried)}"


def interval(tried: Tried) -> str:
    """The speed-up of a try with its interval: 2.11x (2.02-2.20)."""
    return f"{times(tried.speedup)} ({times(tried.low)}-{times(tried.high)})".replace("x-", "-").replace("x)", ")")


def losses(tried: Tried) -> str:
    """How the losses of a try compare."""
    difference = tried.largest_difference
    if difference is None or not math.isfinite(difference) or tried.losses in ("equal", "not compared"):
        return f"losses {tried.losses}"
    return f"losses equal to {difference:.1g}" if tried.losses == "within tolerance" else f"losses changed by {percent(difference)}"


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


def predicted(step: Step) -> str:
    """What is predicted: a number, or a range where no number is sure enough; nothing where nothing is known."""
    if step.predicted is not None:
        return times(step.predicted)
    if step.predicted_high is None:
        return ""
    return f"{f'{step.predicted_low:.2f}-' if step.predicted_low is not None else 'at most '}{times(step.predicted_high)}"


def per_second(rate: float) -> str:
    """A rate without its unit: 2,900, 74, 7.4, 0.42."""
    if not math.isfinite(rate):
        return UNKNOWN
    return f"{rate:,.0f}" if rate >= 20 else f"{rate:.3g}" if rate < 1 else f"{rate:.1f}"


def duration(seconds: float | None) -> str:
    """A time, or that it is unknown."""
    return readable_seconds(seconds) if seconds is not None and math.isfinite(seconds) and seconds > 0 else _empty(seconds)


def size(num_bytes: float | None) -> str:
    """A number of bytes, or that it is unknown."""
    return readable_bytes(num_bytes) if num_bytes is not None and math.isfinite(num_bytes) else UNKNOWN


def count(number: float | None) -> str:
    """A count, which may be a mean."""
    if number is None or not math.isfinite(number):
        return UNKNOWN
    return f"{number:,.0f}" if number == int(number) or abs(number) >= 100 else f"{number:,.1f}"


def flops(number: float | None, unit: str = "FLOP") -> str:
    """Floating-point operations with the fitting thousand."""
    if number is None or not math.isfinite(number):
        return UNKNOWN
    for prefix, thousand in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= thousand:
            return f"{number / thousand:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}"


def _empty(seconds: float | None) -> str:
    return "0" if seconds == 0 else UNKNOWN


# The pictures of a report as numbers: bars with a beginning and a length in percent of the width, and what each is called.
#
# Bars are drawn in percent, so a picture is as wide as the page and its letters keep their size.

HOST_PHASES = ("next", "prepare", "forward", "backward", "optimizer", "rest")
PHASE_TITLES = {
    "next": "wait for a batch",
    "prepare": "prepare the batch",
    "forward": "forward and loss",
    "backward": "backward",
    "optimizer": "optimizer",
    "rest": "rest of the loop",
}
COLOURS = {
    **{name: f"c{number}" for number, name in enumerate(HOST_PHASES)},
    **{name: f"c{number}" for number, name in enumerate(("read", "decode", "transform", "collate", "other"))},
}
"""The class of a bar's colour in the page's style, which has one for light and one for dark."""
NUM_COLOURS = 6
LARGEST_TRY = 1.05
"""The scale of tries ends this much behind the largest of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One bar; `start` and `length` are percent of the picture's width."""

    name: str
    value: str
    share: str
    colour: str
    start: float
    length: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Left:
    """What is left of a step at one rung of the ladder, and what has gone since the rung before."""

    name: str
    rate: str
    time: str
    gain: str
    left: float
    gone: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Try:
    """One thing to do next, with a bar for what was predicted and one for what was measured."""

    step: Step
    predicted: float | None
    foreseen: str
    """What is predicted, in words: a range where there is no number."""
    measured: float | None
    low: float
    high: float
    told: str
    losses: str
    peak: str


def ladder(finding: Finding) -> list[Left]:
    """The rungs as times of a step: of the first, all is left."""
    steps = rungs(finding)
    longest = 1 / steps[0].rate if steps else 1.0
    drawn: list[Left] = []
    before = 100.0
    for rung in steps:
        left = percent_of(1 / rung.rate, longest)
        drawn.append(
            Left(
                name=rung.name,
                rate=per_second(rung.rate),
                time=duration(1 / rung.rate),
                gain=times(rung.gain) if drawn else "",
                left=left,
                gone=max(0.0, before - left),
            )
        )
        before = left
    return drawn


def host(measured: Measurements) -> list[Bar]:
    """The phases of a step as the host lives through them, one behind the other."""
    return row(msgspec.structs.asdict(measured.phases), titles=PHASE_TITLES)


def device(measured: Measurements) -> list[Bar]:
    """The work of the device in the same step, each phase as early as the host can have issued it and ending within the step.

    Only lengths are measured. Where the device has more to do than the step is long, there is no gap.
    """
    total = _total(measured)
    lengths = {name: value for name, value in measured.device_phases.items() if _positive(value)}
    begins = {bar.colour: bar.start for bar in host(measured)}
    scale = max(total, sum(lengths.values()))
    left = percent_of(sum(lengths.values()), scale)
    bars, position = [], 0.0
    for number, (name, value) in enumerate(lengths.items()):
        length = percent_of(value, scale)
        position = min(max(position, begins.get(COLOURS.get(name, ""), 0.0)), 100.0 - left)
        bars.append(
            Bar(
                name=PHASE_TITLES.get(name, name),
                value=duration(value),
                share=percent(value / total) if total else UNKNOWN,
                colour=_colour(name, number),
                start=min(position, 100.0),  # sums of shares round above it
                length=length,
            )
        )
        position, left = position + length, left - length
    return bars


def row(lengths: Mapping[str, float], *, titles: Mapping[str, str] | None = None, are_shares: bool = False) -> list[Bar]:
    """Bars one behind the other that fill the width together."""
    known = {name: value for name, value in lengths.items() if _positive(value)}
    total = sum(known.values())
    bars, position = [], 0.0
    for number, (name, value) in enumerate(known.items()):
        length = percent_of(value, total)
        bars.append(
            Bar(
                name=(titles or {}).get(name, name),
                value="" if are_shares else duration(value),
                share=percent(value / total),
                colour=_colour(name, number),
                start=min(position, 100.0),
                length=length,
            )
        )
        position += length
    return bars


def tries(steps: Iterable[Step]) -> tuple[list[Try], float]:
    """What is next with its bars, and where on their scale 1x lies."""
    steps = list(steps)
    numbers = [1.0]
    for step in steps:
        numbers += [step.predicted or 0.0, *((step.tried.speedup, step.tried.high) if step.tried else ())]
    largest = LARGEST_TRY * max(number for number in numbers if math.isfinite(number))
    return [_try(step, largest) for step in steps], percent_of(1.0, largest)


def _try(step: Step, largest: float) -> Try:
    tried = step.tried if step.tried is not None and step.tried.error is None else None
    low, high = (percent_of(tried.low, largest), percent_of(tried.high, largest)) if tried else (0.0, 0.0)
    return Try(
        step=step,
        predicted=percent_of(step.predicted, largest) if step.predicted is not None else None,
        foreseen=predicted(step),
        measured=percent_of(tried.speedup, largest) if tried else None,
        low=low,
        high=max(low, high),
        told=interval(tried) if tried else "",
        losses=losses(tried) if tried else "",
        peak=size(tried.peak_bytes) if tried and tried.peak_bytes is not None else "",
    )


def percent_of(value: float, whole: float) -> float:
    """A value as percent of a whole, between 0 and 100 whatever it is."""
    share = value / whole if _positive(whole) and math.isfinite(value) else 0.0
    return 100 * min(max(share, 0.0), 1.0)


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _total(measured: Measurements) -> float:
    phases: dict[str, float] = msgspec.structs.asdict(measured.phases)
    return sum(value for value in phases.values() if _positive(value))


def _colour(name: str, number: int) -> str:
    return COLOURS.get(name, f"c{number % NUM_COLOURS}")


# The numbers of a report as tables: all that was measured, as texts, so that whoever doubts a verdict can follow it.

YES_NO = {True: "yes", False: "no", None: UNKNOWN}


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A title, the heads of columns (empty for facts: a name and a value), and rows."""

    title: str
    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]
    texts: int = 1
    """How many of the columns, from the left, are words; the others hold numbers."""

    @property
    def is_facts(self) -> bool:
        """Whether each row is a name and a value."""
        return not any(self.heads)


def of_measurements(measured: Measurements) -> list[Table]:
    """Every table that has rows."""
    tables = [
        Table(title="Stretches of steps", heads=("", "what ran", "a step", "spread", "steps"), rows=_stretches(measured), texts=2),
        Table(title="The program", heads=("", ""), rows=list(_program(measured)), texts=2),
        Table(title="The work of a step", heads=("", ""), rows=list(_work(measured.work)) if measured.work else [], texts=2),
        Table(
            title="Where the host waits for the device",
            heads=("place", "times a step"),
            rows=[(str(sync.place) if sync.place else UNKNOWN, count(sync.count)) for sync in measured.syncs],
        ),
        Table(
            title="Lines of the program, with what they call",
            heads=("phase", "line", "of the phase"),
            rows=[
                (PHASE_TITLES.get(phase, phase), str(blame.place), percent(blame.share))
                for phase, blames in measured.blames.items()
                for blame in blames
            ],
            texts=2,
        ),
        Table(
            title="A cached step by the number of threads",
            heads=("threads", "a step"),
            rows=[(threads, duration(seconds)) for threads, seconds in measured.fewer_threads.items()],
        ),
        Table(
            title="Steps with a fix switched on, in turn with steps as they are",
            heads=("fix", "as it is", "with it", "times faster"),
            rows=[(name, *_what_if(one)) for name, one in measured.what_ifs.items()],
        ),
        Table(
            title="The processes that train together",
            heads=("rank", "a step", "without the others"),
            rows=[(f"{one.rank}", duration(one.step_seconds), duration(one.apart_seconds)) for one in measured.ranks],
        ),
    ]
    return [table for table in tables if table.rows]


def of_machine(machine: Machine) -> Table:
    """Rates of the machine."""
    rows: list[tuple[str, ...]] = [
        ("graphics card", machine.gpu or "none"),
        ("cores, and threads of torch", f"{machine.cores:,}, {machine.threads:,}"),
        ("copy in memory", f"{size(machine.memcpy_bytes)}/s"),
        *((f"matrix product, {kind}", flops(rate, "FLOP/s")) for kind, rate in machine.matmul_flops.items()),
        ("one small operation", duration(machine.dispatch_seconds)),
    ]
    if machine.launch_seconds is not None:
        rows.append(("one launch of a kernel", duration(machine.launch_seconds)))
    rates = (
        ("to the device, pageable", machine.h2d_pageable_bytes),
        ("to the device, pinned", machine.h2d_pinned_bytes),
        ("disk", machine.disk_bytes),
    )
    rows += [(name, f"{size(rate)}/s") for name, rate in rates if rate is not None]
    return Table(title="The machine", heads=("", ""), rows=rows, texts=2)


def of_loader(loader: Loader) -> Table:
    """What is known of where batches come from."""
    return Table(title="The loader", heads=("", ""), rows=list(_loader(loader)), texts=2)


def _loader(loader: Loader) -> Iterator[tuple[str, str]]:
    yield "kind", loader.kind
    if loader.dataset is not None:
        yield "data set", loader.dataset
    if loader.place is not None:
        yield "read by", str(loader.place)
    yield "worker processes", f"{loader.workers:,}"
    if loader.batch_size is not None:
        yield "batch size", f"{loader.batch_size:,}"
    if loader.pinned is not None:
        yield "pinned memory", YES_NO[loader.pinned]
    if loader.bytes_read is not None:
        yield "read from files a step", size(loader.bytes_read)
    if loader.bytes_used is not None:
        yield "used by the model a step", size(loader.bytes_used)
    if loader.bytes_read is not None and loader.bytes_used and loader.bytes_read >= loader.bytes_used:
        yield "read for each byte used", count(loader.bytes_read / loader.bytes_used)
    if loader.reads is not None:
        yield from _reads(loader.reads)
    if loader.startup_seconds is not None:
        yield "until the first batch", duration(loader.startup_seconds)


def _reads(reads: Reads) -> Iterator[tuple[str, str]]:
    if reads.cache_hits is not None:
        yield "samples that read no file", percent(reads.cache_hits)
    if reads.reads_a_file is not None:
        yield "files that a worker read", f"{reads.files:,} for {reads.batches:,} batches"
        yield "reads of each of them", count(reads.reads_a_file)
    if reads.bytes_read and reads.bytes_from_disk is not None:
        yield "bytes in the system's cache", percent(max(0.0, 1 - reads.bytes_from_disk / reads.bytes_read))
    elif reads.bytes_from_disk:
        yield "from the disk a batch", size(reads.bytes_from_disk)


def _stretches(measured: Measurements) -> list[tuple[str, ...]]:
    told: tuple[tuple[str, str, Stretch | None], ...] = (
        ("T", "the loop as it is", measured.loop),
        ("C", "the loop with cached batches", measured.cached),
        ("D", "the loader alone", measured.loader_alone),
        ("X", "copies to the device alone", measured.copies_alone),
        ("H", "the host issuing a step", measured.host_issue),
        ("G", "the device alone", measured.device_alone),
    )
    return [
        (letter, what, duration(stretch.median), percent(stretch.spread), f"{len(stretch.seconds):,}")
        for letter, what, stretch in told
        if stretch is not None and stretch.seconds
    ]


def _what_if(found: WhatIf) -> tuple[str, str, str]:
    before, after = found.as_it_is.median, found.with_fix.median
    return duration(before), duration(after), times(before / after if after else math.nan)


def _program(measured: Measurements) -> Iterator[tuple[str, str]]:
    yield "device", measured.device
    yield "steps seen", f"{measured.steps_seen:,}"
    yield "steps over three times the median", f"{measured.slow_steps:,}"
    if measured.waited_for_cores is not None:
        yield "time in which other programs had its cores", percent(measured.waited_for_cores)
    yield "precision of most products", measured.precision
    if measured.optimizer is not None:
        yield "optimizer", measured.optimizer
    if measured.optimizer_fused is not None:
        yield "optimizer is fused", YES_NO[measured.optimizer_fused]
    yield "compiled", YES_NO[measured.compiled]
    if measured.blocked_under_sleep is not None:
        yield "issuing waits for the device", YES_NO[measured.blocked_under_sleep]
    if measured.losses:
        yield "first losses", ", ".join(f"{loss:.4g}" for loss in measured.losses[:5])


def _work(work: Work) -> Iterator[tuple[str, str]]:
    yield "operations", count(work.ops)
    if work.kernels is not None:
        yield "kernels", count(work.kernels)
    yield "arithmetic", flops(work.flops)
    if work.flops_by_dtype:
        yield "arithmetic by type", _listed({kind: flops(number) for kind, number in work.flops_by_dtype.items()})
    if work.h2d_copies:
        yield "copied to the device", f"{size(work.h2d_bytes)} in {count(work.h2d_copies)} copies"
    if work.peak_bytes is not None:
        yield "most memory of the device", size(work.peak_bytes)
    if work.shares:
        yield "time by kind", _listed({kind: percent(share) for kind, share in work.shares.items()})


def _listed(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


# A finding on a terminal: VERDICT, WHY, NEXT and what is wrong with the batches, each in a few lines.
#
# On a terminal, lines are folded at its width; in a pipe or a log each thing stays on its line. Names of the user's are shown,
# never
# obeyed.

LABEL_WIDTH = 9
NARROWEST = 40
MOST_NOTES = 6
WIDEST_HEAD = 60
"""Of what to do next, with its numbers beside it."""
ALARMING = "bold red"


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line before it is folded; only the first of a part has a label."""

    label: str = ""
    text: str
    style: str = ""
    hang: int = 0
    """By how much its second line is moved to the right."""


def show(finding: Finding, console: Console | None = None) -> None:
    """Print a finding, with colours where they are seen."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False) if console is None else console
    width = max(NARROWEST, console.width) if console.is_terminal else None
    for line in _folded(finding, width):
        label = Text(line.label.ljust(LABEL_WIDTH), style="bold")
        console.print(label + Text(line.text, style=line.style), soft_wrap=True)


def text(finding: Finding, *, width: int | None = None) -> str:
    """The finding as plain text; without a width nothing is folded."""
    return "".join(f"{line.label.ljust(LABEL_WIDTH)}{line.text}".rstrip() + "\n" for line in _folded(finding, width))


def _folded(finding: Finding, width: int | None) -> Iterator[Line]:
    from rich.console import Console
    from rich.text import Text

    room = None if width is None else width - LABEL_WIDTH
    for line in _lines(finding, room):
        if room is None:
            yield line
            continue
        # Rich folds by the cells that letters take, of which some take two.
        folder = Console(width=room, highlight=False)
        first, *rest = Text(line.text).wrap(folder, room, overflow="fold", no_wrap=False) or [Text()]
        yield Line(label=line.label, text=first.plain.rstrip(), style=line.style)
        if rest:
            left = line.text[len(first.plain) :].lstrip()
            for more in Text(left).wrap(folder, room - line.hang, overflow="fold", no_wrap=False):
                yield Line(text=" " * line.hang + more.plain.rstrip(), style=line.style)


def _lines(finding: Finding, room: int | None) -> Iterator[Line]:
    """All lines, in order."""
    style = "bold yellow" if finding.verdict == "none" else "bold green"
    yield _line("VERDICT", headline(finding), style=style)
    second = finding.second
    then = f"; then {TITLES.get(second.verdict, second.verdict)}, {percent(second.share)}" if second is not None else ""
    yield _line("", f"({certainty(finding)}{then})", style="dim")
    if finding.verdict != "none":
        yield _line("WHY", finding.why)
    place = place_beside(finding)
    if place is not None:
        yield _line("", f"at {place}")
    if finding.ladder:
        yield from _ladder(finding, room)
    yield from _next(finding.next, room)
    for number, wrong in enumerate(finding.correctness):
        yield _line("" if number else "WRONG", wrong, style=ALARMING)
    notes = finding.measurements.notes if finding.measurements is not None else []
    for number, note in enumerate(notes[:MOST_NOTES]):
        yield _line("" if number else "NOTE", note, style="dim")
    if len(notes) > MOST_NOTES:
        yield _line("", f"… and {len(notes) - MOST_NOTES} more notes", style="dim")


def _line(label: str, text: str, *, style: str = "", hang: int = 0) -> Line:
    return Line(label=label, text=printable(text), style=style, hang=hang)


def _ladder(finding: Finding, room: int | None) -> Iterator[Line]:
    """The rungs in a line, cut between rungs where it is too long."""
    told = [f"{rung.name} {per_second(rung.rate)}" for rung in rungs(finding)]
    if not told:
        return
    told[0] += " it/s"
    row = told[0]
    for rung in told[1:]:
        if room is not None and len(row) + len(rung) + 4 > room:
            yield _line("", row, style="cyan")
            row = f"  -> {rung}"
        else:
            row += f" -> {rung}"
    yield _line("", row, style="cyan")


def _next(steps: list[Step], room: int | None) -> Iterator[Line]:
    """What to do, with what was predicted and tried: beside it where all fit, else below it."""
    heads = [printable(f"{number}. {step.sentence}") for number, step in enumerate(steps, 1)]
    tails = [printable(_numbers(step)) for step in steps]
    widest = max(map(len, heads), default=0)
    fits = room is None or widest + 3 + max(map(len, tails), default=0) <= room
    beside = fits and widest <= WIDEST_HEAD
    for number, (head, tail, step) in enumerate(zip(heads, tails, steps, strict=True)):
        changed = step.tried is not None and step.tried.losses == "changed"
        label, style = "" if number else "NEXT", ALARMING if changed else ""
        if beside:
            yield Line(label=label, text=f"{head.ljust(widest)}   {tail}".rstrip(), style=style)
            continue
        yield Line(label=label, text=head, hang=3)
        if tail:
            yield Line(text=f"   {tail}", hang=3, style=style or "cyan")


def _numbers(step: Step) -> str:
    told = [f"predicted {predicted(step)}"] if predicted(step) else []
    if step.tried is not None:
        told.append(outcome(step.tried))
    return "   ".join(told)
