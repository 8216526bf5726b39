"""The report: a finding as one HTML file, which needs nothing beside it and holds no script.

Whatever a program, a path or an error is called, it is shown as text: all markup is in the template, Jinja escapes every value,
control characters are written as escapes, and a policy in the page forbids scripts and requests. `write_report` writes the page;
below it are its bars and its tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import stoker
from stoker._disk import write_file
from stoker._text import printable
from stoker.diagnose.measurements import Advice, Finding, Loader, Machine, Measurements, Reads, Stretch, WhatIf, Work
from stoker.diagnose.render import (
    TITLES,
    UNKNOWN,
    certainty,
    count,
    duration,
    flops,
    interval,
    ladder_levels,
    losses,
    per_second,
    percent,
    place_beside,
    predicted,
    size,
    times,
)
from stoker.errors import OptionError

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATE = "report.html.jinja"
SUFFIX = ".html"
MOST_CAUSES = 4


def check_path(path: Path) -> Path:
    """The path of a report, refused before anything is measured if it cannot be written."""
    if path.suffix != SUFFIX:
        raise OptionError(f"{path} has the ending {path.suffix!r}; a report is a file that ends in {SUFFIX}.")
    if not path.parent.is_dir():
        raise OptionError(f"{path.parent} is not a folder, so the report {path.name} cannot be written there. Make it first.")
    return path


def write_report(finding: Finding, path: str | Path, *, title: str) -> Path:
    """Write the report of a finding; `title` says what was diagnosed, such as the command."""
    path = check_path(Path(path))
    write_file(path, render(finding, title=title).encode(), durable=False)
    return path


def render(finding: Finding, *, title: str, environment: Environment | None = None) -> str:
    """The page; the same finding gives the same bytes."""
    template = (environment or make_environment()).get_template(TEMPLATE)
    return template.render(title=title, **_values(finding))


@cache
def make_environment() -> Environment:
    """The environment of the template: every value is escaped, and one that is missing is an error."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    folder = resources.files("stoker.diagnose")
    return Environment(
        loader=FunctionLoader(lambda name: folder.joinpath(name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _finalize(value: Any) -> Any:
    """A value as it stands in the page, before it is escaped."""
    from markupsafe import Markup

    if isinstance(value, Markup):  # the output of a macro, whose values have been here before
        return value
    return f"{value:.2f}" if isinstance(value, float) else printable(str(value))


def _values(finding: Finding) -> dict[str, Any]:
    """All that the template shows."""
    measured = finding.measurements
    trials, one = trial_bars(finding.next)
    return {
        "version": stoker.__version__,
        "finding": finding,
        "verdict": TITLES.get(finding.verdict, finding.verdict),
        "headline": finding.causes[0].sentence if finding.causes else finding.why,
        "place": place_beside(finding),
        "certainty": certainty(finding),
        "others": [(TITLES.get(cause.verdict, cause.verdict), cause) for cause in finding.causes[1:MOST_CAUSES]],
        "percent": percent,
        "times": times,
        "ladder": ladder_bars(finding),
        "tries": trials,
        "one": one,
        "host": host_bars(measured) if measured else [],
        "device": device_bars(measured) if measured else [],
        "step_time": duration(measured.loop.median) if measured else "",
        "stages": bars_in_a_row(measured.loader.stages, are_shares=True) if measured else [],
        "loader": loader_table(measured.loader) if measured else None,
        "functions": measured.loader.functions if measured else [],
        "machine": machine_table(measured.machine) if measured else None,
        "tables": tables_of(measured) if measured else [],
        "notes": measured.notes if measured else [],
    }


# Bars: each has a start and a length in percent of the width, so that a figure is as wide as the page and its text keeps its size.

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
TRIAL_MARGIN = 1.05
"""The scale of trials ends this much after the largest of them."""


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
class LadderBar:
    """What is left of a step at one rung of the ladder, and what has gone since the rung before."""

    name: str
    rate: str
    time: str
    gain: str
    left: float
    gone: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialBar:
    """One thing to do next, with a bar for what was predicted and one for what was measured."""

    step: Advice
    predicted: float | None
    predicted_text: str
    """What is predicted, in words: a range where there is no number."""
    measured: float | None
    low: float
    high: float
    measured_text: str
    losses: str
    peak: str


def ladder_bars(finding: Finding) -> list[LadderBar]:
    """The rungs as times of a step: of the first, all is left."""
    levels = ladder_levels(finding)
    longest = 1 / levels[0].rate if levels else 1.0
    drawn: list[LadderBar] = []
    before = 100.0
    for level in levels:
        left = percent_of(1 / level.rate, longest)
        drawn.append(
            LadderBar(
                name=level.name,
                rate=per_second(level.rate),
                time=duration(1 / level.rate),
                gain=times(level.gain) if drawn else "",
                left=left,
                gone=max(0.0, before - left),
            )
        )
        before = left
    return drawn


def host_bars(measured: Measurements) -> list[Bar]:
    """The phases of a step as the host lives through them, one behind the other."""
    return bars_in_a_row(msgspec.structs.asdict(measured.phases), titles=PHASE_TITLES)


def device_bars(measured: Measurements) -> list[Bar]:
    """The work of the device in the same step, each phase as early as the host can have issued it and ending within the step.

    Only lengths are measured. Where the device has more to do than the step is long, there is no gap.
    """
    total = _total(measured)
    lengths = {name: value for name, value in measured.device_phases.items() if _positive(value)}
    begins = {bar.colour: bar.start for bar in host_bars(measured)}
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


def bars_in_a_row(lengths: Mapping[str, float], *, titles: Mapping[str, str] | None = None, are_shares: bool = False) -> list[Bar]:
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


def trial_bars(steps: Iterable[Advice]) -> tuple[list[TrialBar], float]:
    """What is next with its bars, and where on their scale 1x lies."""
    steps = list(steps)
    numbers = [1.0]
    for step in steps:
        numbers += [step.predicted or 0.0, *((step.tried.speedup, step.tried.high) if step.tried else ())]
    largest = TRIAL_MARGIN * max(number for number in numbers if math.isfinite(number))
    return [_trial_bar(step, largest) for step in steps], percent_of(1.0, largest)


def _trial_bar(step: Advice, largest: float) -> TrialBar:
    tried = step.tried if step.tried is not None and step.tried.error is None else None
    low, high = (percent_of(tried.low, largest), percent_of(tried.high, largest)) if tried else (0.0, 0.0)
    return TrialBar(
        step=step,
        predicted=percent_of(step.predicted, largest) if step.predicted is not None else None,
        predicted_text=predicted(step),
        measured=percent_of(tried.speedup, largest) if tried else None,
        low=low,
        high=max(low, high),
        measured_text=interval(tried) if tried else "",
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


# Tables: everything that was measured, so that a verdict can be checked.

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


def tables_of(measured: Measurements) -> list[Table]:
    """Every table that has rows."""
    tables = [
        Table(
            title="Measurement windows", heads=("", "what ran", "per step", "spread", "steps"), rows=_stretches(measured), texts=2
        ),
        Table(title="The program", heads=("", ""), rows=list(_program(measured)), texts=2),
        Table(title="The work of a step", heads=("", ""), rows=list(_work(measured.work)) if measured.work else [], texts=2),
        Table(
            title="Where the host waits for the device",
            heads=("place", "times per step"),
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
            heads=("threads", "per step"),
            rows=[(threads, duration(seconds)) for threads, seconds in measured.fewer_threads.items()],
        ),
        Table(
            title="Steps with a fix switched on, in turn with baseline steps",
            heads=("fix", "baseline", "with it", "speed-up"),
            rows=[(name, *_what_if(one)) for name, one in measured.what_ifs.items()],
        ),
        Table(
            title="The processes of the run",
            heads=("rank", "per step", "without the others"),
            rows=[(f"{one.rank}", duration(one.step_seconds), duration(one.apart_seconds)) for one in measured.ranks],
        ),
    ]
    return [table for table in tables if table.rows]


def machine_table(machine: Machine) -> Table:
    """Rates of the machine."""
    rows: list[tuple[str, ...]] = [
        ("GPU", machine.gpu or "none"),
        ("cores, and threads of torch", f"{machine.cores:,}, {machine.threads:,}"),
        ("copy in memory", f"{size(machine.memcpy_bytes)}/s"),
        *((f"matmul, {kind}", flops(rate, "FLOP/s")) for kind, rate in machine.matmul_flops.items()),
        ("one small operation", duration(machine.dispatch_seconds)),
    ]
    if machine.launch_seconds is not None:
        rows.append(("one kernel launch", duration(machine.launch_seconds)))
    rates = (
        ("to the device, pageable", machine.h2d_pageable_bytes),
        ("to the device, pinned", machine.h2d_pinned_bytes),
        ("disk", machine.disk_bytes),
    )
    rows += [(name, f"{size(rate)}/s") for name, rate in rates if rate is not None]
    return Table(title="The machine", heads=("", ""), rows=rows, texts=2)


def loader_table(loader: Loader) -> Table:
    """What is known of where batches come from."""
    return Table(title="The loader", heads=("", ""), rows=list(_loader(loader)), texts=2)


def _loader(loader: Loader) -> Iterator[tuple[str, str]]:
    yield "kind", loader.kind
    if loader.dataset is not None:
        yield "dataset", loader.dataset
    if loader.place is not None:
        yield "read by", str(loader.place)
    yield "worker processes", f"{loader.workers:,}"
    if loader.batch_size is not None:
        yield "batch size", f"{loader.batch_size:,}"
    if loader.pinned is not None:
        yield "pinned memory", YES_NO[loader.pinned]
    if loader.bytes_read is not None:
        yield "read from files per step", size(loader.bytes_read)
    if loader.bytes_used is not None:
        yield "used by the model per step", size(loader.bytes_used)
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
        yield "from the disk per batch", size(reads.bytes_from_disk)


def _stretches(measured: Measurements) -> list[tuple[str, ...]]:
    windows: tuple[tuple[str, str, Stretch | None], ...] = (
        ("T", "the baseline loop", measured.loop),
        ("C", "the loop with cached batches", measured.cached),
        ("D", "the loader alone", measured.loader_alone),
        ("X", "copies to the device alone", measured.copies_alone),
        ("H", "the host issuing per step", measured.host_issue),
        ("G", "the device alone", measured.device_alone),
    )
    return [
        (letter, what, duration(stretch.median), percent(stretch.spread), f"{len(stretch.seconds):,}")
        for letter, what, stretch in windows
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
    yield "precision of most matmuls", measured.precision
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
    yield "floating-point operations", flops(work.flops)
    if work.flops_by_dtype:
        yield "the same by type", _listed({kind: flops(number) for kind, number in work.flops_by_dtype.items()})
    if work.h2d_copies:
        yield "copied to the device", f"{size(work.h2d_bytes)} in {count(work.h2d_copies)} copies"
    if work.peak_bytes is not None:
        yield "peak memory of the device", size(work.peak_bytes)
    if work.shares:
        yield "time by kind", _listed({kind: percent(share) for kind, share in work.shares.items()})


def _listed(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
