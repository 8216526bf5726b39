"""One checkpoint: written and read to the bit, for any reader of the format, and refused if anything is wrong."""

from __future__ import annotations

import errno
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.harness import FaultyFiles
from tests.train.test_state_dict import DTYPES
from tests.train.trees import bits, is_same, state

from stoker._device import sync_debug_mode
from stoker.errors import CheckpointError, DiskFullError
from stoker.train import checkpoint
from stoker.train import checkpoint as images
from stoker.train.checkpoint import Image, read, write


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


def test_a_disk_that_is_full_leaves_nothing(tmp_path: Path) -> None:
    with FaultyFiles(error_at=(6, errno.ENOSPC), sticky=True), pytest.raises(DiskFullError):
        write(tmp_path / "c", state(1), {})
    assert not list(tmp_path.iterdir())


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
