"""Shards: files that NumPy itself reads, whose every change is noticed, at open or by their hashes."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from tests.harness import CORRUPTIONS, corrupt, tiny_store, write_shard

from stoker.errors import StoreDamagedError
from stoker.store import manifest as manifests
from stoker.store import shards
from stoker.store.manifest import BLOCK_BYTES, DTYPES, HEADER_BYTES, Shard
from stoker.store.shards import damaged_blocks, header, map_shard

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
        with pytest.raises(
            StoreDamagedError, match=rf"{entry.file} has {size:,} bytes, but 24,128 are expected: it holds column 'x'"
        ):
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
    for module in (shards, shards):
        monkeypatch.setattr(module, "BLOCK_BYTES", 4096)
    return 4096


def test_a_changed_bit_is_found_in_its_block_and_in_no_other(tmp_path: Path, rng: np.random.Generator, small_blocks: int) -> None:
    entry = write_shard(tmp_path, rng.normal(size=5000))
    path = tmp_path / entry.file
    whole = path.read_bytes()
    path.chmod(0o644)
    for bit in rng.integers(HEADER_BYTES * 8, len(whole) * 8, size=300).tolist():
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        read: list[int] = []
        assert list(damaged_blocks(tmp_path, entry, read.append)) == [(bit // 8 - HEADER_BYTES) // small_blocks]
        assert sum(read) == len(whole) - HEADER_BYTES


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


def test_swapped_shards_are_found(tmp_path: Path) -> None:
    built = tiny_store(tmp_path / "store")
    entries = {entry.file: entry for entry in manifests.shards(built.manifest)}
    unlike = 0
    for first, second in itertools.combinations(entries.values(), 2):
        swap(built.path / first.file, built.path / second.file)
        for entry in (first, second):
            try:
                map_shard(built.path, entry, "a test")
                assert list(damaged_blocks(built.path, entry, lambda _: None)) == [0], "same size and type: only hashes can tell"
            except StoreDamagedError:
                unlike += 1
        swap(built.path / first.file, built.path / second.file)
    assert unlike > 100
    built.open()


def swap(first: Path, second: Path) -> None:
    spare = first.with_name("spare")
    first.rename(spare)
    second.rename(first)
    spare.rename(second)


def test_negative_control_a_hash_that_ignores_the_bytes_finds_nothing(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = write_shard(tmp_path, rng.normal(size=100))
    corrupt(tmp_path / entry.file, rng, kind="zero")
    assert list(damaged_blocks(tmp_path, entry, lambda _: None)) == [0]
    monkeypatch.setattr(shards, "hash_block", lambda _: entry.blocks[0])
    assert list(damaged_blocks(tmp_path, entry, lambda _: None)) == []


# ---- names ----


# ---- offsets beyond 32 bits ----


def sparse_shard(folder: Path, dtype: str, shape: list[int], rows: dict[int, Any]) -> Shard:
    """A file of any length that takes up next to no space; the hashes are invented, as nobody checks them at open."""
    row_bytes = np.dtype(dtype).itemsize * (shape[1] if len(shape) == 2 else 1)
    entry = Shard(file="0" * 16 + ".npy", dtype=dtype, shape=shape, blocks=["0" * 16] * -(-shape[0] * row_bytes // BLOCK_BYTES))
    with (folder / entry.file).open("wb") as file:
        file.write(header(dtype, shape))
        for row, value in rows.items():
            file.seek(HEADER_BYTES + row * row_bytes)
            file.write(np.asarray(value, dtype).tobytes())
        file.truncate(entry.num_bytes)
    return entry


@pytest.mark.parametrize("dtype", ["|u1", "<f8"])
def test_values_on_both_sides_of_2_to_the_31_and_32_are_right(tmp_path: Path, dtype: str) -> None:
    num_rows = (5 << 30) // np.dtype(dtype).itemsize
    item = np.dtype(dtype).itemsize
    borders = [0, num_rows - 1]
    for border in (2**31, 2**32):
        borders += [border // item - 1, border // item, border // item - HEADER_BYTES // item]
        borders += [border - 1, border, border + 1] if border < num_rows - 1 else []
    expected = {row: i + 1 for i, row in enumerate(sorted(set(borders)))}
    entry = sparse_shard(tmp_path, dtype, [num_rows], expected)
    assert (tmp_path / entry.file).stat().st_blocks * 512 < 1 << 20
    found = map_shard(tmp_path, entry, "a test")
    assert {row: int(found[row]) for row in expected} == expected
    assert int(found[-1]) == expected[num_rows - 1]


# ---- strings ----
