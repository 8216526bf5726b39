"""Checkpoints: how they leave a run, and which of them would run code when they are loaded."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.compare.checkpoint import code_in, copies_of, pack_checkpoint, unpack_checkpoint
from stoker.errors import TrainError

WEIGHTS = {"weight": torch.ones(8, 8), "step": 3, "shape": (1, 2)}


class Forged:
    """Runs a command when it is loaded."""

    def __reduce__(self) -> Any:
        return print, ("loaded",)


def packed(folder: Path, name: str, handed: Path) -> str | None:
    here = Path.cwd()
    os.chdir(folder)
    try:
        return pack_checkpoint(name, os.open(handed, os.O_WRONLY | os.O_CREAT))
    finally:
        os.chdir(here)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_checkpoint_is_handed_over(tmp_path: Path, kind: str) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    (run / "deep").mkdir(parents=True)
    out.mkdir()
    (run / "deep" / "model.bin").write_bytes(b"weights")
    (run / "deep" / "link.bin").symlink_to("model.bin")
    name = "deep" if kind == "folder" else "deep/model.bin"
    assert packed(run, name, tmp_path / "packed") is None
    path = unpack_checkpoint(tmp_path / "packed", out, Path(name).name)
    files = {str(file.relative_to(out)): file.read_bytes() for file in out.rglob("*") if file.is_file()}
    assert path == out / Path(name).name
    assert files == ({"deep/model.bin": b"weights", "deep/link.bin": b"weights"} if kind == "folder" else {"model.bin": b"weights"})


def test_a_checkpoint_that_was_not_written_is_said(tmp_path: Path) -> None:
    assert packed(tmp_path, "model.pt", tmp_path / "packed") == "did not write its checkpoint model.pt"


@pytest.mark.parametrize("name", ["../escaped", "/tmp/escaped", "model.pt/../../escaped", "other"])
def test_files_outside_of_the_checkpoint_are_refused(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "packed", "w") as archive:
        member = tarfile.TarInfo(name)
        member.size = 4
        archive.addfile(member, io.BytesIO(b"data"))
    (tmp_path / "out").mkdir()
    with pytest.raises(TrainError, match="outside of it"):
        unpack_checkpoint(tmp_path / "packed", tmp_path / "out", "model.pt")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("data", [b"", b"not an archive", b"\0" * 2000])
def test_an_archive_that_is_not_whole_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "packed").write_bytes(data)
    with pytest.raises(TrainError, match="not handed over"):
        unpack_checkpoint(tmp_path / "packed", tmp_path, "model.pt")


SAVED: dict[str, tuple[Callable[[Path], object], bool]] = {
    "weights": (lambda path: torch.save(WEIGHTS, path), False),
    "weights, the old form": (lambda path: torch.save(WEIGHTS, path, _use_new_zipfile_serialization=False), False),
    "TorchScript": (lambda path: torch.jit.script(torch.nn.Linear(2, 2)).save(path), False),
    "text": (lambda path: path.write_text('{"weights": [1]}'), False),
    "a forged object": (lambda path: torch.save(WEIGHTS | {"_": Forged()}, path), True),
    "a forged object, the old form": (lambda path: torch.save(Forged(), path, _use_new_zipfile_serialization=False), True),
    "a whole model": (lambda path: torch.save(torch.nn.Linear(2, 2), path), True),
}


@pytest.mark.promise("P35")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SAVED)
def test_a_checkpoint_that_would_run_code_is_known(tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str) -> None:
    save, runs = SAVED[name]
    save(tmp_path / "model.pt")
    reason = code_in(tmp_path)
    assert (reason is not None) == runs, reason
    assert "loaded" not in capfd.readouterr().out


def test_files_with_the_same_bytes_are_found(tmp_path: Path) -> None:
    for name, data in {"a": b"12", "b": b"12", "c": b"21", "d": b"123"}.items():
        (tmp_path / name).write_bytes(data)
    tree = [tmp_path / name for name in ("b", "c", "d", "gone")]
    assert list(copies_of([tmp_path / "a"], tree)) == [(tmp_path / "a", tmp_path / "b")]
