"""`stoker export`: the best weights of a run, averaged where it kept an average, as a checked program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.cli.calling import Done
from tests.cli.training_folder import make_folder

Stoker = Callable[..., Done]


@pytest.fixture
def run(stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_folder(tmp_path)
    done = stoker("train", "c.yaml", "--quiet", "--set", "ema=0.5", "--set", "folder=run")
    assert done.code == 0, done.err
    return tmp_path / "run"


def test_the_model_of_a_run_is_exported(stoker: Stoker, run: Path) -> None:
    done = stoker("export", run, "m.pt2")
    assert (done.code, done.err) == (0, "")
    first, second, last = done.out.splitlines()
    assert last == "next: torch.export.load('m.pt2')"
    assert first.startswith("exported the averaged weights of step ")
    assert second.startswith("checked on 32 samples, largest difference from the model ")
    golden = load_file("m.pt2.golden.safetensors")
    answer = golden.pop("prediction")
    module: Any = torch.export.load("m.pt2").module()
    torch.testing.assert_close(module(golden), answer)
    assert golden["close"].mean() > 40  # raw values in,
    assert answer[..., 0].mean() > 40  # raw values out
    assert answer.shape == (32, 2, 2)


def test_the_name_says_what_is_written_and_nothing_is_replaced_unasked(stoker: Stoker, run: Path) -> None:
    Path("folder").mkdir()
    assert stoker("export", run, "folder", "--overwrite").code == 2
    for name in ("m.pt2", "m.pt2.golden.safetensors"):  # the golden batch of another program, too
        Path(name).write_text("precious")
        assert stoker("export", run, "m.pt2").err == (
            f"stoker: {name} already exists. Replace the file (--overwrite), or give another name.\n"
        )
        assert Path(name).read_text() == "precious"
        assert stoker("export", run, "m.pt2", "--overwrite").code == 0
        assert Path(name).read_bytes() != b"precious", "negative control"
        Path("m.pt2").unlink()
    done = stoker("export", run, "m.onnx")  # ONNX by its name, never a program of torch under it
    if done.code == 0:
        import onnxruntime

        onnxruntime.InferenceSession(Path("m.onnx").read_bytes(), providers=["CPUExecutionProvider"])
    else:
        assert "needs the package onnx" in done.err
        assert not Path("m.onnx").exists()
