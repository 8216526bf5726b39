"""A split: named parts that share no step, with the count of what had to go so that they do not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from stoker._types import Array
from stoker.errors import LeakError, OptionError
from stoker.sampling.subset import Runs, Stretches, Subset
from stoker.split.cuts import Ground, Reach, Tally

NAMES = ("train", "valid", "test")


@dataclass(frozen=True, eq=False, kw_only=True)
class Split:
    """Parts by name, for `Feed(subset=split.train)`; iterating gives the parts in order, so `train, valid = split` works."""

    kind: str
    subsets: Mapping[str, Subset]
    ground: Ground
    reach: Reach
    tally: Tally
    limits: Mapping[str, str]
    """Where each part lies, in words."""
    leaks: bool = False
    """Whether it was allowed to leak."""

    @property
    def train(self) -> Subset:
        """To train on."""
        return self._part("train")

    @property
    def valid(self) -> Subset:
        """To choose by: when to stop, and which of many."""
        return self._part("valid")

    @property
    def test(self) -> Subset:
        """To judge by, once."""
        return self._part("test")

    def _part(self, name: str) -> Subset:
        if name not in self.subsets:
            raise AttributeError(f"this {self.kind} split has no {name} part; it has {', '.join(self.subsets)}.")
        return self.subsets[name]

    def __iter__(self) -> Iterator[Subset]:
        return iter(self.subsets.values())

    def __len__(self) -> int:
        return len(self.subsets)

    def __repr__(self) -> str:
        total = self.ground.samples.num_samples
        rows = [(name, len(part), self.limits.get(name, "")) for name, part in self.subsets.items()]
        reach = self.reach
        if self.tally.purged:
            rows.append(("purged", self.tally.purged, f"their targets reach over a boundary (horizon {reach.horizon})"))
        if self.tally.embargoed:
            back = (
                "they begin before a boundary"
                if reach.whole_series
                else f"they reach back over a boundary (embargo {reach.embargo})"
            )
            rows.append(("embargoed", self.tally.embargoed, back))
        unused = total - sum(count for _, count, _ in rows)
        rows += [("unused", unused, "they are in no part")] if unused else []
        width = max(len(f"{count:,}") for _, count, _ in rows)
        lines = [f"  {name:9}  {count:>{width},} samples {count / total:6.1%}  {words}".rstrip() for name, count, words in rows]
        leak = ["  LEAKS      parts share steps, as allow_leak=True allows"] if self.leaks else []
        return "\n".join([f"{self.kind} split of {self.ground.name}: {self.ground.view}", *lines, *leak])


def build(
    ground: Ground,
    kind: str,
    runs: Mapping[str, Runs],
    *,
    reach: Reach,
    tally: Tally | None = None,
    limits: Mapping[str, str] | None = None,
    whole_series: bool = False,
    allow_leak: bool = False,
) -> Split:
    """A split of these samples, checked: every part has some, and no step is in two of them."""
    tally = tally or Tally()
    for name, one in runs.items():
        if not one.size:
            gone = f"{tally.purged:,} are purged, {tally.embargoed:,} embargoed"
            raise OptionError(
                f"the {name} part of this {kind} split of {ground.name} has no sample: of {ground.samples.num_samples:,} samples "
                f"{gone}. Make the part larger, or the windows shorter."
            )
    parts = {
        name: Subset(
            name=name,
            origin=f"a {kind} split of {ground.name}",
            view=ground.view,
            data=ground.data,
            runs=one,
            num_all=ground.samples.num_samples,
            whole_series=whole_series or reach.whole_series,
        )
        for name, one in runs.items()
    }
    split = Split(kind=kind, subsets=parts, ground=ground, reach=reach, tally=tally, limits=limits or {}, leaks=allow_leak)
    if not allow_leak:
        check(split)
    return split


def check(split: Split | Iterable[Split]) -> None:
    """Raise LeakError if a step is in samples of two parts, as part of a window, a target, or a warm-up."""
    if not isinstance(split, Split):
        for one in split:
            check(one)
        return
    ground = split.ground
    names = list(split.subsets)
    for together in zip(*(part.over(ground.samples).stretches() for part in split), strict=True):
        found = _find_overlap([_reaching(split, stretches) for stretches in together])
        if found:
            (early, late), series, step, samples = found
            begin = int(ground.bounds(series, series + 1)[0])
            raise LeakError(
                f"step {step - begin:,} of series {series:,} of {ground.name} is in two parts: in the samples from "
                f"{samples[0]:,} on of {names[early]} and from {samples[1]:,} on of {names[late]} (horizon {split.reach.horizon}, "
                f"warm-up {split.reach.warm_up}). Use chronological(…), grouped(…) or purged(…), which keep such samples out."
            )


def _reaching(split: Split, stretches: Stretches) -> Stretches:
    """With what the samples were made of beside the steps that they hold, as far as their series have it."""
    if split.reach.whole_series:
        return stretches
    ground = split.ground
    begins, ends = _series_bounds(ground, stretches.series)
    beyond = split.reach.horizon - (ground.samples.row - split.reach.length)
    starts = np.maximum(stretches.starts - split.reach.warm_up, begins)
    return Stretches(stretches.series, starts, np.minimum(stretches.stops + beyond, ends), stretches.samples)


def _series_bounds(ground: Ground, series: Array) -> tuple[Array, Array]:
    if not len(series):
        return series, series
    first, last = int(series[0]), int(series[-1]) + 1
    bounds = ground.bounds(first, last)
    return bounds[series - first], bounds[series - first + 1]


def _find_overlap(parts: list[Stretches]) -> tuple[tuple[int, int], int, int, tuple[int, int]] | None:
    """Two parts that share a step: which, the series, the step, and a sample of each."""
    for one, other in permutations(range(len(parts)), 2):
        early, late = parts[one], parts[other]
        if not len(early.starts):
            continue
        # How far the stretches that begin before each of the others have come, at most.
        before = np.searchsorted(early.starts, late.starts, side="right") - 1
        reached = np.where(before >= 0, np.maximum.accumulate(early.stops)[before], 0)
        bad = np.flatnonzero((late.starts < reached) & (late.starts < late.stops))
        if len(bad):
            at = bad[0]
            step = int(late.starts[at])
            witness = np.flatnonzero((early.starts <= step) & (early.stops > step))[0]
            return (one, other), int(late.series[at]), step, (int(early.samples[witness]), int(late.samples[at]))
    return None
