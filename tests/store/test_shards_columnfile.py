"""Column files: what is appended is what is read, in any pieces, after any interruption that did not touch the bytes."""

from __future__ import annotations

import errno
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness import FaultyFiles, Zygote

from stoker.errors import DiskError, DiskFullError
from stoker.store import shards as columnfile
from stoker.store.manifest import DTYPES
from stoker.store.shards import ColumnFile, ColumnMark, damaged_blocks, hash_block

F8 = np.dtype("<f8")


def cut(values: Any, places: list[int]) -> list[Any]:
    return np.split(values, sorted(place % (len(values) + 1) for place in places))


def write(path: Path, pieces: list[Any], dtype: np.dtype[Any] = F8, width: int | None = None) -> ColumnFile:
    column = ColumnFile.create(path, dtype, width)
    try:
        for piece in pieces:
            column.append(piece)
    except BaseException:
        column.close()
        raise
    return column


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnfile, "BLOCK_BYTES", 1000)


# ---- content ----


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("width", [None, 1, 5])
def test_a_sealed_column_is_the_file_that_numpy_would_save(tmp_path: Path, dtype: str, width: int | None) -> None:
    shape = (50,) if width is None else (50, width)
    values = (np.arange(50 * (width or 1)) % 2).astype(dtype).reshape(shape)
    entry = write(tmp_path / "column", cut(values, [3, 3, 40]), np.dtype(dtype), width).seal(tmp_path)
    np.save(tmp_path / "expected.npy", values)
    assert (tmp_path / entry.file).read_bytes() == (tmp_path / "expected.npy").read_bytes()
    assert not (tmp_path / "column").exists()
    assert (entry.dtype, entry.shape) == (dtype, list(shape))


@given(places=st.lists(st.integers(0, 700), max_size=8), rows=st.integers(0, 700))
def test_pieces_do_not_matter(tmp_path_factory: pytest.TempPathFactory, places: list[int], rows: int) -> None:
    folder = tmp_path_factory.mktemp("pieces")
    values = np.arange(rows, dtype=F8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columnfile, "BLOCK_BYTES", 1000)
        entry = write(folder / "column", cut(values, places)).seal(folder)
    raw = values.tobytes()
    assert entry.blocks == [hash_block(raw[i : i + 1000]) for i in range(0, len(raw), 1000)]
    assert np.array_equal(np.load(folder / entry.file), values)


def test_rows_are_read_back_while_the_column_grows(tmp_path: Path) -> None:
    column = write(tmp_path / "column", [np.arange(60.0).reshape(20, 3)], F8, 3)
    assert np.array_equal(column.read(5, 7), [[15, 16, 17], [18, 19, 20]])
    assert column.read(4, 4).shape == (0, 3)
    column.append(np.arange(60.0, 63).reshape(1, 3))
    assert np.array_equal(column.read(20, 21), [[60, 61, 62]])
    with pytest.raises(DiskError, match="ends before row 22"):
        column.read(20, 22)
    column.close()


# ---- going on ----


@given(at=st.integers(0, 500), more=st.integers(0, 300), garbage=st.integers(0, 50))
def test_a_column_taken_up_again_ends_as_if_never_interrupted(
    tmp_path_factory: pytest.TempPathFactory, at: int, more: int, garbage: int
) -> None:
    folder = tmp_path_factory.mktemp("again")
    values = np.arange(at + more, dtype=F8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columnfile, "BLOCK_BYTES", 1000)
        column = write(folder / "column", [values[:at]])
        mark = column.mark()
        column.append(np.full(garbage, -1.0))  # written, but not known to have been
        column.close()
        again = ColumnFile.reopen(folder / "column", F8, None, mark)
        assert again is not None
        assert again.mark() == mark
        again.append(values[at:])
        interrupted = again.seal(folder)
        (folder / interrupted.file).unlink()
        assert write(folder / "column", [values]).seal(folder) == interrupted


def interrupted(folder: Path) -> tuple[Path, ColumnMark]:
    column = write(folder / "column", [np.arange(500.0)])
    column.close()
    return folder / "column", column.mark()


def test_a_column_with_a_changed_byte_is_not_taken_up(tmp_path: Path, rng: np.random.Generator, small_blocks: None) -> None:
    path, mark = interrupted(tmp_path)
    whole = path.read_bytes()
    for place in [128, len(whole) - 1, *rng.integers(128, len(whole), 30).tolist()]:
        changed = bytearray(whole)
        changed[place] ^= 1
        path.write_bytes(changed)
        assert ColumnFile.reopen(path, F8, None, mark) is None
    path.write_bytes(whole)
    again = ColumnFile.reopen(path, F8, None, mark)
    assert again is not None
    again.close()


def test_a_column_that_was_not_taken_up_leaves_no_descriptor(tmp_path: Path) -> None:
    path, mark = interrupted(tmp_path)
    path.write_bytes(bytes(len(path.read_bytes())))
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert ColumnFile.reopen(path, F8, None, mark) is None
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# ---- faults ----


def make_column(folder: str, kill_at: int | None = None) -> int:
    with FaultyFiles(kill_at=kill_at) as disk:
        create_and_seal(Path(folder))
    return disk.operations


def create_and_seal(folder: Path) -> None:
    column = write(folder / "column", cut(np.arange(300.0), [100, 200]))
    try:
        column.seal(folder)
    finally:
        column.close()


def test_a_shard_is_whole_or_absent_when_killed_at_any_operation(tmp_path: Path) -> None:
    with Zygote() as zygote:
        (tmp_path / "whole").mkdir()
        count = make_column(str(tmp_path / "whole"))
        seen = set()
        for k in range(count):
            folder = tmp_path / str(k)
            folder.mkdir()
            assert zygote.run(make_column, folder=folder, kill_at=k).signal == signal.SIGKILL
            shards = list(folder.glob("*.npy"))
            seen.add(len(shards))
            assert all(np.array_equal(np.load(path), np.arange(300.0)) for path in shards)
    assert seen == {0, 1}


@pytest.mark.parametrize(("code", "kind"), [(errno.ENOSPC, DiskFullError), (errno.EIO, DiskError)])
def test_an_error_at_any_operation_is_raised_and_makes_no_shard(tmp_path: Path, code: int, kind: type[DiskError]) -> None:
    (tmp_path / "whole").mkdir()
    for k in range(make_column(str(tmp_path / "whole"))):
        folder = tmp_path / str(k)
        folder.mkdir()
        with FaultyFiles(error_at=(k, code)) as disk, pytest.raises(kind, match="column"):
            create_and_seal(folder)
        assert disk.operations == k + 1
        for path in folder.glob("*.npy"):
            assert len(np.load(path)) == 300


def test_short_writes_do_not_show(tmp_path: Path) -> None:
    for k in range(8):
        folder = tmp_path / str(k)
        folder.mkdir()
        with FaultyFiles(short_write_at=k):
            entry = write(folder / "column", cut(np.arange(300.0), [100, 200])).seal(folder)
        assert np.array_equal(np.load(folder / entry.file), np.arange(300.0))
        assert list(damaged_blocks(folder, entry, lambda _: None)) == []
