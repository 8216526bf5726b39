"""The result of a diagnosis (`Finding`) and its text on a terminal: VERDICT, BECAUSE, REMOVED, NEXT, PATCH, WRONG and NOTE.

Sentences come from wording.py; here is their order and layout. Lines are wrapped at the width of a terminal, but not in a pipe or a
log. Names from the program are shown as text, never interpreted. report.py makes the HTML page.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from stoker._text import html_text, printable
from stoker.diagnose.measurements import SCHEMA, Advice, Cause, Confidence, Measurements, Patch, SourceLine, Verdict
from stoker.diagnose.wording import TITLES, outcome, patch_lines, percent, predicted, removal_lines, why_first

if TYPE_CHECKING:
    from rich.console import Console

LABEL_WIDTH = 9
NARROWEST = 40
MOST_NOTES = 6
WIDEST_HEAD = 60  # of an advice whose numbers are on the same line
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
        return html_text(text(self, width=120))

    def as_dict(self) -> dict[str, Any]:
        """The JSON form: the fields, and `second` as a verdict's name."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        plain["second"] = self.second.verdict if self.second is not None else None
        return plain


def headline(finding: Finding) -> str:
    """The verdict in one sentence, or why there is none."""
    title = TITLES.get(finding.verdict, finding.verdict)
    sentence = finding.causes[0].sentence if finding.causes else finding.why
    return f"{title}: {sentence}" if sentence else title


def certainty(finding: Finding) -> str:
    """The confidence and the spread of a finding."""
    sure = "" if finding.verdict == "none" else f"confidence {finding.confidence}, "
    return f"{sure}spread {percent(finding.spread)}"


def likely_line(likely: Cause) -> str:
    """The likely cause, where there is no verdict; what follows (line, NEXT) rests on it."""
    return f"{TITLES[likely.verdict]}: {likely.sentence} (not a verdict: measure again on a quiet machine)"


def place_beside(finding: Finding) -> SourceLine | None:
    """The line to inspect, unless `why` names it."""
    place = finding.place
    return None if place is None or f"{place.file}:{place.line}" in finding.why else place


class ReportLine(NamedTuple):
    """One line before it is wrapped; only the first of a section has a label."""

    label: str
    text: str
    style: str = ""
    hang: int = 0  # indentation of its other lines


def show(finding: Finding, console: Console | None = None) -> None:
    """Print a finding, with colours on a terminal."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False) if console is None else console
    width = max(NARROWEST, console.width) if console.is_terminal else None
    for line in _wrapped(finding, width):
        label = Text(line.label.ljust(LABEL_WIDTH), style="bold")
        console.print(label + Text(line.text, style=line.style), soft_wrap=True)


def text(finding: Finding, *, width: int | None = None) -> str:
    """The finding as plain text, wrapped at `width` if there is one."""
    return "".join(f"{line.label.ljust(LABEL_WIDTH)}{line.text}".rstrip() + "\n" for line in _wrapped(finding, width))


def _wrapped(finding: Finding, width: int | None) -> Iterator[ReportLine]:
    from rich.console import Console
    from rich.text import Text

    room = None if width is None else width - LABEL_WIDTH
    for line in _lines(finding, room):
        line = line._replace(text=printable(line.text))
        if room is None:
            yield line
            continue
        # Rich wraps by the width of characters in terminal cells.
        folder = Console(width=room, highlight=False)
        first, *rest = Text(line.text).wrap(folder, room, overflow="fold", no_wrap=False) or [Text()]
        yield ReportLine(line.label, first.plain.rstrip(), line.style)
        if rest:
            left = line.text[len(first.plain) :].lstrip()
            for more in Text(left).wrap(folder, room - line.hang, overflow="fold", no_wrap=False):
                yield ReportLine("", " " * line.hang + more.plain.rstrip(), line.style)


def _lines(finding: Finding, room: int | None) -> Iterator[ReportLine]:
    """All lines, in order."""
    style = "bold yellow" if finding.verdict == "none" else "bold green"
    yield ReportLine("VERDICT", headline(finding), style=style)
    second = finding.second
    then = f"; then {TITLES.get(second.verdict, second.verdict)}, {percent(second.share)}" if second is not None else ""
    then += f": {reason}" if (reason := why_first(finding.causes)) else ""
    yield ReportLine("", f"({certainty(finding)}{then})", style="dim")
    if finding.likely is not None:
        yield ReportLine("LIKELY", likely_line(finding.likely), style="yellow")
    if finding.verdict != "none":
        yield ReportLine("BECAUSE", finding.why)
    place = place_beside(finding)
    if place is not None:
        yield ReportLine("", f"at {place}")
    removed = removal_lines(finding.measurements) if finding.measurements is not None and finding.verdict != "none" else []
    for number, line in enumerate(removed):
        yield ReportLine("" if number else "REMOVED", line)
    yield from _next(finding.next, room)
    if finding.patch is not None:
        for number, line in enumerate(patch_lines(finding.patch)):
            yield ReportLine("" if number else "PATCH", line, hang=3)
    for number, wrong in enumerate(finding.correctness):
        yield ReportLine("" if number else "WRONG", wrong, style=ALARMING)
    notes = finding.measurements.notes if finding.measurements is not None else []
    for number, note in enumerate(notes[:MOST_NOTES]):
        yield ReportLine("" if number else "NOTE", note, style="dim")
    if len(notes) > MOST_NOTES:
        yield ReportLine("", f"… and {len(notes) - MOST_NOTES} more notes", style="dim")


def _next(steps: list[Advice], room: int | None) -> Iterator[ReportLine]:
    """Each advice with its prediction and trial: on the same line where all fit, else below it."""
    heads = [printable(f"{number}. {step.sentence}") for number, step in enumerate(steps, 1)]
    tails = []
    for step in steps:
        numbers = [f"predicted {predicted(step)}"] if predicted(step) else []
        tails.append(printable("   ".join([*numbers, *([outcome(step.tried)] if step.tried is not None else [])])))
    widest = max(map(len, heads), default=0)
    fits = room is None or widest + 3 + max(map(len, tails), default=0) <= room
    beside = fits and widest <= WIDEST_HEAD
    for number, (head, tail, step) in enumerate(zip(heads, tails, steps, strict=True)):
        changed = step.tried is not None and step.tried.losses == "changed"
        label, style = "" if number else "NEXT", ALARMING if changed else ""
        if beside:
            yield ReportLine(label, f"{head.ljust(widest)}   {tail}".rstrip(), style)
            continue
        yield ReportLine(label, head, hang=3)
        if tail:
            yield ReportLine("", f"   {tail}", style or "cyan", 3)
