"""Where a store may go: nothing is replaced unasked, and nothing is committed that a reader would refuse."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.harness import FaultyFiles, tiny_store

import stoker
from stoker import Store, _disk, pack, verify
from stoker.errors import DiskError, ManifestError, OptionError, SourceTooLargeError, StoreDamagedError, StoreExistsError
from stoker.store import manifest as manifests
from stoker.store import open_store
from stoker.store import writer as target
from stoker.store.manifest import Manifest
from stoker.store.pack import plan as plans
from stoker.store.writer import make_work
from stoker_recipes.tabular.sequences.store import pack_sequences
from stoker_recipes.tfa.indicators.engine import write_features

TABLE = {"k": ["a", "a", "b"], "x": [1.0, 2.0, 3.0]}
SPEC = {"features": [{"name": "m", "op": "MOMENTUM", "window": 1}]}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def without_lock(found: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in found.items() if name != ".lock"}


# ---- replacing is asked for ----

WRITERS: dict[str, Callable[..., Store]] = {
    "pack": lambda out, **options: pack(TABLE, out, **options),
    "save": lambda out, **options: Store.from_arrays(x=np.arange(4.0)).save(out, **options),
    "sequences": lambda out, **options: pack_sequences(TABLE, out, key="k", **options),
    "contexts": lambda out, **options: pack_sequences(TABLE, out, key="k", contexts=["b"], **options),
    "features": lambda out, **options: write_features(out.with_name("bars"), SPEC, out, **options),
}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    pack({"close": np.arange(5.0)}, tmp_path / "bars")
    pack({"mine": [1.0, 2.0]}, tmp_path / "out")
    return tmp_path / "out"


@pytest.mark.promise("P1")
@pytest.mark.parametrize("writer", WRITERS)
def test_a_store_is_replaced_only_where_that_is_asked_for(out: Path, writer: str) -> None:
    before = contents(out.parent)
    message = r"out holds a store already\. Choose another folder, or pass replace=True to replace that store\."
    with pytest.raises(StoreExistsError, match=message) as caught:
        WRITERS[writer](out)
    assert isinstance(caught.value, FileExistsError)
    assert contents(out.parent) == before
    assert "mine" not in WRITERS[writer](out, replace=True).schema
    assert "mine" not in open_store(out).schema
    assert {path.name for path in out.parent.iterdir()} == {"bars", "out"}


@pytest.mark.promise("P1")
def test_a_store_that_another_made_meanwhile_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the first look and the lock another pack may come to its end."""
    enter = _disk.Lock.__enter__
    others = iter([True])

    def late(self: _disk.Lock) -> _disk.Lock:
        if next(others, False):
            pack({"theirs": [1.0]}, tmp_path / "out")
        return enter(self)

    monkeypatch.setattr(_disk.Lock, "__enter__", late)
    with pytest.raises(StoreExistsError):
        pack(TABLE, tmp_path / "out")
    assert "theirs" in open_store(tmp_path / "out").schema


@pytest.mark.promise("P1", control=True)
def test_negative_control_without_the_check_a_store_is_replaced_unasked(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "_refuse_store", lambda folder, *, replace: None)
    pack(TABLE, out)
    assert "mine" not in open_store(out).schema


# ---- what a reader refuses is not committed ----


def wide_rows(path: Path, num_columns: int) -> Path:
    pq.write_table(pa.table({f"c{i}": [1.0] for i in range(num_columns)}), path)
    return path


@pytest.mark.promise("P1")
def test_the_names_of_the_series_count_among_the_columns(out: Path, tmp_path: Path) -> None:
    """4,096 columns and the name of the file are one too many: found before anything is read, and the old store stays."""
    before = contents(out)
    source = wide_rows(tmp_path / "wide.parquet", manifests.MAX_COLUMNS)
    with pytest.raises(SourceTooLargeError, match=r"has 4,096 columns, which make 4,097 with the names of the series"):
        pack(source, out, resources=stoker.Resources(memory="1GB"), replace=True)
    assert contents(out) == before
    table = pa.table({"k": ["a"], **{f"c{i}": [1.0] for i in range(manifests.MAX_COLUMNS)}})
    with pytest.raises(SourceTooLargeError, match=r"which make 4,097 with the names of the series"):
        pack(table, out, series="k", replace=True)
    assert contents(out) == before


def test_too_many_sources_are_refused_before_they_are_read(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MAX_BYTES", 2000)
    before = contents(out)
    (tmp_path / "in").mkdir()
    for i in range(30):
        (tmp_path / "in" / f"{i}.csv").write_text("x\n1\n")
    with pytest.raises(SourceTooLargeError, match=r"30 sources need a manifest of [\d,]+ bytes, but a store has at most 2,000"):
        pack(tmp_path / "in", out, replace=True)
    assert contents(out) == before


def break_commit(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Have every writer come to its commit with something that only a reader refuses."""
    commit = target.commit_manifest

    def broken(folder: Path, manifest: Manifest) -> None:
        if how == "short shard":
            shard = folder / next(manifests.shards(manifest)).file
            shard.chmod(0o644)
            os.truncate(shard, shard.stat().st_size - 1)
        changed: dict[str, Any] = {
            "large": {"notes": ["a note " * (manifests.MAX_BYTES // 7)]},
            "columns": {"columns": [*manifest.columns] * (manifests.MAX_COLUMNS + 1)},
            "key": {"key": "no such column"},
            "steps": {"num_steps": 10**6},
            "time": {"time": "no such column"},
        }.get(how, {})
        commit(folder, msgspec.structs.replace(manifest, **changed))

    monkeypatch.setattr(target, "commit_manifest", broken)


BROKEN = ["large", "columns", "short shard", "key", "steps", "time"]


@pytest.mark.promise("P1")
@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("writer", WRITERS)
def test_what_a_reader_refuses_is_never_committed(out: Path, monkeypatch: pytest.MonkeyPatch, writer: str, how: str) -> None:
    before = contents(out)
    with monkeypatch.context() as patch:
        break_commit(patch, how)
        with pytest.raises((ManifestError, StoreDamagedError), match="so it was not written"):
            WRITERS[writer](out, replace=True)
    assert without_lock(contents(out)) == without_lock(before)
    verify(out)
    assert {path.name for path in out.parent.iterdir()} == {"bars", "out"}


@pytest.mark.promise("P1", control=True)
@pytest.mark.parametrize("how", BROKEN)
def test_negative_control_without_the_check_the_older_store_is_lost(out: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(target, "check_staged", lambda folder, data: None)
        break_commit(patch, how)
        with pytest.raises((ManifestError, StoreDamagedError)):  # of the reader, when it is too late
            WRITERS["save"](out, replace=True)
        with pytest.raises((ManifestError, StoreDamagedError)):
            open_store(out)


# ---- only what Stoker made ----

MINE = ["0123456789abcdef.npy", "manifest.json.tmp", "work/journal", "work/run0.c0"]


def make_foreign(folder: Path, lock: bytes | None = None, *, marked: bool = False) -> None:
    if marked:
        folder.mkdir()
        make_work(folder)
    for name in MINE:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"years of work")
    if lock is not None:
        (folder / ".lock").write_bytes(lock)


@pytest.mark.promise("P1")
@pytest.mark.parametrize("lock", [None, b"", b"12345"])
@pytest.mark.parametrize("replace", [False, True])
def test_files_with_names_like_ours_are_not_ours_without_the_mark(tmp_path: Path, lock: bytes | None, replace: bool) -> None:
    make_foreign(tmp_path / "out", lock)
    before = contents(tmp_path)
    with pytest.raises(OptionError, match="is not a store and not empty"):
        pack(TABLE, tmp_path / "out", replace=replace)
    assert contents(tmp_path) == before


@pytest.mark.promise("P1", control=True)
def test_negative_control_with_the_mark_they_are_removed(tmp_path: Path) -> None:
    make_foreign(tmp_path / "out", marked=True)
    pack(TABLE, tmp_path / "out")
    assert "years of work" not in str(contents(tmp_path / "out"))


@pytest.mark.parametrize("left", [[".lock"], [".lock", "work/"], [".lock", "work/", "work/mark.tmp"]])
def test_what_a_process_leaves_that_is_killed_at_its_begin_is_in_nobodys_way(tmp_path: Path, left: list[str]) -> None:
    (tmp_path / "out").mkdir()
    for name in left:
        (tmp_path / "out" / name).mkdir() if name.endswith("/") else (tmp_path / "out" / name).touch()
    assert len(pack(TABLE, tmp_path / "out", series="k")) == 2


@pytest.mark.promise("P1")
def test_a_process_that_is_stopped_twice_leaves_no_shards_without_their_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First at its commit, then when it has removed the work of the first time."""

    def stop(*given: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    store = Store.from_arrays(x=np.arange(4.0))
    for module, name in ((target, "commit_manifest"), (_disk, "write_file")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, stop)
            with pytest.raises(KeyboardInterrupt):
                store.save(tmp_path / "out")
    assert store.save(tmp_path / "out").digest


# Stores written as they are: every kind of column and width, all or nothing


def test_every_kind_of_column_is_saved_bit_for_bit(tmp_path: Path) -> None:
    tiny = tiny_store(tmp_path / "tiny")
    saved = tiny.open().save(tmp_path / "saved")
    verify(tmp_path / "saved")
    assert (tmp_path / "saved" / "manifest.json").read_bytes() == (tmp_path / "tiny" / "manifest.json").read_bytes()
    for name, values in tiny.values.items():
        assert saved.column(name).tobytes() == values.tobytes()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_an_error_at_any_operation_leaves_the_older_store(tmp_path: Path, code: int) -> None:
    folder = tmp_path / "store"
    old = Store.from_arrays(x=np.arange(4)).save(folder).digest
    new = Store.from_arrays(x=np.arange(9.0), y=np.arange(9))
    k, failed = 0, True
    while failed:
        with FaultyFiles(error_at=(k, code)):
            try:
                new.save(folder, replace=True)
                failed = False
            except DiskError:
                failed = True
        found = open_store(folder)
        verify(folder)
        if failed and found.digest == old:
            assert {path.name for path in folder.glob("*.npy")} == {one.values.file for one in found.manifest.columns}  # type: ignore[union-attr]
        k += 1
    assert k > 10
    assert open_store(folder).digest != old
