"""The HTML report of a finding (`stoker diagnose --report`): one self-contained file without scripts.

`write_report` fills the template report.html.jinja with bars and tables made here; sentences come from wording.py. Names of programs,
paths and errors are shown as text: Jinja escapes every value, control characters are written as escapes, and a content security policy
forbids scripts and requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

import stoker
from stoker._disk import check_writable, write_file
from stoker._text import printable
from stoker.diagnose import wording as show
from stoker.diagnose.finding import Finding, certainty, likely_line, place_beside
from stoker.diagnose.measurements import Advice, Loader, Machine, Measurements, Work
from stoker.errors import OptionError

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATE = "report.html.jinja"
SUFFIX = ".html"
MOST_CAUSES = 4


def check_path(path: Path) -> Path:
    """Check the path of a report before anything is measured."""
    if path.suffix != SUFFIX:
        raise OptionError(f"{path} ends in {path.suffix!r}; expected a report that ends in {SUFFIX!r}.")
    if not path.parent.is_dir():
        raise OptionError(f"{path.parent} is not a folder, so the report {path.name} cannot be written there. Create it first.")
    check_writable(path)
    if path.is_dir():
        raise OptionError(f"{path} is a folder; expected the name of a report.")
    return path


def write_report(finding: Finding, path: str | Path, *, title: str) -> Path:
    """Write a finding as one HTML file.

    Args:
        finding: The finding.
        path: A path that ends in `.html`, in a folder that exists.
        title: What was diagnosed, such as the command.

    Returns:
        The path.

    Raises:
        OptionError: The path is not valid.
        DiskError: The folder of the path cannot be written to.
    """
    path = check_path(Path(path))
    write_file(path, render(finding, title=title).encode(), durable=False)
    return path


def render(finding: Finding, *, title: str, environment: Environment | None = None) -> str:
    """The page; the same finding gives the same bytes."""
    template = (environment or make_environment()).get_template(TEMPLATE)
    return template.render(title=title, **_values(finding))


@cache
def make_environment() -> Environment:
    """The environment of the template: every value is escaped, and a missing one is an error."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    def finalize(value: Any) -> Any:
        if isinstance(value, Markup):  # the output of a macro, whose values are escaped already
            return value
        return f"{value:.2f}" if isinstance(value, float) else printable(str(value))

    folder = resources.files("stoker.diagnose")
    loader = FunctionLoader(lambda name: folder.joinpath(name).read_text(encoding="utf-8"))
    return Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, finalize=finalize, trim_blocks=True, lstrip_blocks=True
    )


def _values(finding: Finding) -> dict[str, Any]:
    """The values of the template."""
    measured = finding.measurements
    trials, one = trial_bars(finding.next)
    return {
        "version": stoker.__version__,
        "finding": finding,
        "verdict": show.TITLES.get(finding.verdict, finding.verdict),
        "headline": finding.causes[0].sentence if finding.causes else finding.why,
        "place": place_beside(finding),
        "certainty": certainty(finding),
        "likely": likely_line(finding.likely) if finding.likely is not None else "",
        "why_first": show.why_first(finding.causes),
        "removed": removal_bars(measured) if measured and finding.verdict != "none" else [],
        "others": [(show.TITLES.get(cause.verdict, cause.verdict), cause) for cause in finding.causes[1:MOST_CAUSES]],
        "show": show,
        "tries": trials,
        "one": one,
        "host": host_bars(measured) if measured else [],
        "step_time": show.duration(measured.loop.median) if measured else "",
        "loader": loader_table(measured.loader) if measured else None,
        "functions": measured.loader.functions if measured else [],
        "machine": machine_table(measured.machine) if measured else None,
        "tables": tables_of(measured) if measured else [],
        "notes": [*(show.patch_lines(finding.patch) if finding.patch else []), *(measured.notes if measured else [])],
    }


# ---- bars: start and length are percent of the width, so that a figure is as wide as the page and its text keeps its size ----

HOST_PHASES = ("next", "prepare", "forward", "backward", "optimizer", "rest")
PHASE_TITLES = {
    "next": "wait for a batch",
    "prepare": "prepare the batch",
    "forward": "forward and loss",
    "backward": "backward",
    "optimizer": "optimizer",
    "rest": "rest of the loop",
}
TRIAL_MARGIN = 1.05  # the scale of trials ends this much after the largest of them


class Bar(NamedTuple):
    """One bar; `start` and `length` are percent of the width."""

    name: str
    value: str
    share: str
    colour: str
    start: float
    length: float


class RemovalBar(NamedTuple):
    """An experiment: the remaining share of a step without a suspect, and the share that its removal saved, in percent."""

    name: str
    change: str
    gain: str
    left: float
    gone: float


class TrialBar(NamedTuple):
    """An advice with a bar for its prediction and one for its trial, with the interval of the trial."""

    step: Advice
    predicted: float | None
    measured: float | None
    low: float
    high: float


def removal_bars(measured: Measurements) -> list[RemovalBar]:
    """Return the bars of the experiments; a step has the full width."""
    bars = []
    for row in show.removal_rows(measured):
        left = percent_of(row.after, row.before)
        bars.append(RemovalBar(row.name, row.change, row.gain, left, 100.0 - left))
    return bars


def host_bars(measured: Measurements) -> list[Bar]:
    """Return the host's phases of a step, one after the other; together they fill the width."""
    known = {name: seconds for name, seconds in msgspec.structs.asdict(measured.phases).items() if _positive(seconds)}
    total = sum(known.values())
    bars, position = list[Bar](), 0.0
    for name, seconds in known.items():
        length, start = percent_of(seconds, total), min(position, 100.0)  # sums of shares round above it
        colour = f"c{HOST_PHASES.index(name)}"
        bars.append(Bar(PHASE_TITLES[name], show.duration(seconds), show.percent(seconds / total), colour, start, length))
        position += length
    return bars


def trial_bars(steps: Iterable[Advice]) -> tuple[list[TrialBar], float]:
    """The bars of each advice, and the position of 1x on their scale."""
    steps = list(steps)
    numbers = [1.0]
    for step in steps:
        numbers += [step.predicted or 0.0, *((step.tried.speedup, step.tried.high) if step.tried else ())]
    largest = TRIAL_MARGIN * max(number for number in numbers if math.isfinite(number))
    return [_trial_bar(step, largest) for step in steps], percent_of(1.0, largest)


def _trial_bar(step: Advice, largest: float) -> TrialBar:
    tried = step.tried if step.tried is not None and step.tried.error is None else None
    predicted = percent_of(step.predicted, largest) if step.predicted is not None else None
    if tried is None:
        return TrialBar(step, predicted, None, 0.0, 0.0)
    low, high = percent_of(tried.low, largest), percent_of(tried.high, largest)
    return TrialBar(step, predicted, percent_of(tried.speedup, largest), low, max(low, high))


def percent_of(value: float, whole: float) -> float:
    """A value as percent of a whole, clipped to 0 to 100; 0 for values that are not finite."""
    share = value / whole if _positive(whole) and math.isfinite(value) else 0.0
    return 100 * min(max(share, 0.0), 1.0)


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


# ---- tables of everything that was measured, so that a verdict can be checked ----

YES_NO = {True: "yes", False: "no"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportTable:
    """A title, column heads (empty for a table of names and values), and rows."""

    title: str
    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    texts: int = 1  # how many columns, from the left, are text; the others are numbers

    @property
    def is_facts(self) -> bool:
        """Whether each row is a name and a value."""
        return not any(self.heads)


def tables_of(measured: Measurements) -> list[ReportTable]:
    """Every table that has rows."""
    tables = [
        ReportTable(
            title="Measurement windows", heads=("", "what ran", "per step", "spread", "steps"), rows=_windows(measured), texts=2
        ),
        program_table(measured),
        *([work_table(measured.work)] if measured.work else []),
        ReportTable(
            title="Lines that read values of the device",
            heads=("place", "times per step"),
            rows=[(str(sync.place) if sync.place else show.UNKNOWN, show.count(sync.count)) for sync in measured.syncs],
        ),
        ReportTable(
            title="Lines of the program, with what they call",
            heads=("phase", "line", "of the phase"),
            rows=[
                (PHASE_TITLES.get(phase, phase), str(blame.place), show.percent(blame.share))
                for phase, blames in measured.blames.items()
                for blame in blames
            ],
            texts=2,
        ),
        ReportTable(
            title="A cached step by the number of threads",
            heads=("threads", "per step"),
            rows=[(threads, show.duration(seconds)) for threads, seconds in measured.fewer_threads.items()],
        ),
        ReportTable(
            title="Steps with a fix switched on, in turn with baseline steps (batch: half a step of two batches in one)",
            heads=("fix", "baseline", "with it", "speed-up"),
            rows=[
                (name, show.duration(before), show.duration(after), show.times(before / after if after else math.nan))
                for name, one in measured.what_ifs.items()
                for samples in [2 if name == "batch" else 1]  # a step of two batches in one
                for before, after in [(one.as_it_is.median, one.with_fix.median / samples)]
            ],
        ),
        ReportTable(
            title="The processes of the run",
            heads=("rank", "per step", "without the others"),
            rows=[(f"{one.rank}", show.duration(one.step_seconds), show.duration(one.apart_seconds)) for one in measured.ranks],
        ),
    ]
    return [table for table in tables if table.rows]


def _windows(measured: Measurements) -> list[tuple[str, ...]]:
    windows = (
        ("T", "the unchanged loop", measured.loop),
        ("C", "the loop with cached batches", measured.cached),
        ("D", "the loader alone", measured.loader_alone),
        ("G", "the device alone", measured.device_alone),
    )
    return [
        (letter, what, show.duration(window.median), show.percent(window.spread), f"{len(window.seconds):,}")
        for letter, what, window in windows
        if window is not None and window.seconds
    ]


Fact = tuple[str, Any] | tuple[str, Any, Callable[[Any], str]]  # a name, a value, and how the value is written


def _facts(title: str, facts: Iterable[Fact]) -> ReportTable:
    """A table of names and values; values that are None are left out."""
    rows = [(name, shown[0](value) if shown else value) for name, value, *shown in facts if value is not None]
    return ReportTable(title=title, heads=("", ""), rows=rows, texts=2)


def _rate(num_bytes: float) -> str:
    return f"{show.size(num_bytes)}/s"


def _listed(values: Mapping[str, float], shown: Callable[[float], str]) -> str | None:
    return ", ".join(f"{name} {shown(value)}" for name, value in values.items()) or None


def machine_table(machine: Machine) -> ReportTable:
    """Rates of the machine."""
    rows: list[Fact] = [
        ("GPU", machine.gpu or "none"),
        ("cores, and threads of torch", f"{machine.cores:,}, {machine.threads:,}"),
        ("copy in memory", _rate(machine.memcpy_bytes)),
        *((f"matmul, {kind}", show.flops(rate, "FLOP/s")) for kind, rate in machine.matmul_flops.items()),
        ("one small operation", show.duration(machine.dispatch_seconds)),
        ("one kernel launch", machine.launch_seconds, show.duration),
    ]
    return _facts("The machine", rows)


def loader_table(loader: Loader) -> ReportTable:
    """Where batches come from."""
    rows: list[Fact] = [
        ("kind", loader.kind),
        ("dataset", loader.dataset),
        ("read by", loader.place, str),
        ("worker processes", f"{loader.workers:,}"),
        ("batch size", loader.batch_size, "{:,}".format),
        ("pinned memory", loader.pinned, YES_NO.__getitem__),
        ("used by the model per step", loader.bytes_used, show.size),
        ("until the first batch", loader.startup_seconds, show.duration),
    ]
    return _facts("The loader", rows)


def program_table(measured: Measurements) -> ReportTable:
    """Facts about the program."""
    rows: list[Fact] = [
        ("device", measured.device),
        ("steps seen", f"{measured.steps_seen:,}"),
        ("steps over three times the median", f"{measured.slow_steps:,}"),
        ("share of the GPU that other programs had", measured.gpu_taken, show.percent),
        ("time in which other programs had its cores", measured.waited_for_cores, show.percent),
        ("precision of most matmuls", measured.precision),
        ("optimizer", measured.optimizer),
        ("optimizer is fused", measured.optimizer_fused, YES_NO.__getitem__),
        ("compiled", YES_NO[measured.compiled]),
        ("first losses", ", ".join(f"{loss:.4g}" for loss in measured.losses[:5]) or None),
    ]
    return _facts("The program", rows)


def work_table(work: Work) -> ReportTable:
    """The operations of a step."""
    copied = f"{show.size(work.h2d_bytes)} in {show.count(work.h2d_copies)} copies" if work.h2d_copies else None
    rows: list[Fact] = [
        ("operations", show.count(work.ops)),
        ("kernels", work.kernels, show.count),
        ("floating-point operations", show.flops(work.flops)),
        ("the same by type", _listed(work.flops_by_dtype, show.flops)),
        ("copied to the device", copied),
        ("peak memory of the device", work.peak_bytes, show.size),
        ("time by kind", _listed({show.KINDS.get(kind, kind): share for kind, share in work.shares.items()}, show.percent)),
    ]
    return _facts("The work of a step", rows)
