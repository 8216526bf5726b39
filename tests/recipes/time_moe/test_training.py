"""The recipe: data to run folder to official checkpoint; resumed exactly; invalid input is refused in one line."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from benchmarks.time_moe.folder import walks, write_folder
from tests.recipes.running import stop_and_resume, weights_of
from tests.recipes.time_moe.waves import write_csv

import stoker
from stoker import _disk
from stoker.errors import NonFiniteError, OptionError, SourceNotFoundError
from stoker_recipes import time_moe
from stoker_recipes.run_folder import make_settings, read_settings
from stoker_recipes.time_moe import training
from stoker_recipes.time_moe.data import Corpus
from stoker_recipes.time_moe.predicting import load_model
from stoker_recipes.time_moe.settings import TimeMoeSettings
from stoker_recipes.time_moe.training import Trained, make_model, make_rows, resume, train

QUICK: dict[str, Any] = {"size": "tiny", "length": 64, "batch_size": 2, "steps": 6, "validate_every": 2, "precision": "fp32"}
QUICK |= {"graph": False, "device": "cpu"}


@pytest.fixture(scope="module")
def ett(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ett")
    write_csv(folder / "ett.csv", 300)
    stoker.pack(folder / "ett.csv", folder / "ett.stoker", wide=True)
    return folder / "ett.stoker"


def test_a_run_has_checkpoints_metrics_settings_and_official_weights(ett: Path, tmp_path: Path) -> None:
    done = train(ett, folder=tmp_path / "run", **QUICK)
    assert (done.result.stopped, done.result.step) == ("finished", 6)
    assert done.points > 0
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"run.json", "metrics.jsonl", "recipe.json", "checkpoints", "weights"} <= names
    assert read_settings(tmp_path / "run", TimeMoeSettings) == make_settings(
        TimeMoeSettings, {"data": str(ett), **{k: v for k, v in QUICK.items() if k != "device"}}
    )
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "val_loss" in line] == [2, 4, 6]
    again = time_moe.TimeMoe(time_moe.read_size(tmp_path / "run" / "weights"))
    time_moe.load_weights(again, tmp_path / "run" / "weights")
    best = time_moe.TimeMoe(again.size)
    stoker.train.load_trained(best, tmp_path / "run")
    for (name, one), other in zip(again.state_dict().items(), best.state_dict().values(), strict=True):
        assert torch.equal(one, other), name


def test_a_run_learns_sines(tmp_path: Path) -> None:
    stoker.Store.from_arrays(x=[np.sin(np.arange(300.0) / 3 + number) for number in range(4)]).save(tmp_path / "sines.stoker")
    options = {**QUICK, "steps": 100, "validate_every": 100, "batch_size": 4, "lr": 1e-2, "lr_end": 1e-3}
    done = train(tmp_path / "sines.stoker", **options)
    assert done.result.metrics["val_loss"] < 0.35, "guessing the mean costs 0.5"


def test_a_run_that_was_stopped_ends_like_one_that_was_not(ett: Path, tmp_path: Path) -> None:
    done, whole = stop_and_resume(partial(train, ett), resume, tmp_path, **QUICK)
    assert done.result.step == 6
    assert all(torch.equal(tensor, whole[name]) for name, tensor in weights_of(done).items())


def test_data_that_changed_meanwhile_is_refused(tmp_path: Path) -> None:
    store = stoker.Store.from_arrays(x=[np.sin(np.arange(200.0))])
    store.save(tmp_path / "x.stoker")
    train(tmp_path / "x.stoker", folder=tmp_path / "run", **QUICK, max_seconds=1e-9, save_every=1)
    stoker.Store.from_arrays(x=[np.cos(np.arange(200.0))]).save(tmp_path / "x.stoker", replace=True)
    with pytest.raises(stoker.errors.FeedError, match="the state belongs to other data"):
        resume(tmp_path / "run", device="cpu", max_seconds=None)


def test_a_run_begins_with_an_official_checkpoint(ett: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    given = time_moe.TimeMoe(time_moe.SIZES["tiny"])
    time_moe.save_weights(given, tmp_path / "checkpoint")
    settings = make_settings(TimeMoeSettings, {"data": str(ett), "init": str(tmp_path / "checkpoint"), "length": 64})
    model = make_model(settings)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), given.parameters(), strict=True))
    with pytest.raises(OptionError, match=r"size is '50m', but .*checkpoint is of another size"):
        make_model(msgspec.structs.replace(settings, size="50m"))
    with pytest.raises(SourceNotFoundError, match="nowhere does not exist"):
        make_model(msgspec.structs.replace(settings, init=str(tmp_path / "nowhere")))


@pytest.mark.parametrize("samples", ["packed", "padded", "compat"])
def test_binary_folders_in_place_with_all_kinds_of_samples(tmp_path: Path, samples: str) -> None:
    write_folder(tmp_path / "time300b" / "a", walks([30, 90, 12, 200]), num_files=2)
    write_folder(tmp_path / "time300b" / "b", walks([70, 15]))
    done = train(tmp_path / "time300b", samples=samples, **{**QUICK, "steps": 2, "validate_every": 1})
    assert done.result.step == 2
    assert math.isfinite(done.result.metrics["loss"])
    assert ("val_loss" in done.result.metrics) == (samples != "compat")
    kind = {"packed": "packed", "padded": "one piece per row", "compat": "compat"}[samples]
    assert f"({kind})" in str(done.rows)


@pytest.mark.parametrize("samples", ["packed", "padded"])
def test_missing_points_are_not_targets(tmp_path: Path, samples: str) -> None:
    holes = np.arange(800.0)
    holes[::4] = np.nan
    stoker.Store.from_arrays(x=[holes]).save(tmp_path / "holes.stoker")
    stoker.Store.from_arrays(x=[holes[::4]]).save(tmp_path / "gone.stoker")
    given = {"length": 64, "samples": samples}
    assert make_rows(make_settings(TimeMoeSettings, {**given, "data": str(tmp_path / "holes.stoker")})).useful == pytest.approx(
        0.75, abs=0.05
    )
    with pytest.raises(OptionError, match=r"gone.stoker has no targets to train on: its points are missing \(NaN\)"):
        make_rows(make_settings(TimeMoeSettings, {**given, "data": str(tmp_path / "gone.stoker")}))


@pytest.mark.parametrize("normalize", ["zero", "none"])
def test_windows_of_the_authors_need_finite_points(tmp_path: Path, normalize: str) -> None:
    whole, holes = np.arange(300.0), np.arange(1, 400.0)
    holes[[217, 300]] = np.nan
    rows = "".join(f"{a},{'' if np.isnan(b) else b}\n" for a, b in zip(whole, holes, strict=False))
    (tmp_path / "two.csv").write_text("whole,holes\n" + rows)
    stoker.pack(tmp_path / "two.csv", tmp_path / "two.stoker", wide=True)
    given = {**QUICK, "samples": "compat", "normalize": normalize}
    with pytest.raises(OptionError) as caught:
        train(tmp_path / "two.stoker", folder=tmp_path / "run", **given)
    assert str(caught.value) == (
        f"series 'holes' of {tmp_path}/two.stoker is missing (NaN) at point 218, but samples='compat' "
        "needs finite values. Use samples='packed' or 'padded', which leave such points out, or "
        "pack the data again with missing='ffill' or 'drop'."
    )
    assert not (tmp_path / "run").exists()
    stoker.pack(tmp_path / "two.csv", tmp_path / "two.stoker", wide=True, missing="ffill", replace=True)
    assert math.isfinite(train(tmp_path / "two.stoker", **given).result.metrics["loss"])


def test_without_that_look_a_missing_point_stops_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stoker.Store.from_arrays(x=[np.where(np.arange(200) == 7, np.nan, 1.0)]).save(tmp_path / "x.stoker")
    monkeypatch.setattr(Corpus, "find_nonfinite", lambda self: None)
    with pytest.raises(NonFiniteError, match="the loss is nan at update 0"):
        train(tmp_path / "x.stoker", samples="compat", **QUICK)


@pytest.fixture
def sizes(tmp_path: Path) -> Path:
    """A config.json of sizes that are not published, and no weights."""
    shape = replace(time_moe.SIZES["tiny"], hidden=24, layers=1, horizons=(1, 4), spread=0.05)
    time_moe.save_weights(time_moe.TimeMoe(shape), tmp_path / "sizes")
    (tmp_path / "sizes" / "model.safetensors").unlink()
    return tmp_path / "sizes"


@pytest.mark.parametrize("name", ["", "config.json"])
def test_a_model_has_the_sizes_of_a_config_without_weights(ett: Path, tmp_path: Path, sizes: Path, name: str) -> None:
    options = {**QUICK, "size": None, "model": str(sizes / name)}
    done = train(ett, folder=tmp_path / "run", **options)
    assert (done.model.size.hidden, done.model.size.layers, done.model.size.horizons) == (24, 1, (1, 4))
    assert time_moe.read_size(tmp_path / "run" / "weights") == done.model.size
    begin = make_model(make_settings(TimeMoeSettings, {"data": str(ett), "model": str(sizes), "length": 64}))
    assert float(begin.embed.detach().std()) == pytest.approx(0.05, rel=0.5), "random, as the config says"


def test_negative_control_a_config_without_weights_is_not_a_checkpoint(
    ett: Path, sizes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SourceNotFoundError, match="holds neither model"):
        train(ett, **{**QUICK, "size": None, "init": str(sizes)})
    monkeypatch.setattr(training, "read_size", lambda folder: time_moe.SIZES["tiny"])
    assert train(ett, **{**QUICK, "size": None, "model": str(sizes)}).model.size.hidden != 24, "the config was not read"


@pytest.mark.parametrize("given", ["model", "init"])
def test_a_run_needs_neither_config_nor_checkpoint_again(ett: Path, tmp_path: Path, sizes: Path, given: str) -> None:
    if given == "init":
        time_moe.save_weights(time_moe.TimeMoe(time_moe.read_size(sizes)), sizes, overwrite=True)

    def resume_without(folder: Path, **changes: Any) -> Trained:
        assert isinstance(read_settings(folder, TimeMoeSettings).size, time_moe.Size)
        _disk.remove_folder(sizes)
        return resume(folder, **changes)

    done, whole = stop_and_resume(partial(train, ett), resume_without, tmp_path, **{**QUICK, "size": None, given: str(sizes)})
    assert done.result.step == 6
    assert all(torch.equal(tensor, whole[name]) for name, tensor in weights_of(done).items())
    assert load_model(tmp_path / "half").model.size.hidden == 24


def test_heads_are_weighted_in_the_training(ett: Path, tmp_path: Path) -> None:
    done = train(ett, folder=tmp_path / "run", **{**QUICK, "weight_decay": 0.0}, head_weights=[1, 0, 0, 0])
    torch.manual_seed(9899)
    begin = time_moe.TimeMoe(time_moe.SIZES["tiny"]).heads.weight
    latest = done.model.heads.weight
    assert torch.equal(latest[1:], begin[1:]), "heads that count nothing stay as they were"
    assert not torch.equal(latest[:1], begin[:1])
    assert read_settings(tmp_path / "run", TimeMoeSettings).head_weights == [1, 0, 0, 0]
