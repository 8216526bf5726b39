"""What all sources share: slices of batches from any row, sources with one more column, and files that a description names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from stoker.errors import OptionError, SourceChangedError, SourceEmptyError, SourceInvalidError, SourceTooLargeError
from stoker.store.formats.base import (
    Chunk,
    DataSource,
    FileSource,
    NamedSource,
    RowLocation,
    Task,
    batch_chunks,
    decoding,
    inside,
    read_fully,
    row_chunk,
)

ROWS = 23
BATCHES = [
    pa.record_batch({"a": list(range(start, stop)), "b": ["x"] * (stop - start)}) for start, stop in ((0, 10), (10, 10), (10, ROWS))
]


class Rows(DataSource):
    """The batches as a source."""

    name, path, num_bytes = "rows", None, 100

    def schema(self) -> pa.Schema:
        return BATCHES[0].schema

    def read(self, schema: pa.Schema | None, *, start: RowLocation, chunk_bytes: int) -> Iterator[Task]:
        return batch_chunks(BATCHES, schema, start=start, chunk_bytes=chunk_bytes)


def chunks_of(source: DataSource, start: int = 0, *, schema: pa.Schema | None = None, chunk_bytes: int = 60) -> list[Chunk]:
    return [task() for task in source.read(schema, start=RowLocation(start, start), chunk_bytes=chunk_bytes)]


@pytest.mark.parametrize("chunk_bytes", [1, 60, 10_000])
@pytest.mark.parametrize("start", range(ROWS + 1))
def test_chunks_are_the_rows_from_the_start_on(start: int, chunk_bytes: int) -> None:
    found = chunks_of(Rows(), start, chunk_bytes=chunk_bytes)
    assert [value for chunk in found for value in chunk.table["a"].to_pylist()] == list(range(start, ROWS))
    ends = [start, *(chunk.end.row for chunk in found)]
    assert [chunk.begin.row for chunk in found] == ends[:-1]
    assert all(chunk.begin.position == chunk.begin.row and chunk.table.num_rows for chunk in found)


def test_chunks_have_the_columns_that_are_asked_for() -> None:
    (first, *_) = chunks_of(Rows(), schema=pa.schema([("b", pa.string())]))
    assert first.table.column_names == ["b"]
    assert (first.begin.row, row_chunk(first.table, 7).end.row) == (0, 7 + first.table.num_rows)


def test_a_source_with_its_name_in_each_row() -> None:
    named = NamedSource(Rows(), "file")
    assert named.schema().names == ["a", "b", "file"]
    for chunk in chunks_of(named, 3):
        assert chunk.table["file"].to_pylist() == ["rows"] * chunk.table.num_rows
    (first, *_) = chunks_of(named, schema=pa.schema([named.schema().field("file"), ("a", pa.int64())]))
    assert first.table.column_names == ["file", "a"]
    with pytest.raises(OptionError, match="name_column='b' is a column of rows already"):
        NamedSource(Rows(), "b").schema()


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()

    class File(FileSource):
        schema = Rows.schema  # type: ignore[assignment]
        read = Rows.read  # type: ignore[assignment]

    with pytest.raises(SourceEmptyError, match=r"a\.csv is empty \(0 bytes\)"):
        File(tmp_path / "a.csv", "a.csv")


@pytest.mark.parametrize(
    ("raised", "found"), [(pa.ArrowInvalid("bad\nmagic"), SourceInvalidError), (MemoryError(), SourceTooLargeError)]
)
def test_what_a_decoder_raises_names_the_file(raised: Exception, found: type[Exception]) -> None:
    with pytest.raises(found, match=r"a\.arrow") as caught, decoding(Path("a.arrow"), "Arrow IPC"):
        raise raised
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("raised", [SourceEmptyError("empty"), ZeroDivisionError()])
def test_negative_control_other_errors_stay(raised: Exception) -> None:
    with pytest.raises(type(raised)) as caught, decoding(Path("a.arrow"), "Arrow IPC"):
        raise raised
    assert caught.value is raised


def test_files_of_a_description_are_inside_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "part.bin").write_bytes(b"x")
    (folder / "sub").mkdir()
    (tmp_path / "secret").write_bytes(b"x")
    (folder / "link").symlink_to(tmp_path / "secret")
    assert inside(folder, "part.bin", named_by="meta.json") == folder / "part.bin"
    for name in ("", ".", "..", "../secret", "sub/x", "a\\b", "a\0b"):
        with pytest.raises(SourceInvalidError, match="expected the plain name"):
            inside(folder, name, named_by="meta.json")
    for name, message in (("gone", "which is not in"), ("link", "leads out of its folder"), ("sub", "is not a plain file")):
        with pytest.raises(SourceInvalidError, match=message):
            inside(folder, name, named_by="meta.json")


def test_a_file_that_became_shorter_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    fd = os.open(tmp_path / "a", os.O_RDONLY)
    try:
        buffer = bytearray(4)
        read_fully(fd, memoryview(buffer), 6, tmp_path / "a")
        assert buffer == b"6789"
        with pytest.raises(SourceChangedError, match="it now ends at byte 10"):
            read_fully(fd, memoryview(buffer), 7, tmp_path / "a")
    finally:
        os.close(fd)
