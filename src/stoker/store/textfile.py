"""Text files of a pack: texts end to end in one column file, their offsets in another."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from stoker.store.columnfile import ColumnFile, Mark
from stoker.store.manifest import Text

_BYTE = np.dtype("|u1")
_OFFSET = np.dtype("<i8")


class TextFile:
    """Growing texts on disk, two files that are sealed into a `Text`."""

    def __init__(self, utf8: ColumnFile, offsets: ColumnFile) -> None:
        self._utf8 = utf8
        self._offsets = offsets

    @classmethod
    def create(cls, path: Path) -> Self:
        """Start an empty list of texts."""
        texts = cls(ColumnFile.create(path, _BYTE), ColumnFile.create(path.with_name(path.name + "o"), _OFFSET))
        texts._offsets.append(np.zeros(1, dtype=_OFFSET))
        return texts

    @classmethod
    def reopen(cls, path: Path, marks: list[Mark]) -> Self | None:
        """Take up where `marks` were made; None if the bytes are not those that were written."""
        utf8 = ColumnFile.reopen(path, _BYTE, None, marks[0])
        offsets = ColumnFile.reopen(path.with_name(path.name + "o"), _OFFSET, None, marks[1])
        return cls(utf8, offsets) if utf8 is not None and offsets is not None else None

    @property
    def rows(self) -> int:
        """How many texts there are."""
        return self._offsets.rows - 1

    def append(self, texts: pa.Array) -> None:
        """Add texts; a missing one becomes the empty text."""
        if len(texts) == 0:
            return
        texts = texts.cast(pa.large_string()).fill_null("")
        offsets = np.frombuffer(texts.buffers()[1], dtype=_OFFSET)[texts.offset : texts.offset + len(texts) + 1]
        before = self._utf8.rows
        if offsets[-1] > offsets[0]:
            self._utf8.append(np.frombuffer(texts.buffers()[2], dtype=_BYTE)[offsets[0] : offsets[-1]])
        self._offsets.append(offsets[1:] - offsets[0] + before)

    def mark(self) -> list[Mark]:
        """Where both files are now."""
        return [self._utf8.mark(), self._offsets.mark()]

    def read(self, start: int, stop: int) -> pa.Array:
        """Texts `start` to `stop` as an Arrow array."""
        offsets = self._offsets.read(start, stop + 1)
        utf8 = self._utf8.read(int(offsets[0]), int(offsets[-1]))
        buffers = [None, pa.py_buffer(offsets - offsets[0]), pa.py_buffer(utf8)]
        return pa.Array.from_buffers(pa.large_string(), stop - start, buffers)

    def seal(self, folder: Path) -> Text:
        """Finish both files."""
        return Text(utf8=self._utf8.seal(folder), offsets=self._offsets.seal(folder))

    def close(self) -> None:
        """Give the descriptors back."""
        self._utf8.close()
        self._offsets.close()
