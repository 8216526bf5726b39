"""A newest checkpoint that is damaged in any way: it is said so, the one before it is taken, and both are named."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.faults.saving import found, save
from tests.harness import corrupt, take_snapshot
from tests.harness.corruption import CORRUPTIONS
from tests.train.trees import is_same, state

from stoker.errors import CheckpointInvalidError
from stoker.train import checkpoint
from stoker.train.checkpoint import CheckpointFolder

pytestmark = pytest.mark.promise("P13")

FILES = ["checkpoint.json", "model.safetensors", "optimizer.safetensors"]
OLD, NEW = "step-000000001", "step-000000002"


@pytest.fixture
def folder(quick_path: Path) -> Path:
    for step in (1, 2):
        save(quick_path / "run", step)
    return quick_path / "run"


def remove(path: Path, rng: np.random.Generator) -> None:
    path.unlink()


def swap_with_older(path: Path, rng: np.random.Generator) -> None:
    path.unlink()
    shutil.copy(path.parent.parent / OLD / path.name, path)


def swap_with_other_part(path: Path, rng: np.random.Generator) -> None:
    other = next(name for name in FILES if name != path.name)
    path.unlink()
    shutil.copy(path.parent / other, path)


def empty(path: Path, rng: np.random.Generator) -> None:
    path.chmod(0o644)
    path.write_bytes(b"")


def damage_by(kind: str) -> Callable[[Path, np.random.Generator], None]:
    def damage(path: Path, rng: np.random.Generator) -> None:
        print(corrupt(path, rng, kind=kind))

    return damage


DAMAGES: dict[str, Callable[[Path, np.random.Generator], None]] = {
    **{kind: damage_by(kind) for kind in CORRUPTIONS},
    "missing": remove,
    "older": swap_with_older,
    "other part": swap_with_other_part,
    "empty": empty,
}


def check_fallback(folder: Path, *named: str) -> None:
    """The older one is taken with a warning that names both; with `strict` nothing is."""
    before = take_snapshot(folder).files
    with pytest.warns(UserWarning, match=f"Falling back to .*{OLD}, of step 1") as told:
        latest = CheckpointFolder(folder).latest()
    assert len(told) == 1
    message = str(told[0].message)
    assert "\n" not in message
    assert all(name in message for name in (*named, OLD))
    assert is_same(state(1), latest.parts)
    with pytest.raises(CheckpointInvalidError, match="It is the newest one") as caught:
        CheckpointFolder(folder).latest(strict=True)
    assert "\n" not in str(caught.value)
    assert all(name in str(caught.value) for name in named)
    assert take_snapshot(folder).files == before, "reading changes nothing"


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_file_is_found_and_the_one_before_it_taken(folder: Path, rng: np.random.Generator, name: str, kind: str) -> None:
    DAMAGES[kind](folder / NEW / name, rng)
    check_fallback(folder, NEW)


def test_a_folder_that_is_a_link_is_refused(folder: Path) -> None:
    (folder / NEW).rename(folder.parent / "elsewhere")
    (folder / NEW).symlink_to(folder.parent / "elsewhere")
    check_fallback(folder, NEW)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_a_link_or_a_pipe_is_refused(folder: Path, name: str) -> None:
    path = folder / NEW / name
    path.rename(folder.parent / "elsewhere")
    path.symlink_to(folder.parent / "elsewhere")
    check_fallback(folder, name)
    path.unlink()
    os.mkfifo(path)
    check_fallback(folder, name)


@pytest.mark.parametrize(
    "text",
    [b"", b"\n", b"step-000000003\n", b"step-000000002", b"../run/step-000000002\n", b"/etc/passwd\n", b"\xff\0", b"x" * 10_000],
)
def test_a_latest_that_says_something_else_still_leads_to_a_whole_checkpoint(folder: Path, text: bytes) -> None:
    (folder / "LATEST").chmod(0o644)
    (folder / "LATEST").write_bytes(text)
    if text == b"step-000000002":
        assert found(folder) == 2
        return
    with pytest.warns(UserWarning, match=f"Falling back to .*{NEW}"):
        latest = CheckpointFolder(folder).latest()
    assert is_same(state(2), latest.parts)
    with pytest.raises(CheckpointInvalidError):
        CheckpointFolder(folder).latest(strict=True)


def test_if_none_is_whole_the_newest_is_named(folder: Path, rng: np.random.Generator) -> None:
    for name in (OLD, NEW):
        corrupt(folder / name / "model.safetensors", rng)
    with pytest.raises(CheckpointInvalidError, match=f"{NEW}.* No other checkpoint is whole"):
        CheckpointFolder(folder).latest()


def test_a_run_that_fell_back_continues_and_the_damaged_one_goes(folder: Path, rng: np.random.Generator) -> None:
    corrupt(folder / NEW / "model.safetensors", rng)
    with CheckpointFolder(folder) as checkpoints:
        with pytest.warns(UserWarning, match="Falling back"):
            checkpoints.latest()
        checkpoints.save(3, state(3), {}, wait=True)
    assert sorted(path.name for path in folder.iterdir()) == ["LATEST", OLD, "step-000000003"]
    assert found(folder) == 3


def test_a_damaged_best_is_refused(folder: Path, rng: np.random.Generator) -> None:
    with CheckpointFolder(folder) as checkpoints:
        checkpoints.latest()
        checkpoints.save(3, state(3), {}, best=True, wait=True)
    corrupt(folder / "step-000000003" / "model.safetensors", rng)
    with pytest.raises(CheckpointInvalidError, match=r"step-000000003.*model.safetensors"):
        CheckpointFolder(folder).best()


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit_of_a_file_is_found(folder: Path, name: str) -> None:
    path = folder / NEW / name
    path.chmod(0o644)
    data = path.read_bytes()
    for byte in range(len(data)):
        path.write_bytes(data[:byte] + bytes([data[byte] ^ 1 << byte % 8]) + data[byte + 1 :])
        with pytest.raises(CheckpointInvalidError):
            checkpoint.read(folder / NEW)


def test_negative_control_without_the_hash_a_flipped_weight_is_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / NEW / "model.safetensors"
    expected = {part.file.num_bytes: part.file.xxh3 for part in checkpoint._read_index(folder / NEW).parts if part.file is not None}
    path.chmod(0o644)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    monkeypatch.setattr(checkpoint, "_hash", lambda fd, size, path: expected[size])
    assert not is_same(state(2)["model"], checkpoint.read(folder / NEW)[0]["model"])
