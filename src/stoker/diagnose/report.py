"""The HTML report of a finding (`stoker diagnose --report`): one self-contained file without scripts.

`write_report` fills the template report.html.jinja with bars and tables made here; sentences come from wording.py. Names of programs,
paths and errors are shown as text: Jinja escapes every value, control characters are written as escapes, and a content security policy
forbids scripts and requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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
from stoker.diagnose.measurements import Advice, Measurements, SourceLine
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
        "tables": tables_of(measured) if measured else [],
        "notes": [*(show.patch_lines(finding.patch) if finding.patch else []), *(measured.notes if measured else [])],
    }


# ---- bars: lengths are percent of the width, so that a figure is as wide as the page and its text keeps its size ----

TRIAL_MARGIN = 1.05  # the scale of trials ends this much after the largest of them


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
    share = value / whole if math.isfinite(whole) and whole > 0 and math.isfinite(value) else 0.0
    return 100 * min(max(share, 0.0), 1.0)


# ---- tables of everything that was measured, so that a verdict can be checked: fields have the names of the JSON form ----


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportTable:
    """A title, column heads (empty for a table of names and values), and rows."""

    title: str
    heads: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]]
    texts: int = 1  # how many columns, from the left, are text; the others are numbers


def tables_of(measured: Measurements) -> list[ReportTable]:
    """Every table that has rows."""
    windows = {"the unchanged loop": measured.loop, "the loop with cached batches": measured.cached}
    windows |= {"the loader alone": measured.loader_alone, "the device alone": measured.device_alone}
    tables = [
        ReportTable(
            title="Measurement windows",
            heads=("", "per step", "spread", "steps"),
            rows=[
                (name, show.duration(window.median), show.percent(window.spread), f"{len(window.seconds):,}")
                for name, window in windows.items()
                if window is not None and window.seconds
            ],
        ),
        ReportTable(
            title="Steps with a fix switched on, in turn with unchanged steps (batch: half a step of two batches in one)",
            heads=("fix", "unchanged", "with it", "speed-up"),
            rows=[
                (name, show.duration(before), show.duration(after), show.times(before / after if after else math.nan))
                for name, change in measured.what_ifs.items()
                for before, after in [(change.as_it_is.median, change.with_fix.median / (2 if name == "batch" else 1))]
            ],
        ),
        ReportTable(
            title="Lines of the program, with what they call",
            heads=("phase", "line", "of the phase"),
            rows=[
                (phase, str(blame.place), show.percent(blame.share))
                for phase, blames in {"a batch": measured.loader.functions, **measured.blames}.items()
                for blame in blames
            ],
            texts=2,
        ),
        ReportTable(
            title="Lines that read values of the GPU",
            heads=("line", "times per step"),
            rows=[(str(sync.place or show.UNKNOWN), show.count(sync.count)) for sync in measured.syncs],
        ),
        ReportTable(
            title="The processes of the run",
            heads=("rank", "per step", "without the others"),
            rows=[(f"{rank.rank}", show.duration(rank.step_seconds), show.duration(rank.apart_seconds)) for rank in measured.ranks],
        ),
        *(
            ReportTable(title=title, rows=facts_of(part), texts=2)
            for title, part in (
                ("The program", measured),
                ("The loader", measured.loader),
                ("The work of a step", measured.work),
                ("The machine, as measured", measured.machine),
            )
            if part is not None
        ),
    ]
    return [table for table in tables if table.rows]


def facts_of(struct: msgspec.Struct) -> list[tuple[str, str]]:
    """Return the fields of a record that are a number, a text, a line or numbers by name, with their values as text."""
    facts = []
    for name, value in msgspec.structs.asdict(struct).items():
        if isinstance(value, dict) and value and all(isinstance(number, int | float) for number in value.values()):
            facts.append((name, ", ".join(f"{key} {_shown(name, number)}" for key, number in value.items())))
        elif isinstance(value, bool | int | float | str | SourceLine):
            facts.append((name, _shown(name, value)))
    return [(name.replace("_", " "), text) for name, text in facts]


def _shown(name: str, value: bool | float | str | SourceLine) -> str:
    """Write a value in the unit that the name of its field ends in."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    if name in ("shares", "between_epochs", "asleep", "waited_for_cores", "gpu_taken"):
        return show.percent(value)
    units = {"seconds": show.duration, "phases": show.duration, "threads": show.duration, "bytes": show.size, "flops": show.flops}
    written = units.get(name.replace("_by_dtype", "").rpartition("_")[2]) if isinstance(value, float) else None
    text = written(value) if written is not None else show.count(value)
    return f"{text}/s" if name in ("memcpy_bytes", "matmul_flops") else text
