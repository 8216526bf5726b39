"""Columns with one value per series, numbers and categories: trained on, predicted with and exported by the built-in models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file

import stoker
from stoker.errors import OptionError

CONFIG = """\
data:
  store: d.stoker
  view: {name: windows, length: 4, horizon: 2}
  columns: [x, size, kind]
  target: [y]
  batch_size: 64
model: MODEL
optimizer: {lr: 0.03}
train: {epochs: 40, folder: run, device: cpu, precision: fp32, metrics: [], execution: {compile: false}}
"""
KINDS = ["city", "village"]


def store_of(sizes: list[float], kinds: list[str], steps: int = 40, *, path: str = "new.stoker") -> stoker.Store:
    """Series of noise `x`, and `y` that follows from their size and kind alone."""
    level = [3.0 * size + 5.0 * (kind == "city") for size, kind in zip(sizes, kinds, strict=True)]
    noise = np.random.default_rng(0).normal(size=(len(sizes), steps)).astype("f4")
    y = np.repeat(np.array(level, dtype="f4")[:, None], steps, axis=1)
    columns = {"x": list(noise), "y": list(y), "size": pa.array(sizes, pa.float32()), "kind": pa.array(kinds).dictionary_encode()}
    return stoker.pack(pa.table(columns), path)


@pytest.fixture(params=["linear", "mlp"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    store_of([1, 2, 3, 1, 2, 3], KINDS[:1] * 3 + KINDS[1:] * 3, path="d.stoker")
    Path("c.yaml").write_text(CONFIG.replace("MODEL", request.param))
    stoker.experiment.run("c.yaml", progress=False)
    return tmp_path


def predictions(store: stoker.Store) -> list[float]:
    """The mean prediction of each series."""
    table = stoker.load("run", device="cpu").predict(store)
    values = table["prediction"].to_numpy().reshape(len(store), -1)
    return [float(mean) for mean in values.mean(1)]


def test_a_prediction_follows_from_the_static_columns_of_its_series(folder: Path) -> None:
    # The codes of the new store are in another order than those of training.
    assert predictions(store_of([3, 1, 2], ["village", "city", "village"])) == pytest.approx([9, 8, 6], abs=0.8)


def test_negative_control_other_static_columns_give_other_predictions(folder: Path) -> None:
    kinds = ["city", "village"]
    one, other = (predictions(store_of([2, 2], names, path=names[0])) for names in (kinds, kinds[::-1]))
    assert np.abs(np.subtract(one, other)).min() > 3


def test_an_exported_program_takes_the_static_columns(folder: Path, stoker: Any) -> None:
    done = stoker("export", "run", "m.pt2")
    assert done.code == 0, done.err
    golden = load_file("m.pt2.golden.safetensors")
    answer = golden.pop("prediction")
    assert {"x", "size", "kind"} <= golden.keys()
    module: Any = torch.export.load("m.pt2").module()
    torch.testing.assert_close(module(golden), answer)
    changed = module({**golden, "size": golden["size"] + 1}).detach()
    assert float((changed - answer).abs().min()) > 0.1, "negative control"


def test_data_without_a_static_column_is_refused(folder: Path) -> None:
    with pytest.raises(OptionError, match="no column 'size'"):
        predictions(stoker.Store.from_arrays(x=np.zeros((1, 40), "f4")))
    with pytest.raises(OptionError, match="that the training data did not have: 'moon'"):
        predictions(store_of([1.0], ["moon"]))
