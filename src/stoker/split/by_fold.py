"""Purged: folds of time, each in turn to choose by; what reaches from one side of a boundary to the other is in neither part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from stoker.errors import OptionError
from stoker.feed.layout import AnyView
from stoker.split.carve import Interval, carve
from stoker.split.cuts import StepCuts, cuts_at_shares
from stoker.split.ground import Ground
from stoker.split.reach import Reach
from stoker.split.split import Split, build
from stoker.store.store import Store


@dataclass(frozen=True, eq=False)
class Folds(Sequence[Split]):
    """Splits into train and valid: `for train, valid in folds`."""

    splits: tuple[Split, ...]

    @overload
    def __getitem__(self, index: int) -> Split: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Split, ...]: ...
    def __getitem__(self, index: int | slice) -> Split | tuple[Split, ...]:
        return self.splits[index]

    def __len__(self) -> int:
        return len(self.splits)

    def __iter__(self) -> Iterator[Split]:
        return iter(self.splits)

    def __repr__(self) -> str:
        return "\n".join(f"fold {number}: {split}" for number, split in enumerate(self.splits))


def purged(
    store: Store,
    view: AnyView,
    *,
    folds: int = 5,
    forward: bool = False,
    horizon: int | None = None,
    warm_up: int = 0,
    embargo: int | None = None,
    time: str | None = None,
) -> Folds:
    """Time in `folds` of equal numbers of steps. Each is the valid part once, and all others are the train part.

    With `forward`, only the folds before it are, as one would have trained at that time; there is then one split less. The other
    options are those of `chronological`.
    """
    if isinstance(folds, bool) or not isinstance(folds, int | np.integer) or folds < 2:
        raise OptionError(f"folds is {folds!r}; expected a whole number from 2.")
    ground = Ground.of(store, view)
    reach = Reach.of(view, horizon=horizon, warm_up=warm_up, embargo=embargo)
    longest = int(store.lengths.max())
    if folds > longest and not reach.whole_series:
        raise OptionError(f"folds is {folds:,}, but the longest series of {store.name} has {longest:,} steps. Give fewer folds.")
    cuts = cuts_at_shares(ground, store, [*(fold / folds for fold in range(folds)), 1.0], time=time)
    if reach.whole_series and isinstance(cuts, StepCuts):
        raise OptionError(f"{view} has whole series as samples, and {store.name} has no time to put them in order. Use grouped(…).")
    splits = []
    for fold in range(1 if forward else 0, folds):
        around: list[Interval] = [(0, fold)] if forward else [(0, fold), (fold + 1, folds)]
        train = [(low, high) for low, high in around if low < high]
        runs, tally = carve(ground, cuts, reach, {"train": train, "valid": [(fold, fold + 1)]})
        limits = {
            "train": ", and ".join(f"from {cuts.describe(low)} to {cuts.describe(high)}" for low, high in train),
            "valid": f"from {cuts.describe(fold)} to {cuts.describe(fold + 1)}",
        }
        splits.append(build(ground, "walk-forward" if forward else "purged", runs, reach=reach, tally=tally, limits=limits))
    return Folds(tuple(splits))
