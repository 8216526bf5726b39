"""Listed contexts found among distinct keys, as those of a store are: by sorting, without kernels.

A pack of bounded memory ends here, and the compiler of kernels alone would take 90 MB. Law: the same numbers, keys and errors as
`number_contexts`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.encode.sequences.columns import TableColumn
from stoker.encode.sequences.contexts import NO_PLACE, as_keys, is_text, key_words, listed_words, refuse_repeats
from stoker.encode.sequences.numbers import number_type

Array = npt.NDArray[Any]


def find_listed(keys: TableColumn, listed: TableColumn) -> tuple[Array, Any]:
    """The number of each key in the list, `NO_PLACE` where it is not there; and the listed keys in the type of `keys`."""
    if is_text(keys):
        from stoker.encode.sequences.texts import number_texts

        return number_texts(keys, listed, False)
    dtype = number_type(keys)
    wanted = listed_words(keys, listed, dtype)
    order = np.argsort(wanted, kind="stable")
    ordered = wanted[order]
    _refuse_equal(listed, ordered, order)
    rows = np.full(keys.num_rows, NO_PLACE, dtype=np.int32)
    for block, words, _ in key_words(keys, False) if len(wanted) else ():
        places = np.minimum(np.searchsorted(ordered, words), len(ordered) - 1)
        rows[block] = np.where(ordered[places] == words, order[places], NO_PLACE)
    return rows, as_keys(wanted, keys, dtype)


def _refuse_equal(listed: TableColumn, ordered: Array, order: Array) -> None:
    """Equal keys stand side by side; the first of them is that of the first row."""
    begins = np.ones(len(ordered), dtype=bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    firsts = np.empty(len(ordered), dtype=np.int64)
    firsts[order] = order[begins][np.cumsum(begins) - 1]
    refuse_repeats(listed, firsts)
