"""Fields of structs in words: what a value may be, and the text below a field."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct
from msgspec.inspect import type_info

from stoker._types import docstrings, expected


class Inner(Struct):
    """A section."""

    rate: float = 0.5
    depth: int = 2


@pytest.mark.parametrize(
    ("kind", "config", "python"),
    [
        (int, "an integer", "an integer"),
        (Annotated[int, Meta(ge=1, le=8)], "an integer from 1 up to 8", "an integer from 1 up to 8"),
        (Annotated[int, Meta(ge=1, le=2**48)], "an integer from 1", "an integer from 1"),
        (Annotated[float, Meta(gt=0, lt=1)], "a number above 0 below 1", "a number above 0 below 1"),
        (bool, "true or false", "True, False"),
        (str | None, "a string or null", "a string or None"),
        (bool | Literal["auto"], "true or false or auto", "True, False, or 'auto'"),
        (Literal["exact", "measured"], "one of exact, measured", "one of 'exact', 'measured'"),
        (list[int], "a list, each an integer", "a list, each an integer"),
        (tuple[float, float], "a list of 2, each a number", "a list of 2, each a number"),
        (dict[str, int], "keys and their values", "keys and their values"),
        (Inner, "keys such as rate, depth", "keys such as rate, depth"),
        (Annotated[int, Meta(extra_json_schema={"description": "a prime"})], "a prime", "a prime"),
    ],
)
def test_what_a_value_may_be(kind: Any, config: str, python: str) -> None:
    assert (expected(type_info(kind)), expected(type_info(kind), python=True)) == (config, python)


class Base(Struct, kw_only=True):
    """What others extend."""

    first: int = 1
    """Of the base."""
    second: int = 2


class Extended(Base, kw_only=True):
    """More fields."""

    second: int = 3
    """Now with
    a text."""
    third: int = 4


def test_the_text_below_a_field_is_its_documentation() -> None:
    assert docstrings(Extended) == {"first": "Of the base.", "second": "Now with a text."}
    assert docstrings(Base) == {"first": "Of the base."}
