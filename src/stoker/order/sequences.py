"""Sequences: each series is one sample, of its own length.

layout="padded"    ·······____        rows as long as the longest of the batch (or its bucket), and a mask
                   ···········
                   ···________
layout="packed"    ·····················   all steps end to end, and `cu_seqlens` where each sample begins
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from stoker.errors import OptionError
from stoker.kernel import kernel
from stoker.memory import prefetch
from stoker.order.lengths import Lengths
from stoker.order.samples import Located, describe_view

Array = npt.NDArray[Any]
Layout = Literal["padded", "packed"]
End = Literal["first", "last"]


@dataclass(frozen=True, repr=False)
class Sequences:
    """Whole series, cut to their `keep` ("first" or "last") `max_length` steps.

    A padded batch is as wide as its longest sample, rounded up to the next of `buckets` if given: few different shapes
    for compilers and graphs. `buckets=(max_length,)` makes all batches alike.
    """

    max_length: int
    layout: Layout = "padded"
    buckets: tuple[int, ...] | None = None
    keep: End = "first"

    def __post_init__(self) -> None:
        if not _is_length(self.max_length):
            raise OptionError(f"Sequences: max_length is {self.max_length!r}; expected a whole number from 1.")
        object.__setattr__(self, "max_length", int(self.max_length))
        if self.layout not in get_args(Layout):
            raise OptionError(f"Sequences: layout is {self.layout!r}; expected 'padded' or 'packed'.")
        if self.keep not in get_args(End):
            raise OptionError(f"Sequences: keep is {self.keep!r}; expected 'first' or 'last'.")
        if self.buckets is None:
            return
        if self.layout == "packed":
            raise OptionError("Sequences: buckets are for layout='padded'; a packed batch has no rows to widen.")
        given: Any = self.buckets
        buckets = sorted({*given}) if isinstance(given, Sequence | np.ndarray) and all(map(_is_length, given)) else []
        if not buckets or buckets[-1] != self.max_length:
            raise OptionError(f"Sequences: buckets are {self.buckets!r}; expected lengths from 1, the last being max_length.")
        object.__setattr__(self, "buckets", tuple(map(int, buckets)))

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


def _is_length(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 1)


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

    def locate(self, numbers: Array) -> Located:
        """Where these sequences lie."""
        starts, counts = np.empty(len(numbers), dtype=np.int64), np.empty(len(numbers), dtype=np.int64)
        from_end = self._sequences.keep == "last"
        length, offsets = self._lengths.length, self._lengths.offsets
        if length is not None:
            counts[:] = min(length, self.row)
            starts[:] = numbers * length + (length - counts if from_end else 0)
        else:
            self._lengths.check(_locate(numbers, offsets, self._lengths.num_steps, self.row, from_end, starts, counts))
        return Located(numbers, starts, counts)

    def first_samples(self) -> Array | None:
        """Each series is one sample."""
        return None

    def notes(self) -> Sequence[str]:
        """What is cut off is not counted: that would read all lengths."""
        length = self._lengths.length
        if length is not None and length > self.row:
            return [f"series of {length:,} steps are cut to their {self._sequences.keep} {self.row:,}."]
        return []
