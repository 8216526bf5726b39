"""JSON documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.store.formats.reading import assert_projects, assert_resumes, assert_threads_agree, chunks_of, table_of

from stoker.errors import BadValueError, SourceEmptyError, SourceInvalidError
from stoker.store.formats.base import InferredTypeError
from stoker.store.formats.json import JsonSource


def source(folder: Path, content: Any) -> JsonSource:
    path = folder / "a.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content, indent=1).encode())
    return JsonSource(path, "a.json")


def test_an_array_of_objects_is_a_table(tmp_path: Path) -> None:
    one = source(tmp_path, [{"a": 1, "x": [1, 2]}, {"x": [], "a": None}, {"a": 3}])
    assert one.schema() == pa.schema([("a", pa.int64()), ("x", pa.large_list(pa.int64()))])
    assert table_of(one).to_pylist() == [{"a": 1, "x": [1, 2]}, {"a": None, "x": []}, {"a": 3, "x": None}]


def test_an_array_of_lists_is_series(tmp_path: Path) -> None:
    one = source(tmp_path, [[1, 2.5], [], [None, 3]])
    assert one.schema() == pa.schema([("sequence", pa.large_list(pa.float64()))])
    assert table_of(one).column(0).to_pylist() == [[1.0, 2.5], [], [None, 3.0]]


def test_an_array_of_numbers_is_one_series(tmp_path: Path) -> None:
    one = source(tmp_path, b"[1, null, 2.5, NaN, -0.0]")
    assert one.schema() == pa.schema([("value", pa.float64())])
    assert repr(table_of(one).column(0).to_pylist()) == "[1.0, None, 2.5, nan, -0.0]"


def test_an_object_of_lists_is_a_table(tmp_path: Path) -> None:
    one = source(tmp_path, {"a": [1, 2, 3], "t": ["x,]", 'q"', None], "s": [[1], [2, 3], []]})
    assert one.schema() == pa.schema([("a", pa.int64()), ("t", pa.string()), ("s", pa.large_list(pa.int64()))])
    assert table_of(one, chunk_bytes=1).to_pylist() == [
        {"a": 1, "t": "x,]", "s": [1]},
        {"a": 2, "t": 'q"', "s": [2, 3]},
        {"a": 3, "t": None, "s": []},
    ]


SHAPES = {
    "objects": [{"i": i, "x": [i / 4] * (i % 4)} for i in range(50)],
    "lists": [[i, i + 0.5][: i % 3] for i in range(50)],
    "numbers": [i / 8 for i in range(200)],
    "columns": {"i": list(range(200)), "t": ["é" * (i % 7) for i in range(200)]},
}


@pytest.mark.parametrize("content", SHAPES.values(), ids=SHAPES.keys())
def test_reading_continues_behind_every_chunk(tmp_path: Path, content: Any) -> None:
    one = source(tmp_path, content)
    assert_resumes(one, chunk_bytes=400)
    assert_threads_agree(one, chunk_bytes=400)
    assert_projects(one)


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", SourceEmptyError, "is empty"),
        (b" \n", SourceEmptyError, "white space"),
        (b"[]", SourceEmptyError, "an empty array"),
        (b"{}", SourceEmptyError, "an empty object"),
        (b"[{}, {}]", SourceEmptyError, "only empty objects"),
        (b"null", SourceInvalidError, "begins with .n."),
        (b"\x93NUMPY", SourceInvalidError, "Is it JSON"),
        (b"a,b\n1,2\n", SourceInvalidError, "Is it JSON"),
        (b"[1, 2", SourceInvalidError, "is cut off"),
        (b'{"a": [1, 2]', SourceInvalidError, "found the end of the file"),
        (b"[1, 2,]", SourceInvalidError, "row 3"),
        (b"[1 2]", SourceInvalidError, "row 1"),
        (b"[1] 2", SourceInvalidError, "at byte 5: expected the end of the file, found '2'"),
        (b'[{"a": 1}, null]', SourceInvalidError, "row 2 .* found null"),
        (b'[{"a": 1}{"a": 2}]', SourceInvalidError, "row 1"),
        (b'[{"a": 1}, 2]', SourceInvalidError, "row 2"),
        (b'[[1], {"a": 2}]', BadValueError, "in row 2"),
        (b'[1, "x"]', BadValueError, 'holds "x" in row 2'),
        (b'{"a": [1], "a": [2]}', SourceInvalidError, "the key 'a' twice"),
        (b'{"a": [1, 2], "b": [1]}', SourceInvalidError, "1 values under the key 'b', but 2 under 'a'"),
        (b'{"a": [1], "b": [1, 2]}', SourceInvalidError, "2 values under the key 'b', but 1 under 'a'"),
        (b'{"a": [], "b": [1]}', SourceInvalidError, "1 values under the key 'b', but 0 under 'a'"),
        (b'{"a": 1}', SourceInvalidError, "no list under the key 'a'"),
        (b'{"a": {"0": 1}}', SourceInvalidError, "orient="),
        (b'{"a": [1],}', SourceInvalidError, "at byte 11"),
        (b'{"data": [{"a": 1}]}', SourceInvalidError, "a list of objects under the key 'data'"),
        (b'{"a": [1]}\n{"a": [2]}\n', SourceInvalidError, "name it .jsonl"),
        (b'{"target": [1], "start": "2020"}\n', SourceInvalidError, "name it .jsonl"),
        (b"[" * 100_000, SourceInvalidError, "a.json"),
        (b"[" * 100_000 + b"]" * 100_000, SourceInvalidError, "nested too deeply"),
        (b'["\xff"]', SourceInvalidError, "row 1"),
    ],
)
def test_odd_files_are_named(tmp_path: Path, content: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        table_of(source(tmp_path, content))
    assert "a.json" in str(raised.value)
    assert len(str(raised.value)) < 500


def test_empty_columns_are_columns(tmp_path: Path) -> None:
    one = source(tmp_path, {"a": [], "b": []})
    assert one.schema().names == ["a", "b"]
    assert chunks_of(one, one.schema()) == []


def test_a_later_value_that_needs_a_wider_type_is_unfit(tmp_path: Path) -> None:
    numbers = "[" + ("1" + " " * 18 + ",") * 90_000 + "1.5]"
    for content in (numbers, f'{{"value": {numbers}}}'):
        one = source(tmp_path, content.encode())
        assert one.schema().field("value").type == pa.int64()
        with pytest.raises(InferredTypeError):
            chunks_of(one, one.schema())
        assert {chunk.table.schema.types[0] for chunk in chunks_of(one, None)} == {pa.int64(), pa.float64()}


def test_the_first_misfit_is_found(tmp_path: Path) -> None:
    assert source(tmp_path, [{"a": 1}, {"a": "x"}]).find_misfit("a", pa.int64()) == (2, "x")
    assert source(tmp_path, {"a": [1, 2, "x"]}).find_misfit("a", pa.int64()) == (3, "x")
    assert source(tmp_path, [1, 2]).find_misfit("value", pa.int64()) is None
