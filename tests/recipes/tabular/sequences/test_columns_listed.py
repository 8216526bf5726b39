"""Listed contexts of a store are found without kernels, with the numbers, keys and errors of the numbering that uses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import BadValueError
from stoker_recipes.tabular.sequences.columns import find_listed, number_keys, read_column

NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)


def both(keys: Any, listed: Any) -> list[Any]:
    """What the two ways say: numbers and keys, or the error."""
    found: list[Any] = []
    for way in (find_listed, lambda a, b: number_keys(a, listed=b, keeps_missing=False)):
        try:
            result: Any = way(read_column("k", keys), read_column("contexts", listed))
        except BadValueError as error:
            found.append(str(error))
            continue
        rows, wanted = result if isinstance(result, tuple) else (result.rows, result.keys)
        found.append(
            (rows.tolist(), str(rows.dtype), wanted.tolist(), str(getattr(wanted, "dtype", getattr(wanted, "type", None))))
        )
    return found


@given(keys=st.lists(NUMBERS, max_size=20, unique=True), listed=st.lists(NUMBERS, max_size=20))
def test_integers_are_numbered_as_by_the_kernels(keys: list[int], listed: list[int]) -> None:
    ours, theirs = both(np.array(keys, dtype=np.int64), np.array(listed, dtype=np.int64))
    assert ours == theirs


@pytest.mark.parametrize(
    ("keys", "listed"),
    [
        (np.array([0.0, 1.5, 2.5]), np.array([2.5, -0.0, 9.0])),
        (np.array([2**64 - 1, 1], dtype=np.uint64), np.array([1, 2**64 - 1, 5], dtype=np.uint64)),
        (np.array([1, 2], dtype=np.int8), [2, 1, 100]),
        (np.array([1, 2], dtype=np.int8), [2, 1000]),
        (np.array(["2020-01-01", "2021-01-01"], dtype="M8[us]"), np.array(["2021-01-01"], dtype="M8[us]")),
        (pa.array(["b", "a"]), ["a", "c"]),
        (pa.array(["b", "a"]), ["a", "c", "a"]),
        (pa.array(["b", "a"]).dictionary_encode(), ["a", "c"]),
        (np.array([1, 2]), []),
        (np.array([], dtype=np.int64), [3, 4]),
        (np.array([1, 2]), [5, 7, 5, 7]),
        (np.array([1, 2]), [5, None]),
        (np.array([1, 2]), ["a"]),
    ],
)
def test_all_kinds_of_keys_and_errors_are_those_of_the_kernels(keys: Any, listed: Any) -> None:
    ours, theirs = both(keys, listed)
    assert ours == theirs


def test_a_pack_of_listed_contexts_does_not_load_numba(run_python: Callable[..., str]) -> None:
    code = """
import sys
import stoker_recipes.tabular
store = stoker_recipes.tabular.pack_sequences({"k": [1, 2, 1], "x": [1, 2, 3]}, "out", key="k", contexts=[1, 7])
print(len(store), sorted({"numba", "torch"} & set(sys.modules)))
"""
    assert run_python(code) == "2 []\n"
