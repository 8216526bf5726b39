"""Stores written as they are: every kind of column and width, all or nothing."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
from tests.harness import FaultyFiles, tiny_store

from stoker.errors import DiskError
from stoker.store.inspect import verify
from stoker.store.opening import open_store
from stoker.store.store import Store
from stoker.store.writer import make_work


def test_a_wide_column_is_saved_and_found_again(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
    store = Store.from_arrays(lengths=[5, 0, 7], x=x, name=["a", "b", "c"], label=np.arange(3)).save(tmp_path / "store")
    verify(tmp_path / "store")
    assert store.schema["x"].width == 5
    assert np.array_equal(store.column("x"), x)
    assert list(store.texts("name")) == ["a", "b", "c"]
    assert store.lengths.tolist() == [5, 0, 7]
    assert np.array_equal(store[2]["x"], x[5:])


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


def test_a_save_that_was_killed_does_not_stand_in_the_way(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    make_work(folder)
    (folder / "work" / "final.column").write_bytes(b"half")
    Store.from_arrays(x=np.arange(4)).save(folder)
    verify(folder)
    assert not (folder / "work").exists()
