"""Samples: a view over given lengths. Any sample is found by its number; no list of samples is ever built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple, Protocol

import numpy.typing as npt

Array = npt.NDArray[Any]


class Located(NamedTuple):
    """Where samples lie, each an int64 array with one number a sample."""

    series: Array
    starts: Array
    """The first step, counted from the beginning of the flat column."""
    counts: Array
    """Steps that the sample has; less than its span where it is padded."""


class Samples(Protocol):
    """What a view becomes over given lengths."""

    num_samples: int
    num_series: int
    row: int
    """Steps of the longest sample there can be: the length of a padded row."""
    padded: bool
    """Whether a sample may have fewer steps than `row`."""

    def locate(self, numbers: Array) -> Located:
        """Where these samples lie."""

    def first_samples(self) -> Array | None:
        """The number of the first sample of each series, and of all samples; None where each series is one sample."""

    def notes(self) -> Sequence[str]:
        """What a user should know: what was left out, one sentence each."""


class View(Protocol):
    """What a sample is."""

    def over(self, lengths: Any) -> Samples:
        """The samples of this view over series of these lengths."""


def describe_view(view: Any) -> str:
    """A view as one writes it: the first field, and those that are not as they are by default."""
    first, *others = fields(view)
    named = [f"{field.name}={getattr(view, field.name)!r}" for field in others if getattr(view, field.name) != field.default]
    return f"{type(view).__name__}({', '.join([str(getattr(view, first.name)), *named])})"
