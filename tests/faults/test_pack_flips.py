"""Bits that flip in a packed store: opening or verifying finds every single one, and says where."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from tests.faults.shapes import make_source, pack_shape, whole_content

from stoker import pack, verify
from stoker.errors import ManifestError, StokerError, StoreDamagedError
from stoker.store import manifest as manifests
from stoker.store import open_store
from stoker.store.manifest import BLOCK_BYTES, HEADER_BYTES, MANIFEST_NAME, Shard

pytestmark = pytest.mark.promise("P2")


def flip(path: Path, bit: int) -> None:
    path.chmod(0o644)
    with path.open("r+b") as file:
        byte = os.pread(file.fileno(), 1, bit // 8)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1 << bit % 8]), bit // 8)


def finding(store: Path) -> StokerError | None:
    """What opening and verifying have to say."""
    try:
        open_store(store)
        verify(store)
    except StokerError as error:
        return error
    return None


def holders(store: Path) -> dict[str, tuple[str, Shard]]:
    """What each shard holds, in words that a message about it must contain."""
    manifest = open_store(store).manifest
    found = {} if manifest.offsets is None else {manifest.offsets.file: ("offsets", manifest.offsets)}
    for column in manifest.columns:
        texts = [] if column.texts is None else [column.texts.utf8, column.texts.offsets]
        for shard in ([] if column.values is None else [column.values]) + texts:
            found[shard.file] = (f"column {column.name!r}", shard)
    return found


def flip_many(store: Path, rng: np.random.Generator, count: int) -> Counter[str]:
    """Flip one bit at a time, spread over all bytes of all files and the same number in each file; what found them."""
    sizes = {name: len(data) for name, data in whole_content(store).items()}
    shards = holders(store)
    seen: Counter[str] = Counter()
    for i in range(count):
        name = list(sizes)[i % len(sizes)]
        # Every third in the first bytes: headers are small, and as good a place for damage as any.
        bit = int(rng.integers(min(HEADER_BYTES, sizes[name]) * 8 if i // len(sizes) % 3 == 0 else sizes[name] * 8))
        flip(store / name, bit)
        error = finding(store)
        flip(store / name, bit)
        where = f"bit {bit} of {name}: {error}"
        seen["missed" if error is None else type(error).__name__] += 1
        if error is None:
            continue
        if name == MANIFEST_NAME:
            assert isinstance(error, ManifestError | StoreDamagedError), where
            continue
        words, shard = shards[name]
        assert isinstance(error, StoreDamagedError), where
        assert words in str(error) or "offsets" in str(error), where
        if bit // 8 >= HEADER_BYTES and "offsets" not in str(error):
            assert name in str(error), where
            assert named_rows(str(error))[0] <= row_of(shard, bit) <= named_rows(str(error))[1], where
    assert finding(store) is None, "every bit was flipped back"
    return seen


def named_rows(message: str) -> tuple[int, int]:
    rows = re.search(r"rows ([\d,]+) to ([\d,]+)", message)
    assert rows is not None, message
    return int(rows[1].replace(",", "")), int(rows[2].replace(",", ""))


def row_of(shard: Shard, bit: int) -> int:
    return (bit // 8 - HEADER_BYTES) * shard.shape[0] // shard.values_bytes


@pytest.mark.parametrize("name", ["categories", "text keys", "lists"])
def test_each_of_a_thousand_flipped_bits_is_found(quick_path: Path, rng: np.random.Generator, name: str) -> None:
    pack_shape(name, make_source(name, quick_path / "source"), quick_path / "store")
    seen = flip_many(quick_path / "store", rng, 1000)
    print(dict(seen))
    assert seen["missed"] == 0
    assert seen["ManifestError"] > 50
    assert seen["StoreDamagedError"] > 500


def test_a_flipped_bit_is_named_within_its_16_mib(quick_path: Path, rng: np.random.Generator) -> None:
    rows = 5 * BLOCK_BYTES // 2 // 8
    pack({"x": np.arange(rows, dtype=np.float64)}, quick_path / "store")
    manifest = open_store(quick_path / "store").manifest
    path = quick_path / "store" / next(manifests.shards(manifest)).file
    for row in (0, BLOCK_BYTES // 8 - 1, BLOCK_BYTES // 8, rows - 1, *rng.integers(rows, size=4).tolist()):
        bit = (HEADER_BYTES + row * 8) * 8
        flip(path, bit)
        with pytest.raises(StoreDamagedError, match=path.name) as caught:
            verify(quick_path / "store")
        flip(path, bit)
        first, last = named_rows(str(caught.value))
        assert first <= row <= last < first + BLOCK_BYTES // 8


# ---- negative controls: the tests above can fail ----


def test_negative_control_without_hashes_flipped_bits_are_missed(quick_path: Path, rng: np.random.Generator) -> None:
    pack_shape("straight", make_source("straight", quick_path / "source"), quick_path / "store")
    with mock.patch("stoker.store.inspect.damaged_blocks", return_value=[]):
        assert flip_many(quick_path / "store", rng, 300)["missed"] > 100


def test_negative_control_without_its_digest_flipped_bits_of_the_manifest_are_missed(
    quick_path: Path, rng: np.random.Generator
) -> None:
    pack_shape("straight", make_source("straight", quick_path / "source"), quick_path / "store")
    path = quick_path / "store" / MANIFEST_NAME
    size = path.stat().st_size * 8
    missed = 0
    load = manifests.load

    def load_without_digest(data: bytes, where: str) -> manifests.Manifest:
        with mock.patch.object(manifests, "dump", return_value=data):
            return load(data, where)

    with mock.patch.object(manifests, "load", load_without_digest):
        for bit in rng.integers(size, size=300).tolist():
            flip(path, bit)
            missed += finding(quick_path / "store") is None
            flip(path, bit)
    assert missed > 0
