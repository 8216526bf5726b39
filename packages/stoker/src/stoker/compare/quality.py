"""Quality over independent seeds: a metric of both versions, compared pair by pair by an exact test."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence

import msgspec

from stoker.compare.intervals import effect_of, pairs_needed
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
    """The typical one of a pair."""
    low: float
    """The interval of 95 %: infinite with fewer than 6 pairs."""
    high: float
    p: float
    pairs: int
    shared: int = 0
    """Pairs that were not counted, because another seed gave the same bits."""
    unexplained: int = 0
    """Pairs whose losses are the same bits, but whose metrics differ: what computes the metric is another program."""
    of_losses: bool = False
    """Whether the metric is the loss that is trained on."""
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
        if self.margin is None:
            return False
        room = self.margin * abs(self.before)
        return self.low >= -room if self.higher else self.high <= room


def quality_of(
    before: Sequence[Repeat], after: Sequence[Repeat], *, name: str, higher: bool = False, margin: float | None = None,
    of_losses: bool = False,
) -> Quality:  # fmt: skip
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
    return Quality(
        name=name,
        higher=higher,
        before=statistics.fmean(a for a, _ in values),
        after=statistics.fmean(b for _, b in values),
        difference=effect.center,
        low=effect.low,
        high=effect.high,
        p=effect.p,
        pairs=len(values),
        shared=len(before) - len(values),
        unexplained=sum(a.losses == b.losses and a.metric != b.metric for a, b in zip(before, after, strict=True)),
        of_losses=of_losses,
        needed=pairs_needed(differences, effect.center),
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
        raise OptionError(f"metric is {pattern!r}, which is not a regular expression: {error}.", parameter="metric") from None
    if groups != 1:
        raise OptionError(
            f"metric is {pattern!r}; expected one group around the number, like 'accuracy ([0-9.]+)'.", parameter="metric"
        )


def printed_metric(output: str, pattern: str) -> float:
    """Return the last value of a metric that a program printed."""
    values = re.findall(pattern, output)
    if not values:
        raise TrainError(f"nothing that the program printed matches {pattern!r}. It must print the metric to stdout.")
    try:
        return float(values[-1])
    except ValueError:
        raise TrainError(f"{values[-1]!r}, which matches {pattern!r}, cannot be read as a float.") from None
