"""CSV and its relatives, dialects and all: values arrive as they were written, and what cannot arrive is named by row."""

from __future__ import annotations

import csv
import gzip
import io
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from tests.harness import num_examples
from tests.store.formats.csv_file import CsvFile, chunks_of, joined
from tests.store.shrink import shrunk

from stoker.errors import SourceInvalidError, SourceTooLargeError
from stoker.store.formats import csv as csv_format
from stoker.store.formats.csv import Csv, CsvSource


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
def test_dialects(text: CsvFile, content: str, dialect: dict[str, Any], expected: dict[str, list[Any]]) -> None:
    assert text.table(content, **dialect) == expected


@pytest.mark.parametrize(
    "content",
    ["größe,b\n1,2\n", "a,b\n1,Köln\n", "a,b\n" + "1,x\n" * 200 + "1,Köln\n", "key,b\nKöln,1\n"],
    ids=["header", "value", "late value", "key"],
)
def test_a_wrong_encoding_is_said(text: CsvFile, content: str) -> None:
    with (
        shrunk(),
        pytest.raises(SourceInvalidError, match=r"table.csv is not utf-8\. Pass the right Csv.encoding=., like 'latin-1'"),
    ):
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
        chunks = chunks_of(source, schema)
    table = joined(chunks)
    assert list(zip(table["text"], table["n"], strict=True)) == rows


def test_reading_continues_from_every_chunk(text: CsvFile) -> None:
    content = "k,t,x\n" + "".join(f'{i},"a\n{i}",{i / 7}\n' + "\n" * (i % 3) for i in range(60))
    source = text.source(content)
    schema = pa.schema({"x": pa.float64(), "t": pa.string()})
    with shrunk():
        chunks = chunks_of(source, schema)
        assert len(chunks) > 10
        for i, chunk in enumerate(chunks):
            rest = chunks_of(source, schema, chunk.end)
            assert joined(rest) == joined(chunks[i + 1 :])
            assert not rest or rest[0].begin == chunk.end
            assert not rest or rest[-1].end == chunks[-1].end
    assert chunks[-1].end.row == 60


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.ZstdCompressor().compress], ids=["gz", "zst"])
def test_reading_continues_within_compressed_text(text: CsvFile, compress: Callable[[bytes], bytes]) -> None:
    source = text.source(compress("é,x\n".encode("utf-16") + "".join(f"ö{i},{i}\n" for i in range(50)).encode("utf-16-le")))
    schema = pa.schema({"é": pa.string(), "x": pa.int64()})
    with shrunk():
        chunks = chunks_of(source, schema)
        rest = chunks_of(source, schema, chunks[2].end)
    assert joined(rest) == joined(chunks[3:])


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
    with pytest.raises(
        SourceTooLargeError, match=r"has 5,000 columns, which make 5,001 .* at most 4,096\. Pass columns=\[...\], or wide=True"
    ):
        text.pack(wide)
    assert len(text.pack(wide, wide=True)) == 5000


def test_an_endless_first_line_is_refused(text: CsvFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_format, "MAX_HEADER_BYTES", 3 << 20)
    with pytest.raises(SourceTooLargeError, match=r"has a first or second line of more than 3\.1 MB"):
        text.pack(b"x" * (5 << 20))
