"""Keys and types of rows, found in their text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import hypothesis
from hypothesis import strategies as st

from stoker.store.formats.json_text import keys_of

NAMES = st.text('k"\\],:{é', max_size=3)
SCALARS = st.none() | st.booleans() | st.integers() | st.text('ab"\\[]{},:\n é', max_size=6)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8)


def keys_by_walking(value: Any, depth: int = 0) -> Iterator[tuple[int, str]]:
    """All keys with their depth: the slow twin of `keys_of`."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield depth, key
            yield from keys_by_walking(inner, depth + 1)
    for inner in value if isinstance(value, list) else ():
        yield from keys_by_walking(inner, depth + 1)


@hypothesis.given(st.lists(st.dictionaries(NAMES, VALUES, max_size=3), min_size=1, max_size=3))
def test_keys_are_found_by_their_colons(rows: list[dict[str, Any]]) -> None:
    text = b"\n".join(json.dumps(row).encode() for row in rows)
    expected = [found for row in rows for found in keys_by_walking(row)]
    for top_level in (False, True):
        names = [json.loads(b'"%b"' % key) for key in keys_of(text, top_level=top_level)]
        assert names == [name for depth, name in expected if not (top_level and depth)]
