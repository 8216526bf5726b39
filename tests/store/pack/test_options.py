"""Options: what cannot be meant is refused before anything is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stoker.errors import OptionError
from stoker.store import PackOptions
from stoker.store.pack.options import parse_bytes, parse_dtypes


@pytest.mark.parametrize(
    "options",
    [
        {"wide": True, "series": "k"},
        {"sort": True},
        {"missing": "fill"},
        {"columns": ()},
        {"memory_bytes": 1 << 20},
        {"threads": 0},
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        PackOptions(**options)


SIZES = {"12345": 12345, "256MB": 256 << 20, "256 MiB": 256 << 20, "1.5GB": 3 << 29, " 1TB ": 1 << 40}
TYPES: list[tuple[Any, Any]] = [
    (None, (None, {})),
    ("float32", ("float32", {})),
    ("float32,a=int8, b = text", ("float32", {"a": "int8", "b": "text"})),
    ({"a": "int8", "b": np.float32}, (None, {"a": "int8", "b": "float32"})),
    (float, ("float64", {})),
]


def test_sizes_and_types_are_understood() -> None:
    assert {given: parse_bytes(given) for given in SIZES} == SIZES
    assert [parse_dtypes(given) for given, _ in TYPES] == [expected for _, expected in TYPES]


@pytest.mark.parametrize(
    ("parse", "given"),
    [
        *((parse_bytes, text) for text in ("", "much", "-1GB", "1 PB", "1e9", "GB", "1,5GB")),
        *((parse_dtypes, given) for given in ("float33", "a=complex64", "float32,int8", "text", "", object, {"a": "wide"})),
    ],
)
def test_other_sizes_and_types_are_refused(parse: Any, given: Any) -> None:
    with pytest.raises(OptionError):
        parse(given)
