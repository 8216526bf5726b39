"""Exports: the program answers as the model does, for any number of rows, or it is not written."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.experiment.tasks import NETWORKS, TASKS, model, task_and_batch
from tests.harness import FaultyFiles
from torch import nn

from stoker.errors import DiskError, OptionError, TrainError
from stoker.train import export, export_model
from stoker.train.export import golden_path

HAS_ONNX = all(importlib.util.find_spec(name) is not None for name in ("onnxruntime", "onnxscript"))


def load(path: Path) -> Callable[[dict[str, torch.Tensor]], torch.Tensor]:
    module: Any = torch.export.load(path).module()
    return lambda batch: module(batch)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("horizon", "transformer"),
        pytest.param("series", "gru", marks=pytest.mark.slow),
        *(pytest.param(kind, "transformer", marks=pytest.mark.slow) for kind in TASKS if kind != "horizon"),
        pytest.param("series", "mlp", marks=pytest.mark.slow),
    ],
)
def test_a_program_answers_as_the_model_does(tmp_path: Path, kind: str, name: str) -> None:
    task, batch = task_and_batch(kind)
    entries = {key: batch[key] for key in task.entries}
    trained = model(name, task)
    done = export_model(trained, entries, tmp_path / "m.pt2")
    assert done.difference <= 1e-5
    run = load(tmp_path / "m.pt2")
    for rows in (1, 5, 32):
        part = {key: values[:rows] for key, values in entries.items()}
        torch.testing.assert_close(run(part), trained(part), rtol=1e-5, atol=1e-6)


def test_a_program_that_answers_otherwise_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, batch = task_and_batch("horizon")
    entries = {key: batch[key] for key in task.entries}
    real = export._program

    def off(model: nn.Module, entries: dict[str, torch.Tensor]) -> Any:
        data, run = real(model, entries)
        return data, lambda part: run(part) + 0.01

    monkeypatch.setattr(export, "_program", off)
    with pytest.raises(TrainError, match=r"the program is 0.01 off from the model; expected at most 0.000\d+. It was not written."):
        export_model(model("mlp", task), entries, tmp_path / "m.pt2")
    monkeypatch.setattr(export, "_program", lambda *_: (b"", lambda part: torch.full((len(part["a"]), 3, 1), torch.nan)))
    with pytest.raises(TrainError, match="the program is nan off"):
        export_model(model("mlp", task), entries, tmp_path / "m.pt2")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_leaves_no_half_of_an_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A golden batch without its program would make the command refuse the same export again."""
    task, batch = task_and_batch("horizon")
    trained, entries = model("mlp", task), {key: batch[key] for key in task.entries}
    monkeypatch.setattr(export, "_program", lambda model, entries: (b"a program", model))
    with FaultyFiles() as disk:
        export_model(trained, entries, tmp_path / "whole.pt2")
    for number in range(disk.operations):
        path = tmp_path / f"{number}.pt2"
        with FaultyFiles(error_at=(number, errno.ENOSPC)), contextlib.suppress(DiskError):
            export_model(trained, entries, path)
        assert path.exists() == golden_path(path).exists(), number
    golden_path(path).write_bytes(b"of an earlier export")
    path.unlink()
    with FaultyFiles(error_at=(disk.operations - 2, errno.ENOSPC)), pytest.raises(DiskError):
        export_model(trained, entries, path)
    assert golden_path(path).exists(), "only a new one is removed"


class Fixed(nn.Module):
    """Holds for one number of rows only."""

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return batch["a"].reshape(32, 8) if batch["a"].shape[0] == 32 else batch["a"][:, :8]


class Pair(nn.Module):
    """Has two answers."""

    def forward(self, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return batch["a"], batch["a"]


def test_models_that_cannot_be_exported(tmp_path: Path) -> None:
    task, batch = task_and_batch("horizon")
    entries = {key: batch[key] for key in task.entries}
    with pytest.raises(TrainError, match="the model cannot be exported: "):
        export_model(Fixed(), entries, tmp_path / "m.pt2")
    with pytest.raises(OptionError, match="returned a tuple; expected one tensor"):
        export_model(Pair(), entries, tmp_path / "m.pt2")
    with pytest.raises(OptionError, match="the golden batch has 1 rows; expected at least 2"):
        export_model(model("mlp", task), {key: values[:1] for key, values in entries.items()}, tmp_path / "m.pt2")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not HAS_ONNX, reason="needs the extra onnx")
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("kind", ["horizon", "series"])
def test_onnx_answers_as_the_model_does(tmp_path: Path, name: str, kind: str) -> None:
    task, batch = task_and_batch(kind)
    done = export_model(model(name, task), {key: batch[key] for key in task.entries}, tmp_path / "m.onnx", onnx=True)
    assert done.difference < 1e-4
    assert done.path.stat().st_size == done.num_bytes > 1000
