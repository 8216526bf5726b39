"""A split: named subsets that share no step, with the count of what had to go so that they do not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from stoker._types import Array
from stoker.errors import LeakError, OptionError
from stoker.sampling.subset import Runs, StepRanges, Subset
from stoker.split.cuts import Excluded, Margins, SampledStore

NAMES = ("train", "valid", "test")


@dataclass(frozen=True, eq=False, kw_only=True)
class Split:
    """Subsets by name, for `Feed(subset=split.train)`. Iterating gives the subsets in order: `train, valid = split`.

    `print(split)` shows where each subset lies, and how many samples are in none of them and why.
    """

    kind: str
    subsets: Mapping[str, Subset]
    sampled: SampledStore
    margins: Margins
    excluded: Excluded
    limits: Mapping[str, str]
    """Where each subset lies, in words."""
    leaks: bool = False
    """Whether it was allowed to leak."""

    @property
    def train(self) -> Subset:
        """The subset to train on."""
        return self._subset("train")

    @property
    def valid(self) -> Subset:
        """The subset for early stopping and model selection."""
        return self._subset("valid")

    @property
    def test(self) -> Subset:
        """The subset for the final evaluation."""
        return self._subset("test")

    def _subset(self, name: str) -> Subset:
        if name not in self.subsets:
            raise AttributeError(f"this {self.kind} split has no {name} subset; it has {', '.join(self.subsets)}.")
        return self.subsets[name]

    def __iter__(self) -> Iterator[Subset]:
        return iter(self.subsets.values())

    def __len__(self) -> int:
        return len(self.subsets)

    def __repr__(self) -> str:
        total = self.sampled.samples.num_samples
        rows = [(name, len(subset), self.limits.get(name, "")) for name, subset in self.subsets.items()]
        margins = self.margins
        if self.excluded.purged:
            rows.append(("purged", self.excluded.purged, f"their targets reach over a boundary (horizon {margins.horizon})"))
        if self.excluded.embargoed:
            back = (
                "they begin before a boundary"
                if margins.whole_series
                else f"they reach back over a boundary (embargo {margins.embargo})"
            )
            rows.append(("embargoed", self.excluded.embargoed, back))
        unused = total - sum(count for _, count, _ in rows)
        rows += [("unused", unused, "they are in no subset")] if unused else []
        width = max(len(f"{count:,}") for _, count, _ in rows)
        lines = [f"  {name:9}  {count:>{width},} samples {count / total:6.1%}  {words}".rstrip() for name, count, words in rows]
        leak = ["  LEAKS      subsets share steps, as allow_leak=True allows"] if self.leaks else []
        return "\n".join([f"{self.kind} split of {self.sampled.name}: {self.sampled.view}", *lines, *leak])


def build(
    sampled: SampledStore,
    kind: str,
    runs: Mapping[str, Runs],
    *,
    margins: Margins,
    excluded: Excluded | None = None,
    limits: Mapping[str, str] | None = None,
    whole_series: bool = False,
    allow_leak: bool = False,
) -> Split:
    """A split of these samples, checked: every subset has some, and no step is in two of them."""
    excluded = excluded or Excluded()
    for name, one in runs.items():
        if not one.size:
            gone = f"{excluded.purged:,} are purged, {excluded.embargoed:,} embargoed"
            raise OptionError(
                f"the {name} subset of this {kind} split of {sampled.name} has no sample: of {sampled.samples.num_samples:,} samples "
                f"{gone}. Make the subset larger, or the windows shorter."
            )
    subsets = {
        name: Subset(
            name=name,
            origin=f"a {kind} split of {sampled.name}",
            view=sampled.view,
            data=sampled.data,
            runs=one,
            num_all=sampled.samples.num_samples,
            whole_series=whole_series or margins.whole_series,
        )
        for name, one in runs.items()
    }
    split = Split(
        kind=kind, subsets=subsets, sampled=sampled, margins=margins, excluded=excluded, limits=limits or {}, leaks=allow_leak
    )
    if not allow_leak:
        check(split)
    return split


def check(split: Split | Iterable[Split]) -> None:
    """Check that no step is in samples of two subsets, as part of a window, a target, or a warm-up.

    The functions of this package check what they return. Call it for a split that was made with `allow_leak=True`.

    Args:
        split: A split, or several such as `Folds`.

    Raises:
        LeakError: Two subsets share a step.

    Example:
        >>> store = stoker.Store.from_arrays(x=[np.arange(40.0)])
        >>> stoker.split.check(stoker.split.chronological(store, stoker.Windows(4, horizon=1), fractions=[0.5, 0.5]))
    """
    if not isinstance(split, Split):
        for one in split:
            check(one)
        return
    sampled = split.sampled
    names = list(split.subsets)
    for together in zip(*(subset.over(sampled.samples).step_ranges() for subset in split), strict=True):
        found = _find_overlap([_reaching(split, ranges) for ranges in together])
        if found:
            (early, late), series, step, samples = found
            begin = int(sampled.bounds(series, series + 1)[0])
            raise LeakError(
                f"step {step - begin:,} of series {series:,} of {sampled.name} is in two subsets: in the samples from "
                f"{samples[0]:,} on of {names[early]} and from {samples[1]:,} on of {names[late]} (horizon {split.margins.horizon}, "
                f"warm-up {split.margins.warm_up}). Use chronological(…), grouped(…) or purged(…), which keep such samples out."
            )


def _reaching(split: Split, ranges: StepRanges) -> StepRanges:
    """With what the samples were made of beside the steps that they hold, as far as their series have it."""
    if split.margins.whole_series:
        return ranges
    sampled = split.sampled
    begins, ends = _series_bounds(sampled, ranges.series)
    beyond = split.margins.horizon - (sampled.samples.row - split.margins.length)
    starts = np.maximum(ranges.starts - split.margins.warm_up, begins)
    return StepRanges(ranges.series, starts, np.minimum(ranges.stops + beyond, ends), ranges.samples)


def _series_bounds(sampled: SampledStore, series: Array) -> tuple[Array, Array]:
    if not len(series):
        return series, series
    first, last = int(series[0]), int(series[-1]) + 1
    bounds = sampled.bounds(first, last)
    return bounds[series - first], bounds[series - first + 1]


def _find_overlap(subsets: list[StepRanges]) -> tuple[tuple[int, int], int, int, tuple[int, int]] | None:
    """Two subsets that share a step: which, the series, the step, and a sample of each."""
    for one, other in permutations(range(len(subsets)), 2):
        early, late = subsets[one], subsets[other]
        if not len(early.starts):
            continue
        # How far the ranges that begin before each of the others have come, at most.
        before = np.searchsorted(early.starts, late.starts, side="right") - 1
        reached = np.where(before >= 0, np.maximum.accumulate(early.stops)[before], 0)
        bad = np.flatnonzero((late.starts < reached) & (late.starts < late.stops))
        if len(bad):
            at = bad[0]
            step = int(late.starts[at])
            witness = np.flatnonzero((early.starts <= step) & (early.stops > step))[0]
            return (one, other), int(late.series[at]), step, (int(early.samples[witness]), int(late.samples[at]))
    return None
