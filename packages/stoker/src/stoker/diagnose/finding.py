"""The result of a diagnosis (`Finding`) and its text on a terminal: VERDICT, BECAUSE, REMOVED, NEXT, PATCH, WRONG and NOTE.

Sentences come from wording.py; here is their order and layout. Lines are wrapped at the width of a terminal, but not in a pipe or a
log. Names from the program are shown as text, never interpreted. report.py makes the HTML page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from stoker._text import html_text, printable
from stoker.diagnose.advice import by_trial, refuted
from stoker.diagnose.division import comparable
from stoker.diagnose.measurements import SCHEMA, Advice, Cause, Confidence, Measurements, Patch, SourceLine, Verdict
from stoker.diagnose.wording import TITLES, RemovalRow, outcome, patch_lines, percent, predicted, removal_rows, why_first

if TYPE_CHECKING:
    from rich.console import Console

LABEL_WIDTH = 9
NARROWEST = 40
MOST_NOTES = 6
ALARMING = "bold red"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a diagnosis: the bottleneck of a training run, its evidence, and what to do next.

    `print(finding)` shows it; `as_dict()` is its JSON form.

    Example:
        >>> finding = Finding(verdict="none", confidence="low", spread=0.3, why="only 5 steps were measured")
        >>> print(str(finding).splitlines()[0])
        VERDICT  NO VERDICT: only 5 steps were measured
    """

    schema: Literal[1] = SCHEMA
    verdict: Verdict
    """"none" if there is no verdict; `why` then has the reason."""
    confidence: Confidence
    spread: float
    causes: list[Cause] = []
    """The first is the verdict; empty if there is none."""
    likely: Cause | None = None
    """Without a verdict, the likely cause; None if the measurements do not show one."""
    why: str
    place: SourceLine | None = None
    next: list[Advice] = []
    correctness: list[str] = []
    """Faults in the batches and losses, besides speed."""
    patch: Patch | None = None
    measurements: Measurements | None = None

    @property
    def second(self) -> Cause | None:
        """The second cause."""
        return self.causes[1] if len(self.causes) > 1 else None

    def __str__(self) -> str:
        return text(self)

    def _repr_html_(self) -> str:
        return html_text(text(self))

    def as_dict(self) -> dict[str, Any]:
        """The JSON form: the fields, and `second` as a verdict's name. Advice is in the order of its trials."""
        plain: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(self, next=by_trial(self.next)))
        plain["second"] = self.second.verdict if self.second is not None else None
        return plain


def headline(finding: Finding) -> str:
    """The verdict in one sentence, or why there is none."""
    return f"{TITLES[finding.verdict]}: {finding.causes[0].sentence if finding.causes else finding.why}"


def certainty(finding: Finding) -> str:
    """The confidence of a finding, and how much usual steps vary: rare ones do not count."""
    rare = bool(finding.causes) and finding.causes[0].rare
    sure = [f"confidence {finding.confidence}"] if finding.verdict != "none" else []
    return ", ".join([*sure, *([f"steps vary by {percent(finding.spread)}"] if not rare else [])])


def likely_line(likely: Cause) -> str:
    """The likely cause, where there is no verdict; what follows (line, NEXT) rests on it."""
    return f"{TITLES[likely.verdict]}: {likely.sentence} (not a verdict: measure again on a quiet machine)"


def place_beside(finding: Finding) -> SourceLine | None:
    """The line to inspect, unless `why` names it."""
    place = finding.place
    return None if place is None or f"{place.file}:{place.line}" in finding.why else place


class ReportLine(NamedTuple):
    """One line; only the first of a section has a label."""

    label: str
    text: str
    style: str = ""


def show(finding: Finding, console: Console | None = None) -> None:
    """Print a finding: with colours and wrapped on a terminal, else each thing on one line."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False) if console is None else console
    if not console.is_terminal:
        console.print(Text(text(finding)), end="", soft_wrap=True)
        return
    table = Table.grid()
    table.add_column(width=LABEL_WIDTH, no_wrap=True, style="bold")
    table.add_column(overflow="fold", min_width=NARROWEST)
    for line in _lines(finding):
        table.add_row(line.label, Text(printable(line.text), style=line.style))
    console.print(table)


def text(finding: Finding) -> str:
    """The finding as plain text."""
    return "".join(f"{line.label.ljust(LABEL_WIDTH)}{printable(line.text)}".rstrip() + "\n" for line in _lines(finding))


def _lines(finding: Finding) -> Iterator[ReportLine]:
    """All lines, in order."""
    measured, second, has_verdict = finding.measurements, finding.second, finding.verdict != "none"
    yield ReportLine("VERDICT", headline(finding), style="bold green" if has_verdict else "bold yellow")
    then = f"then {TITLES[second.verdict]}, {percent(second.share)}" if second is not None else ""
    then += f": {reason}" if (reason := why_first(finding.causes)) else ""
    yield ReportLine("", f"({'; '.join(filter(None, [certainty(finding), then]))})", style="dim")
    if finding.likely is not None:
        yield ReportLine("LIKELY", likely_line(finding.likely), style="yellow")
    if has_verdict:
        yield ReportLine("BECAUSE", finding.why)
    if (place := place_beside(finding)) is not None:
        yield ReportLine("", f"at {place}")
    yield from _section("REMOVED", aligned(removals_of(finding)))
    steps = by_trial(finding.next)
    yield from _advice("NEXT", [step for step in steps if not refuted(step)])
    yield from _advice("REFUTED", [step for step in steps if refuted(step)])
    yield from _section("PATCH", patch_lines(finding.patch) if finding.patch is not None else [])
    yield from _section("WRONG", finding.correctness, style=ALARMING)
    notes = measured.notes if measured is not None else []
    more = [f"… and {len(notes) - MOST_NOTES} more notes"] if len(notes) > MOST_NOTES else []
    yield from _section("NOTE", [*notes[:MOST_NOTES], *more], style="dim")


def _section(label: str, texts: Iterable[str], *, style: str = "") -> Iterator[ReportLine]:
    for number, text in enumerate(texts):
        yield ReportLine("" if number else label, text, style)


def removals_of(finding: Finding) -> list[RemovalRow]:
    """Return the rows of the experiments; without a verdict, those that a likely cause rests on."""
    measured = finding.measurements
    if measured is None or (finding.verdict == "none" and finding.likely is None):
        return []
    return removal_rows(measured if finding.verdict != "none" else comparable(measured))


def aligned(rows: list[RemovalRow]) -> list[str]:
    """Return rows of experiments as lines whose columns begin at the same places."""
    widths = [max((len(text) for text in texts), default=0) for texts in ([row.name for row in rows], [row.change for row in rows])]
    return [f"{row.name.ljust(widths[0])}   {row.change.ljust(widths[1])}   {row.gain}" for row in rows]


def _advice(label: str, steps: list[Advice]) -> Iterator[ReportLine]:
    """Each advice, and its prediction and trial below it."""
    for number, step in enumerate(steps, 1):
        yield ReportLine(label if number == 1 else "", f"{number}. {step.sentence}")
        numbers = [f"predicted {predicted(step)}"] if predicted(step) else []
        numbers += [outcome(step.tried)] if step.tried is not None else []
        changed = step.tried is not None and step.tried.losses == "changed"
        yield from [ReportLine("", f"   {'   '.join(numbers)}", ALARMING if changed else "cyan")] if numbers else []
