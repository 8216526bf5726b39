"""Saves to be killed, refused and cut off: what is saved, by whom, and what is found afterwards."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from tests.harness import FaultyFiles, Operation, Snapshot, take_snapshot
from tests.train.trees import is_same, state

from stoker.train.checkpoint import CheckpointFolder

OLD, NEW, NEXT = 20, 30, 40
KINDS = ("first", "replacing", "best")


def save(folder: Path, step: int, *, best: bool = False) -> None:
    """Go on from what is there, and save."""
    with CheckpointFolder(folder) as checkpoints:
        checkpoints.latest()
        checkpoints.save(step, state(step), {"epoch": 1}, best=best)


def prepare(folder: Path, kind: str) -> None:
    """The checkpoints before the save that is tried: none, or three, of which the oldest is the best."""
    if kind != "first":
        save(folder, OLD - 15, best=True)
        save(folder, OLD - 10)
        save(folder, OLD)


def prepared(folder: Path, kind: str) -> Snapshot:
    """What `prepare` leaves, to be laid out many times."""
    prepare(folder, kind)
    return take_snapshot(folder)


def save_and_die(folder: str, kind: str, kill_at: int, short_write_at: int | None = None) -> None:
    with FaultyFiles(kill_at=kill_at, short_write_at=short_write_at):
        save(Path(folder), NEW, best=kind == "best")


def record_save(folder: Path, kind: str, **options: Any) -> list[Operation]:
    with FaultyFiles(record=True, **options) as disk:
        save(folder, NEW, best=kind == "best")
    return disk.log


def found(folder: Path) -> int | None:
    """The step of the latest checkpoint; it must be whole, equal what was saved, and nothing may have to be told."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        latest = CheckpointFolder(folder).latest(strict=True)
        best = CheckpointFolder(folder).best()
    for checkpoint in (latest, best):
        assert checkpoint is None or is_same(state(checkpoint.step), checkpoint.parts)
    return None if latest is None else latest.step


def resume_training(folder: Path) -> None:
    """The next save works, and leaves nothing but what is kept."""
    before = found(folder)
    save(folder, NEXT)
    assert found(folder) == NEXT
    best = CheckpointFolder(folder).best()
    kept = {f"step-{step:09d}" for step in (before, NEXT) if step is not None}
    left = {path.name for path in folder.iterdir()} - {"LATEST", "BEST"}
    assert left - kept <= ({best.path.name} if best is not None else set())
    assert kept <= left
    assert not list(folder.rglob("*.tmp"))


def lies_in(state_of_disk: Snapshot, whole: dict[int, dict[str, bytes]], pointer: str = "LATEST") -> int | str | None:
    """What a pointer leads to, told by bytes and not by the library that is under test."""
    name = state_of_disk.files.get(f"run/{pointer}")
    if name is None:
        return None
    for step, content in whole.items():
        if name == f"step-{step:09d}\n".encode():
            complete = all(state_of_disk.files.get(path) == data for path, data in content.items())
            return step if complete else "torn"
    return "torn"
