"""Views: what a sample is. A view over the lengths of series gives samples, any of which is found by its index.

    Windows      windows of a fixed length, every `stride` steps
    Segments     consecutive windows that do not overlap
    Sequences    whole series, cut to a maximal length
    Lengths      where the series lie in a flat column: all that views know about a store
    Samples      the protocol of the samples of a view

No list of samples is built: where a sample lies is computed from its index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import numpy as np
from msgspec import Meta

from stoker._kernels import kernel, prefetch
from stoker._types import Array, Count, check_fields, converted
from stoker.errors import OptionError, StoreDamagedError
from stoker.sampling.gaps import GapRuns
from stoker.sampling.window_index import (
    DROP,
    GUIDED_ENTRIES,
    KEEP,
    count_windows,
    covered_steps,
    guide_of,
    index_series,
    locate_ragged,
    locate_recorded,
    locate_uniform,
)


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Series end to end: all of one length, or with `offsets` where each begins and the last ends."""

    num_series: int
    num_steps: int
    length: int | None = None
    offsets: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    name: str = "the series"
    """What the numbers are of, for messages."""
    runs: GapRuns | None = None
    """Series cut at their gaps; None where a view does not ask for it, or where there is no gap."""

    def check(self, series: int) -> None:
        """Refuse what a kernel flagged as out of bounds: `series` is its number, or -1 if there is none."""
        if series >= 0:
            raise StoreDamagedError(
                f"{self.name}: the offsets of series {series:,} are {self.offsets[series]:,} and {self.offsets[series + 1]:,} "
                f"of {self.num_steps:,}. Run `stoker inspect --verify`."
            )

    def bounds(self, first: int = 0, last: int | None = None) -> Array:
        """Where the series `first` to `last` begin, and where the last of them ends; refuses offsets that do not rise."""
        last = self.num_series if last is None else last
        if self.length is not None:
            return np.arange(first, last + 1, dtype=np.int64) * self.length
        bounds = self.offsets[first : last + 1] if len(self.offsets) else np.zeros(1, dtype=np.int64)
        bad = np.flatnonzero((np.diff(bounds) < 0) | (bounds[:-1] < 0) | (bounds[1:] > self.num_steps))
        self.check(first + int(bad[0]) if len(bad) else -1)
        return bounds


# Samples: a view over given lengths. Any sample is found by its number; no list of samples is ever built.


class Located(NamedTuple):
    """Where samples lie: int64 arrays with one value per sample."""

    series: Array
    starts: Array
    """The first step, counted from the beginning of the flat column."""
    counts: Array
    """Steps of the sample; less than its span where it is padded."""


Draw = Callable[[Array, Array], Array]
"""Random numbers: for each sample (its index in the whole view) one from 0 to below its limit."""


class Samples(Protocol):
    """What a view becomes over given lengths."""

    num_samples: int
    num_series: int
    row: int
    """Steps of the longest sample there can be: the length of a padded row."""
    padded: bool
    """Whether a sample may have fewer steps than `row`."""

    def locate(self, numbers: Array, draw: Draw | None = None) -> Located:
        """Where these samples lie. Samples at random places need `draw`; without it they are all that they may be drawn from."""

    def first_samples(self) -> Array | None:
        """The number of the first sample of each series, and of all samples; None where each series is one sample."""

    def notes(self) -> Sequence[str]:
        """What a user should know: what was left out, one sentence each."""


def view_values(view: Any) -> tuple[Any, ...]:
    """The values of the fields of a view, for fingerprints."""
    return tuple(getattr(view, field.name) for field in fields(view))


def describe_view(view: Any) -> str:
    """A view as one writes it: the first field, and those that are not as they are by default."""
    first, *others = fields(view)
    named = [f"{field.name}={getattr(view, field.name)!r}" for field in others if getattr(view, field.name) != field.default]
    return f"{type(view).__name__}({', '.join([str(getattr(view, first.name)), *named])})"


# Windows and segments: samples of equal length, found by arithmetic.
#
#     series    ·····················        21 steps
#     Windows(8, stride=5)
#               ········
#                    ········
#                         ········
#                              ······    the tail: kept and masked, or dropped and counted
#     Segments(8)
#               ········
#                       ········
#                               ·····
#
# The number of windows of a series is a formula of its length. For series of different lengths the numbers are summed up
# once, in one pass; that index has one entry for many series, not one for each window.

MAX_STEPS = 2**48
"""Steps of a window at most: sums of some of them are exact in 64 bits."""
Steps = Annotated[int, Meta(ge=1, le=MAX_STEPS)]
Reach = Annotated[int, Meta(ge=0, le=MAX_STEPS)]
Tail = Literal["keep", "drop"]
MaxGap = str | Annotated[int, Meta(ge=1, le=2**63 - 1)]
Gaps = Literal["break"]

_DENSE_SERIES = 2**22  # up to here the index has an entry for each series: 32 MB
_SPARSE_GROUP = 16


class _Cut:
    """What windows and segments have in common."""

    length: int
    horizon: int
    shift: int

    def __post_init__(self) -> None:
        check_fields(self)
        if self.horizon and self.shift:
            raise OptionError(
                f"{type(self).__name__}: horizon {self.horizon} and shift {self.shift} are two kinds of target; give one of them.",
                parameter="horizon",
            )

    @property
    def span(self) -> int:
        """Steps of a sample with its target."""
        return self.length + max(self.horizon, self.shift)

    def __repr__(self) -> str:
        return describe_view(self)


@dataclass(frozen=True, repr=False)
class Windows(_Cut):
    """Windows of `length` steps, a new one every `stride` steps of each series.

    Args:
        length: Steps per window.
        stride: Steps from the start of a window to the start of the next.
        horizon: The target is the `horizon` steps after the window.
        shift: The target is the window itself, moved on by `shift` steps.
        tail: "keep" adds a last, padded window where steps would be left over; it holds at least one step, or one target.
            "drop" leaves those steps out.
        max_gap: No window spans two consecutive steps whose times are further apart: a frequency like "2h", or an integer in the
            unit of the time column. Each run of steps without such a gap is cut into windows like a series of its own.
        gaps: "break" is a `max_gap` of the frequency that the store was packed with.

    Raises:
        OptionError: A value is invalid, or both `horizon` and `shift` are given.

    Example:
        >>> import numpy as np, stoker
        >>> store = stoker.Store.from_arrays(x=[np.arange(7.0)])
        >>> feed = stoker.Feed(store, stoker.Windows(4, stride=2, horizon=1, tail="drop"), batch_size=2)
        >>> batch = next(iter(feed))
        >>> batch["x"].tolist(), batch["x_target"].tolist()
        ([[0.0, 1.0, 2.0, 3.0], [2.0, 3.0, 4.0, 5.0]], [[4.0], [6.0]])
    """

    length: Steps
    stride: Steps = 1
    horizon: Reach = 0
    shift: Reach = 0
    tail: Tail = "keep"
    max_gap: MaxGap | None = None
    gaps: Gaps | None = None

    @property
    def least(self) -> int:
        """Steps that a padded window needs to hold a target (or, without targets, anything)."""
        return self.length + 1 if self.horizon else self.shift + 1

    def over(self, lengths: Lengths) -> WindowSamples:
        """The windows of series of these lengths."""
        return WindowSamples(self, lengths)


@dataclass(frozen=True, repr=False)
class Segments(_Cut):
    """Each series cut into consecutive segments of `length` steps: `Windows` with a stride of `length`.

    With `shift` or `horizon` the target reaches into the next segment, so that no target is lost at a cut.

    Args:
        length: Steps per segment.
        horizon: As in `Windows`.
        shift: As in `Windows`.
        tail: As in `Windows`.
        max_gap: As in `Windows`.
        gaps: As in `Windows`.

    Example:
        >>> import numpy as np, stoker
        >>> store = stoker.Store.from_arrays(x=[np.arange(5.0)])
        >>> next(iter(stoker.Feed(store, stoker.Segments(2), batch_size=3)))["x"].tolist()
        [[0.0, 1.0], [2.0, 3.0], [4.0, 0.0]]
    """

    length: Steps
    horizon: Reach = 0
    shift: Reach = 0
    tail: Tail = "keep"
    max_gap: MaxGap | None = None
    gaps: Gaps | None = None

    @property
    def windows(self) -> Windows:
        """The same as windows."""
        return Windows(**vars(self), stride=self.length)

    def over(self, lengths: Lengths) -> WindowSamples:
        """The segments of series of these lengths."""
        return WindowSamples(self.windows, lengths)


class WindowSamples:
    """The windows of given series: how many there are, and where each lies."""

    def __init__(self, windows: Windows, lengths: Lengths) -> None:
        self.row = windows.span
        self.num_series = lengths.num_series
        self._windows = windows
        self.runs = lengths.runs
        if self.runs is not None:  # below, "series" are the runs
            runs = self.runs
            lengths = replace(lengths, num_series=len(runs.run_series), length=None, offsets=runs.offsets, runs=None)
        self._lengths = lengths
        mode = KEEP if windows.tail == "keep" else DROP
        self._rule = (windows.span, windows.stride, windows.least, mode)
        self.padded = mode != DROP
        if lengths.length is not None:
            each = self._per_series = count_windows(lengths.length, *self._rule)
            self.num_samples = each * self.num_series
            self.num_left_over = self.num_series * (lengths.length - covered_steps(lengths.length, each, *self._rule[:2]))
            self.num_empty_series = 0 if each else self.num_series
            self.padded &= bool(each > 0 and lengths.length < (each - 1) * windows.stride + self.row)
            return
        group = 1 if lengths.num_series <= _DENSE_SERIES else _SPARSE_GROUP
        firsts = np.zeros(-(-lengths.num_series // group) + 1, dtype=np.int64)
        total, most, left, empty, damaged = index_series(lengths.offsets, lengths.num_steps, *self._rule, group, firsts)
        lengths.check(damaged)
        self.num_samples, self.num_left_over, self.num_empty_series = total, left, empty
        one_each = most == 1 and empty == 0
        self._group, self._firsts = (0, np.zeros(1, dtype=np.int64)) if one_each else (group, firsts)
        self._guide = guide_of(self._firsts)
        self._records: tuple[Array, Array] | None = None
        if self.runs is not None and self._group == 1 and lengths.num_series <= GUIDED_ENTRIES:
            self._records = np.stack([firsts, lengths.offsets], axis=1), self.runs.run_series.astype(np.int32)

    def locate(self, numbers: Array, draw: Draw | None = None) -> Located:
        """Where these windows lie; `counts` is less than `row` for those that are padded."""
        located = Located(*(np.empty(len(numbers), dtype=np.int64) for _ in range(3)))
        if self._lengths.length is not None:
            locate_uniform(numbers, self._lengths.length, max(self._per_series, 1), *self._rule[:2], *located)
        else:
            if self._records is not None:
                locate_recorded(numbers, *self._records, *self._guide, *self._rule[:2], *located)
                return located
            offsets, num_steps = self._lengths.offsets, self._lengths.num_steps
            index = self._group, self._firsts, self._guide.entries, self._guide.shift
            self._lengths.check(locate_ragged(numbers, offsets, num_steps, *self._rule, *index, *located))
            if self.runs is not None:
                return located._replace(series=self.runs.run_series[located.series])
        return located

    def first_samples(self) -> Array | None:
        """The number of the first window of each series, and of all windows; None where each series is one window."""
        firsts = self.first_in_runs()
        if self.runs is None:
            return firsts
        first_runs = self.runs.first_runs(0, self.num_series)
        return first_runs if firsts is None else firsts[first_runs]

    def first_in_runs(self) -> Array | None:
        """The same for the runs of `runs`; for the series, where there are no gaps."""
        if self._lengths.length is not None:
            return None if self._per_series == 1 else np.arange(self.num_series + 1, dtype=np.int64) * self._per_series
        if self._group == 0:
            return None
        if self._group == 1:
            return self._firsts
        firsts = np.zeros(self._lengths.num_series + 1, dtype=np.int64)
        index_series(self._lengths.offsets, self._lengths.num_steps, *self._rule, 1, firsts)
        return firsts

    def notes(self) -> Sequence[str]:
        """What is in no window."""
        notes, pieces = [], "series"
        if self.runs is not None:
            gaps = "1 gap" if self.runs.num_gaps == 1 else f"{self.runs.num_gaps:,} gaps"
            notes.append(f"{gaps} cut {self.num_series:,} series into {self._lengths.num_series:,} runs.")
            pieces = "runs"
        if self.num_left_over:
            share = self.num_left_over / max(1, self._lengths.num_steps)
            mode = self._rule[3]
            rule = "tail='drop'" if mode == DROP else "the stride"
            if mode == KEEP and self._windows.stride <= self.row:
                rule = f"what is left of their {pieces} is too short for a target"
            notes.append(f"{self.num_left_over:,} steps ({share:.1%}) are in no window ({rule}).")
        if self.num_empty_series:
            notes.append(f"{self.num_empty_series:,} of {self._lengths.num_series:,} {pieces} have no window: they are too short.")
        return notes


# Sequences: each series is one sample, of its own length.
#
# layout="padded"    ·······____        rows as long as the longest of the batch (or its bucket), and a mask
#                    ···········
#                    ···________
# layout="packed"    ·····················   all steps end to end, and `cu_seqlens` where each sample begins

Layout = Literal["padded", "packed"]
Keep = Literal["first", "last", "random"]


@dataclass(frozen=True, repr=False)
class Sequences:
    """Whole series, cut to `max_length` steps.

    Args:
        max_length: Steps per sample at most.
        layout: "padded" makes batches `[batch, steps]`, as wide as their longest sample. "packed" puts all steps end to end,
            with `cu_seqlens` where each sample begins.
        buckets: Widths that padded batches are rounded up to, for few different shapes. `(max_length,)` makes all alike.
        keep: Which steps of a longer series are kept: the "first", the "last", or `max_length` consecutive ones from a "random"
            start, which depends on the seed of the order, the epoch and the series alone.

    Raises:
        OptionError: A value is invalid.

    Example:
        >>> import numpy as np, stoker
        >>> store = stoker.Store.from_arrays(x=[np.arange(3.0), np.arange(1.0)])
        >>> batch = next(iter(stoker.Feed(store, stoker.Sequences(2, keep="last"), batch_size=2)))
        >>> batch["x"].tolist(), batch["lengths"].tolist()
        ([[1.0, 2.0], [0.0, 0.0]], [2, 1])
    """

    max_length: Count
    layout: Layout = "padded"
    buckets: tuple[int, ...] | None = None
    keep: Keep = "first"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.buckets is None:
            return
        if self.layout == "packed":
            raise OptionError(
                "Sequences: buckets are for layout='padded'; a packed batch has no rows to widen.", parameter="buckets"
            )
        buckets = tuple(sorted(converted("buckets", np.asarray(self.buckets).tolist(), set[Count], of="Sequences: ")))
        if not buckets or buckets[-1] != self.max_length:
            raise OptionError(
                f"Sequences: buckets are {self.buckets!r}; expected lengths from 1, the last being max_length.", parameter="buckets"
            )
        object.__setattr__(self, "buckets", buckets)

    def width(self, longest: int) -> int:
        """Steps of a padded row in a batch whose longest sample has `longest` steps."""
        for bucket in self.buckets or ():
            if bucket >= longest:
                return bucket
        return max(longest, 1)

    def __repr__(self) -> str:
        return describe_view(self)

    def over(self, lengths: Lengths) -> SequenceSamples:
        """The sequences of series of these lengths."""
        return SequenceSamples(self, lengths)


@kernel
def _locate(numbers: Array, offsets: Array, num_steps: int, max_length: int, from_end: bool, starts: Array, counts: Array) -> Any:
    for i in range(len(numbers)):
        prefetch(offsets, numbers[i] * 8)
    for i in range(len(numbers)):
        start, stop = offsets[numbers[i]], offsets[numbers[i] + 1]
        if start < 0 or stop < start or stop > num_steps:
            return numbers[i]
        counts[i] = min(stop - start, max_length)
        starts[i] = stop - counts[i] if from_end else start
    return -1


class SequenceSamples:
    """The sequences of given series. Nothing is read until they are asked for."""

    padded = True

    def __init__(self, sequences: Sequences, lengths: Lengths) -> None:
        self.num_samples = self.num_series = lengths.num_series
        self.row = sequences.max_length
        self._sequences = sequences
        self._lengths = lengths

    def locate(self, numbers: Array, draw: Draw | None = None) -> Located:
        """Where these sequences lie; without `draw`, those at random places are their whole series."""
        starts, counts = np.empty(len(numbers), dtype=np.int64), np.empty(len(numbers), dtype=np.int64)
        from_end, is_random = self._sequences.keep == "last", self._sequences.keep == "random"
        length, offsets, num_steps = self._lengths.length, self._lengths.offsets, self._lengths.num_steps
        most = num_steps if is_random else self.row
        if length is not None:
            counts[:] = min(length, most)
            starts[:] = numbers * length + (length - counts if from_end else 0)
        else:
            self._lengths.check(_locate(numbers, offsets, num_steps, most, from_end, starts, counts))
        if is_random and draw is not None:
            starts += draw(numbers, np.maximum(counts - self.row, 0) + 1)
            np.minimum(counts, self.row, out=counts)
        return Located(numbers, starts, counts)

    def first_samples(self) -> Array | None:
        """Each series is one sample."""
        return None

    def notes(self) -> Sequence[str]:
        """What is cut off is not counted: that would read all lengths."""
        length = self._lengths.length
        if length is not None and length > self.row:
            kept = "random {} in a row" if self._sequences.keep == "random" else f"their {self._sequences.keep} {{}}"
            return [f"series of {length:,} steps are cut to {kept.format(f'{self.row:,}')}."]
        return []


AnyView = Windows | Segments | Sequences
