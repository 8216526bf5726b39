"""How many examples a law is tried with."""

from __future__ import annotations

from hypothesis import settings

ALL = 100
"""What the profiles count in: `max_examples` of one that tries all."""


def num_examples(count: int) -> int:
    """All of `count` with `--explore`. The quick tests, whose examples are the same in each run, try a seventh of them."""
    return max(5, count * settings().max_examples // ALL)
