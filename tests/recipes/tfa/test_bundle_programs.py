"""Programs of a run: TorchScript for Sentio's C++, torch.export and ONNX; each answers as the model."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.recipes.tfa.training_folder import OURS, THEIRS, make_folder, settings_of

from stoker import _disk
from stoker.errors import OptionError, TrainError
from stoker_recipes.tfa import bundle as bundles
from stoker_recipes.tfa import train, verify_bundle, write_bundle
from stoker_recipes.tfa.bundle import read_bundle

HAS_ONNX = all(importlib.util.find_spec(name) is not None for name in ("onnxruntime", "onnxscript"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each kind of model, with its bundle beside it."""
    found = {}
    for name, yaml in {"tfa": THEIRS, "banded": OURS}.items():
        folder = tmp_path_factory.mktemp(name)
        make_folder(folder, yaml, num_bars=1500)
        train(settings_of(folder, epochs=1), folder / "run")
        write_bundle(folder / "run", folder / "bundle")
        found[name] = folder / "run"
    return found


@pytest.fixture
def run(runs: dict[str, Path]) -> Path:
    return runs["tfa"]


SENTIO = """
import json, sys, torch, warnings
warnings.simplefilter("ignore")
from safetensors.torch import load_file
for folder in sys.argv[1:]:
    model, expects = torch.jit.load(folder + "/model.pt"), json.load(open(folder + "/model.meta.json"))["expects"]
    golden = load_file(folder + "/golden.safetensors")
    rows, logits, length = golden["features"], golden["logits"], expects["seq_len"]
    windows = rows.unfold(0, length, 1).transpose(1, 2)
    assert windows.shape == (len(logits), length, expects["input_dim"])
    assert model(windows[:1]).shape == (1, 1)
    for batch in (1, 7, 64):
        apart = (model(windows[:batch])[:, 0] - logits[:batch]).abs().max()
        print(float(apart) / max(1.0, float(logits.abs().max())))
assert "stoker" not in sys.modules
"""
"""What Sentio's C++ does with a bundle, in Python: TorchScript and its meta, and nothing else."""


def test_torchscript_answers_in_a_fresh_process_without_stoker(runs: dict[str, Path]) -> None:
    folders = [str(run.parent / "bundle") for run in runs.values()]
    done = subprocess.run([sys.executable, "-c", SENTIO, *folders], capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr
    found = [float(line) for line in done.stdout.split()]
    assert len(found) == 6
    assert max(found) <= 1e-6


def test_torchscript_that_answers_otherwise_is_not_written(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = torch.jit.load
    monkeypatch.setattr(torch.jit, "load", lambda data: lambda part: load(data)(part) + 1e-3)
    with pytest.raises(TrainError, match=r"the TorchScript is 0\.001 off from the model"):
        write_bundle(run, tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not HAS_ONNX, reason="needs the extra onnx")
def test_onnx_answers_as_the_model(run: Path, tmp_path: Path) -> None:
    import onnxruntime
    from safetensors.numpy import load_file

    write_bundle(run, tmp_path / "with", onnx=True)
    assert {"model.onnx", "model.onnx.golden.safetensors"} <= set(read_bundle(tmp_path / "with")[0].files)
    golden = load_file(tmp_path / "with" / "model.onnx.golden.safetensors")
    session = onnxruntime.InferenceSession((tmp_path / "with" / "model.onnx").read_bytes(), providers=["CPUExecutionProvider"])
    for rows in (1, 16):
        (answer,) = session.run(None, {"features": golden["features"][:rows]})
        np.testing.assert_allclose(answer, golden["prediction"][:rows], rtol=1e-5, atol=1e-5)
    write_bundle(run, tmp_path / "with", overwrite=True)
    assert not (tmp_path / "with" / "model.onnx").exists(), "a program of older weights does not stay"


@pytest.mark.promise("P24")
def test_a_bundle_is_only_written_where_nothing_of_the_users_is(run: Path, tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "model.pt").write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(OptionError, match=r"v1 was not made by Stoker: it holds 'model\.pt', and no bundle\.json"):
            write_bundle(run, tmp_path / "v1", overwrite=overwrite)
    assert (tmp_path / "v1" / "model.pt").read_text() == "precious"
    assert len(list((tmp_path / "v1").iterdir())) == 1
    with pytest.raises(OptionError, match=r"bundle has a bundle already\. Pass overwrite=True to replace it"):
        write_bundle(run, run.parent / "bundle")


@pytest.mark.promise("P24", control=True)
def test_negative_control_without_the_claim_a_file_of_the_users_is_lost(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "model.pt").write_text("precious")
    monkeypatch.setattr(_disk, "claim_folder", lambda *given, **options: None)
    write_bundle(run, tmp_path / "v1")
    assert (tmp_path / "v1" / "model.pt").read_bytes() != b"precious"


@pytest.mark.promise("P24")
def test_an_export_that_fails_leaves_the_old_bundle(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run.parent / "bundle", copy)
    (copy / "notes.txt").write_text("mine")
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(bundles, "_script", lambda trained: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_bundle(run, copy, overwrite=True)
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before
    write_bundle(run, copy, overwrite=True)
    assert verify_bundle(copy).logits == 64
    assert (copy / "notes.txt").read_text() == "mine"
    assert not (copy / ".new").exists()
