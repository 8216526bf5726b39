"""Shards and column files: NumPy reads them, and every change is noticed, at open or by their hashes."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from tests.harness import CORRUPTIONS, corrupt, write_shard

from stoker.errors import StoreDamagedError
from stoker.store import shards
from stoker.store.manifest import BLOCK_BYTES, DTYPES, HEADER_BYTES
from stoker.store.shards import ColumnFile, damaged_blocks, hash_block, header, map_shard

SHAPES = [(0,), (1,), (7,), (10**6,), (2**31,), (2**40,), (2**59,), (0, 1), (3, 4), (2**40, 4096), (1, 2**62), (2**62, 1)]


# ---- the header ----


@pytest.mark.parametrize("shape", SHAPES)
def test_the_header_of_any_shape_has_128_bytes_and_numpy_reads_it(shape: tuple[int, ...]) -> None:
    for dtype in DTYPES:
        data = header(dtype, shape)
        assert len(data) == HEADER_BYTES
        file = io.BytesIO(data)
        assert np.lib.format.read_magic(file) == (1, 0)  # type: ignore[no-untyped-call]
        found_shape, fortran_order, found_dtype = np.lib.format.read_array_header_1_0(file)  # type: ignore[no-untyped-call]
        assert (found_shape, fortran_order, found_dtype) == (shape, False, np.dtype(dtype))
        assert file.tell() == HEADER_BYTES


# ---- mapping ----


@pytest.mark.parametrize("values", [np.arange(10.0), np.arange(12, dtype="<i2").reshape(4, 3), np.array([True, False])])
def test_a_mapped_shard_has_its_values_and_cannot_be_written(tmp_path: Path, values: Any) -> None:
    found = map_shard(tmp_path, write_shard(tmp_path, values), "a test")
    assert np.array_equal(found, values)
    assert not found.flags.writeable
    assert not found.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 0
    with pytest.raises(ValueError, match="WRITEABLE"):
        found.flags.writeable = True


# ---- damage that open finds ----


def test_a_shard_of_any_other_length_is_refused_with_both_sizes(tmp_path: Path, rng: np.random.Generator) -> None:
    entry = write_shard(tmp_path, rng.normal(size=3000))
    path = tmp_path / entry.file
    whole = path.read_bytes()
    path.chmod(0o644)
    borders = [0, 1, 9, 10, 127, 128, 129, 4095, 4096, 4097, 8192, len(whole) - 1, len(whole) + 1, len(whole) + 4096]
    for size in [*borders, *rng.integers(len(whole), size=200 - len(borders)).tolist()]:
        path.write_bytes(whole.ljust(size, b"\0")[:size])
        with pytest.raises(StoreDamagedError, match=f"{entry.file} has {size:,} bytes, but 24,128 .* column 'x'"):
            map_shard(tmp_path, entry, "column 'x'")


def test_any_changed_bit_of_the_header_is_refused(tmp_path: Path) -> None:
    entry = write_shard(tmp_path, np.arange(10))
    (tmp_path / entry.file).chmod(0o644)
    with (tmp_path / entry.file).open("r+b", buffering=0) as file:
        whole = file.read(HEADER_BYTES)
        for bit in range(HEADER_BYTES * 8):
            file.seek(bit // 8)
            file.write(bytes([whole[bit // 8] ^ 1 << bit % 8]))
            with pytest.raises(StoreDamagedError, match="header"):
                map_shard(tmp_path, entry, "a test")
            file.seek(bit // 8)
            file.write(whole[bit // 8 : bit // 8 + 1])
    map_shard(tmp_path, entry, "a test")


# ---- damage that hashes find ----


def test_a_hash_is_made_for_each_16_mib(tmp_path: Path) -> None:
    values = np.arange((2 * BLOCK_BYTES + 8) // 8)
    entry = write_shard(tmp_path, values)
    raw = values.tobytes()
    assert entry.blocks == [xxhash.xxh3_64_hexdigest(raw[i : i + BLOCK_BYTES]) for i in range(0, len(raw), BLOCK_BYTES)]
    assert len(entry.blocks) == 3
    assert list(damaged_blocks(tmp_path, entry, lambda _: None)) == []


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> int:
    """Blocks of 4 KiB, so that a small file has many."""
    monkeypatch.setattr(shards, "BLOCK_BYTES", 4096)
    return 4096


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_any_corruption_is_found_by_open_or_by_the_hashes(
    tmp_path: Path, rng: np.random.Generator, kind: str, small_blocks: int
) -> None:
    entry = write_shard(tmp_path, rng.normal(size=2000))
    whole = (tmp_path / entry.file).read_bytes()
    for _ in range(50):
        (tmp_path / entry.file).chmod(0o644)
        (tmp_path / entry.file).write_bytes(whole)
        description = corrupt(tmp_path / entry.file, rng, kind=kind)
        try:
            map_shard(tmp_path, entry, "a test")
        except StoreDamagedError:
            continue
        assert list(damaged_blocks(tmp_path, entry, lambda _: None)), description


def test_negative_control_a_hash_that_ignores_the_bytes_finds_nothing(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = write_shard(tmp_path, rng.normal(size=100))
    corrupt(tmp_path / entry.file, rng, kind="zero")
    assert list(damaged_blocks(tmp_path, entry, lambda _: None)) == [0]
    monkeypatch.setattr(shards, "hash_block", lambda _: entry.blocks[0])
    assert list(damaged_blocks(tmp_path, entry, lambda _: None)) == []


# Column files: what is appended is what is read, in any pieces, after any interruption that did not touch the bytes


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
        patch.setattr(shards, "BLOCK_BYTES", 1000)
        entry = write(folder / "column", cut(values, places)).seal(folder)
    raw = values.tobytes()
    assert entry.blocks == [hash_block(raw[i : i + 1000]) for i in range(0, len(raw), 1000)]
    assert np.array_equal(np.load(folder / entry.file), values)


# Names of shards: a name that leads out of the store is refused before a file is opened


def test_negative_control_without_the_name_check_a_name_leads_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "store").mkdir()
    monkeypatch.setattr(shards, "SHARD_NAME", re.compile(".*"))
    fd = shards.open_inside(tmp_path / "store", "../secret")
    assert os.read(fd, 9) == b"secret"
    os.close(fd)
