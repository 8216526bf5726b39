"""Numbers written as text."""

from __future__ import annotations

import struct

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from stoker.store.formats.text import NumberTextError, number_lists, parse_numbers

FORMS = st.sampled_from(["{!r}", "{:.17g}", "{:.12e}", "{:.20g}", "{:+.17g}", " {!r} "])


@hypothesis.given(values=st.lists(st.tuples(st.floats(allow_nan=False, allow_infinity=False), FORMS), min_size=1, max_size=9))
def test_every_number_is_what_python_reads(values: list[tuple[float, str]]) -> None:
    fields = [form.format(value) for value, form in values]
    found = parse_numbers(",".join(fields).encode())
    assert found.tobytes() == struct.pack(f"<{len(fields)}d", *(float(field) for field in fields))


def test_odd_spellings_are_read() -> None:
    found = parse_numbers(b"-0, ?,nan,NaN,inf,-Infinity,+1,.5,5.,5e-324")
    assert repr(found.tolist()) == "[-0.0, nan, nan, nan, inf, -inf, 1.0, 0.5, 5.0, 5e-324]"


def test_a_blank_text_holds_nan() -> None:
    assert parse_numbers(b" \t").size == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"1,,2", "'' is not numeric"),
        (b"1_000", "'1_000' is not numeric"),
        (b"0x10", "not numeric"),
        (b"true", "not numeric"),
        (b'"1"', "not numeric"),
        (b"[1]", "not numeric"),
        ("\u0661".encode(), "not numeric"),
        (b"\xff", "not numeric"),
        (b"x" * 100, "xxx…' is not numeric"),
        (b"0,9007199254740993", "'9007199254740993' is an integer that float64 cannot hold exactly"),
        (b"1e999", "too large"),
        (b"9" * 5000, "too large"),
    ],
)
def test_what_is_nan_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(NumberTextError, match=reason):
        parse_numbers(text)


def test_large_integers_that_lose_nothing_are_read() -> None:
    assert parse_numbers(b"9007199254740992,18446744073709551616").tolist() == [2.0**53, 2.0**64]


def test_commas_within_fields_are_not_separators() -> None:
    with pytest.raises(NumberTextError, match="'1,5' is not numeric"):
        parse_numbers(b"1,5\t2", b"\t")


def test_lists_keep_nan_or_make_it_null() -> None:
    rows = [np.array([1.0, np.nan]), np.empty(0)]
    assert number_lists(rows, nan_is_missing=True).to_pylist() == [[1.0, None], []]
    assert repr(number_lists(rows, nan_is_missing=False).to_pylist()) == "[[1.0, nan], []]"
