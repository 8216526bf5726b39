"""The folder of checkpoints: which stay, which is read, and what is told when the disk refuses."""

from __future__ import annotations

import errno
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.harness import FaultyFiles
from tests.train.trees import is_same, state

from stoker import _disk
from stoker.errors import CheckpointError
from stoker.train import checkpoint
from stoker.train.checkpoint import CheckpointFolder


@pytest.fixture
def checkpoints(tmp_path: Path) -> Iterator[CheckpointFolder]:
    with CheckpointFolder(tmp_path / "checkpoints") as opened:
        yield opened


def save(checkpoints: CheckpointFolder, *steps: int, **options: Any) -> None:
    for step in steps:
        checkpoints.save(step, state(step), {"epoch": step // 10}, wait=True, **options)


def names(checkpoints: CheckpointFolder) -> list[str]:
    return sorted(path.name for path in checkpoints.folder.iterdir())


def test_a_folder_without_checkpoints_has_no_latest_and_no_best(checkpoints: CheckpointFolder) -> None:
    assert checkpoints.latest() is None
    assert checkpoints.latest(strict=True) is None
    assert checkpoints.best() is None
    assert not checkpoints.folder.exists()


def test_the_latest_is_what_was_saved_last(checkpoints: CheckpointFolder) -> None:
    save(checkpoints, 10, 20)
    found = CheckpointFolder(checkpoints.folder).latest()
    assert found is not None
    assert (found.step, found.path) == (20, checkpoints.folder / "step-000000020")
    assert found.facts == {"step": 20, "epoch": 2}
    assert is_same(state(20), found.parts)


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_only_the_newest_stay(tmp_path: Path, keep: int) -> None:
    with CheckpointFolder(tmp_path, keep=keep) as checkpoints:
        save(checkpoints, *range(1, 6))
        assert names(checkpoints) == ["LATEST", *(f"step-{step:09d}" for step in range(6 - keep, 6))]


def test_the_best_stays_until_there_is_a_better_one(checkpoints: CheckpointFolder) -> None:
    save(checkpoints, 1)
    save(checkpoints, 2, best=True)
    save(checkpoints, 3, 4, 5)
    assert names(checkpoints) == ["BEST", "LATEST", "step-000000002", "step-000000004", "step-000000005"]
    best = checkpoints.best()
    assert best is not None
    assert is_same(state(2), best.parts)
    save(checkpoints, 6, best=True)
    assert names(checkpoints) == ["BEST", "LATEST", "step-000000005", "step-000000006"]


def test_a_step_that_is_saved_again_replaces_itself(checkpoints: CheckpointFolder) -> None:
    save(checkpoints, 1, 2)
    checkpoints.save(2, {"model": {"x": 1}}, {}, best=True, wait=True)
    assert names(checkpoints) == ["BEST", "LATEST", "step-000000002", "step-000000002-2"]
    found = checkpoints.latest()
    assert found is not None
    assert (found.step, found.parts) == (2, {"model": {"x": 1}})


def test_saves_are_of_the_moment_whatever_the_training_does_next(
    checkpoints: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    write = checkpoint.write_captured
    monkeypatch.setattr(checkpoint, "write_captured", lambda *arguments: (go_on.wait(), write(*arguments)))
    weight = torch.zeros(100)
    checkpoints.save(1, {"model": {"w": weight}}, {})
    assert checkpoints.busy
    weight.add_(1)
    go_on.set()
    checkpoints.wait()
    assert not checkpoints.busy
    found = checkpoints.latest()
    assert found is not None
    assert not found.parts["model"]["w"].any()


def test_a_save_that_was_begun_is_finished_when_the_interpreter_ends(tmp_path: Path, run_python: Any) -> None:
    run_python(
        "import sys, torch\n"
        "from stoker.train.checkpoint import CheckpointFolder\n"
        "CheckpointFolder(sys.argv[1]).save(3, {'model': {'w': torch.ones(1 << 20)}}, {})",
        str(tmp_path / "c"),
    )
    found = CheckpointFolder(tmp_path / "c").latest()
    assert found is not None
    assert found.step == 3


def test_a_run_that_did_not_read_what_is_here_must_not_replace_it(checkpoints: CheckpointFolder) -> None:
    save(checkpoints, 100, 200)
    other = CheckpointFolder(checkpoints.folder)
    with pytest.raises(CheckpointError, match=r"checkpoints of another run .*step-000000200"):
        other.save(1, {}, {})
    with pytest.raises(CheckpointError, match="checkpoints of another run"):
        other.refuse_other_runs()
    checkpoints.refuse_other_runs()
    save(checkpoints, 300)
    assert other.latest() is not None
    save(checkpoints, 400)
    with pytest.raises(CheckpointError, match=r"checkpoints of another run .*step-000000400"):
        other.save(301, {}, {})


def test_a_run_that_went_back_replaces_what_was_newer(checkpoints: CheckpointFolder) -> None:
    save(checkpoints, 1, 2, 3)
    (checkpoints.folder / "step-000000003" / "model.safetensors").unlink()
    resumed = CheckpointFolder(checkpoints.folder)
    with pytest.warns(UserWarning, match="step-000000003"):
        found = resumed.latest()
    assert found is not None
    assert found.step == 2
    save(resumed, 2)
    assert names(resumed) == ["LATEST", "step-000000002", "step-000000002-2"]


# ---- a disk that refuses ----


def test_training_continues_when_the_disk_is_full_and_the_last_good_one_stays(checkpoints: CheckpointFolder) -> None:
    save(checkpoints, 1)
    with FaultyFiles(error_at=(3, errno.ENOSPC), sticky=True):
        message = (
            r"checkpoint of step 2 \([\d,]+ bytes\) was not written, the last good one is .*step-000000001: .*bytes needed, .* free"
        )
        with pytest.warns(UserWarning, match=message):
            save(checkpoints, 2)
    assert names(checkpoints) == ["LATEST", "step-000000001"]
    save(checkpoints, 3)
    assert names(checkpoints) == ["LATEST", "step-000000001", "step-000000003"]


def test_a_failure_is_reported_at_the_next_save_and_the_third_in_a_row_ends_the_run(checkpoints: CheckpointFolder) -> None:
    with FaultyFiles(error_at=(0, errno.ENOSPC), sticky=True):
        checkpoints.save(1, state(1), {})
        for step in (2, 3):
            with pytest.warns(UserWarning, match=f"step {step - 1} .* there is none before it"):
                checkpoints.save(step, state(step), {})
        with pytest.raises(CheckpointError, match=r"step 3 .* 3 failures in a row"):
            checkpoints.save(4, state(4), {})
    save(checkpoints, 4)
    assert names(checkpoints) == ["LATEST", "step-000000004"]


def test_an_old_checkpoint_that_cannot_be_removed_is_reported_of_but_the_new_one_counts(
    checkpoints: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(checkpoints, 1, 2)

    def refuse(path: Path) -> None:
        with _disk.naming(path):
            raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(checkpoint, "remove", refuse)
    with pytest.warns(UserWarning, match="step-000000003 is written, but older checkpoints could not be removed"):
        save(checkpoints, 3)
    assert checkpoints.last == checkpoints.folder / "step-000000003"
    monkeypatch.undo()
    save(checkpoints, 4)
    assert names(checkpoints) == ["LATEST", "step-000000003", "step-000000004"]


# ---- readers while a writer goes on ----


def test_a_reader_sees_a_whole_checkpoint_at_any_time(tmp_path: Path) -> None:
    reader, newest = CheckpointFolder(tmp_path), 0
    with CheckpointFolder(tmp_path, keep=1) as writer, warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(1, 60):
            writer.save(step, state(step), {})
            found = reader.latest()
            if found is not None:
                assert is_same(state(found.step), found.parts)
                assert found.step >= newest
                newest = found.step
    assert newest >= 58


def overtake(checkpoints: CheckpointFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a writer go on in the moment between LATEST and the files that it names."""
    read = checkpoint.read

    def overtaken(path: Path) -> Any:
        monkeypatch.setattr(checkpoint, "read", read)
        save(checkpoints, 2)
        return read(path)

    monkeypatch.setattr(checkpoint, "read", overtaken)
