"""`stoker export`: the best weights of a run, averaged where it kept an average, as a checked program."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.cli.calling import Done
from tests.cli.training_folder import make_folder

import stoker as library

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


OWN = """
import torch

def make():
    return torch.nn.Linear(8, 2)

class Mixed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(18, 2)

    def forward(self, batch):
        return self.line(torch.cat([batch["x"], batch["t"], batch["t_target"]], 1))
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> library.Store:
    """Two runs of the Python trainer: of one column, and of a model that reads a column of the future."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    values = np.random.default_rng(0).normal(size=(3, 40)).astype("f4")
    store = library.Store.from_arrays(x=values, t=values[:, ::-1].copy())
    store.save("d.stoker")
    module = runpy.run_path("own.py")
    for name, model, columns in (("one", module["make"](), ["x"]), ("two", module["Mixed"](), ["x", "t"])):
        feed = library.Feed(store, library.Windows(8, horizon=2, tail="drop"), batch_size=16, columns=columns)
        loss = library.train.supervised(torch.nn.MSELoss(), x="x", y="x_target") if name == "one" else mixed_loss
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        library.Trainer(model, loss, optimizer, folder=f"runs/{name}", progress=False).fit(feed)
    return store


def mixed_loss(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.nn.functional.mse_loss(model(batch), batch["x_target"])


@pytest.mark.parametrize(("name", "function", "entries"), [("one", "make", {"x"}), ("two", "Mixed", {"x", "t", "t_target"})])
def test_a_run_of_the_trainer_is_exported_with_the_function_of_its_model(
    stoker: Stoker, own: library.Store, name: str, function: str, entries: set[str]
) -> None:
    done = stoker("export", f"runs/{name}", "m.pt2", "--model", f"own.py:{function}", "--data", "d.stoker")
    assert (done.code, done.err) == (0, "")
    golden = load_file("m.pt2.golden.safetensors")
    answer = golden.pop("prediction")
    assert golden.keys() == entries
    module: Any = torch.export.load("m.pt2").module()
    torch.testing.assert_close(module(golden), answer)
    loaded = library.load(f"runs/{name}", model=runpy.run_path("own.py")[function]())
    torch.testing.assert_close(loaded.predict(own)["prediction"][: len(answer)], answer)
    assert json.loads(
        stoker("export", f"runs/{name}", "j.pt2", "--model", f"own.py:{function}", "--data", "d.stoker", "--json").out
    )


def test_negative_control_other_weights_give_other_answers(own: library.Store) -> None:
    loaded = library.load("runs/one", model=torch.nn.Linear(8, 2))
    exported = loaded.export(own, "m.pt2")
    golden = load_file(exported.golden)
    torch.manual_seed(1)
    assert not torch.allclose(torch.nn.Linear(8, 2)(golden["x"]), golden["prediction"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--model file.py:function --data STORE"),
        (["--model", "own.py:make"], "--model and --data belong together"),
        (["--data", "d.stoker"], "--model and --data belong together"),
        (["--model", "own.py:Mixed", "--data", "d.stoker"], "Mixed"),
        (["--model", "own.py:nothing", "--data", "d.stoker"], "has no function 'nothing'; it has make"),
        (["--model", "own.py:make", "--data", "own.py"], "own.py"),
    ],
)
def test_a_wrong_export_of_a_run_of_the_trainer_writes_nothing(
    stoker: Stoker, own: library.Store, options: list[str], message: str
) -> None:
    done = stoker("export", "runs/one", "m.pt2", *options)
    assert (done.code, done.out) == (2, "")
    assert message in done.err or "is of another model" in done.err
    assert done.err.count("\n") == 1
    assert not list(Path().glob("m.pt2*"))
