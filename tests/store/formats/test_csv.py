"""CSV and its relatives, dialects and all: values arrive as they were written, and what cannot arrive is named by row."""

from __future__ import annotations

import csv
import io
import unicodedata
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from tests.harness import num_examples
from tests.store.formats.reading import chunks_of, table_of
from tests.store.shrink import shrunk

from stoker import Csv, Store, pack
from stoker.errors import BadValueError, OptionError, SourceInvalidError, SourceTooLargeError, StokerError
from stoker.store.formats import csv as csv_format
from stoker.store.formats.csv import DELIMITERS, CsvSource, settle


class CsvFile:
    """Writes a file and reads it: as a source, or by a pack."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "table.csv"

    def table(self, content: str, **dialect: Any) -> dict[str, list[Any]]:
        """All values, read with the types of the first block."""
        self.path.write_bytes(content.encode())
        return table_of(CsvSource(self.path, "table.csv", Csv(**dialect))).to_pydict()

    def pack(self, content: str | bytes, **options: Any) -> Store:
        self.path.write_bytes(content if isinstance(content, bytes) else content.encode())
        fields = {name: options.pop(name) for name in list(options) if name in Csv.__dataclass_fields__}
        return pack(self.path, self.folder / "out", replace=True, csv=Csv(**fields), **options)


@pytest.fixture
def text(tmp_path: Path) -> CsvFile:
    return CsvFile(tmp_path)


@pytest.mark.parametrize(
    ("content", "dialect", "expected"),
    [
        ("a,b\n1,2\n", {}, {"a": [1], "b": [2]}),
        ("a,b\r\n1,2\r\n3,4\r\n", {}, {"a": [1, 3], "b": [2, 4]}),
        ("a,b\r1,2\r3,4\r", {}, {"a": [1, 3], "b": [2, 4]}),
        ("a,b\n1,2", {}, {"a": [1], "b": [2]}),
        ("\n\na,b\n\n1,2\n\n\n3,4\n\n", {}, {"a": [1, 3], "b": [2, 4]}),
        ("\ufeffa,b\n1,2\n", {}, {"a": [1], "b": [2]}),
        ("1,2\n3,4\n", {}, {"c0": [1, 3], "c1": [2, 4]}),
        ("1,2\n3,4\n", {"header": True}, {"1": [3], "2": [4]}),
        ("a,b\nc,d\n", {"header": False}, {"c0": ["a", "c"], "c1": ["b", "d"]}),
        ("# made by x\n# then y\na,b\n1,2\n", {"skip": 2}, {"a": [1], "b": [2]}),
        ("a;b\n1,5;-2,25\n", {"decimal": ","}, {"a": [1.5], "b": [-2.25]}),
        ('a,b\n"1","x, y"\n', {}, {"a": [1], "b": ["x, y"]}),
        ("a,b\n'1','x, y'\n", {"quote": "'"}, {"a": [1], "b": ["x, y"]}),
        ('a,b\n1,"x\n', {"quote": ""}, {"a": [1], "b": ['"x']}),
        ('a,b\n1,"say \\"hi\\""\n', {"escape": "\\"}, {"a": [1], "b": ['say "hi"']}),
        ('"a","b\nc"\n1,2\n', {}, {"a": [1], "b\nc": [2]}),
        ("a,b,\n1,2,\n", {}, {"a": [1], "b": [2], "": [None]}),
        ("a, b\n 1, 2.5\n", {}, {"a": [1], " b": [2.5]}),
        ("a\n-9\nn/a\n4\n", {"null": ("-9", "n/a")}, {"a": [None, None, 4]}),
        ("a\nNA\nNaN\nnull\n\nx\n", {}, {"a": ["NA", "NaN", "null", "x"]}),
        ("a,b\nx,1\n,2\nn/a,3\n", {"null": ("n/a",)}, {"a": ["x", None, None], "b": [1, 2, 3]}),
        ("a\ntrue\nfalse\n", {}, {"a": [True, False]}),
    ],
)
def test_values_of_every_dialect_arrive(
    text: CsvFile, content: str, dialect: dict[str, Any], expected: dict[str, list[Any]]
) -> None:
    assert text.table(content, **dialect) == expected


@pytest.mark.parametrize(
    "content",
    ["größe,b\n1,2\n", "a,b\n1,Köln\n", "a,b\n" + "1,x\n" * 200 + "1,Köln\n", "key,b\nKöln,1\n"],
    ids=["header", "value", "late value", "key"],
)
def test_a_wrong_encoding_is_said(text: CsvFile, content: str) -> None:
    with shrunk(), pytest.raises(SourceInvalidError, match=r"table.csv is not utf-8.*Csv.encoding="):
        text.pack(content.encode("latin-1"), series="key" if content.startswith("key") else None)


FIELD = st.text(alphabet=st.sampled_from('ab"\n,;|\tü1.-'), max_size=8).filter(lambda field: field.strip('" \t\n') != "")


@settings(max_examples=num_examples(150))
@given(
    rows=st.lists(st.tuples(FIELD, st.integers(-99, 99)), min_size=1, max_size=25),
    delimiter=st.sampled_from(",;|\t"),
    end=st.sampled_from(["\n", "\r\n"]),
    size=st.sampled_from([16, 40, 1000]),
)
def test_quoted_values_arrive_whole_over_any_border(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int]], delimiter: str, end: str, size: int
) -> None:
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerows([("text", "n"), *rows])
    path = tmp_path_factory.mktemp("csv") / "table.csv"
    path.write_bytes(file.getvalue().encode())
    source = CsvSource(path, "table.csv", Csv(delimiter=delimiter, header=True))
    schema = pa.schema({"text": pa.string(), "n": pa.int64()})
    with shrunk(line_bytes=size):
        table = pa.concat_tables([chunk.table for chunk in chunks_of(source, schema)])
    assert list(zip(*table.to_pydict().values(), strict=True)) == rows


@pytest.mark.parametrize("first", ["a,a", "a,b,a", "caf\u00e9,cafe\u0301", ",x,"])
def test_equal_names_are_refused(text: CsvFile, first: str) -> None:
    count = len(first.split(","))
    with pytest.raises(SourceInvalidError, match="has two columns named"):
        text.pack(f"{first}\n{','.join('1' * count)}\n")


@settings(max_examples=num_examples(40))
@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\x00"), min_size=1, max_size=8).filter(
            lambda name: name.strip('" ') != ""
        ),
        min_size=1,
        max_size=5,
        unique_by=lambda name: unicodedata.normalize("NFC", name),
    )
)
def test_any_unicode_name_arrives(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    file = io.StringIO(newline="")
    csv.writer(file, quoting=csv.QUOTE_ALL).writerows([names, ["1.5"] * len(names)])
    path = tmp_path_factory.mktemp("names") / "table.csv"
    path.write_bytes(file.getvalue().encode())
    source = CsvSource(path, "table.csv", Csv(delimiter=",", header=True))
    assert source.schema() == pa.schema([(name, pa.float64()) for name in names])


def test_too_many_columns_are_refused(text: CsvFile) -> None:
    with pytest.raises(SourceTooLargeError, match="has 70,000 columns; at most 65,536 can be read"):
        text.pack(",".join(f"c{i}" for i in range(70_000)) + "\n" + ",".join("1" * 70_000) + "\n")
    wide = ",".join(f"c{i}" for i in range(5000)) + "\n" + ",".join("1" * 5000) + "\n"
    with pytest.raises(SourceTooLargeError, match=r"make 5,001 .* at most 4,096\. Pass columns=\[...\], or wide=True"):
        text.pack(wide)
    assert len(text.pack(wide, wide=True)) == 5000


def test_an_endless_first_line_is_refused(text: CsvFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_format, "MAX_HEADER_BYTES", 3 << 20)
    with pytest.raises(SourceTooLargeError, match=r"has a first or second line of more than 3\.1 MB"):
        text.pack(b"x" * (5 << 20))


# Values of CSV: types settle on what holds them all, integers are never rounded, and misfits are named by row


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


# The dialect of a table in text: what is found out from its first lines, and what is refused as an option


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
