"""Weka's `.arff`."""

from __future__ import annotations

import datetime
import importlib.util
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.store.formats.reading import assert_projects, assert_resumes, assert_threads_agree, chunks_of, table_of

from stoker.errors import SourceEmptyError, SourceInvalidError
from stoker.store.formats.ucr import ArffSource

LABEL = pa.dictionary(pa.int32(), pa.string())
"""Labels are few: they become categories."""

UCR = "% made up\n@relation toy\n\n@attribute att1 numeric\n@ATTRIBUTE 'att 2' REAL\n@attribute target {0, 'b c'}\n\n@data\n"
UEA = (
    "@relation 'toy'\n@attribute bag relational\n@attribute a numeric\n@attribute b numeric\n@end bag\n"
    "@attribute class {x,y}\n@data\n"
)
TABLE = (
    "@relation t\n@attribute id integer\n@attribute 'the \\'x\\'' numeric\n@attribute kind{u,'v,w'}\n"
    "@attribute note string\n@attribute at date 'yyyy-MM-dd HH:mm:ss'\n@attribute odd date 'dd/MM/yyyy'\n@data\n"
)


def source(folder: Path, text: str | bytes, *, as_table: bool = False) -> ArffSource:
    path = folder / "a.arff"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return ArffSource(path, "a.arff", as_table=as_table)


def test_numbers_and_a_class_are_a_series(tmp_path: Path) -> None:
    one = source(tmp_path, UCR + "1,2.5,0\n% comment\n\n ?, -1e3 ,'b c'\n1,2,?\n")
    assert one.schema() == pa.schema([("value", pa.large_list(pa.float64())), ("label", LABEL)])
    assert table_of(one).to_pylist() == [
        {"value": [1.0, 2.5], "label": "0"},
        {"value": [None, -1000.0], "label": "b c"},
        {"value": [1.0, 2.0], "label": None},
    ]


def test_a_relational_attribute_has_dimensions(tmp_path: Path) -> None:
    one = source(tmp_path, UEA + "'1,2\\n3,?',x\n\"5,6\\n7,8\",y\n")
    assert one.schema().names == ["dim_0", "dim_1", "label"]
    assert table_of(one).to_pylist() == [
        {"dim_0": [1.0, 2.0], "dim_1": [3.0, None], "label": "x"},
        {"dim_0": [5.0, 6.0], "dim_1": [7.0, 8.0], "label": "y"},
    ]


def test_a_relational_attribute_may_have_a_target_or_nothing(tmp_path: Path) -> None:
    with_target = UEA.replace("class {x,y}", "speed numeric")
    assert table_of(source(tmp_path, with_target + "'1,2',0.5\n")).to_pylist() == [{"dim_0": [1.0, 2.0], "target": 0.5}]
    alone = UEA.replace("@attribute class {x,y}\n", "")
    assert table_of(source(tmp_path, alone + "'1,2'\n")).to_pylist() == [{"dim_0": [1.0, 2.0]}]


def test_a_table_has_a_column_an_attribute(tmp_path: Path) -> None:
    rows = "1,0.5,u,'it\\'s, so','2020-01-02 03:04:05',31/12/2020\n?,?,'v,w',?,?,?\n"
    one = source(tmp_path, TABLE + rows, as_table=True)
    assert one.schema() == pa.schema(
        {
            "id": pa.float64(),
            "the 'x'": pa.float64(),
            "kind": LABEL,
            "note": pa.string(),
            "at": pa.timestamp("s"),
            "odd": pa.string(),
        }
    )
    moment = datetime.datetime(2020, 1, 2, 3, 4, 5)
    assert table_of(one).to_pylist() == [
        {"id": 1.0, "the 'x'": 0.5, "kind": "u", "note": "it's, so", "at": moment, "odd": "31/12/2020"},
        {"id": None, "the 'x'": None, "kind": "v,w", "note": None, "at": None, "odd": None},
    ]


@pytest.mark.parametrize("as_table", [False, True])
def test_reading_continues_behind_every_chunk(tmp_path: Path, as_table: bool) -> None:
    one = source(tmp_path, UCR + "".join(f"{i},{i / 8},{'0' if i % 2 else 'b c'!r}\n" for i in range(60)), as_table=as_table)
    assert_resumes(one, chunk_bytes=300)
    assert_threads_agree(one, chunk_bytes=300)
    assert_projects(one)


def test_a_header_alone_has_no_rows(tmp_path: Path) -> None:
    for header, names in ((UCR, ["value", "label"]), (UEA, ["dim_0", "label"])):
        one = source(tmp_path, header)
        assert one.schema().names == names
        assert chunks_of(one, one.schema()) == []


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("", SourceEmptyError, "is empty"),
        ("@relation x\n@attribute a numeric\n", SourceInvalidError, "no line '@data' in its 2 lines"),
        ("a,b\n1,2\n", SourceInvalidError, "line 1 .* found 'a,b'"),
        ("@relation x\n@data\n1\n", SourceInvalidError, "declares no '@attribute'"),
        ("@relation x\n@attribute a\n@data\n", SourceInvalidError, "line 2 .* expected '@attribute name type'"),
        ("@relation x\n@attribute a fancy\n@data\n", SourceInvalidError, "line 2 .* the type 'fancy', which is not known"),
        ("@relation x\n@attribute a {u,v\n@data\n", SourceInvalidError, "line 2 .* do not end with '}'"),
        ("@relation x\n@attribute a {'u}\n@data\n", SourceInvalidError, "line 2 .* quote that is not closed"),
        ("@relation x\n@attribute r relational\n@attribute a numeric\n@data\n", SourceInvalidError, "line 4 .* has no '@end'"),
        ("@relation x\n@end r\n@data\n", SourceInvalidError, "line 2 .* without a relational"),
        (UCR.replace("'att 2'", "att1") + "1,2,0\n", SourceInvalidError, "the attribute 'att1' twice"),
        (UCR.replace("{0, 'b c'}", "numeric") + "1,2,0\n", SourceInvalidError, "to read it as a table"),
        (UCR + "1,2,0\n1,0\n", SourceInvalidError, "line 10 .* 2 fields found, 3 expected"),
        (UCR + "1,2,0\n1,x,0\n", SourceInvalidError, "line 10 .* 'x' is not numeric"),
        (UCR + "1,2,0\n\n1,2,7\n", SourceInvalidError, "line 11 .* '7' is not among the values declared for 'target'"),
        (UCR + "{0 1, 2 0}\n", SourceInvalidError, "line 9 .* sparse data"),
        (UCR + "1,2,'b c\n", SourceInvalidError, "line 9 .* a quote is not closed"),
        (UEA + "'1,2\\n3,4',x\n'1,2',x\n", SourceInvalidError, "line 9 .* 1 dimensions found, 2 expected"),
        (UEA + "'1,2,3',x\n", SourceInvalidError, "line 8 .* has 3 values, 2 expected"),
        (UEA + "'1,2',z\n", SourceInvalidError, "line 8 .* 'z' is not among"),
        (UEA.replace("a numeric", "a string") + "'1,2',x\n", SourceInvalidError, "parts that are not numeric"),
        (b"\x93NUMPY\x01\x00", SourceInvalidError, "line 1"),
    ],
)
def test_odd_files_are_named_with_their_line(tmp_path: Path, content: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        table_of(source(tmp_path, content))
    assert "a.arff" in str(raised.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b"x,1,u,n,?,?\n", "line 10 .* 'x' is not numeric"),
        (b",1,u,n,?,?\n", "line 10 .* a number is missing"),
        (b"1,1,q,n,?,?\n", "line 10 .* 'q' is not among"),
        (b"1,1,u,n,soon,?\n", "line 10 .* 'soon' is not a date"),
        (b"1,1,u,\xff,?,?\n", "line 10 .* 'note' is not UTF-8"),
        (b"1,9007199254740993,u,n,?,?\n", "line 10 .* cannot hold exactly"),
    ],
)
def test_odd_rows_of_a_table_are_named(tmp_path: Path, row: bytes, message: str) -> None:
    one = source(tmp_path, TABLE.encode() + b"1,1,u,n,?,?\n" + row, as_table=True)
    with pytest.raises(SourceInvalidError, match=message):
        table_of(one)


def test_a_relation_is_not_a_table(tmp_path: Path) -> None:
    with pytest.raises(SourceInvalidError, match="not a table of steps"):
        source(tmp_path, UEA, as_table=True).schema()


def test_a_long_quoted_field_is_read_in_linear_time(tmp_path: Path) -> None:
    one = source(
        tmp_path,
        UEA.replace("@attribute b numeric\n", "") + "'" + "\\n".join(["1"] * 3000) + "',x\n" + "'" + " " * 200_000 + ",x\n",
    )
    with pytest.raises(SourceInvalidError, match=r"line 8 .* a quote is not closed"):
        table_of(one)


def _aeon_files() -> list[Path]:
    spec = importlib.util.find_spec("aeon")
    if spec is None or not spec.submodule_search_locations:
        return []
    return sorted(Path(spec.submodule_search_locations[0], "datasets", "data").rglob("*.arff"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", _aeon_files() or [None], ids=lambda path: path.stem if path else "absent")
def test_files_of_aeon_are_read_as_aeon_reads_them(path: Path | None) -> None:
    if path is None:
        pytest.skip("aeon and the data sets in its package are not installed")
    from aeon.datasets import load_from_arff_file

    expected, labels = load_from_arff_file(str(path))
    table = table_of(ArffSource(path, path.name), chunk_bytes=64 << 10)
    names = [name for name in table.column_names if name != "label"]
    found = np.array([table.column(name).to_pylist() for name in names], dtype=float).transpose(1, 0, 2)
    assert np.array_equal(found, expected, equal_nan=True)
    assert table.column("label").to_pylist() == labels.tolist()
