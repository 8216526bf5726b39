"""Values of CSV: types settle on what holds them all, integers are never rounded, and misfits are named by row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.store.formats.csv_file import CsvFile
from tests.store.shrink import shrunk

from stoker.errors import BadValueError, SourceInvalidError


@pytest.fixture
def text(tmp_path: Path) -> CsvFile:
    return CsvFile(tmp_path)


@pytest.mark.parametrize(
    ("bad", "fields"), [("7,8,9", 3), ("7", 1), ("7,8,9,10", 4)], ids=["one too many", "one too few", "two too many"]
)
@pytest.mark.parametrize("at", [0, 1, 57])
@pytest.mark.parametrize("blank", ["", "\n\n"], ids=["", "blank lines"])
def test_a_ragged_row_is_named(text: CsvFile, bad: str, fields: int, at: int, blank: str) -> None:
    lines = [f"{i},{i}{blank}" for i in range(60)]
    lines.insert(at, bad)
    message = rf"row {at + 1} of .*table.csv has {fields} fields, but 2 are expected: '{bad}'"
    for small in (False, True):
        with shrunk(line_bytes=64 if small else 1 << 20), pytest.raises(SourceInvalidError, match=message):
            text.pack("a,b\n" + "\n".join(lines) + "\n", delimiter=",")


@pytest.mark.parametrize(
    ("early", "late", "dtype"),
    [("1", "2.5", "float64"), ("", "7", "int64"), ("", "word", "int32"), ("1", "", "float64"), ("", "2.5", "float64")],
)
def test_types_settle_on_what_holds_all_values(text: CsvFile, early: str, late: str, dtype: str) -> None:
    content = "a,b\n" + f"0,{early}\n" * 60 + f"0,{late}\n" * 60
    if "" in (early, late) and dtype == "int64":
        dtype = "float64"  # integers with gaps
    with shrunk():
        store = text.pack(content)
    assert str(store.schema["b"].dtype) == dtype
    assert store.num_steps == 120


def test_settling_one_column_leaves_texts_that_look_like_numbers(text: CsvFile) -> None:
    """The texts of some blocks are digits alone; they are texts all the same."""
    content = "code,n\n" + "x1,1\n" * 40 + "77,2\n" * 40 + "true,2.5\n" * 40 + "2020-01-01,3\n" * 40
    with shrunk():
        store = text.pack(content)
        assert list(store.texts("code")) == ["x1", "77", "true", "2020-01-01"]
        assert store.column("n").tolist() == [1.0] * 40 + [2.0] * 40 + [2.5] * 40 + [3.0] * 40
        named = text.pack("code,n\n" + "1,1\n" * 40 + "2,2.5\n" * 40, dtype="code=text")
    assert list(named.texts("code")) == ["1", "2"]


def test_times_settle_on_the_finest_unit(text: CsvFile) -> None:
    content = "t,x\n" + "2020-01-01 00:00:00,1\n" * 30 + "2020-01-01 00:00:00.25,2\n" * 30
    with shrunk():
        store = text.pack(content)
    assert store.schema["t"].label == "timestamp[ns]"
    assert np.diff(store.column("t")).max() == 250_000_000
    with shrunk():
        store = text.pack("t,x\n" + "2020-01-01,1\n" * 30 + "2020-01-01 12:00:00,2\n" * 30)
    assert np.diff(store.column("t")).max() == 43_200


def test_a_time_format_is_followed(text: CsvFile) -> None:
    content = "t,x\n31/12/2019 23:59,1\n01/01/2020 00:00,2\n"
    store = text.pack(content, time="t", time_format="%d/%m/%Y %H:%M")
    assert np.diff(store.column("t")).tolist() == [60]
    with pytest.raises(BadValueError, match=r"the time column 't' .* is a string that is not ISO 8601. Pass Csv\(time_format="):
        text.pack(content, time="t")


@pytest.mark.parametrize("number", [2**63 + 1, 2**64 + 1, 10**25 + 1, -(2**63) - 1])
@pytest.mark.parametrize("late", [False, True])
def test_integers_beyond_int64_are_refused_and_not_rounded(text: CsvFile, number: int, late: bool) -> None:
    lines = ["1"] * (60 if late else 0) + [str(number)]
    with (
        shrunk(),
        pytest.raises(BadValueError, match=rf"'a' of .* holds {number} in row {len(lines)}, an integer that float64 cannot"),
    ):
        text.pack("a\n" + "\n".join(lines) + "\n")
    assert list(text.pack("a\n" + "\n".join(lines) + "\n", dtype="a=text").texts("a"))[-1] == str(number)


@pytest.mark.parametrize("number", ["1e400", "-1e400", "1.7976931348623159e308", "9" * 400, "9" * 5000])
def test_numbers_beyond_float64_are_refused_and_not_infinite(text: CsvFile, number: str) -> None:
    with pytest.raises(BadValueError, match=rf"column 'a' of .* holds {number[:60]} in row 2, which is too large for float64"):
        text.pack(f"a\n1.5\n{number}\n")
