"""The bundle proves itself, and its programs answer as the model; what does not fit together is refused."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.tfa.markets import market
from tests.recipes.tfa.training_folder import OURS, SPEC, THEIRS, make_folder, settings_of

import stoker_recipes.tfa
from stoker import _disk
from stoker.errors import CheckpointInvalidError, OptionError, TrainError
from stoker_recipes.tfa import BarPredictor, train, verify_bundle, write_bundle
from stoker_recipes.tfa import bundle as bundles
from stoker_recipes.tfa.bundle import read_bundle

YAMLS = {"banded": OURS, "tfa": THEIRS, "sentio": OURS + "mode: sentio\nstationary: false\n"}
of_one_kind_or_slow = pytest.mark.parametrize(
    "bundle", ["banded", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("tfa", "sentio"))], indirect=True
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A run of a kind of model, with its bundle beside it; each is made when it is first asked for."""

    @functools.cache
    def make(kind: str) -> Path:
        folder = tmp_path_factory.mktemp(kind)
        make_folder(folder, YAMLS[kind], num_bars=1500)
        train(settings_of(folder, epochs=1), folder / "run")
        written, proof = write_bundle(folder / "run", folder / "bundle")
        assert (proof.logits, written.step > 0) == (64, True)
        assert proof.difference <= 1e-6 * 10
        return folder / "run"

    return make


@pytest.fixture(params=list(YAMLS))
def bundle(request: pytest.FixtureRequest, runs: Callable[[str], Path]) -> Path:
    return runs(request.param).parent / "bundle"


@pytest.fixture
def run(runs: Callable[[str], Path]) -> Path:
    return runs("tfa")


@pytest.fixture
def copy(bundle: Path, tmp_path: Path) -> Path:
    shutil.copytree(bundle, tmp_path / "copy")
    for path in (tmp_path / "copy").iterdir():
        path.chmod(0o644)
    return tmp_path / "copy"


def bars_of(num_bars: int = 400) -> tuple[dict[str, Any], list[dict[str, float]]]:
    bars = market(num_bars, "lag", 7)
    columns = {name: bars[name] for name in ("open", "high", "low", "close", "volume")}
    return columns, [dict(zip(columns, map(float, row), strict=True)) for row in zip(*columns.values(), strict=True)]


def test_bar_by_bar_is_the_batch(bundle: Path) -> None:
    columns, rows = bars_of()
    told, spec, model = read_bundle(bundle)
    features = stoker_recipes.tfa.features(columns, spec).values
    predictor = BarPredictor.load(bundle)
    found = []
    for i, bar in enumerate(rows):
        found.append(predictor.push(bar))
        assert predictor.features.tobytes() == features[i].tobytes()
    first = told.warm_up + told.reach - 1
    assert found[:first] == [None] * first
    with torch.inference_mode():
        logits = model(torch.from_numpy(features[None, told.warm_up :]))[0, -(len(rows) - first) :].numpy()
    assert None not in found[first:]
    np.testing.assert_allclose(np.array(found[first:], dtype=float), logits, rtol=1e-6, atol=1e-6)


@of_one_kind_or_slow
@pytest.mark.parametrize("price", [None, 0.0, *(pytest.param(price, marks=pytest.mark.slow) for price in (-1.0, math.inf))])
def test_a_missing_price_ends_the_series_as_in_the_training(bundle: Path, price: float | None) -> None:
    _, rows = bars_of()
    predictor, fresh = BarPredictor.load(bundle), BarPredictor.load(bundle)
    for bar in rows[:200]:
        predictor.push(bar)
    assert predictor.push({**rows[200], "close": price}) is None
    assert not predictor.is_ready
    to_go = predictor.bars_to_go
    behind = [predictor.push(bar) for bar in rows[201:]]
    assert behind == [fresh.push(bar) for bar in rows[201:]]
    assert behind[: to_go - 1] == [None] * (to_go - 1)
    assert None not in behind[to_go - 1 :]


HOLES: dict[str, dict[int, float]] = {
    "one": {150: math.nan},
    "at the first bar": {0: 0.0},
    "at the last bar": {299: math.inf},
    "beside each other": {120: -1.0, 121: math.nan, 122: 0.0},
    "so late that nothing is ready": {100: math.nan, 290: math.nan},
}


def as_columns(rows: list[dict[str, float]]) -> dict[str, Any]:
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def assert_same(one: BarPredictor, other: BarPredictor) -> None:
    """Where they stand, and the features at their last bar bit for bit."""
    assert (one.num_bars, one.is_ready, one.bars_to_go) == (other.num_bars, other.is_ready, other.bars_to_go)
    assert one.features.tobytes() == other.features.tobytes()


@of_one_kind_or_slow
@pytest.mark.parametrize("holes", HOLES)
@pytest.mark.parametrize("column", ["close", pytest.param("high", marks=pytest.mark.slow)])
def test_a_history_with_holes_is_as_its_bars_one_by_one(bundle: Path, holes: str, column: str) -> None:
    _, rows = bars_of()
    if column not in BarPredictor.load(bundle)._prices:
        column = "close"
    for at, price in HOLES[holes].items():
        rows[at] = {**rows[at], column: price}
    pushed, warmed, parts = (BarPredictor.load(bundle) for _ in range(3))
    for bar in rows[:300]:
        pushed.push(bar)
    warmed.warm(as_columns(rows[:300]))
    for begin in range(0, 300, 75):
        parts.warm(as_columns(rows[begin : begin + 75]))
    assert_same(warmed, pushed)
    assert_same(parts, pushed)
    for bar in rows[300:]:
        logit = pushed.push(bar)
        assert (warmed.push(bar), parts.push(bar)) == (logit, logit)
        assert_same(warmed, pushed)
        assert_same(parts, pushed)
    assert logit is not None


def test_the_program_answers_as_the_model(bundle: Path) -> None:
    from safetensors.torch import load_file

    golden = load_file(bundle / "model.pt2.golden.safetensors")
    answer = golden.pop("prediction")
    module: Any = torch.export.load(bundle / "model.pt2").module()
    torch.testing.assert_close(module(golden), answer)


def test_the_meta_has_what_their_cpp_reads(bundle: Path) -> None:
    told, _, _ = read_bundle(bundle)
    meta = json.loads((bundle / "model.meta.json").read_text())
    assert (meta["schema_version"], meta["framework"], meta["arithmetic"]) == ("1.0", "torchscript", told.arithmetic)
    assert abs(meta["saved_at"] - (bundle / "model.meta.json").stat().st_mtime) < 3600
    assert meta["expects"] == {
        "input_dim": 5,
        "feature_names": ["close", "logret", "ema_5", "rsi_5", "zwin_10"],
        "spec_hash": f"sha256:{hashlib.sha256(json.dumps(SPEC, sort_keys=True).encode()).hexdigest()}",
        "emit_from": told.warm_up,
        "pad_value": 0.0,
        "dtype": "float32",
        "output": "logit",
        "seq_len": told.reach,
    }
    serving = json.loads((bundle / "metadata.json").read_text())
    found = (serving["seq_len"], serving["input_layout"], serving["mean"], serving["std"])
    assert found == (told.reach, "BTF", [0.0] * 5, [1.0] * 5)
    low, high = serving["clip"]
    assert low < -1e9 < 1e9 < high, "without it their live window cuts raw prices off at 5"


def test_no_program_of_a_bundle_is_loaded_by_reading_it(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner in (torch.jit, torch.export):
        monkeypatch.setattr(owner, "load", lambda *given, **options: 1 / 0)
    assert verify_bundle(bundle).logits == 64
    assert json.loads((bundle / "bundle.json").read_text())["files"].keys() >= {"model.pt", "model.pt2"}


def edit(folder: Path, **changes: Any) -> None:
    told = json.loads((folder / "bundle.json").read_text())
    (folder / "bundle.json").write_text(json.dumps({**told, **changes}))


@of_one_kind_or_slow
def test_another_window_is_refused(copy: Path) -> None:
    own = BarPredictor.load(copy).bundle.length
    with pytest.raises(OptionError, match=f"windows here have 64 rows, but the model of .* was trained on {own}"):
        BarPredictor.load(copy, length=64)
    edit(copy, length=64)
    with pytest.raises(CheckpointInvalidError, match=f"says length 64, but model.safetensors was trained with {own}"):
        BarPredictor.load(copy)


@of_one_kind_or_slow
def test_another_spec_is_refused(copy: Path) -> None:
    other = {**SPEC, "features": SPEC["features"][::-1]}
    with pytest.raises(OptionError, match=r"the spec here is sha256:.*, but the model of .* was trained on sha256:"):
        BarPredictor.load(copy, spec=other)
    (copy / "feature_spec.json").write_text(json.dumps(other))
    with pytest.raises(CheckpointInvalidError, match=r"feature_spec.json has changed since it was written"):
        BarPredictor.load(copy)


@of_one_kind_or_slow
@pytest.mark.parametrize(
    "name", ["feature_spec.json", "model.safetensors", "model.pt2", "golden.safetensors", "model.pt", "model.meta.json"]
)
def test_no_file_of_a_bundle_may_change_or_be_missing(copy: Path, name: str) -> None:
    data = bytearray((copy / name).read_bytes())
    data[-1] ^= 1
    (copy / name).write_bytes(bytes(data))
    with pytest.raises(CheckpointInvalidError, match=f"{name} has changed"):
        (BarPredictor.load if name == "model.safetensors" else verify_bundle)(copy)
    (copy / name).unlink()
    with pytest.raises(CheckpointInvalidError, match=f"{name} is missing"):
        verify_bundle(copy)


@of_one_kind_or_slow
@pytest.mark.parametrize(("name", "other"), [("warm_up", 0), ("features", ["one", "two", "three", "four", "five"])])
def test_what_the_spec_gives_is_not_taken_from_elsewhere(copy: Path, name: str, other: Any) -> None:
    edit(copy, **{name: other})
    with pytest.raises(CheckpointInvalidError, match=rf"bundle.json says {name} .*, but feature_spec.json gives"):
        BarPredictor.load(copy)


def test_a_predictor_that_differs_from_the_batch_is_found(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logit = BarPredictor._logit
    monkeypatch.setattr(BarPredictor, "_logit", lambda self: logit(self) + 1e-4)
    with pytest.raises(TrainError, match=r"a logit is .* off bar by bar"):
        verify_bundle(bundle)
    monkeypatch.setattr(BarPredictor, "_logit", logit)
    push = stoker_recipes.tfa.FeatureStream.push
    monkeypatch.setattr(stoker_recipes.tfa.FeatureStream, "push", lambda self, bar: push(self, bar).clip(-5, 5))
    with pytest.raises(TrainError, match="differ between bar by bar and batch"):
        verify_bundle(bundle)


# Programs of a run: TorchScript for Sentio's C++, torch.export and ONNX; each answers as the model


HAS_ONNX = all(importlib.util.find_spec(name) is not None for name in ("onnxruntime", "onnxscript"))


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


def test_torchscript_answers_in_a_fresh_process_without_stoker(runs: Callable[[str], Path]) -> None:
    folders = [str(runs(kind).parent / "bundle") for kind in ("tfa", "banded")]
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
