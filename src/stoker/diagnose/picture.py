"""The pictures of a report as numbers: bars with a beginning and a length in percent of the width, and what each is called.

Bars are drawn in percent, so a picture is as wide as the page and its letters keep their size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from stoker.diagnose import words
from stoker.diagnose.finding import Finding, Step
from stoker.diagnose.measurements import Measurements

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
    rungs = words.rungs(finding)
    longest = 1 / rungs[0].rate if rungs else 1.0
    drawn: list[Left] = []
    before = 100.0
    for rung in rungs:
        left = percent_of(1 / rung.rate, longest)
        drawn.append(
            Left(
                name=rung.name,
                rate=words.per_second(rung.rate),
                time=words.duration(1 / rung.rate),
                gain=words.times(rung.gain) if drawn else "",
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
                value=words.duration(value),
                share=words.percent(value / total) if total else words.UNKNOWN,
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
                value="" if are_shares else words.duration(value),
                share=words.percent(value / total),
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
        foreseen=words.predicted(step),
        measured=percent_of(tried.speedup, largest) if tried else None,
        low=low,
        high=max(low, high),
        told=words.interval(tried) if tried else "",
        losses=words.losses(tried) if tried else "",
        peak=words.size(tried.peak_bytes) if tried and tried.peak_bytes is not None else "",
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
