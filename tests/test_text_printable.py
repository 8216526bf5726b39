"""Text from data on a terminal: shown, never obeyed."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from stoker._text import printable, readable_seconds


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, ünïcode 日本 😀", "plain text, ünïcode 日本 😀"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\tb\nc\rd", "a\\tb\\nc\\rd"),
        ("\u202eabc\u2066\u200b\ufeff\u2028\ud800\ue000", "\\u202eabc\\u2066\\u200b\\ufeff\\u2028\\ud800\\ue000"),
    ],
)
def test_what_steers_or_hides_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters(exclude_categories=[])))
def test_nothing_that_steers_is_left(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable() or all(char.isprintable() or char.isspace() for char in shown)
    assert not set(shown) & {"\x1b", "\r", "\n", "\x07", "\x9b"}
    shown.encode()


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.00123, "1.23 ms"), (0.00099985, "1 ms"), (0.9996, "1 s"), (0.0009994, "999 µs"), (5e-10, "0.5 ns"), (4000.0, "1 h 6 min")],
)
def test_seconds_have_the_unit_that_fits_what_is_shown(seconds: float, shown: str) -> None:
    assert readable_seconds(seconds) == shown
