"""Positions: the columns that tell a model of mostlyai-engine where in a sequence it is, and how that model's sequences end.

Its sequences have one step more than rows, of zeros: there the model learns to end. Each step has three numbers: its own from
the begin, the length, and its own from the end; from a `max_length` of 100 on they are split into decimal digits.
"""

from __future__ import annotations

PREFIX = "tgt:/__"
DIGITS_FROM = 100
"""The `max_length` from which on numbers are split into digits."""

KINDS = ("sidx", "slen", "ridx")
"""From the begin, length, from the end."""


def position_names(max_length: int) -> list[tuple[tuple[str, str, str], int]]:
    """Names of the columns, three at a time, and what to divide by to get their digit (0: no digits, the number itself)."""
    if max_length < DIGITS_FROM:
        return [(_names("cat"), 0)]
    return [(_names(f"E{place}"), 10**place) for place in reversed(range(len(str(max_length))))]


def _names(suffix: str) -> tuple[str, str, str]:
    forward, length, backward = (f"{PREFIX}{kind}_{suffix}" for kind in KINDS)
    return forward, length, backward
