"""One checkpoint: written and read to the bit, for any reader of the format, and refused if anything is wrong."""

from __future__ import annotations

import errno
import math
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.harness import FaultyFiles
from tests.train.test_state_dict import DTYPES
from tests.train.trees import bits, is_same, state

from stoker import _disk
from stoker._device import sync_debug_mode
from stoker.errors import CheckpointError
from stoker.train import checkpoint
from stoker.train import checkpoint as images
from stoker.train.checkpoint import CheckpointFolder, Image, read, write


def random_tensor(dtype: torch.dtype, shape: tuple[int, ...], rng: np.random.Generator) -> torch.Tensor:
    data = rng.integers(0, 2 if dtype is torch.bool else 256, math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(data).view(dtype).view(shape) if len(data) else torch.empty(shape, dtype=dtype)


def test_every_type_and_shape_comes_back_to_the_bit(tmp_path: Path, rng: np.random.Generator) -> None:
    shapes = [(), (1,), (7,), (0,), (3, 0, 2), (3, 5), (2, 3, 4)]
    tree = {str(dtype): {str(shape): random_tensor(dtype, shape, rng) for shape in shapes} for dtype in DTYPES}
    write(tmp_path / "c", {"model": tree}, {})
    assert is_same(tree, read(tmp_path / "c")[0]["model"])


def test_other_readers_of_safetensors_read_the_parts(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5)).to(torch.bfloat16)
    write(tmp_path / "c", {"model": model.state_dict()}, {})
    loaded = load_file(tmp_path / "c" / "model.safetensors")
    assert loaded.keys() == model.state_dict().keys()
    assert all(torch.equal(bits(loaded[name]), bits(tensor)) for name, tensor in model.state_dict().items())


def test_the_same_state_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / name, state(3), {"step": 3})
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_loaded_tensors_stay_when_the_files_are_cut(tmp_path: Path) -> None:
    tree = {"a": torch.randn(1 << 16)}
    write(tmp_path / "c", {"model": tree}, {})
    parts, _ = read(tmp_path / "c")
    path = tmp_path / "c" / "model.safetensors"
    path.chmod(0o644)
    path.write_bytes(b"")
    assert is_same(tree, parts["model"])
    parts["model"]["a"] += 1  # and they can be written to


def test_a_checkpoint_is_never_written_over(tmp_path: Path) -> None:
    write(tmp_path / "c", state(1), {})
    with pytest.raises(CheckpointError, match="exists"):
        write(tmp_path / "c", state(2), {})
    assert is_same(state(1), read(tmp_path / "c")[0])


# ---- images: memory that is used again ----


def content(image: Image) -> bytes:
    return b"".join(bytes(chunk) for chunk in image.chunks())


def test_an_image_is_of_the_moment_of_its_capture() -> None:
    weight = torch.arange(6.0)
    image = Image()
    image.capture({"w": weight})
    before = content(image)
    weight.add_(1)
    assert content(image) == before


def test_negative_control_an_image_that_shares_memory_changes_with_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.arange(6.0)
    image = Image()
    image.capture({"w": weight})
    image._memory = weight.view(torch.uint8)
    before = content(image)
    weight.add_(1)
    assert content(image) != before


needs_cuda = pytest.mark.gpu


@needs_cuda
@pytest.mark.parametrize("room", [True, False], ids=["gathered", "direct"])
def test_a_gpu_continues_while_its_state_is_copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, room: bool) -> None:
    if not room:
        monkeypatch.setattr(images, "_has_room", lambda *_: False)
    tensors: dict[str, Any] = {f"w{i}": torch.randn(1 << 20, device="cuda") for i in range(20)}
    tensors |= {
        "half": torch.randn(99, 7, device="cuda").bfloat16().mT,
        "step": torch.tensor(3.0),
        "c": torch.tensor(1 + 2j, device="cuda"),
    }
    expected = {name: tensor.cpu().clone() for name, tensor in tensors.items()}
    memory: dict[str, Image] = {}
    checkpoint.capture({"model": tensors}, {}, memory=memory)
    torch.cuda.synchronize()
    with sync_debug_mode("error"):
        captured = checkpoint.capture({"model": tensors}, {}, memory=memory)
        for _ in range(3):
            for tensor in tensors.values():
                tensor.mul_(2)
    checkpoint.write_captured(tmp_path / "c", captured)
    assert is_same(expected, read(tmp_path / "c")[0]["model"])


@needs_cuda
def test_negative_control_a_direct_copy_that_no_one_waits_for_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_has_room", lambda *_: False)
    monkeypatch.setattr(torch.cuda.Stream, "wait_event", lambda self, event: None)
    weight = torch.zeros(1 << 28, device="cuda")
    image = Image()
    image.capture({"w": weight})
    image.capture({"w": weight})
    weight.fill_(1.0)
    image.wait()
    assert image._memory.view(torch.float32).any()


# The folder of checkpoints: which stay, which is read, and what is told when the disk refuses


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
    assert is_same(state(2), best.parts)
    save(checkpoints, 6, best=True)
    assert names(checkpoints) == ["BEST", "LATEST", "step-000000005", "step-000000006"]


def test_a_step_that_is_saved_again_replaces_itself(checkpoints: CheckpointFolder) -> None:
    save(checkpoints, 1, 2)
    checkpoints.save(2, {"model": {"x": 1}}, {}, best=True, wait=True)
    assert names(checkpoints) == ["BEST", "LATEST", "step-000000002", "step-000000002-2"]
    found = checkpoints.latest()
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
    assert not found.parts["model"]["w"].any()


def test_a_save_that_was_begun_is_finished_when_the_interpreter_ends(tmp_path: Path, run_python: Any) -> None:
    run_python(
        "import sys, torch\n"
        "from stoker.train.checkpoint import CheckpointFolder\n"
        "CheckpointFolder(sys.argv[1]).save(3, {'model': {'w': torch.ones(1 << 20)}}, {})",
        str(tmp_path / "c"),
    )
    found = CheckpointFolder(tmp_path / "c").latest()
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


# ---- a disk that refuses ----


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
