"""A save that is killed: the latest checkpoint is the old one or the new one, and the next run goes on and cleans up."""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from tests.faults.saving import NEW, OLD, found, prepare, prepared, record_save, resume_training, save, save_and_die
from tests.harness import FaultyFiles, Zygote, take_snapshot
from tests.train.trees import is_same, state

from stoker import _disk
from stoker._disk import AppendFile
from stoker.errors import CheckpointInvalidError
from stoker.train import checkpoint as folders
from stoker.train.checkpoint import CheckpointFolder

pytestmark = pytest.mark.promise("P13")


@pytest.mark.parametrize("kind", ["replacing", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("first", "best"))])
def test_killed_at_any_operation_the_latest_is_the_old_or_the_new(torch_zygote: Zygote, quick_path: Path, kind: str) -> None:
    before = prepared(quick_path / "log", kind)
    seen: Counter[int | None] = Counter()
    for kill_at in range(len(record_save(quick_path / "log", kind))):
        folder = quick_path / str(kill_at)
        if kind != "first":
            before.write_to(folder)
        outcome = torch_zygote.run(save_and_die, folder=folder, kind=kind, kill_at=kill_at)
        assert outcome.signal == signal.SIGKILL, f"operation {kill_at}: {outcome}"
        seen[found(folder)] += 1
        resume_training(folder)
        _disk.remove_folder(folder)
    assert set(seen) == {None if kind == "first" else OLD, NEW}
    assert all(count >= 3 for count in seen.values()), "there is work before the commit, and cleaning behind it"


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_within_any_write_the_latest_is_the_old_or_the_new(torch_zygote: Zygote, quick_path: Path, every: int) -> None:
    before = prepared(quick_path / "log", "best")
    for kill_at in range(1, len(record_save(quick_path / "log", "best")), every):
        folder = quick_path / str(kill_at)
        before.write_to(folder)
        torch_zygote.run(save_and_die, folder=folder, kind="best", kill_at=kill_at, short_write_at=kill_at - 1)
        assert found(folder) in (OLD, NEW)
        resume_training(folder)
        _disk.remove_folder(folder)


# ---- negative controls: the tests above can fail ----


def name_then_write(self: CheckpointFolder, step: int, captured: Any, best: bool) -> None:
    """The order that does not keep the law."""
    path = self._new_path(step)
    _disk.write_file(self.folder / "LATEST", f"{path.name}\n".encode())
    folders.write_captured(path, captured)


def save_named_first_and_die(folder: str, kill_at: int) -> None:
    with mock.patch.object(CheckpointFolder, "_write", name_then_write):
        save_and_die(folder, "replacing", kill_at)


def write_in_place(path: Path, data: bytes, **_: Any) -> None:
    _disk.remove_file(path)
    file = AppendFile.create(path)
    file.append(data[: len(data) // 2])
    file.append(data[len(data) // 2 :])
    file.close()


def save_in_place_and_die(folder: str, kill_at: int) -> None:
    with mock.patch.object(_disk, "write_file", write_in_place):
        save_and_die(folder, "replacing", kill_at)


def clean_then_name(self: CheckpointFolder, step: int, captured: Any, best: bool) -> None:
    path = self._new_path(step)
    folders.write_captured(path, captured)
    self._line = [path.name]
    self._remove_old()
    _disk.write_file(self.folder / "LATEST", f"{path.name}\n".encode())


def save_cleaned_first_and_die(folder: str, kill_at: int) -> None:
    with mock.patch.object(CheckpointFolder, "_write", clean_then_name):
        save_and_die(folder, "replacing", kill_at)


@pytest.mark.parametrize("wrong", [save_named_first_and_die, save_in_place_and_die, save_cleaned_first_and_die])
def test_negative_control_another_order_is_found(torch_zygote: Zygote, quick_path: Path, wrong: Any) -> None:
    before = prepared(quick_path / "before", "replacing")
    torn, kill_at, alive = 0, 0, False
    while not alive:
        folder = quick_path / str(kill_at)
        before.write_to(folder)
        outcome = torch_zygote.run(wrong, folder=folder, kill_at=kill_at)
        alive = outcome.exit == 0
        try:
            found(folder)
        except CheckpointInvalidError:
            torn += 1
        _disk.remove_folder(folder)
        kill_at += 1
    assert torn > 0


def test_negative_control_without_cleaning_debris_is_found(torch_zygote: Zygote, quick_path: Path) -> None:
    folder = quick_path / "run"
    prepare(folder, "replacing")
    torch_zygote.run(save_and_die, folder=folder, kind="replacing", kill_at=5)
    with mock.patch.object(CheckpointFolder, "_remove_old"), pytest.raises(AssertionError):
        resume_training(folder)


# ---- random moments, a real file system ----


def save_on_and_on(folder: str, num_steps: int) -> None:
    """A training of which only the saves are left."""
    with CheckpointFolder(folder) as checkpoints:
        latest = checkpoints.latest()
        first = 0 if latest is None else latest.step + 1
        for step in range(first, num_steps):
            checkpoints.save(step, state(step), {}, best=step % 3 == 0)


def kill_at_random(zygote: Zygote, folder: Path, rng: np.random.Generator, kills: int) -> None:
    killed, newest = 0, -1
    while killed < kills:
        case = zygote.start(save_on_and_on, folder=folder / "run", num_steps=1_000_000)
        time.sleep(rng.uniform(0, 0.15))
        case.kill(signal.SIGKILL)
        assert case.wait().signal == signal.SIGKILL
        killed += 1
        step = found(folder / "run")
        assert step is None or step >= newest
        newest = -1 if step is None else step
    print(f"{killed} kills, {newest + 1} saves")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_thousand_random_kills_on_a_real_file_system(torch_zygote: Zygote, tmp_path: Path, rng: np.random.Generator) -> None:
    kill_at_random(torch_zygote, tmp_path, rng, kills=1000)


def test_short_writes_make_the_same_checkpoint(quick_path: Path) -> None:
    save(quick_path / "whole", NEW)
    expected = take_snapshot(quick_path / "whole").files
    log = record_save(quick_path / "log", "first")
    for k in (k for k, operation in enumerate(log) if operation.kind == "write"):
        with FaultyFiles(short_write_at=k):
            save(quick_path / str(k), NEW)
        assert take_snapshot(quick_path / str(k)).files == expected
        assert is_same(found(quick_path / str(k)), NEW)
