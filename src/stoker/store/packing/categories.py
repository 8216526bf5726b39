"""Categories: the distinct texts of a column, numbered as they first appear."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker.errors import SourceTooLarge
from stoker.store.column import MISSING_CODE
from stoker.store.sharing import from_numpy, to_numpy

MAX_CATEGORIES = 1 << 20
MAX_TEXT_BYTES = 64 << 20


class Categories:
    """A growing list of texts. The numbers depend only on the order of the rows, so they repeat."""

    def __init__(self, name: str, texts: list[str] | None = None) -> None:
        self._name = name
        self._codes: dict[str, int] = {text: i for i, text in enumerate(texts or [])}
        self._num_bytes = sum(len(text) for text in self._codes)

    def __len__(self) -> int:
        return len(self._codes)

    def encode(self, values: pa.Array, where: str) -> tuple[npt.NDArray[Any], list[str]]:
        """Codes of the values, and the texts that were new."""
        if not pa.types.is_dictionary(values.type):
            values = values.dictionary_encode()
        # Other libraries count with unsigned numbers, which have no -1.
        indices = to_numpy(values.indices.cast(pa.int64()).fill_null(-1))
        # A dictionary may hold texts that no row uses: only those that do occur get a number, in order of appearance.
        used, first = np.unique(indices[indices >= 0], return_index=True)
        used = used[np.argsort(first)]
        texts = values.dictionary.take(from_numpy(used)).to_pylist()
        new = [text for text in dict.fromkeys(texts) if text is not None and text not in self._codes]
        for text in new:
            self._codes[text] = len(self._codes)
            self._num_bytes += len(text)
        if len(self._codes) > MAX_CATEGORIES or self._num_bytes > MAX_TEXT_BYTES:
            raise SourceTooLarge(
                f"column {self._name!r} has more than {min(len(self._codes), MAX_CATEGORIES):,} distinct texts at {where}. "
                "It is no category: leave it out with --columns, or use it as --series."
            )
        table = np.full(int(indices.max(initial=-1)) + 2, MISSING_CODE, dtype="<i4")
        table[used] = [MISSING_CODE if text is None else self._codes[text] for text in texts]
        return table[indices], new
