"""Expressions: equal to Python's own arithmetic, row by row; nothing outside the safe set can be reached."""

from __future__ import annotations

import datetime
import math
import operator
import zoneinfo
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import OptionError
from stoker.store.expressions import MAX_LETTERS, parse_expression, stored_values

LEAVES = st.sampled_from(["a", "b", "the c"]) | st.sampled_from([2.0, 0.5])
NUMBERS = st.recursive(
    LEAVES,
    lambda part: (
        st.tuples(st.sampled_from(["+", "-", "*", "max"]), part, part)
        | st.tuples(st.sampled_from(["abs", "negative", "diff"]), part)
        | st.tuples(st.just("lag"), part, st.integers(1, 3))
    ),
    max_leaves=6,
)
CONDITIONS = st.recursive(
    st.tuples(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), NUMBERS, NUMBERS),
    lambda part: st.tuples(st.sampled_from(["and", "or"]), part, part) | st.tuples(st.just("not"), part),
    max_leaves=3,
)
INFIX = {"+": operator.add, "-": operator.sub, "*": operator.mul, "<": operator.lt, "<=": operator.le, ">": operator.gt}
INFIX |= {">=": operator.ge, "==": operator.eq, "!=": operator.ne, "and": operator.and_, "or": operator.or_}


def render(tree: Any) -> str:
    """A tree as a user writes it."""
    match tree:
        case str():
            return f"`{tree}`" if " " in tree else tree
        case float():
            return str(tree)
        case ("negative", x):
            return f"(-{render(x)})"
        case ("not", x):
            return f"(not {render(x)})"
        case ("lag", x, int(count)):
            return f"lag({render(x)}, {count})"
        case (name, x, y) if name in INFIX:
            return f"({render(x)} {name} {render(y)})"
        case (name, *parts):
            return f"{name}({', '.join(map(render, parts))})"
    raise AssertionError(tree)


def slow(tree: Any, rows: dict[str, list[float]], row: int) -> Any:
    """The value at one row of one series, by Python's arithmetic."""
    match tree:
        case str():
            return rows[tree][row]
        case float():
            return tree
        case ("negative", x):
            return -slow(x, rows, row)
        case ("abs", x):
            return abs(slow(x, rows, row))
        case ("not", x):
            return not slow(x, rows, row)
        case ("lag", x, int(count)):
            return slow(x, rows, row - count) if row >= count else math.nan
        case ("diff", x):
            return slow(x, rows, row) - (slow(x, rows, row - 1) if row else math.nan)
        case ("max", x, y):
            values = slow(x, rows, row), slow(y, rows, row)
            return math.nan if any(map(math.isnan, values)) else max(values)
        case (name, x, y):
            return INFIX[name](slow(x, rows, row), slow(y, rows, row))
    raise AssertionError(tree)


@given(NUMBERS | CONDITIONS, st.lists(st.integers(0, 5), min_size=1, max_size=4), st.integers(0, 99))
def test_values_are_those_of_python_row_by_row(tree: Any, lengths: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    series = [{name: rng.integers(-4, 5, length).astype(float).tolist() for name in ("a", "b", "the c")} for length in lengths]
    columns = {name: np.array([value for rows in series for value in rows[name]]) for name in ("a", "b", "the c")}
    steps = np.array([row for length in lengths for row in range(length)], dtype=np.int64)
    found = parse_expression(render(tree), "derive").evaluate(columns, steps)
    expected = [slow(tree, rows, row) for rows, length in zip(series, lengths, strict=True) for row in range(length)]
    np.testing.assert_array_equal(found.astype(np.float64), np.array(expected, dtype=np.float64))


def evaluate(text: str, **columns: Any) -> list[Any]:
    arrays = {name: np.asanyarray(values) for name, values in columns.items()}
    return parse_expression(text, "where").evaluate(arrays, np.arange(len(next(iter(arrays.values()))))).tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("country == 'DE'", [True, False, False]),
        ("country != 'DE'", [False, True, True]),
        ("country in ('AT', 'DE')", [True, True, False]),
        ("country not in ['AT']", [True, False, True]),
        ("isnull(country)", [False, False, True]),
        ("country >= 'B'", [True, False, False]),
        ("x > 1 and not isnull(country)", [False, True, False]),
        ("1 < x <= 2", [False, True, False]),
        ("fillnull(x, -1)", [1.0, 2.0, -1.0]),
        ("where(x > 1, 10, 20)", [20, 10, 20]),
        ("x ** 2 % 3 // 1", [1.0, 1.0, None]),
        ("n ** -1", [0.5, 0.25, 0.125]),
        ("clip(n, 3, 5)", [3, 4, 5]),
        ("round(n / 3, 1)", [0.7, 1.3, 2.7]),
    ],
)
def test_examples(text: str, expected: list[Any]) -> None:
    found = evaluate(text, x=[1.0, 2.0, np.nan], n=[2, 4, 8], country=np.array(["DE", "AT", None], dtype=object))
    assert [None if one != one else one for one in found] == expected


@given(st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1)))
def test_the_calendar_is_that_of_python(moment: datetime.datetime) -> None:
    time = np.array([moment], dtype="datetime64[us]")
    names = {"year": moment.year, "quarter": (moment.month + 2) // 3, "month": moment.month, "day": moment.day}
    names |= {"weekday": moment.weekday(), "hour": moment.hour, "minute": moment.minute, "second": moment.second}
    assert {name: evaluate(f"{name}(t)", t=time)[0] for name in names} == names


def test_times_are_compared_with_dates_in_strings() -> None:
    times = np.array(["2026-01-01", "2026-06-01", "NaT"], dtype="datetime64[ns]")
    assert evaluate("t >= '2026-03-01'", t=times) == [False, True, False]


@given(
    st.datetimes(datetime.datetime(1990, 1, 1), datetime.datetime(2035, 1, 1)),
    st.sampled_from(["Europe/Berlin", "America/New_York"]),
)
def test_the_calendar_of_a_time_with_a_zone_is_the_local_one(moment: datetime.datetime, zone: str) -> None:
    local = moment.replace(tzinfo=datetime.UTC).astimezone(zoneinfo.ZoneInfo(zone)).replace(tzinfo=None)
    time = stored_values(np.array([moment], dtype="datetime64[us]").astype(np.int64), "timestamp", f"us, {zone}")
    names = {"year": local.year, "month": local.month, "day": local.day, "weekday": local.weekday(), "hour": local.hour}
    for text in ("t", "max(t, t)", "where(x > 0, t, t)"):
        assert {name: evaluate(f"{name}({text})", t=time, x=[1.0])[0] for name in names} == names
    assert evaluate(f"t == '{local.isoformat()}'", t=time) == [True]
    assert evaluate(f"'{local.isoformat()}' == t", t=time) == [True]


def test_differences_of_times_with_a_zone_are_those_of_utc() -> None:
    hours = np.array([0, 3600], dtype=np.int64) + 1_711_843_200  # 00:00 and 01:00 UTC, 01:00 and 03:00 in Berlin
    first, then = (stored_values(hours[i : i + 1], "timestamp", "s, Europe/Berlin") for i in (0, 1))
    assert evaluate("hour(b) - hour(a)", a=first, b=then) == [2]
    assert parse_expression("b - a", "where").evaluate({"a": first, "b": then}, np.arange(1)).astype(np.int64).tolist() == [3600]


def test_a_missing_time_with_a_zone_is_missing() -> None:
    time = stored_values(np.array([np.iinfo(np.int64).min], dtype=np.int64), "timestamp", "ns, Europe/Berlin")
    assert evaluate("t >= '2020-01-01'", t=time) == [False]
    assert np.isnan(evaluate("hour(t)", t=time)).all()


def test_columns_and_context_are_known() -> None:
    found = parse_expression("lag(diff(`unit price`, 3), 2) + lag(b) > b", "where")
    assert (found.columns, found.context) == (("unit price", "b"), 5)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "a.b",
        "a[0]",
        "lambda: 1",
        "[a for a in b]",
        "open('x')",
        "f'{a}'",
        "a if b else c",
        "(a := 1)",
        "lag(a, b)",
        "lag(a, 0)",
        "lag(a, -1)",
        "log(a, b)",
        "abs(x=1)",
        "a in b",
        "a is b",
        "None",
        "1j",
        "a >> 1",
        "a @ b",
        "",
        "a +",
        "a; b",
        "(" * 60 + "a" + ")" * 60 + "+",
        "-" * 200 + "a",
        "a" * (MAX_LETTERS + 1),
    ],
)
def test_what_is_not_in_the_safe_set_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="where is"):
        parse_expression(text, "where")


@pytest.mark.parametrize("text", ["x + country", "x == 'a'", "log(country)", "hour(x)", "lag(country)", "x and x > 1", "not x"])
def test_what_cannot_be_computed_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="where is"):
        evaluate(text, x=[1.0], country=np.array(["DE"], dtype=object))


@pytest.mark.parametrize(("text", "said"), [("t > 5", "a time next to a number"), ("t > 'noon'", "'noon' is not a time like")])
def test_what_cannot_be_computed_is_said_without_words_of_numpy(text: str, said: str) -> None:
    with pytest.raises(OptionError, match=said) as found:
        evaluate(text, t=np.array(["2026-01-01"], dtype="datetime64[s]"))
    assert "ufunc" not in str(found.value)


def test_a_number_is_not_a_condition() -> None:
    with pytest.raises(OptionError, match="expected a condition"):
        parse_expression("a + 1", "where").evaluate_rows({"a": np.ones(2)}, np.arange(2))


def test_huge_constants_are_floats() -> None:
    assert evaluate("9 ** 9 ** 9 > a", a=[1.0]) == [True]
