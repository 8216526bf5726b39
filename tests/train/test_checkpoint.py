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

from stoker._text import sync_debug_mode
from stoker.errors import CheckpointError, CheckpointInvalidError, DiskFullError
from stoker.train import checkpoint
from stoker.train import checkpoint as images
from stoker.train.checkpoint import INDEX_NAME, Image, read, write


def random_tensor(dtype: torch.dtype, shape: tuple[int, ...], rng: np.random.Generator) -> torch.Tensor:
    data = rng.integers(0, 2 if dtype is torch.bool else 256, math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(data).view(dtype).view(shape) if len(data) else torch.empty(shape, dtype=dtype)


def test_every_type_and_shape_comes_back_to_the_bit(tmp_path: Path, rng: np.random.Generator) -> None:
    shapes = [(), (1,), (7,), (0,), (3, 0, 2), (3, 5), (2, 3, 4)]
    tree = {str(dtype): {str(shape): random_tensor(dtype, shape, rng) for shape in shapes} for dtype in DTYPES}
    write(tmp_path / "c", {"model": tree}, {})
    assert is_same(tree, read(tmp_path / "c")[0]["model"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex128, torch.bool, torch.int8], ids=str)
def test_tensors_that_are_not_contiguous_come_back_as_they_look(
    tmp_path: Path, rng: np.random.Generator, dtype: torch.dtype
) -> None:
    whole = random_tensor(dtype, (6, 8), rng)
    tree = {"turned": whole.mT, "sliced": whole[::2, 1:7:3], "wide": whole[:1].expand(4, 8), "row": whole[3], "one": whole[1, 1]}
    write(tmp_path / "c", {"model": tree}, {})
    assert is_same(tree, read(tmp_path / "c")[0]["model"])


def test_parts_and_facts_come_back(tmp_path: Path) -> None:
    facts = {"step": 7, "config": {"lr": 1e-3, "clip": float("inf"), "sizes": (1, 2), 3: "three"}, "versions": {"torch": "2"}}
    write(tmp_path / "c", state(7), facts)
    parts, found = read(tmp_path / "c")
    assert is_same(state(7), parts)
    assert is_same(facts, found)


def test_only_parts_with_tensors_have_a_file(tmp_path: Path) -> None:
    write(tmp_path / "c", state(1), {})
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == [INDEX_NAME, "model.safetensors", "optimizer.safetensors"]
    assert all(path.stat().st_mode & 0o222 == 0 for path in (tmp_path / "c").iterdir())


def test_an_empty_state_is_a_state(tmp_path: Path) -> None:
    write(tmp_path / "c", {}, {})
    assert read(tmp_path / "c") == ({}, {})


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


def test_large_tensors_are_written_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "CHUNK_BYTES", 64)
    tree = {"a": torch.randn(100), "b": torch.arange(3, dtype=torch.int8)}
    with FaultyFiles(record=True) as disk:
        write(tmp_path / "c", {"model": tree}, {})
    assert max(len(operation.data) for operation in disk.log if operation.offset and "model" in operation.path.name) == 64
    assert is_same(tree, read(tmp_path / "c")[0]["model"])


def test_loaded_tensors_stay_when_the_files_are_cut(tmp_path: Path) -> None:
    tree = {"a": torch.randn(1 << 16)}
    write(tmp_path / "c", {"model": tree}, {})
    parts, _ = read(tmp_path / "c")
    path = tmp_path / "c" / "model.safetensors"
    path.chmod(0o644)
    path.write_bytes(b"")
    assert is_same(tree, parts["model"])
    parts["model"]["a"] += 1  # and they can be written to


@pytest.mark.parametrize("name", ["", "A", "a.b", "../a", "a/b", "é", "a" * 33, "1a"])
def test_a_part_whose_name_is_not_a_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="the part"):
        write(tmp_path / "c", {name: {}}, {})
    assert not (tmp_path / "c").exists()


def test_a_tensor_among_the_facts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"facts.config.w is a tensor"):
        write(tmp_path / "c", {}, {"config": {"w": torch.zeros(1)}})


def test_a_checkpoint_is_never_written_over(tmp_path: Path) -> None:
    write(tmp_path / "c", state(1), {})
    with pytest.raises(CheckpointError, match="exists"):
        write(tmp_path / "c", state(2), {})
    assert is_same(state(1), read(tmp_path / "c")[0])


def test_a_disk_that_is_full_leaves_nothing(tmp_path: Path) -> None:
    with FaultyFiles(error_at=(6, errno.ENOSPC), sticky=True), pytest.raises(DiskFullError):
        write(tmp_path / "c", state(1), {})
    assert not list(tmp_path.iterdir())


def test_an_index_that_is_too_large_is_refused_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "c", state(1), {})
    monkeypatch.setattr(checkpoint, "MAX_INDEX_BYTES", 100)
    with pytest.raises(CheckpointError, match="at most 100 fit"):
        write(tmp_path / "d", {}, {"text": "x" * 200})
    assert not (tmp_path / "d").exists()
    with pytest.raises(CheckpointInvalidError, match="at most 100"):
        read(tmp_path / "c")


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


def test_memory_is_used_again_for_the_same_tensors() -> None:
    image = Image()
    image.capture({"w": torch.zeros(5), "x": torch.zeros(3, dtype=torch.int8)})
    address = image._memory.data_ptr()
    image.capture({"w": torch.ones(5), "x": torch.ones(3, dtype=torch.int8)})
    assert image._memory.data_ptr() == address
    assert content(image).endswith(np.ones(5, "<f4").tobytes() + b"\1\1\1")


@pytest.mark.parametrize("tensors", [{"w": torch.ones(9)}, {"v": torch.ones(4)}, {"w": torch.ones(4, dtype=torch.int32)}, {}])
def test_an_image_of_other_tensors_is_that_of_a_new_one(tensors: dict[str, torch.Tensor]) -> None:
    used, new = Image(), Image()
    used.capture({"w": torch.zeros(4)})
    used.capture(tensors)
    new.capture(tensors)
    assert content(used) == content(new)


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
