"""JSON Lines."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pyarrow as pa
import pytest
from tests.store.formats.reading import assert_projects, assert_resumes, assert_threads_agree, chunks_of, table_of

from stoker.errors import BadValueError, SourceEmptyError, SourceInvalidError
from stoker.store.formats.base import InferredTypeError
from stoker.store.formats.jsonl import JsonLinesSource

BLOCKS = ('{"a": 1' + " " * 82 + "}\n") * 20_000
"""More than the block of which the types are taken; as few rows as that, because the exact way reads them one by one."""


def source(folder: Path, text: str | bytes, name: str = "a.jsonl") -> JsonLinesSource:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return JsonLinesSource(path, name)


def test_scalars_are_steps_and_missing_keys_are_null(tmp_path: Path) -> None:
    one = source(tmp_path, '{"a": 1, "b": "x"}\n{"b": null}\n\n   \r\n{"b": "é😀", "a": 2.5}')
    assert one.schema() == pa.schema([("a", pa.float64()), ("b", pa.string())])
    assert table_of(one).to_pylist() == [{"a": 1.0, "b": "x"}, {"a": None, "b": None}, {"a": 2.5, "b": "é😀"}]


def test_bare_lists_are_series(tmp_path: Path) -> None:
    one = source(tmp_path, "\n[1, 2.5, NaN]\n\n[]\n[null]\n")
    assert one.schema() == pa.schema([("sequence", pa.large_list(pa.float64()))])
    assert repr(table_of(one).column(0).to_pylist()) == "[[1.0, 2.5, nan], [], [None]]"


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_reading_continues_behind_every_chunk(tmp_path: Path, compress: type[bytes]) -> None:
    rng = random.Random(0)
    lines = [json.dumps({"i": i, "x": [rng.random()] * rng.randrange(5), "t": "ü" * rng.randrange(9)}) for i in range(60)]
    lines[7:7] = ["", "   "]
    one = source(tmp_path, compress("\n".join(lines).encode()))
    assert_resumes(one, chunk_bytes=300)
    assert_threads_agree(one, chunk_bytes=300)
    assert_projects(one)


def test_a_later_block_that_needs_a_wider_type_is_unfit(tmp_path: Path) -> None:
    one = source(tmp_path, BLOCKS + '{"a": 1.5}\n')
    schema = one.schema()
    assert schema.field("a").type == pa.int64()
    with pytest.raises(InferredTypeError):
        chunks_of(one, schema)
    suggested = {chunk.table.schema.field("a").type for chunk in chunks_of(one, None)}
    assert suggested == {pa.int64(), pa.float64()}
    wider = chunks_of(one, pa.schema([("a", pa.float64())]))
    assert wider[-1].table.column("a")[-1].as_py() == 1.5


def test_a_key_that_comes_up_late_names_the_row(tmp_path: Path) -> None:
    one = source(tmp_path, BLOCKS + '{"a": 1, "late": 2}\n')
    for schema in (one.schema(), None):
        with pytest.raises(SourceInvalidError, match=r"row 20,001 of .* the key 'late'"):
            chunks_of(one, schema)


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", SourceEmptyError, "is empty"),
        (b"\n \r\n", SourceEmptyError, "blank lines"),
        (gzip.compress(b"", mtime=0), SourceEmptyError, "blank lines"),
        (b"{}\n{}\n", SourceEmptyError, "only empty objects"),
        (b"null\n", SourceInvalidError, "row 1 .* found null"),
        (b'{"a": 1}\nnull\n', SourceInvalidError, "row 2 .* found null"),
        (b'{"a": 1}\n[1]\n', SourceInvalidError, "row 2 .* found a list"),
        (b'[1]\n{"a": 1}\n', BadValueError, "in row 2"),
        (b"a,b\n1,2\n", SourceInvalidError, "row 1 .* It begins with 'a,b'"),
        (b'{"a": 1}\n{"a": \n', SourceInvalidError, "row 2"),
        (b"PAR1\x15\x04\x15\x10", SourceInvalidError, "row 1"),
        (gzip.compress(b'{"a": 1}\n' * 1000, mtime=0)[:-20], SourceInvalidError, "cannot be decompressed"),
    ],
)
def test_odd_files_are_named(tmp_path: Path, content: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        table_of(source(tmp_path, content))
    assert "a.jsonl" in str(raised.value)
    assert "\n" not in str(raised.value)
