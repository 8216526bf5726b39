"""The receipt of a comparison: the value, and its text, JSON, Markdown and HTML."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec

from stoker._disk import write_file
from stoker._text import html_text, printable, printable_lines, readable_bytes, readable_seconds
from stoker.compare.evaluation import Judgement
from stoker.compare.facts import Fact
from stoker.compare.losses import LossComparison
from stoker.compare.quality import Quality
from stoker.compare.rounds import DECISIVE_P, LEAST_PAIRS, Speed
from stoker.compare.verdict import Decision, Requirement, wording
from stoker.errors import OptionError

TEMPLATE = "receipt.html.jinja"
BRIEF_BYTES = 2048
DISTURBED = 0.05  # share of the time in which other programs had the cores, from which on it is said
SHOWN = ("samples", "repeats", "epoch", "random", "weights", "parameters", "mode", "steps", "evaluation", "leak", "judge", "inputs")


class SideResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of one side."""

    losses: list[float]
    """Of each step."""
    step_seconds: list[float]
    """The mean of each timed run."""
    first_step: float
    """Seconds from the start of the process to the end of the first step."""
    host_bytes: int
    device_bytes: int
    code: dict[str, str]
    """SHA-256 of each file of the user."""


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """Where it was measured."""

    date: str
    stoker: str
    machine: str
    device: str
    packages: dict[str, str]
    other_packages: dict[str, list[str]]
    """Packages whose versions differ: those of BEFORE and AFTER."""
    disturbed: float | None
    """The share of the time in which other programs had the cores."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a comparison. `print` shows it."""

    verdict: Decision
    names: tuple[str, str]
    call: dict[str, Any]
    """The arguments of the comparison."""
    losses: LossComparison
    facts: list[Fact]
    speed: Speed | None
    quality: Quality | None
    requirements: list[Requirement]
    judgement: Judgement | None = None
    before: SideResult
    after: SideResult
    conditions: Conditions
    why: list[str] = []
    """What is different in a step."""

    @property
    def status(self) -> int:
        """The exit status: 0 faster or better, 1 slower or worse, 3 undecided, 4 results changed."""
        return self.verdict.status

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.lines())
        return printable_lines("\n".join([self.headline(), *(f"  {name:<{width}}  {text}" for name, text in self.lines())]))

    def _repr_html_(self) -> str:
        return html_text(str(self))

    def headline(self) -> str:
        """Return the verdict in one line."""
        why = f": {self.verdict.why}" if self.verdict.why else ""
        return f"{self.verdict.title}{why}"

    def lines(self) -> list[tuple[str, str]]:
        """Return what the receipt says, by subject."""
        facts = {name: [fact.text for fact in self.facts if fact.name == name] for name in SHOWN}
        groups = (
            ("samples", ("samples", "repeats", "epoch", "steps")), ("random", ("random",)), ("model", ("weights", "parameters", "mode")),
            ("evaluation", ("evaluation", "judge", "inputs", "leak")),
        )  # fmt: skip
        said = [(title, "; ".join(text for name in names for text in facts[name])) for title, names in groups]
        again = "; ".join(fact.text for fact in self.facts if fact.name.endswith("again"))
        lines = [
            ("versions", f"{self.names[0]} -> {self.names[1]}"),
            ("speed", speed_words(self.speed) if self.speed is not None else ""),
            ("first step", f"{readable_seconds(self.before.first_step)} -> {readable_seconds(self.after.first_step)}"),
            ("memory", self._memory()),
            ("losses", wording(self.losses)),
            *said,
            ("again", again),
            ("why", "; ".join(self.why)),
            ("quality", quality_words(self.quality) if self.quality is not None else ""),
            ("judge", judge_words(self.judgement) if self.judgement is not None else ""),
            ("required", "; ".join(f"{required.clause} {_holds(required.holds)}" for required in self.requirements)),
            ("conditions", self._conditions()),
        ]
        return [(name, text) for name, text in lines if text]

    def _memory(self) -> str:
        host = f"{readable_bytes(self.before.host_bytes)} -> {readable_bytes(self.after.host_bytes)}"
        if not (self.before.device_bytes or self.after.device_bytes):
            return host
        return f"device {readable_bytes(self.before.device_bytes)} -> {readable_bytes(self.after.device_bytes)}; host {host}"

    def _conditions(self) -> str:
        where = self.conditions
        parts = [where.device, where.machine, f"torch {where.packages.get('torch', 'unknown')}"]
        if where.disturbed is not None and where.disturbed > DISTURBED:
            parts.append(f"other programs had the cores for {where.disturbed:.0%} of the time")
        parts += [f"{name} {a} -> {b}" for name, (a, b) in list(where.other_packages.items())[:4]]
        return ", ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON: None for NaN and infinity."""
        values = {"status": self.status, **msgspec.to_builtins(self)}
        finite: dict[str, Any] = json.loads(json.dumps(values), parse_constant=lambda _: None)
        return finite

    def brief(self) -> dict[str, Any]:
        """Return what an agent needs to decide: at most 2 KB of JSON."""
        memory = (self.after.device_bytes or self.after.host_bytes) / max(1, self.before.device_bytes or self.before.host_bytes)
        values = {
            "status": self.status,
            "verdict": self.headline()[:400],
            "speed": _brief(self.speed, "speedup", "low", "high", "p"),
            "losses": {name: getattr(self.losses, name) for name in ("verdict", "steps", "first", "at")},
            "differences": {fact.name: fact.text[:120] for fact in self.facts if fact.same is False},
            "quality": _brief(self.quality, "before", "after", "difference", "low", "high", "p"),
            "judgement": None if self.judgement is None else self.judgement.number,
            "memory": _rounded(memory),
            "required": {required.clause[:40]: required.holds for required in self.requirements[:8]},
        }
        while len(json.dumps(values)) > BRIEF_BYTES and values["differences"]:
            values["differences"].popitem()  # type: ignore[attr-defined]
        return values

    def markdown(self) -> str:
        """Return a table for a pull request."""
        rows = "\n".join(f"| {name} | {_cell(text)} |" for name, text in self.lines())
        return f"**{_cell(self.headline())}**\n\n| | {_cell(self.names[0])} -> {_cell(self.names[1])} |\n| --- | --- |\n{rows}\n"

    def write_html(self, path: str | Path) -> Path:
        """Write one HTML page without scripts: the receipt, and plots of losses and step times."""
        from jinja2 import Environment, PackageLoader, StrictUndefined

        environment = Environment(loader=PackageLoader("stoker.compare", "."), autoescape=True, undefined=StrictUndefined)
        plots = [
            ("Losses", plot([self.before.losses, self.after.losses])),
            (
                "Milliseconds per step of each run",
                plot([[1e3 * seconds for seconds in side.step_seconds] for side in (self.before, self.after)]),
            ),
        ]
        lines = [(name, printable(text)) for name, text in self.lines()]
        page = environment.get_template(TEMPLATE).render(
            receipt=self, headline=printable(self.headline()), lines=lines, plots=plots
        )
        write_file(Path(path), page.encode(), durable=False)
        return Path(path)


def _cell(text: str) -> str:
    return printable(text).replace("|", "\\|").replace("<", "&lt;")


def _holds(value: bool | None) -> str:
    return "is undecided" if value is None else "holds" if value else "does not hold"


def _brief(value: Speed | Quality | None, *names: str) -> dict[str, Any] | None:
    return None if value is None else {"verdict": value.verdict, **{name: _rounded(getattr(value, name)) for name in names}}


def _rounded(value: float | None) -> float | None:
    return float(f"{value:.4g}") if value is not None and math.isfinite(value) else None


def speed_words(speed: Speed) -> str:
    """Return the speed in words."""
    rates = f"{speed.before:,.4g} -> {speed.after:,.4g} {speed.unit}/s"
    if not speed.known:
        runs = f"{speed.speedup:.3g}x in {speed.pairs} pair{'s' if speed.pairs > 1 else ''} of runs"
        return f"{runs} (medians of each side: {rates}), too few for an interval, which needs {LEAST_PAIRS}: raise the budget"
    interval = f"95 %: {speed.low:.3g} to {speed.high:.3g}, p {speed.p:.2g}, {speed.pairs} pairs of runs"
    text = f"{speed.speedup:.3g}x ({interval}), medians {rates}"
    if speed.verdict == "unknown" and speed.p > DECISIVE_P:
        more = f" and {LEAST_PAIRS} pairs: raise the budget" if speed.pairs < LEAST_PAIRS else ""
        text += f"; a difference needs p <= {DECISIVE_P}{more}"
    return text


def quality_words(quality: Quality) -> str:
    """Return the quality in words."""
    interval = (
        "too few seeds for an interval" if not math.isfinite(quality.high) else f"95 %: {quality.low:+.3g} to {quality.high:+.3g}"
    )
    text = f"{quality.name} {quality.before:.4g} -> {quality.after:.4g}, {quality.difference:+.3g}"
    text += f" ({interval}, p {quality.p:.2g}, {quality.pairs} seeds)"
    if quality.shared:
        text += f"; {quality.shared} not counted, because another seed gave the same bits"
    if quality.verdict == "unknown" and quality.needed is not None:
        text += f"; this difference needs about {quality.needed:,} seeds"
    return text


def judge_words(judgement: Judgement) -> str:
    """Return how a comparison was judged in words."""
    text = f"{judgement.command}, from {len(judgement.files):,} files of BEFORE"
    if judgement.held_out:
        how = "which nothing could make unreadable" if judgement.protected == "watched" else f"unreadable by {judgement.protected}"
        more = f" and {len(judgement.held_out) - 2} more" if len(judgement.held_out) > 2 else ""
        text += f"; held out: {', '.join(judgement.held_out[:2])}{more}, {how}"
    return text if judgement.number is None else f"{text}; judgement {judgement.number} of its log"


def plot(series: list[list[float]], width: int = 640, height: int = 200) -> list[str]:
    """Return the points of a polyline for each series, in one scale."""
    finite = [value for values in series for value in values if math.isfinite(value)]
    if not finite:
        return []
    low, high = min(finite), max(finite)
    longest = max(len(values) for values in series)
    lines = []
    for values in series:
        points = [
            f"{width * number / max(1, longest - 1):.1f},{height - height * (value - low) / ((high - low) or 1):.1f}"
            for number, value in enumerate(values)
            if math.isfinite(value)
        ]
        lines.append(" ".join(points))
    return lines


def read_receipt(path: Path) -> Receipt:
    """Read a receipt that was written as JSON."""
    try:
        values = json.loads(path.read_text("utf-8"))
        values.pop("status", None)
        for name, low in (("speed", 0.0), ("quality", -math.inf)):
            ends = values[name] if values[name] is not None else {}
            ends.update({end: value for end, value in (("low", low), ("high", math.inf)) if ends.get(end, 0.0) is None})
        for run in (values["before"], values["after"]):
            run["losses"] = [math.nan if loss is None else loss for loss in run["losses"]]
        values["losses"].update({name: math.inf for name in ("start", "largest") if values["losses"][name] is None})
        return msgspec.convert(values, Receipt)
    except FileNotFoundError:
        raise OptionError(f"{path} does not exist; expected a receipt, as --json writes it.", parameter="check") from None
    except (ValueError, AttributeError, KeyError, TypeError, msgspec.ValidationError) as error:
        raise OptionError(f"{path} is not a receipt: {error}. Write it with --json.", parameter="check") from None
