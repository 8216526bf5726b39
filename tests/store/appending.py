"""What the tests of appended stores share: the rows of several tables as one, and the comparison of two stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stoker import Store


def joined(tables: Sequence[Mapping[str, Sequence[Any]]]) -> dict[str, list[Any]]:
    """The rows of all tables, one behind the other."""
    return {name: [value for table in tables for value in table[name]] for name in tables[0]}


def assert_same_content(found: Store, expected: Store) -> None:
    """Both stores have the same series in the same order, bit for bit, and say the same about them."""
    assert (len(found), found.num_steps, found.uniform_length) == (len(expected), expected.num_steps, expected.uniform_length)
    assert (found.key, found.time, list(found.schema)) == (expected.key, expected.time, list(expected.schema))
    assert found.num_bytes == expected.num_bytes
    np.testing.assert_array_equal(found.offsets, expected.offsets)
    for name, column in expected.schema.items():
        other = found.schema[name]
        assert (other.label, other.level, other.dtype) == (column.label, column.level, column.dtype), name
        assert (other.missing, other.nonfinite) == (column.missing, column.nonfinite), name
        if column.texts is not None:
            assert list(other.texts) == list(column.texts), name
        if column.dtype is not None:
            assert found.column(name).tobytes() == expected.column(name).tobytes(), name
            assert not found.column(name).flags.writeable
