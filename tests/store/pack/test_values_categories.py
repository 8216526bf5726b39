"""Categories: numbers in the order of appearance, however the values are stored."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from stoker.errors import SourceTooLargeError
from stoker.store.pack import values as categories
from stoker.store.pack.values import Categories

WORDS = st.lists(st.one_of(st.none(), st.sampled_from(["", "a", "b", "é", "ab", "NULL"])), max_size=12)


def stored(values: list[str | None], how: str) -> pa.Array:
    if how == "dictionary":
        # With texts that no row uses, and one that stands there twice.
        texts = ["unused", "ab", "NULL", "é", "b", "a", "", "a"]
        return pa.DictionaryArray.from_arrays(pa.array([None if v is None else texts.index(v) for v in values], pa.int8()), texts)
    if how == "sliced":
        return pa.array(["before", *values], pa.string())[1:]
    return pa.array(values, pa.large_string() if how == "large" else pa.string())


@given(st.lists(st.tuples(WORDS, st.sampled_from(["plain", "large", "sliced", "dictionary"])), max_size=5))
def test_codes_count_the_texts_as_they_appear(parts: list[tuple[list[str | None], str]]) -> None:
    made, seen = Categories("word"), []
    for values, how in parts:
        codes, new = made.encode(stored(values, how), "row 1")
        fresh = [v for v in dict.fromkeys(values) if v is not None and v not in seen]
        assert new == fresh
        seen += fresh
        assert codes.tolist() == [-1 if v is None else seen.index(v) for v in values]
        assert codes.dtype.str == "<i4"
    assert len(made) == len(seen)
    again = Categories("word", seen)
    assert again.encode(pa.array([*reversed(seen)], pa.string()), "row 1")[1] == []


@pytest.mark.parametrize(("limit", "value"), [("MAX_CATEGORIES", 3), ("MAX_TEXT_BYTES", 20)])
def test_too_many_texts_are_not_category(monkeypatch: pytest.MonkeyPatch, limit: str, value: Any) -> None:
    monkeypatch.setattr(categories, limit, value)
    made = Categories("note")
    made.encode(pa.array(["text 1", "text 2", "text 3"]), "row 1")
    with pytest.raises(
        SourceTooLargeError, match=r"column 'note' has more than \d distinct strings at row 9 of a.csv.*leave it out"
    ):
        made.encode(pa.array(["text 4"]), "row 9 of a.csv")
