"""A disk that refuses a save: training is told and goes on, the last good checkpoint stays, and the next save cleans up."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch
from tests.faults.saving import KINDS, NEW, OLD, found, prepare, prepared, record_save, resume_training
from tests.harness import FaultyFiles, take_snapshot
from tests.train.trees import state

from stoker import _disk
from stoker.errors import CheckpointError
from stoker.train import checkpoint
from stoker.train.checkpoint import CheckpointFolder

pytestmark = pytest.mark.promise("P13")


def try_to_save(folder: Path, kind: str) -> str | None:
    """Save; what was told if the disk refused."""
    with warnings.catch_warnings(record=True) as told, CheckpointFolder(folder) as checkpoints:
        warnings.simplefilter("always")
        checkpoints.latest()
        checkpoints.save(NEW, state(NEW), {"epoch": 1}, best=kind == "best", wait=True)
    assert len(told) <= 1
    return str(told[0].message) if told else None


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        *((kind, errno.ENOSPC) for kind in KINDS),
        ("replacing", errno.EIO),
        *(pytest.param(kind, errno.EIO, marks=pytest.mark.slow) for kind in ("first", "best")),
        *(pytest.param(kind, errno.EACCES, marks=pytest.mark.slow) for kind in KINDS),
    ],
)
@pytest.mark.parametrize("sticky", [False, True], ids=["once", "sticky"])
def test_an_error_at_any_operation_is_reported_and_leaves_the_old_or_the_new(
    quick_path: Path, kind: str, code: int, sticky: bool
) -> None:
    before = prepared(quick_path / "log", kind)
    log = record_save(quick_path / "log", kind)
    commit = next(k for k, operation in enumerate(log) if operation.target and operation.target.name in ("BEST", "LATEST"))
    for k, operation in enumerate(log):
        folder = quick_path / str(k)
        if kind != "first":
            before.write_to(folder)
        with FaultyFiles(error_at=(k, code), sticky=sticky):
            told = try_to_save(folder, kind)
        assert told is not None, f"operation {k} ({operation})"
        assert "\n" not in told
        if "was not written" in told:
            assert "bytes) was not written" in told
            assert code != errno.ENOSPC or " free" in told
        else:
            assert "older checkpoints could not be removed" in told
            assert found(folder) == NEW
        if k < commit:
            left = take_snapshot(folder).files if folder.exists() else {}
            committing = [name for name in left if name.startswith("step-000000030")]
            assert {name: data for name, data in left.items() if name not in committing} == before.files
            assert not committing or f"step-{NEW:09d}/checkpoint.json" in committing, "debris"
        assert found(folder) in (None if kind == "first" else OLD, NEW)
        resume_training(folder)
        _disk.remove_folder(folder)


def test_negative_control_a_save_that_fails_without_cleaning_leaves_debris(quick_path: Path) -> None:
    prepare(quick_path, "replacing")
    before = take_snapshot(quick_path).files
    with mock.patch.object(checkpoint, "remove"), FaultyFiles(error_at=(6, errno.ENOSPC)):
        assert try_to_save(quick_path, "replacing") is not None
    assert take_snapshot(quick_path).files != before


def test_failed_saves_leave_no_descriptor_open(quick_path: Path) -> None:
    prepare(quick_path, "replacing")
    num_operations = 30
    gc.collect()
    before = set(Path("/proc/self/fd").iterdir())
    for k in range(num_operations):
        with FaultyFiles(error_at=(k, errno.EIO)):
            try_to_save(quick_path, "replacing")
    gc.collect()
    assert set(Path("/proc/self/fd").iterdir()) == before


@contextlib.contextmanager
def small_disk(folder: Path, num_bytes: int) -> Iterator[Path]:
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("mounting a small disk needs rights that are not here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_disk_that_is_really_full_ends_the_run_at_the_third_failure_with_the_last_good_one_kept(tmp_path: Path) -> None:
    weights = {"w": torch.randn(300_000)}  # 1.2 MB: one fits and a second does not, as the first goes only behind it
    with small_disk(tmp_path / "disk", 2 << 20) as disk, CheckpointFolder(disk / "run", keep=1) as checkpoints:
        checkpoints.save(1, {"model": weights}, {}, wait=True)
        for step in (2, 3):
            with pytest.warns(UserWarning, match=r"1,200,\d{3} bytes\) was not written, the last good one .*step-000000001"):
                checkpoints.save(step, {"model": weights}, {}, wait=True)
        with pytest.raises(CheckpointError, match="3 failures in a row"):
            checkpoints.save(4, {"model": weights}, {}, wait=True)
        latest = checkpoints.latest(strict=True)
        assert torch.equal(latest.parts["model"]["w"], weights["w"])
        assert sorted(path.name for path in (disk / "run").iterdir()) == ["LATEST", "step-000000001"]
