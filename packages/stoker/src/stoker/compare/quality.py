"""Quality over independent seeds: a metric of both versions, compared pair by pair by an exact test."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence

import msgspec

from stoker.compare.exact import LEAST_FOR_95, effect_of, pairs_needed
from stoker.errors import OptionError, TrainError

FINAL = 10  # of this many parts of a run, the last one gives the final loss
SIGNIFICANT = 0.05


class Repeat(msgspec.Struct, frozen=True, kw_only=True):
    """One run with its own seed."""

    seed: int
    metric: float
    losses: list[float]


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """A metric over seeds. Differences are AFTER minus BEFORE."""

    name: str
    higher: bool
    """Whether higher is better."""
    before: float
    after: float
    difference: float
    low: float | None
    high: float | None
    p: float
    pairs: int
    shared: int = 0
    """Pairs that were not counted, because another seed gave the same bits."""
    needed: int | None = None
    """Seeds that would show a difference of this size in four of five comparisons."""
    margin: float | None = None
    """The difference, relative to BEFORE, up to which AFTER counts as no worse."""

    @property
    def verdict(self) -> str:
        """`better`, `worse` or `unknown`."""
        if self.p > SIGNIFICANT or not self.difference:
            return "unknown"
        return "better" if (self.difference > 0) == self.higher else "worse"

    @property
    def no_worse(self) -> bool:
        """Whether the whole interval is better than BEFORE minus the margin."""
        if self.margin is None or self.low is None or self.high is None:
            return False
        room = self.margin * abs(self.before)
        return self.low >= -room if self.higher else self.high <= room


def quality_of(
    before: Sequence[Repeat], after: Sequence[Repeat], *, name: str, higher: bool = False, margin: float | None = None
) -> Quality:
    """Compare repeats with the same seeds. A pair counts once, however many seeds give its bits."""
    pairs: dict[tuple[object, ...], tuple[float, float]] = {}
    for a, b in zip(before, after, strict=True):
        pairs.setdefault((tuple(a.losses), a.metric, tuple(b.losses), b.metric), (a.metric, b.metric))
    values = list(pairs.values())
    # Two sides of the same bits each are one repeat on each side, also where the other side differs.
    distinct = min(len({(tuple(run.losses), run.metric) for run in side}) for side in (before, after))
    values = values[:distinct]
    differences = [b - a for a, b in values]
    effect = effect_of(differences)
    known = math.isfinite(effect.low) and len(values) >= LEAST_FOR_95
    return Quality(
        name=name,
        higher=higher,
        before=statistics.fmean(a for a, _ in values),
        after=statistics.fmean(b for _, b in values),
        difference=effect.mean,
        low=effect.low if known else None,
        high=effect.high if known else None,
        p=effect.p,
        pairs=len(values),
        shared=len(before) - len(values),
        needed=pairs_needed(differences, effect.mean),
        margin=margin,
    )


def final_loss(losses: Sequence[float]) -> float:
    """Return the mean loss of the last tenth of a run."""
    return statistics.fmean(losses[-max(1, len(losses) // FINAL) :])


def check_pattern(pattern: str) -> None:
    """Check a regular expression with one group."""
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise OptionError(f"metric is {pattern!r}, which is no regular expression: {error}.", parameter="metric") from None
    if groups != 1:
        raise OptionError(f"metric is {pattern!r}; expected one group around the number, like 'accuracy ([0-9.]+)'.", parameter="metric")


def printed_metric(output: str, pattern: str) -> float:
    """Return the last value of a metric that a program printed."""
    values = re.findall(pattern, output)
    if not values:
        raise TrainError(f"nothing that the program printed matches {pattern!r}. It must print the metric to stdout.")
    try:
        return float(values[-1])
    except ValueError:
        raise TrainError(f"{values[-1]!r}, which matches {pattern!r}, is not a number.") from None
