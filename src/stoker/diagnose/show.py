"""A finding on a terminal: VERDICT, WHY, NEXT and what is wrong with the batches, each in a few lines.

On a terminal, lines are folded at its width; in a pipe or a log each thing stays on its line. Names of the user's are shown, never
obeyed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stoker.diagnose import words
from stoker.diagnose.finding import Finding, Step
from stoker.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

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
    yield _line("VERDICT", words.headline(finding), style=style)
    second = finding.second
    then = f"; then {words.TITLES.get(second.verdict, second.verdict)}, {words.percent(second.share)}" if second is not None else ""
    yield _line("", f"({words.certainty(finding)}{then})", style="dim")
    if finding.verdict != "none":
        yield _line("WHY", finding.why)
    place = words.place_beside(finding)
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
    told = [f"{rung.name} {words.per_second(rung.rate)}" for rung in words.rungs(finding)]
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
    told = [f"predicted {words.predicted(step)}"] if words.predicted(step) else []
    if step.tried is not None:
        told.append(words.outcome(step.tried))
    return "   ".join(told)
