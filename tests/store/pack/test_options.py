"""Options: what cannot be meant is refused before anything is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stoker.errors import OptionError
from stoker.store.pack.options import PackOptions, parse_bytes, parse_dtypes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wide": True, "series": "k"}, "wide=True .* cannot be combined with series="),
        ({"sort": True}, "sort=True orders rows by time, so it needs time="),
        ({"missing": "fill"}, "missing='fill' is invalid; expected one of keep, error, ffill, drop"),
        ({"columns": ()}, r"columns=\[\] names no column"),
        ({"memory_bytes": 1 << 20}, r"memory= is 1 MB, but a pack needs at least \d+ MB"),
        ({"threads": 0}, "threads is 0, but at least 1 is needed"),
    ],
)
def test_options_that_is_invalid_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        PackOptions(**options)


@pytest.mark.parametrize("memory", [1 << 28, 1 << 30, 1 << 34])
@pytest.mark.parametrize("threads", [1, 2, 64])
def test_the_parts_of_a_pack_fit_into_its_memory(memory: int, threads: int) -> None:
    options = PackOptions(memory_bytes=memory, threads=threads)
    assert 0 < options.chunk_bytes * (threads + 1) < options.working_bytes < memory
    assert options.run_bytes * 3 <= options.working_bytes


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("12345", 12345),
        ("256MB", 256 << 20),
        ("256 MiB", 256 << 20),
        ("1.5GB", 3 << 29),
        (" 1TB ", 1 << 40),
    ],
)
def test_sizes(given: str | int, expected: int) -> None:
    assert parse_bytes(given) == expected


@pytest.mark.parametrize("given", ["", "much", "-1GB", "1 PB", "1e9", "GB", "1,5GB"])
def test_what_is_not_a_size_is_refused(given: str) -> None:
    with pytest.raises(OptionError, match="is not a size; write it like 256MB or 2GB"):
        parse_bytes(given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, (None, {})),
        ("float32", ("float32", {})),
        ("a=int8", (None, {"a": "int8"})),
        ("float32,a=int8, b = text", ("float32", {"a": "int8", "b": "text"})),
        ({"a": "int8", "b": np.float32}, (None, {"a": "int8", "b": "float32"})),
        (np.float32, ("float32", {})),
        (float, ("float64", {})),
    ],
)
def test_types(given: Any, expected: tuple[str | None, dict[str, str]]) -> None:
    assert parse_dtypes(given) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("float33", "'float33' is not a column type; expected one of bool int8"),
        ("a=complex64", "'complex64' is not a column type"),
        ("float32,int8", "names two types for all columns"),
        ("text", "dtype='text' cannot apply to all columns"),
        ("", "'' is not a column type"),
        (object, "'object' is not a column type"),
        ({"a": "wide"}, "'wide' is not a column type"),
    ],
)
def test_what_is_not_a_type_is_refused(given: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_dtypes(given)
