"""The dialect of a table in text: what is found out from its first lines, and what is refused as an option."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import OptionError, StokerError
from stoker.store.formats import csv as csv_format
from stoker.store.formats.csv import DELIMITERS, Csv, CsvSource, settle


@pytest.mark.parametrize("delimiter", DELIMITERS)
def test_each_delimiter_is_found(delimiter: str) -> None:
    lines = [delimiter.join(row) for row in (["a", "b", "c"], ["1", "2.5", "x"], ["3", "", "y"])]
    assert settle(Csv(), lines).delimiter == delimiter


@pytest.mark.parametrize(
    ("lines", "delimiter"),
    [
        (["name;note", "x;one, two", "y;three, four, five"], ";"),
        (['a,"b;c"', '1,"2;3"'], ","),
        (["t|v", "2020-01-01 00:00|1,5"], "|"),
        (["one column", "1"], ","),
        (["a", "1", "2"], ","),
        ([], ","),
    ],
)
def test_the_delimiter_is_what_splits_all_lines_alike(lines: list[str], delimiter: str) -> None:
    assert settle(Csv(), lines).delimiter == delimiter


@pytest.mark.parametrize(
    ("first", "header"),
    [("a,b", True), ("1,2", False), ("1,b", True), (",1", False), ("2020-01-01,1", True), ("nan,1e5", False), ("?,1", False)],
)
def test_a_first_line_of_numbers_is_not_a_header(first: str, header: bool) -> None:
    assert settle(Csv(), [first, "1,2"]).header is header


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delimiter": ";;"}, "delimiter=';;' is invalid; expected one ASCII character"),
        ({"delimiter": ""}, "delimiter='' is invalid"),
        ({"delimiter": "\n"}, "delimiter="),
        ({"delimiter": "→"}, "delimiter="),
        ({"quote": "ab"}, "quote='ab'"),
        ({"escape": "ab"}, "escape='ab'"),
        ({"decimal": ""}, "decimal=''"),
        ({"delimiter": ",", "decimal": ","}, "two of .* are ','"),
        ({"delimiter": '"'}, "two of"),
        ({"skip": -1}, "skip=-1"),
    ],
)
def test_options_that_is_invalid_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Csv(**options)


LINES = st.lists(st.sampled_from(["", "  ", "a,b", "1,2", "1;2", '"a', 'b"', '"x,y",3', "# a | b", "\r"]), max_size=150)


@given(lines=LINES, skip=st.integers(0, 3), short=st.sampled_from([16, 64, 300]))
def test_a_short_sample_gives_the_layout_of_a_long_one(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], skip: int, short: int
) -> None:
    """Blank lines at the start, line breaks in quotes and skipped lines included."""
    path = tmp_path_factory.mktemp("layout") / "a.csv"
    path.write_text("\n".join([*lines, "1,2", ""]))

    def layout(sample_bytes: int) -> object:
        with mock.patch.object(csv_format, "_SHORT_SAMPLE_BYTES", sample_bytes):
            try:
                return CsvSource(path, "a", Csv(skip=skip))._layout
            except StokerError as error:
                return str(error)

    assert layout(short) == layout(csv_format.SAMPLE_BYTES)
