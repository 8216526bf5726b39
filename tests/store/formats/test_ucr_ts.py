"""The `.ts` format."""

from __future__ import annotations

import datetime
import importlib.util
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.store.formats.reading import assert_projects, assert_resumes, assert_threads_agree, chunks_of, table_of

from stoker.errors import SourceEmptyError, SourceInvalidError
from stoker.store.formats.ucr import TsSource

LABEL = pa.dictionary(pa.int32(), pa.string())
"""Labels are few: they become categories."""

UNIVARIATE = (
    "# made up\n@problemName Toy\n@timeStamps false\n@univariate true\n@equalLength true\n@seriesLength 3\n"
    "@classLabel true a b\n@data\n"
)


def source(folder: Path, text: str | bytes) -> TsSource:
    path = folder / "a.ts"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return TsSource(path, "a.ts")


def test_one_dimension_is_value_and_the_class_is_label(tmp_path: Path) -> None:
    one = source(tmp_path, UNIVARIATE + "1,?,3:a\n# a comment\n\n-0.5,NaN,1e3:b\n")
    assert one.schema() == pa.schema([("value", pa.large_list(pa.float64())), ("label", LABEL)])
    assert table_of(one).to_pylist() == [{"value": [1.0, None, 3.0], "label": "a"}, {"value": [-0.5, None, 1000.0], "label": "b"}]


def test_more_dimensions_have_numbers(tmp_path: Path) -> None:
    one = source(tmp_path, "@univariate false\n@dimensions 2\n@equalLength false\n@classLabel true x\n@data\n1,2:3,4:x\n5:6:x\n")
    assert one.schema().names == ["dim_0", "dim_1", "label"]
    assert table_of(one).column("dim_1").to_pylist() == [[3.0, 4.0], [6.0]]


def test_dimensions_that_are_not_declared_follow_from_the_first_case(tmp_path: Path) -> None:
    one = source(tmp_path, "@univariate false\n@classLabel false\n@data\n1,2:3,4:5,6\n")
    assert one.schema().names == ["dim_0", "dim_1", "dim_2"]


def test_a_regression_target_is_a_number(tmp_path: Path) -> None:
    one = source(tmp_path, "@univariate true\n@targetLabel true\n@data\n1,2:0.5\n3:?\n")
    assert one.schema().field("target").type == pa.float64()
    assert table_of(one).column("target").to_pylist() == [0.5, None]


def test_tags_may_be_written_in_any_case(tmp_path: Path) -> None:
    one = source(tmp_path, "@PROBLEMNAME x\r\n@UniVariate TRUE\r\n@CLASSLABEL True A b\r\n@DATA\r\n1,2:A\r\n")
    assert table_of(one).to_pylist() == [{"value": [1.0, 2.0], "label": "A"}]


def test_time_stamps_are_times(tmp_path: Path) -> None:
    header = "@timeStamps true\n@classLabel true 1\n@data\n"
    one = source(tmp_path, header + "(2007-01-01 00:00:00,1.5),(2007-01-01 00:01:00,?):1\n")
    assert one.schema() == pa.schema(
        [("time", pa.large_list(pa.timestamp("us"))), ("value", pa.large_list(pa.float64())), ("label", LABEL)]
    )
    moments = [datetime.datetime(2007, 1, 1, 0, minute) for minute in (0, 1)]
    assert table_of(one).to_pylist() == [{"time": moments, "value": [1.5, None], "label": "1"}]
    numbers = source(tmp_path, header + "(0,1),(2,3):(0,5),(2,6):1\n")
    assert table_of(numbers).to_pylist() == [{"time": [0.0, 2.0], "dim_0": [1.0, 3.0], "dim_1": [5.0, 6.0], "label": "1"}]


def test_reading_continues_behind_every_chunk(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [",".join(map(repr, rng.normal(size=3).tolist())) + f":{'ab'[i % 2]}" for i in range(40)]
    lines[5:5] = ["", "# comment"]
    one = source(tmp_path, UNIVARIATE + "\n".join(lines))
    assert_resumes(one, chunk_bytes=500)
    assert_threads_agree(one, chunk_bytes=500)
    assert_projects(one)


def test_a_header_alone_has_no_rows(tmp_path: Path) -> None:
    one = source(tmp_path, UNIVARIATE)
    assert one.schema().names == ["value", "label"]
    assert chunks_of(one, one.schema()) == []


STAMPED = "@timeStamps true\n@classLabel false\n@data\n"


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("", SourceEmptyError, "is empty"),
        ("@problemName x\n@univariate true\n", SourceInvalidError, "no line '@data' in its 2 lines"),
        ("a,b\n1,2\n", SourceInvalidError, "line 1 .* expected a tag"),
        ("@magic true\n@data\n", SourceInvalidError, "line 1 .* '@magic' is not known"),
        ("@univariate maybe\n@data\n", SourceInvalidError, "line 1 .* needs true or false"),
        ("@seriesLength -3\n@data\n", SourceInvalidError, "line 1 .* needs an integer"),
        ("@dimensions 99999\n@data\n", SourceInvalidError, "99,999 dimensions"),
        ("@univariate true\n@dimensions 2\n@data\n", SourceInvalidError, "Which is right"),
        ("@classLabel true a\n@targetLabel true\n@data\n", SourceInvalidError, "both"),
        (UNIVARIATE + "1,2,3:a\n\n1,2:b\n", SourceInvalidError, "line 11 .* has 2 values, 3 expected"),
        (
            UNIVARIATE + "1,2,3:a\n1,2,3:c\n",
            SourceInvalidError,
            "line 10 .* the label 'c' is not among the classes declared \\(a b\\)",
        ),
        (UNIVARIATE + "1,2,3:a\n1,x,3:a\n", SourceInvalidError, "line 10 .* 'x' is not numeric"),
        (UNIVARIATE + "1,2,3:a\n1,2,3\n", SourceInvalidError, "line 10 .* expected a label"),
        (UNIVARIATE + "1,2,3:a\n1,2,3:1,2,3:a\n", SourceInvalidError, "line 10 .* 2 dimensions found, 1 expected"),
        (UNIVARIATE + "1,,3:a\n", SourceInvalidError, "line 9 .* '' is not numeric"),
        (
            UNIVARIATE.replace("@seriesLength 3\n", "") + "1,2:a\n1,2,3:a\n",
            SourceInvalidError,
            "line 9 .* has 3 values, 2 expected",
        ),
        ("@classLabel false\n@data\n1,2:3\n", SourceInvalidError, "line 3 .* dimension 1 has 1 values, but dimension 0 has 2"),
        ("@targetLabel true\n@data\n1,2:x\n", SourceInvalidError, "line 3 .* 'x' is not numeric"),
        ("@targetLabel true\n@data\n1,2:1,2\n", SourceInvalidError, "line 3 .* the target '1,2' is not numeric"),
        (STAMPED + "(0,1),(1,2)x\n", SourceInvalidError, "line 4 .* found 'x'"),
        (STAMPED + "(0,1)(1,2)\n", SourceInvalidError, "line 4 .* between two"),
        (STAMPED + "(0,1):(1,2)\n", SourceInvalidError, "line 4 .* time stamps of their own"),
        (STAMPED + "(0,1)\n(soon,1)\n", SourceInvalidError, "line 5 .* 'soon' is not numeric"),
        (STAMPED + "(2020-01-01,1)\n(soon,1)\n", SourceInvalidError, "line 5 .* not ISO 8601"),
        (b"@classLabel true a\n@data\n1:\xff\n", SourceInvalidError, "line 3"),
        (b"\x93NUMPY\x01\x00", SourceInvalidError, "line 1"),
    ],
)
def test_odd_files_are_named_with_their_line(tmp_path: Path, content: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        table_of(source(tmp_path, content))
    assert "a.ts" in str(raised.value)


def test_the_line_is_right_in_later_blocks_too(tmp_path: Path) -> None:
    one = source(tmp_path, UNIVARIATE + "1,2,3:a\n" * 5000 + "# comment\n\n1,2,x:a\n")
    with pytest.raises(SourceInvalidError, match="line 5,011 of"):
        chunks_of(one, one.schema(), chunk_bytes=1000)


def _aeon_files() -> list[Path]:
    spec = importlib.util.find_spec("aeon")
    if spec is None or not spec.submodule_search_locations:
        return []
    return sorted(Path(spec.submodule_search_locations[0], "datasets", "data").rglob("*.ts"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", _aeon_files() or [None], ids=lambda path: path.stem if path else "absent")
def test_files_of_aeon_are_read_as_aeon_reads_them(path: Path | None) -> None:
    if path is None:
        pytest.skip("aeon and the data sets in its package are not installed")
    from aeon.datasets import load_from_ts_file

    expected, answers = load_from_ts_file(str(path))
    table = table_of(TsSource(path, path.name), chunk_bytes=64 << 10)
    names = [name for name in table.column_names if name == "value" or name.startswith("dim_")]
    assert table.num_rows == len(expected)
    for i, case in enumerate(expected):
        found = np.array([table.column(name)[i].values.to_numpy(zero_copy_only=False) for name in names])
        assert np.array_equal(found, case, equal_nan=True)
    if "target" in table.column_names:
        assert table.column("target").to_pylist() == answers.tolist()
    else:
        assert [label.lower() for label in table.column("label").to_pylist()] == answers.tolist()
