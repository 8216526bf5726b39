"""Text from data on a terminal: names of files and columns are shown, never obeyed."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    """The text with everything that could steer a terminal, or hide, written as an escape."""
    return "".join(_escape(char) if unicodedata.category(char) in _STEERING else char for char in text)


_STEERING = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
