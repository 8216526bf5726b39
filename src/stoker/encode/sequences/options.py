"""Options of sequences: what the caller said, checked once and for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from stoker.encode.sequences.places import MAX_NARROW
from stoker.errors import OptionError

Layout = Literal["padded", "packed"]
Compat = Literal["mostlyai"]

DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()


@dataclass(frozen=True, kw_only=True)
class Options:
    """How sequences are laid out."""

    max_length: int | None
    layout: Layout
    dtype: str | None
    compat: Compat | None

    def __post_init__(self) -> None:
        length = self.max_length
        if length is not None and not (_is_whole(length) and 1 <= length < MAX_NARROW):
            raise OptionError(f"max_length is {length!r}; expected a whole number from 1 to {MAX_NARROW - 1:,}.")
        if self.layout not in get_args(Layout):
            raise OptionError(f"layout is {self.layout!r}; expected 'padded' or 'packed'.")
        if self.compat not in (None, *get_args(Compat)):
            raise OptionError(f"compat is {self.compat!r}; expected 'mostlyai' or None.")
        if self.compat is not None and (length is None or self.dtype is not None):
            raise OptionError("compat='mostlyai' needs max_length=, and takes no dtype=: its tensors are int64.")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise OptionError(f"dtype is {self.dtype!r}; expected one of {', '.join(DTYPES)}.")

    @property
    def limit(self) -> int:
        """Rows that a sequence may have."""
        return self.max_length or MAX_NARROW

    @property
    def end_steps(self) -> int:
        """Steps of zeros behind each sequence."""
        return 1 if self.compat else 0

    @property
    def truncates(self) -> bool:
        """Whether floats may lose their fractions."""
        return self.compat is not None

    @property
    def is_packed(self) -> bool:
        """Whether sequences are end to end."""
        return self.layout == "packed"

    @property
    def target(self) -> np.dtype[Any] | None:
        """The type that all columns become; None where they keep theirs."""
        name = "int64" if self.compat else self.dtype
        return None if name is None else np.dtype(name)

    def steps(self, longest: int) -> int:
        """Steps of a padded sequence."""
        return (self.max_length or longest) + self.end_steps


def check_grouping(key: str | None, lengths: object, contexts: object) -> None:
    """Rows have a key or a length."""
    if (key is None) == (lengths is None):
        raise OptionError("rows are grouped by key=, or by lengths= where they lie end to end: pass one of them.")
    if lengths is not None and contexts is not None:
        raise OptionError("contexts are keys, so they need key=; with lengths= sequences have none.")


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
