"""A disk that refuses: the error names what and where, nothing is left behind, and an older store stays as it was."""

from __future__ import annotations

import errno
import gc
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from tests.faults.shapes import content, make_source, pack_shape, record_operations, whole_content
from tests.harness import FaultyFiles, Snapshot, Zygote, take_snapshot

from stoker import _disk, verify
from stoker.errors import DiskError, DiskFullError, StokerError
from stoker.store import manifest as manifests
from stoker.store import open_store, writer
from stoker.store.manifest import Manifest
from stoker.store.pack import api as packs

ERRORS = (errno.ENOSPC, errno.EIO, pytest.param(errno.EACCES, marks=pytest.mark.slow))
FULL = (errno.ENOSPC, errno.EDQUOT)


def fail_each(name: str, source: Path, store: Path, code: int, before: Snapshot | None = None, **faults: Any) -> Iterator[int]:
    """Pack with an error at each operation in turn, each time over the same state; yields behind each failed pack."""
    k, failed = 0, True
    while failed:
        if before is not None:
            before.write_to(store)
        with FaultyFiles(error_at=(k, code), **faults):
            error = failure(name, source, store)
        failed = error is not None
        if error is not None:
            assert error.errno == code
            assert isinstance(error, DiskFullError) == (code in FULL)
            assert str(store) in str(error) or str(store.parent) in str(error)
            assert code not in FULL or ("quota" in str(error) if code == errno.EDQUOT else "free" in str(error))
            yield k
        _disk.remove_folder(store)
        k += 1


def failure(name: str, source: Path, store: Path) -> DiskError | None:
    try:
        pack_shape(name, source, store)
    except DiskError as error:
        return error
    return None


@pytest.mark.promise("P1")
@pytest.mark.parametrize("code", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("name", ["straight", pytest.param("grouped", marks=pytest.mark.slow)])
def test_an_error_at_any_operation_leaves_nothing_behind(quick_path: Path, name: str, code: int) -> None:
    source, store = make_source(name, quick_path / "source"), quick_path / "deep" / "store"
    pack_shape(name, source, store)
    expected = whole_content(store)
    log = record_operations(name, source, store)
    commit = max(i for i, operation in enumerate(log) if operation.kind == "replace")
    _disk.remove_folder(store.parent)
    failed = 0
    for k in fail_each(name, source, store, code):
        failed += 1
        if store.exists():
            assert k > commit, f"left at operation {k} ({log[k]}): {list(content(store))}"
            assert whole_content(store) == expected
        else:
            assert not store.parent.exists()
        _disk.remove_folder(store.parent)
    assert failed > len(log)


@pytest.mark.promise("P1")
@pytest.mark.parametrize(
    "code",
    [*ERRORS, *(pytest.param(one, marks=pytest.mark.slow) for one in (errno.EDQUOT, errno.EROFS, errno.EXDEV))],
    ids=errno.errorcode.get,
)
def test_an_error_at_any_operation_leaves_an_older_store_as_it_was(quick_path: Path, code: int) -> None:
    source, store = make_source("straight", quick_path / "source"), quick_path / "store"
    pack_shape("grouped", make_source("grouped", quick_path / "other"), store)
    before, old = take_snapshot(store), whole_content(store)
    pack_shape("straight", source, store)
    new = whole_content(store)
    _disk.remove_folder(store)
    seen = [whole_content(store) for _ in fail_each("straight", source, store, code, before)]
    assert all(found in (old, new) for found in seen)
    first_new = seen.index(new)
    assert seen[:first_new] == [old] * first_new
    assert first_new > len(seen) * 2 // 3, "only what comes behind the commit may leave the new store"


def test_failed_packs_leave_no_descriptor_open(quick_path: Path) -> None:
    source, store = make_source("categories", quick_path / "source"), quick_path / "store"
    gc.collect()
    before = set(Path("/proc/self/fd").iterdir())
    for k in range(0, 200, 9):
        with FaultyFiles(error_at=(k, errno.EIO)), pytest.raises(DiskError):
            pack_shape("categories", source, store)
    gc.collect()
    assert set(Path("/proc/self/fd").iterdir()) == before


@pytest.mark.parametrize("name", ["straight", pytest.param("lists in rows", marks=pytest.mark.slow)])
def test_short_writes_at_any_operation_make_the_same_store(quick_path: Path, name: str) -> None:
    source, store = make_source(name, quick_path / "source"), quick_path / "store"
    pack_shape(name, source, store)
    expected = whole_content(store)
    log = record_operations(name, source, store)
    writes = [k for k, operation in enumerate(log) if operation.kind in ("write", "pwrite")]
    assert len(writes) > 20
    for k in writes:
        with FaultyFiles(short_write_at=k):
            pack_shape(name, source, store)
        assert whole_content(store) == expected
        _disk.remove_folder(store)


# ---- a disk that is really full ----


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB, where this process may mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True, check=False).returncode:
        pytest.skip("may not mount")
    yield folder
    subprocess.run(["umount", folder], check=True)


def write_numbers(path: Path, rows: int) -> None:
    """Text, whose size says nothing about its rows: the pack finds out on the way that the disk is too small."""
    numbers = np.random.default_rng(0).integers(0, 9, (rows, 2)).tolist()
    path.write_text("id,x\n" + "".join(f"{a},{b}\n" for a, b in numbers))


def pack_numbers(source: str, store: str) -> str:
    return str(packs.pack(source, store, series="id", replace=True).digest)


@pytest.mark.promise("P1")
def test_a_really_full_disk_is_an_error_and_never_a_signal(small_disk: Path, tmp_path: Path, pack_zygote: Zygote) -> None:
    write_numbers(tmp_path / "large.csv", 1_000_000)
    write_numbers(tmp_path / "small.csv", 4_000)
    store = small_disk / "store"
    outcome = pack_zygote.run(pack_numbers, source=tmp_path / "large.csv", store=store)
    assert (outcome.signal, outcome.exit) == (None, 1)
    assert outcome.error.startswith("DiskFullError")
    assert list(small_disk.iterdir()) == []
    digest = pack_zygote.run(pack_numbers, source=tmp_path / "small.csv", store=store).check()
    outcome = pack_zygote.run(pack_numbers, source=tmp_path / "large.csv", store=store)
    assert outcome.error.startswith("DiskFullError")
    assert verify(store).digest == digest
    whole_content(store)


def test_a_store_that_cannot_fit_is_refused_before_it_is_begun(small_disk: Path, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": np.zeros(1_000_000)}), tmp_path / "zeros.parquet")
    with (
        FaultyFiles(record=True) as disk,
        pytest.raises(DiskFullError, match=r"needs 8,000,000 bytes, but the disk has [\d,]+ free"),
    ):
        packs.pack(tmp_path / "zeros.parquet", small_disk / "store")
    assert not [operation for operation in disk.log if operation.kind == "write"]
    assert list(small_disk.iterdir()) == []


# ---- what lies in the target folder ----


# ---- negative controls: the tests above can fail ----


@pytest.mark.promise("P1", control=True)
def test_negative_control_without_cleaning_up_debris_is_found(quick_path: Path) -> None:
    source, store = make_source("straight", quick_path / "source"), quick_path / "store"
    with mock.patch.object(writer, "_clean_up"):
        assert any(store.exists() for _ in fail_each("straight", source, store, errno.EIO))


def test_negative_control_shards_of_the_old_store_removed_too_early_are_missed(quick_path: Path) -> None:
    source, store = make_source("straight", quick_path / "source"), quick_path / "store"
    pack_shape("grouped", make_source("grouped", quick_path / "other"), store)
    before = take_snapshot(store)
    _disk.remove_folder(store)
    commit = writer.commit_manifest

    def commit_hastily(folder: Path, manifest: Manifest) -> None:
        for name in {path.name for path in folder.glob("*.npy")} - {shard.file for shard in manifests.shards(manifest)}:
            _disk.remove_file(folder / name)
        commit(folder, manifest)

    lost = 0
    with mock.patch.object(writer, "commit_manifest", commit_hastily):
        for _ in fail_each("straight", source, store, errno.EIO, before):
            try:
                open_store(store)
            except StokerError:
                lost += 1
    assert lost > 0
