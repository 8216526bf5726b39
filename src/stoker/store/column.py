"""Columns: what a store says about each of its columns, and the texts that belong to some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from stoker.store.manifest import NonFinite

Level = Literal["step", "series"]
Kind = Literal["number", "bfloat16", "timestamp", "duration", "category", "text"]

MISSING_TIME = np.iinfo(np.int64).min  # NumPy's NaT
MISSING_CODE = -1


class Texts(Sequence[str]):
    """A read-only list of texts over two arrays: UTF-8 bytes end to end, and offsets into them."""

    __slots__ = ("offsets", "utf8")

    def __init__(self, utf8: npt.NDArray[Any], offsets: npt.NDArray[Any]) -> None:
        self.utf8 = utf8
        self.offsets = offsets

    @classmethod
    def of(cls, texts: Sequence[str]) -> Texts:
        """Lay out a list of Python strings."""
        encoded = [text.encode() for text in texts]
        offsets = np.zeros(len(encoded) + 1, dtype="<i8")
        np.cumsum([len(text) for text in encoded], out=offsets[1:])
        offsets.flags.writeable = False
        return cls(np.frombuffer(b"".join(encoded), dtype="|u1"), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self))[index]
        return bytes(self.utf8[self.offsets.item(i) : self.offsets.item(i + 1)]).decode("utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        shown = ", ".join(repr(text) for text in self[:6])
        return f"[{shown}{', …' if len(self) > 6 else ''}]"


@dataclass(frozen=True, kw_only=True)
class Column:
    """One entry of `Store.schema`."""

    name: str
    dtype: np.dtype[Any] | None
    """None for text."""
    level: Level
    kind: Kind
    unit: str | None = None
    """Of timestamps and durations: "ns", "us, UTC"."""
    width: int | None = None
    """Numbers a step, where that is more than one value."""
    texts: Texts | None = None
    """The categories that codes point to, or the texts themselves."""
    missing: int = 0
    """Values that were missing in the source (null or empty)."""
    nonfinite: NonFinite = NonFinite(nan=0, inf=0, first=None)

    @property
    def label(self) -> str:
        """The type in a word, as people read it."""
        if self.kind in ("timestamp", "duration"):
            return f"{self.kind}[{self.unit}]"
        if self.kind in ("category", "text", "bfloat16"):
            return self.kind
        width = f"[{self.width}]" if self.width is not None else ""
        return f"{self.dtype}{width}"
