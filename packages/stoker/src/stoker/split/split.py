"""A split: named subsets that share no step, with the count of what had to go so that they do not."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import combinations
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from stoker._kernels import kernel
from stoker._types import Array, Seed, converted
from stoker.errors import LeakError, OptionError
from stoker.sampling.permutation import derive, epoch_key
from stoker.sampling.subset import Runs, StepRanges, Subset
from stoker.sampling.views import AnyView
from stoker.split.cuts import (
    Cuts,
    Excluded,
    Interval,
    Margins,
    Overlap,
    SampledStore,
    carve,
    cuts_at_shares,
    cuts_at_times,
    shares_of_steps,
)
from stoker.store.store import Store

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
            back = f"they reach back over a boundary (embargo {margins.embargo})"
            why = "they begin before a boundary" if margins.whole_series else back
            rows.append(("embargoed", self.excluded.embargoed, why))
        unused = total - sum(count for _, count, _ in rows)
        rows += [("unused", unused, "they are in no subset")] if unused else []
        width = max(len(f"{count:,}") for _, count, _ in rows)
        lines = [f"  {name:9}  {count:>{width},} samples {count / total:6.1%}  {words}".rstrip() for name, count, words in rows]
        lines += ["  overlap    windows reach back over a boundary with their inputs; targets never do"] * bool(margins.overlap)
        lines += ["  LEAKS      subsets share steps, as allow_leak=True allows"] if self.leaks else []
        lines += [f"  note       {subset.note}" for subset in self.subsets.values() if subset.note]
        return "\n".join([f"{self.kind} split of {self.sampled.name}: {self.sampled.view}", *lines])


def _too_short(name: str, sampled: SampledStore, margins: Margins, asked: Mapping[str, float] | None) -> str:
    """Return how many steps a subset has and a sample needs, and the remedy, where a cut in time leaves no room for a sample."""
    share, needed = (asked or {}).get(name), sampled.samples.row + margins.warm_up
    longest = int(np.diff(sampled.lengths.bounds()).max(initial=0))
    if share is None or margins.whole_series or margins.overlap or longest * share >= needed:
        return ""
    return (
        f": it has {int(longest * share):,} of the {longest:,} steps of the longest series, and a sample needs {needed:,} steps. With "
        f"overlap='inputs' (in a configuration split.overlap: inputs) windows look back over the boundary with their inputs"
    )


def build(
    sampled: SampledStore,
    kind: str,
    runs: Mapping[str, Runs],
    *,
    margins: Margins,
    excluded: Excluded | None = None,
    limits: Mapping[str, str] | None = None,
    asked: Mapping[str, float] | None = None,
    whole_series: bool = False,
    allow_leak: bool = False,
) -> Split:
    """A split of these samples, checked: every subset has some, and no step is in two of them. `asked` are shares of subsets."""
    excluded = excluded or Excluded()
    num_all = sampled.samples.num_samples
    subsets: dict[str, Subset] = {}
    for name, samples in runs.items():
        if not samples.size:
            raise OptionError(
                f"the {name} subset of this {kind} split of {sampled.name} has no sample: of {num_all:,} samples {excluded.purged:,} "
                f"are purged, {excluded.embargoed:,} embargoed{_too_short(name, sampled, margins, asked)}. Make the subset larger, or the "
                f"windows shorter.",
                parameter="fractions",
            )
        subsets[name] = Subset(
            name=name,
            origin=f"a {kind} split of {sampled.name}",
            view=sampled.view,
            data=sampled.data,
            runs=samples,
            num_all=num_all,
            whole_series=whole_series or margins.whole_series,
            note=_shrunk(name, samples.size, num_all, asked[name], margins, excluded) if asked else "",
        )
    if "train" in subsets:
        trained_on = subsets["train"].fingerprint
        subsets = {name: replace(subset, trained_on=trained_on) for name, subset in subsets.items()}
    split = Split(
        kind=kind, subsets=subsets, sampled=sampled, margins=margins, excluded=excluded, limits=limits or {}, leaks=allow_leak
    )
    if not allow_leak:
        check(split)
    return split


SHRUNK = 0.5
"""A subset with less than this part of what was asked is noted."""


def _shrunk(name: str, size: int, num_all: int, asked: float, margins: Margins, excluded: Excluded) -> str:
    """One line that says that a subset is much smaller than was asked, and why; empty if it is not."""
    if size >= SHRUNK * asked * num_all:
        return ""
    note = f"the {name} subset has {size / num_all:.1%} of the samples, but {asked:.1%} was asked for"
    is_cut = excluded.embargoed and not margins.whole_series
    return f"{note}; overlap='inputs' would keep windows that reach back" if is_cut else note


def check(split: Split | Iterable[Split]) -> None:
    """Check that no step is in samples of two subsets, as part of a window, a target, or a warm-up.

    With `overlap="inputs"`: that no target of a later subset is in a sample of an earlier one.

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
        for fold in split:
            check(fold)
        return
    sampled, names = split.sampled, list(split.subsets)
    for together in zip(*(subset.over(sampled.samples).step_ranges() for subset in split), strict=True):
        reaching = [_reaching(split, ranges) for ranges in together]
        later = [_targets(split, ranges) for ranges in together] if split.margins.overlap else reaching
        for i, j in combinations(range(len(names)), 2):
            for (name, early), (other, late) in (
                ((names[i], reaching[i]), (names[j], later[j])),
                ((names[j], later[j]), (names[i], reaching[i])),
            ):
                _refuse_shared(split, name, early, other, late)


def _refuse_shared(split: Split, name: str, early: StepRanges, other: str, late: StepRanges) -> None:
    """Raise if a range of the one subset begins within a range of the other."""
    if not len(early.starts):
        return
    sampled, margins = split.sampled, split.margins
    # How far the ranges that begin before each of the others have come, at most.
    before = np.searchsorted(early.starts, late.starts, side="right") - 1
    reached = np.where(before >= 0, np.maximum.accumulate(early.stops)[before], 0)
    bad = np.flatnonzero((late.starts < reached) & (late.starts < late.stops))
    if len(bad):
        series, step = int(late.series[bad[0]]), int(late.starts[bad[0]])
        begin = int(sampled.lengths.bounds(series, series + 1)[0])
        sample = early.samples[(early.starts <= step) & (early.stops > step)][0]
        what = "is in two subsets, as a target of the later one" if margins.overlap else "is in two subsets"
        raise LeakError(
            f"step {step - begin:,} of series {series:,} of {sampled.name} {what}: in the samples from "
            f"{sample:,} on of {name} and from {late.samples[bad[0]]:,} on of {other} (horizon {margins.horizon}, "
            f"warm-up {margins.warm_up}). Use chronological(…), grouped(…) or purged(…), which keep such samples out."
        )


def _targets(split: Split, ranges: StepRanges) -> StepRanges:
    """The steps that are targets of samples: those from the first target on."""
    whole, margins = _reaching(split, ranges), split.margins
    # A padded window ends before its length, and its last step is still a target where there are no others.
    least = np.minimum(ranges.starts + margins.first_target, ranges.stops - (margins.first_target < margins.length))
    return whole._replace(starts=np.maximum(least, ranges.starts))


def _reaching(split: Split, ranges: StepRanges) -> StepRanges:
    """With what the samples were made of beside the steps that they hold, as far as their series have it."""
    if split.margins.whole_series or not len(ranges.series):
        return ranges
    sampled, margins = split.sampled, split.margins
    first = int(ranges.series[0])
    bounds = sampled.lengths.bounds(first, int(ranges.series[-1]) + 1)
    begins, ends = bounds[ranges.series - first], bounds[ranges.series - first + 1]
    beyond = margins.horizon - (sampled.samples.row - margins.length)
    starts, stops = np.maximum(ranges.starts - margins.warm_up, begins), np.minimum(ranges.stops + beyond, ends)
    return StepRanges(ranges.series, starts, stops, ranges.samples)


FRACTIONS = (0.7, 0.15, 0.15)


def chronological(
    store: Store,
    view: AnyView,
    *,
    fractions: Sequence[float] | None = None,
    boundaries: Sequence[Any] | None = None,
    horizon: int | None = None,
    warm_up: int = 0,
    embargo: int | None = None,
    overlap: Overlap | None = None,
    time: str | None = None,
) -> Split:
    """Subsets train, valid and test (or train and valid), one after the other in time.

    Where the store has a time column, all series are cut at the same times; otherwise each series is cut by fractions of its own
    steps. Samples that reach over a boundary with their targets or their warm-up are in no subset.

    Args:
        store: The store.
        view: What a sample is.
        fractions: Shares of all steps, by default 0.7, 0.15 and 0.15. Less than 1 together leaves the last steps out.
        boundaries: Instead of fractions, the times at which the later subsets begin.
        horizon: Steps after a window that its targets or labels depend on; by default the target of the view.
        warm_up: Steps before a window that its features depend on.
        embargo: Steps from a boundary to the last step of the first window after it; at least, and by default,
            `length - 1 + warm_up`.
        overlap: "inputs" lets windows of later subsets reach back over a boundary with their inputs and warm-up, the protocol of
            most forecasting benchmarks; their targets never do. Targets are the horizon of the view; without one the
            shifted window, or the last step of the window. By default no step is in two subsets.
        time: The column of time; by default that of the store.

    Returns:
        A `Split`: `split.train`, `split.valid` and `split.test` are subsets for `Feed(subset=…)`.

    Raises:
        OptionError: An option is invalid, or a subset has no sample.
        LeakError: `horizon` or `embargo` is less than the view needs.

    Example:
        >>> import numpy as np, stoker
        >>> store = stoker.Store.from_arrays(x=[np.arange(100.0)])
        >>> split = stoker.split.chronological(store, stoker.Windows(5, horizon=1), fractions=(0.8, 0.2))
        >>> len(split.train), len(split.valid)
        (75, 15)
        >>> split = stoker.split.chronological(store, stoker.Windows(5, horizon=1), fractions=(0.8, 0.2), overlap="inputs")
        >>> len(split.train), len(split.valid)
        (75, 20)
    """
    if fractions is not None and boundaries is not None:
        raise OptionError("fractions= and boundaries= are two ways to say where to cut; give one of them.", parameter="fractions")
    sampled = SampledStore.of(store, view)
    margins = Margins.of(view, horizon=horizon, warm_up=warm_up, embargo=embargo, overlap=overlap)
    cuts: Cuts
    if boundaries is not None:
        num_parts = len(boundaries) + 1 if isinstance(boundaries, Sequence | np.ndarray) and not isinstance(boundaries, str) else 0
        if num_parts not in (2, 3):
            raise OptionError.expected("boundaries", boundaries, "one time (where valid begins) or two (where test begins)")
        cuts = cuts_at_times(sampled, store, boundaries, time=time)
    else:
        shares = [0.0, *np.cumsum(checked_fractions(FRACTIONS if fractions is None else fractions)).tolist()]
        num_parts = len(shares) - 1
        cuts = cuts_at_shares(sampled, store, [1.0 if share > 1 - 1e-9 else share for share in shares], time=time)
    wanted = {name: [(i, i + 1)] for i, name in enumerate(NAMES[:num_parts])}
    runs, excluded = carve(sampled, cuts, margins, wanted)
    limits = {name: f"from {cuts.describe(i)} to {cuts.describe(i + 1)}" for i, name in enumerate(wanted)}
    asked = shares_of_steps(sampled, cuts, wanted)
    return build(sampled, "chronological", runs, margins=margins, excluded=excluded, limits=limits, asked=asked)


def checked_fractions(fractions: Sequence[float]) -> list[float]:
    """Two or three shares that fit into 1."""
    try:
        shares = [float(fraction) for fraction in fractions]
    except (TypeError, ValueError):
        shares = []
    are_shares = len(shares) > 1 and all(share > 0 for share in shares)
    if len(shares) not in (2, 3) or not are_shares or sum(shares) > 1 + 1e-9:
        said = f" and sum up to {sum(shares):.6g}" if are_shares else ""
        raise OptionError(
            f"fractions are {fractions!r}{said}; expected two or three numbers above 0 (train, valid, test), 1 at most together.",
            parameter="fractions",
        )
    return shares


# Purged: folds of time, each in turn to choose by; what reaches from one side of a boundary to the other is in neither subset.


class Folds(tuple[Split, ...]):
    """Splits into train and valid: `for train, valid in folds`.

    Example:
        >>> store = stoker.Store.from_arrays(x=[np.arange(100.0)])
        >>> [list(split.subsets) for split in stoker.split.purged(store, stoker.Windows(5), folds=2)]
        [['train', 'valid'], ['train', 'valid']]
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(f"fold {number}: {split}" for number, split in enumerate(self))


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
    """Cross-validation over time: folds of equal numbers of steps, each of which is the valid subset once.

    Args:
        store: The store.
        view: What a sample is.
        folds: Number of folds, from 2.
        forward: Train only on the folds before the valid one (walk-forward); there is then one split less.
        horizon: As in `chronological`.
        warm_up: As in `chronological`.
        embargo: As in `chronological`.
        time: As in `chronological`.

    Returns:
        `Folds`: a sequence of splits into train and valid.

    Raises:
        OptionError: An option is invalid, or a subset has no sample.
        LeakError: `horizon` or `embargo` is less than the view needs.

    Example:
        >>> import numpy as np, stoker
        >>> store = stoker.Store.from_arrays(x=[np.arange(100.0)])
        >>> folds = stoker.split.purged(store, stoker.Windows(5), folds=4)
        >>> [(len(train), len(valid)) for train, valid in folds]
        [(71, 21), (67, 21), (67, 21), (71, 21)]
    """
    folds = converted("folds", folds, Annotated[int, Meta(ge=2)])
    sampled = SampledStore.of(store, view)
    margins = Margins.of(view, horizon=horizon, warm_up=warm_up, embargo=embargo)
    longest = int(store.lengths.max())
    if folds > longest and not margins.whole_series:
        raise OptionError(
            f"folds is {folds:,}, but the longest series of {store.name} has {longest:,} steps. Give fewer folds.",
            parameter="folds",
        )
    cuts = cuts_at_shares(sampled, store, [*(fold / folds for fold in range(folds)), 1.0], time=time)
    splits = []
    for fold in range(1 if forward else 0, folds):
        around: list[Interval] = [(0, fold)] if forward else [(0, fold), (fold + 1, folds)]
        train = [(low, high) for low, high in around if low < high]
        runs, excluded = carve(sampled, cuts, margins, {"train": train, "valid": [(fold, fold + 1)]})
        limits = {
            "train": ", and ".join(f"from {cuts.describe(low)} to {cuts.describe(high)}" for low, high in train),
            "valid": f"from {cuts.describe(fold)} to {cuts.describe(fold + 1)}",
        }
        kind = "walk-forward" if forward else "purged"
        splits.append(build(sampled, kind, runs, margins=margins, excluded=excluded, limits=limits))
    return Folds(splits)


# Grouped: whole series, or groups of them, each in one subset by a key of its name and the seed alone.

_GROUPS = 9  # what keys are for here; orders have the numbers below


def grouped(
    store: Store, view: AnyView, *, by: str | None = None, fractions: Sequence[float] | None = None, seed: int = 0
) -> Split:
    """Subsets train, valid and test (or train and valid) of whole series.

    The subset of a group depends on its name and `seed` alone, so series that are added later move none of the others.

    Args:
        store: The store.
        view: What a sample is.
        by: A column per series; series with the same value stay together. By default each series is a group of its own, known
            by its key or, in a store without keys, by its index.
        fractions: Shares of the groups, approximately; by default 0.7, 0.15 and 0.15.
        seed: An integer from 0.

    Returns:
        A `Split`.

    Raises:
        OptionError: An option is invalid, or a subset has no sample.

    Example:
        >>> import numpy as np, stoker
        >>> store = stoker.Store.from_arrays(x=[np.arange(4.0)] * 40)
        >>> split = stoker.split.grouped(store, stoker.Sequences(4), fractions=(0.5, 0.5))
        >>> len(split.train) + len(split.valid)
        40
    """
    sampled = SampledStore.of(store, view)
    shares = np.cumsum(checked_fractions(FRACTIONS if fractions is None else fractions))
    shares[-1] = 1.0 if shares[-1] > 1 - 1e-9 else shares[-1]
    keys = _group_keys(store, by, epoch_key(converted("seed", seed, Seed), 0, _GROUPS))
    # The upper 53 bits are a number from 0 to 1, exactly.
    subset = np.searchsorted(shares, (keys >> np.uint64(11)).astype(np.float64) / 2**53, side="right")
    firsts = sampled.firsts()
    runs = {}
    for number, name in enumerate(NAMES[: len(shares)]):
        mine = subset == number
        runs[name] = Runs(firsts[:-1][mine], np.diff(firsts)[mine])
        if not runs[name].size:
            groups = len(np.unique(keys))
            raise OptionError(
                f"the {name} subset of this grouped split of {store.name} has no sample: {groups:,} groups fell into the others "
                f"by chance. Give another seed, or larger fractions.",
                parameter="fractions",
            )
    limits = {name: f"of {int((subset == i).sum()):,} series" for i, name in enumerate(runs)}
    asked = dict(zip(runs, np.diff(shares, prepend=0.0).tolist(), strict=True))
    margins = Margins.of(view, horizon=None, warm_up=0)
    return build(sampled, "grouped", runs, margins=margins, limits=limits, asked=asked, whole_series=True)


@kernel
def _derive_all(key: Any, words: Array, keys: Array) -> None:
    for i in range(len(words)):
        keys[i] = derive(key, words[i])


@kernel
def _derive_texts(key: Any, utf8: Array, offsets: Array, keys: Array) -> None:
    for i in range(len(offsets) - 1):
        word = key
        for k in range(offsets[i], offsets[i + 1]):
            word = derive(word, np.uint64(utf8[k]))
        keys[i] = derive(word, np.uint64(offsets[i + 1] - offsets[i]))


def _group_keys(store: Store, by: str | None, key: np.uint64) -> Array:
    """A key for each series, equal for equal groups."""
    keys = np.empty(len(store), dtype=np.uint64)
    name = by if by is not None else store.key
    if name is None:
        _derive_all(key, np.arange(len(store), dtype=np.uint64), keys)
        return keys
    column = store.schema.get(name)
    if column is None:
        raise OptionError(f"{store.name} has no column {name!r} to group by; it has {', '.join(store.schema)}.", column=name)
    if column.level != "series" or column.width is not None:
        raise OptionError(
            f"column {name!r} of {store.name} holds {column.label} per {column.level}; to group by it, a series must have one value.",
            column=name,
        )
    if column.texts is None:
        _derive_all(key, _words(store.column(name)), keys)
        return keys
    of_texts = np.empty(len(column.texts) + 1, dtype=np.uint64)
    _derive_texts(key, column.texts.utf8, column.texts.offsets, of_texts[:-1])
    of_texts[-1] = derive(key, np.uint64(0))  # the group of those without a category, whose code is -1
    return of_texts[:-1] if column.dtype is None else of_texts[store.column(name)]


def _words(values: Array) -> Array:
    """64 bits for each value, equal for equal values."""
    if values.dtype.kind == "f":
        numbers = values.astype(np.float64) + 0.0  # one zero
        numbers[np.isnan(numbers)] = np.nan
        return numbers.view(np.uint64)
    return values.astype(np.int64).view(np.uint64) if values.dtype.kind != "u" else values.astype(np.uint64)


# Given: subsets of samples that the caller chose, checked for shared steps.


def given(
    store: Store,
    view: AnyView,
    subsets: Mapping[str, Sequence[int] | Array],
    *,
    horizon: int | None = None,
    warm_up: int = 0,
    allow_leak: bool = False,
) -> Split:
    """Subsets of given samples, as the splitters of scikit-learn return them, checked for shared steps.

    Args:
        store: The store.
        view: What a sample is.
        subsets: Indices of samples by the name of their subset. Within a subset samples are in the order of their indices.
        horizon: As in `chronological`.
        warm_up: As in `chronological`.
        allow_leak: Warn instead of raising LeakError.

    Returns:
        A `Split`.

    Raises:
        LeakError: Two subsets share a step.
        OptionError: An index is invalid.

    Example:
        >>> import numpy as np, stoker
        >>> store = stoker.Store.from_arrays(x=[np.arange(8.0)])
        >>> split = stoker.split.given(store, stoker.Segments(2), {"train": [0, 1], "valid": [3]})
        >>> len(split.train), len(split.valid)
        (2, 1)
    """
    sampled = SampledStore.of(store, view)
    margins = Margins.of(view, horizon=horizon, warm_up=warm_up)
    runs = {name: Runs.of(_checked(name, numbers, sampled)) for name, numbers in subsets.items()}
    if not runs:
        raise OptionError(
            "subsets is empty; expected samples by the names of subsets, like {'train': […], 'valid': […]}.", parameter="subsets"
        )
    if allow_leak:
        warnings.warn("allow_leak=True: subsets may share steps, and a score on them may be too good.", stacklevel=2)
    return build(sampled, "given", runs, margins=margins, allow_leak=allow_leak)


def by_value(
    store: Store,
    view: AnyView,
    column: str,
    *,
    train: Any,
    valid: Any = None,
    test: Any = None,
) -> Split:
    """Subsets of whole series by the values of a column, such as the file that a series was packed from.

    Args:
        store: The store.
        view: What a sample is.
        column: A column per series: of categories, strings or integers.
        train: The value, or a list of the values, of series to train on. Strings may be patterns such as "*_TRAIN.ts".
        valid: The same for series to validate on; None leaves the subset out.
        test: The same for series to test on.

    Returns:
        A `Split`.

    Raises:
        OptionError: No series has one of the values, or a series is in two subsets.

    Example:
        >>> import numpy as np, stoker
        >>> store = stoker.Store.from_arrays(x=[np.arange(4.0)] * 3, year=np.array([2019, 2020, 2021]))
        >>> split = stoker.split.by_value(store, stoker.Sequences(4), "year", train=[2019, 2020], valid=2021)
        >>> len(split.train), len(split.valid)
        (2, 1)
    """
    sampled = SampledStore.of(store, view)
    kind = store.schema.get(column)
    if kind is None or kind.level != "series" or kind.width is not None:
        what = "has no such column" if kind is None else f"holds {kind.label} per {kind.level} in it"
        raise OptionError(
            f"column is {column!r}, but {store.name} {what}; expected a column with one value per series.", parameter="column"
        )
    texts = None if kind.texts is None else list(kind.texts)
    codes = np.arange(len(store)) if kind.dtype is None else store.column(column)
    taken, firsts, runs, limits = np.zeros(len(store), dtype="<U5"), sampled.firsts(), {}, {}
    for name, asked in zip(NAMES, (train, valid, test), strict=True):
        mine = np.zeros(len(store), dtype=np.bool_)
        values = [] if asked is None else [asked] if isinstance(asked, str) or not isinstance(asked, Sequence) else list(asked)
        for value in values:
            fits = codes == value
            if texts is not None:
                fits = np.isin(codes, [i for i, text in enumerate(texts) if fnmatchcase(text, str(value))])
            if not np.any(fits):
                values_of_all = sorted({*texts}) if texts is not None else np.unique(codes).tolist()
                shown = ", ".join(map(repr, values_of_all[:4])) + (", …" if len(values_of_all) > 4 else "")
                raise OptionError(
                    f"{name} is {value!r}, but no series of {store.name} has this {column}; they have {shown}.", parameter=name
                )
            mine |= fits
        twice = mine & (taken != "")
        if twice.any():
            number = int(twice.argmax())
            raise OptionError(
                f"series {number:,} of {store.name} is in {taken[number]} and in {name} by its {column}; expected one.",
                parameter="column",
            )
        if values:
            taken[mine] = name
            runs[name] = Runs(firsts[:-1][mine], np.diff(firsts)[mine])
            limits[name] = f"of {int(mine.sum()):,} series"
    return build(sampled, "by value", runs, margins=Margins.of(view, horizon=None, warm_up=0), limits=limits, whole_series=True)


def _checked(name: str, numbers: Any, sampled: SampledStore) -> Array:
    given, size = np.asarray(numbers), sampled.samples.num_samples
    if given.ndim != 1 or (len(given) and given.dtype.kind not in "iu"):
        raise OptionError(
            f"subset {name!r} has {given.dtype} of shape {list(given.shape)}; expected the numbers of samples.", parameter="subsets"
        )
    unique = np.unique(given).astype(np.int64)
    if len(unique) < len(given):
        raise OptionError(
            f"subset {name!r} has {len(given) - len(unique):,} samples twice; expected each once.", parameter="subsets"
        )
    if len(unique) and (unique[0] < 0 or unique[-1] >= size):
        wrong = unique[0] if unique[0] < 0 else unique[-1]
        raise OptionError(
            f"subset {name!r} has sample {wrong:,}; {sampled.name} has samples 0 to {size - 1:,} of {sampled.view}.",
            parameter="subsets",
        )
    return unique
