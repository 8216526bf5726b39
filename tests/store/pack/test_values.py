"""Values: every cast against a slow twin in exact arithmetic; categories by appearance; gaps filled as by a loop."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from stoker.errors import BadValueError, SourceTooLargeError
from stoker.store.pack import values as categories
from stoker.store.pack.column_types import ColumnPlan, make_field
from stoker.store.pack.values import Categories, from_bfloat16, to_bfloat16, to_numbers
from stoker.store.shards import MISSING_TIME

NUMBERS = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()
TARGETS = [*NUMBERS, "bfloat16"]
EDGES = [2**k + d for k in (0, 7, 8, 11, 15, 16, 24, 31, 32, 53, 63, 64) for d in (-1, 0, 1)]
FLOATS = [0.5, -0.0, 0.1, 65504.0, 65520.0, 3.3e38, 3.4028234e38, 3.5e38, 1e300, 5e-324, 1e-45, 6e-8, 1.5e19]
CANDIDATES = sorted({*EDGES, *(-n for n in EDGES)}) + FLOATS + [-x for x in FLOATS] + [math.inf, -math.inf, math.nan]


def locate(i: int) -> str:
    return f"row {i + 1} of table.csv"


def field(kind: pa.DataType, asked: str | None) -> ColumnPlan:
    return make_field("v", kind, level="step", asked=asked, where="table.csv")


def candidates(dtype: str) -> list[Any]:
    """Numbers that a type holds exactly."""
    found = []
    for value in CANDIDATES:
        with np.errstate(all="ignore"):
            if dtype == "bool":
                fits = value in (0, 1)
            elif dtype.startswith("float"):
                fits = isinstance(value, float) or same(float(np.dtype(dtype).type(value)), value)
            else:
                fits = isinstance(value, int) and np.iinfo(dtype).min <= value <= np.iinfo(dtype).max
        found += [value] if fits else []
    return found


def same(a: float, b: float) -> bool:
    return math.isfinite(a) and Fraction(a) == Fraction(b)


def slow_cast(value: Any, source: str, target: str) -> Any:
    """The number as the target holds it, or None where it must be refused."""
    if target == "bool":
        return bool(value) if value in (0, 1) else None
    whole = not source.startswith("float")
    if target in NUMBERS and not target.startswith("float"):
        if not math.isfinite(value) or value != int(value):
            return None
        return int(value) if np.iinfo(target).min <= value <= np.iinfo(target).max else None
    if not math.isfinite(value):
        return float(value)
    with np.errstate(all="ignore"):
        result = slow_bfloat16(value) if target == "bfloat16" else float(np.dtype(target).type(value))
    if not math.isfinite(result) or (whole and not same(result, value)):
        return None
    return result


def slow_bfloat16(value: float) -> float:
    """The nearest of all bfloat16 to the float32, the even one of two, by exact arithmetic over the neighbours."""
    with np.errstate(all="ignore"):
        single = float(np.float32(value))
    if not math.isfinite(single):
        return single
    upper = int(np.array([single], "<f4").view("<u4")[0]) >> 16
    choices = [half for half in (upper, upper + 1) if half & 0x7FFF <= 0x7F80]

    def distance(half: int) -> tuple[Fraction, int]:
        exact = float(np.array([half << 16], "<u4").view("<f4")[0])
        limit = Fraction(exact) if math.isfinite(exact) else Fraction(2) ** 128 * (1 if exact > 0 else -1)
        return abs(limit - Fraction(single)), half & 1

    best = min(choices, key=distance)
    return float(np.array([best << 16], "<u4").view("<f4")[0])


@pytest.mark.parametrize(("source", "target"), list(itertools.product(NUMBERS, TARGETS)))
def test_every_cast_keeps_the_number_or_refuses_it(source: str, target: str) -> None:
    with np.errstate(all="ignore"):
        values = np.array(candidates(source), dtype=source)
    wanted = field(pa.from_numpy_dtype(values.dtype), target)
    for i, value in enumerate(values.tolist()):
        array = pa.array(values)[i : i + 1]
        expected = slow_cast(value, source, target)
        if expected is None:
            with pytest.raises(BadValueError, match=r"column 'v' holds .* in row 1 of table.csv, which \w+ cannot hold exactly"):
                to_numbers(array, wanted, locate)
            continue
        result = to_numbers(array, wanted, locate)
        assert result.dtype == wanted.dtype
        found = from_bfloat16(result) if target == "bfloat16" else result
        assert found.tobytes() == np.array([expected], dtype=found.dtype).tobytes() or (math.isnan(found[0]) and math.isnan(value))


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_bfloat16_rounds_to_the_nearest_even(bits: list[int]) -> None:
    singles = np.array(bits, dtype="<u4").view("<f4")
    found = from_bfloat16(to_bfloat16(singles))
    for single, half in zip(singles.tolist(), found.tolist(), strict=True):
        if math.isnan(single):
            assert math.isnan(half)
        else:
            assert np.float32(half).tobytes() == np.float32(slow_bfloat16(single)).tobytes()


@pytest.mark.parametrize(
    ("values", "numbers", "unit"),
    [
        (pa.array([1, None, -5], pa.timestamp("ns", "UTC")), [1, MISSING_TIME, -5], "ns, UTC"),
        (pa.array([1, None], pa.timestamp("s")), [1, MISSING_TIME], "s"),
        (pa.array([1, None], pa.date32()), [86_400, MISSING_TIME], "s"),
        (pa.array([86_400_000, None], pa.date64()), [86_400_000, MISSING_TIME], "ms"),
        (pa.array([7, None], pa.duration("us")), [7, MISSING_TIME], "us"),
        (pa.array([7, None], pa.time32("ms")), [7, MISSING_TIME], "ms"),
        (pa.array([7, None], pa.time64("ns")), [7, MISSING_TIME], "ns"),
    ],
)
def test_times_keep_their_unit(values: pa.Array, numbers: list[int], unit: str) -> None:
    wanted = field(values.type, None)
    assert wanted.unit == unit
    assert to_numbers(values, wanted, locate).tolist() == numbers


# Categories: numbers in the order of appearance, however the values are stored


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
    with pytest.raises(SourceTooLargeError, match=r"'note' has more than . distinct strings at row 9 of a.csv"):
        made.encode(pa.array(["text 4"]), "row 9 of a.csv")
