"""The words of a finding: names and numbers as people read them, the same on a terminal and in a report."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stoker.diagnose.finding import Finding, Step, Tried
from stoker.diagnose.measurements import Place
from stoker.units import readable_bytes, readable_seconds

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
