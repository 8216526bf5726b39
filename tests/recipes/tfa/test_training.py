"""The pipeline: from a YAML to a model that is judged by a block of time that nothing has seen."""

from __future__ import annotations

import errno
import itertools
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.tfa.markets import market, write_csv
from tests.harness import FaultyFiles
from tests.recipes.tfa.training_folder import OURS, SPEC, THEIRS, WARM_UP, change_bars, make_folder, prepared_of, settings_of

import stoker
from stoker import _disk
from stoker.errors import BadValueError, DiskError, OptionError, TrainError
from stoker_recipes.tfa import audit, training
from stoker_recipes.tfa.settings import ignored, read_settings
from stoker_recipes.tfa.training import Line, direction_loss, judge, train

LEARNS = {"d_model": 32, "epochs": 5, "T": 16, "batch_size": 128, "lr": 5e-3}


def test_a_market_with_a_signal_is_learned(tmp_path: Path) -> None:
    make_folder(tmp_path, num_bars=4000)
    done = train(settings_of(tmp_path, **LEARNS))
    assert done.score.skilled, done.score.verdict
    assert done.score.lines[0].auc > max(line.auc for line in done.score.lines[1:]) + 0.02
    saved = json.loads((tmp_path / "run" / "score.json").read_text())
    assert saved["verdict"] == done.score.verdict
    assert saved["best_validation_loss"] == done.result.best
    assert stoker.open(tmp_path / "run" / "data.stoker").digest == done.prepared.store.digest


def test_a_market_without_a_signal_is_called_so(tmp_path: Path) -> None:
    make_folder(tmp_path, signal="none")
    done = train(settings_of(tmp_path))
    assert not done.score.skilled
    assert done.score.verdict.startswith(("NO SKILL", "NO BETTER"))


def test_their_yaml_trains_unchanged(tmp_path: Path) -> None:
    make_folder(tmp_path, THEIRS)
    said: list[tuple[str, str]] = []
    done = train(settings_of(tmp_path), say=lambda *words: said.append(words))
    assert type(done.model).__name__ == "Tfa"
    assert done.model.reach == 8
    words = dict(said)
    assert words["model"].startswith("tfa (the authors' transformer), ")
    notes = [sentence for word, sentence in said if word == "note"]
    assert len(notes) == 3
    assert notes == ignored(done.prepared.settings)
    assert words["update"] == "256 labels per batch, 4 batches (1,024 labels) per update; theirs, `grad_accum_steps` sets it"
    assert (tmp_path / "artifacts/TFA/v1/score.json").is_file()


def test_batches_are_accumulated_as_by_their_trainer(tmp_path: Path) -> None:
    make_folder(tmp_path, THEIRS, num_bars=1500)
    counts = [
        train(
            settings_of(tmp_path, epochs=1, grad_accum_steps=batches, batch_size=32), tmp_path / "run", overwrite=True
        ).result.step
        for batches in (1, 3)
    ]
    assert counts == [counts[0], -(-counts[0] // 3)]
    assert counts[0] > 8
    assert settings_of(tmp_path).batches_per_update == 4, "theirs"
    assert settings_of(tmp_path, model="banded").batches_per_update == 1, "ours"
    (tmp_path / "several.yaml").write_text(THEIRS.replace("bars_csv: bars.csv", "datasets: [{path: bars.csv}]"))
    assert read_settings(tmp_path / "several.yaml").batches_per_update == 1, "as in their trainer of several datasets"


# The folder of a run


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.promise("P24")
@pytest.mark.parametrize("out_dir", [".", "mine", "artifacts/TFA/v1"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_the_users_is_never_written_into(tmp_path: Path, out_dir: str, overwrite: bool) -> None:
    make_folder(tmp_path)
    for name in ("bars/mine.csv", "config.yaml", "checkpoints/model.pt", "data.stoker/x", "feature_spec.json"):
        path = tmp_path / out_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("precious")
    before = contents(tmp_path)
    with pytest.raises(OptionError, match=r"was not made by Stoker: .* Nothing was changed\. Give the run its own folder") as error:
        train(settings_of(tmp_path, out_dir=out_dir), overwrite=overwrite)
    assert "out_dir" in str(error.value)
    assert contents(tmp_path) == before


@pytest.mark.promise("P24", control=True)
def test_negative_control_without_the_claim_files_of_the_user_are_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("precious")
    monkeypatch.setattr(_disk, "claim_folder", lambda *given, **options: None)
    train(settings_of(tmp_path, epochs=1))
    assert (tmp_path / "run" / "config.yaml").read_text() != "precious"


@pytest.mark.promise("P24")
def test_overwriting_a_run_leaves_what_is_not_of_it(tmp_path: Path) -> None:
    make_folder(tmp_path)
    train(settings_of(tmp_path, epochs=1))
    run = tmp_path / "run"
    for name in ("notes.txt", "bars/mine.csv", "bars/own.stoker/prices.csv"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("precious")
    first = (run / "run.json").read_bytes()
    with pytest.raises(
        OptionError,
        match=r"has a run already\. Pass resume=True to continue it, overwrite=True to replace it, or another folder",
    ):
        train(settings_of(tmp_path, epochs=2))
    assert (run / "run.json").read_bytes() == first
    done = train(settings_of(tmp_path, epochs=2), overwrite=True)
    assert done.result.epoch == 2
    for name in ("notes.txt", "bars/mine.csv", "bars/own.stoker/prices.csv"):
        assert (run / name).read_text() == "precious"


def test_a_run_folder_is_for_one_process(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "run" / "bars").mkdir(parents=True)
    (tmp_path / "run" / "recipe.json").write_text('{"recipe": "tfa"}\n')
    with _disk.Lock(tmp_path / "run" / "bars"), pytest.raises(TrainError, match=r"run is in use by process \d+\. Wait"):
        train(settings_of(tmp_path))
    assert train(settings_of(tmp_path, epochs=1)).result.epoch == 1


@pytest.mark.parametrize("operation", [0, 4, 30, 90])
def test_a_disk_that_refuses_is_one_line_and_the_run_can_be_started_again(tmp_path: Path, operation: int) -> None:
    make_folder(tmp_path)
    with FaultyFiles(error_at=(operation, errno.EROFS)), pytest.raises(DiskError) as error:
        train(settings_of(tmp_path, epochs=1))
    assert "Read-only file system" in str(error.value)
    assert train(settings_of(tmp_path, epochs=1)).result.epoch == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"label_horizon": 3},
        {"seed": 5},
        {"batch_size": 64},
        {"embargo": 60},
        {"gaps": "cut"},
        {"grad_accum_steps": 3},
        {"split": [0.6, 0.2, 0.2]},
        {"bars_csv": "other.csv"},
        {"feature_spec": "other.json"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_settings_that_make_another_run_are_refused_before_a_file_is_touched(stopped: Path, changes: dict[str, Any]) -> None:
    (stopped / "other.json").write_text(json.dumps({**SPEC, "features": SPEC["features"][:4]}))
    before = contents(stopped / "run")
    with pytest.raises(OptionError, match=rf"run is a run with other settings: {next(iter(changes))}: .* Make them equal"):
        train(settings_of(stopped, schedule="constant", **changes), stopped / "run", resume=True)
    assert contents(stopped / "run") == before


def test_negative_control_without_the_comparisons_another_seed_is_accepted(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(stopped / "run", stopped / "copy")
    monkeypatch.setattr(training, "_resumed", lambda settings, folder: settings)
    monkeypatch.setattr("stoker.train.resume.compare", lambda *given, **options: None)
    done = train(settings_of(stopped, schedule="constant", seed=5, epochs=2), stopped / "copy", resume=True)
    assert done.result.epoch == 2


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of one epoch."""
    folder = tmp_path_factory.mktemp("stopped")
    make_folder(folder)
    train(settings_of(folder, epochs=1, schedule="constant"))
    return folder


def test_a_run_that_was_stopped_ends_as_one_that_was_not(tmp_path: Path) -> None:
    make_folder(tmp_path)
    whole = train(settings_of(tmp_path), tmp_path / "whole")
    train(settings_of(tmp_path, epochs=1, schedule="constant"), tmp_path / "part")
    plain = train(settings_of(tmp_path, schedule="constant"), tmp_path / "plain")
    gone_on = train(settings_of(tmp_path, schedule="constant"), tmp_path / "part", resume=True)
    assert gone_on.result.epoch == plain.result.epoch == whole.result.epoch == 2
    for ours, theirs in zip(gone_on.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_bars_that_were_refused_can_be_fixed_in_the_same_folder(tmp_path: Path) -> None:
    make_folder(tmp_path)
    change_bars(tmp_path, close=lambda values: np.where(np.arange(3000) == 70, np.nan, values))
    with pytest.raises(BadValueError, match="close is nan in bar 71"):
        train(settings_of(tmp_path))
    change_bars(tmp_path)
    done = train(settings_of(tmp_path, epochs=1))
    assert done.result.epoch == 1
    with pytest.raises(OptionError, match="has a run already"):
        train(settings_of(tmp_path))


def test_rows_are_ready_and_blocks_are_apart(tmp_path: Path) -> None:
    make_folder(tmp_path)
    prepared = prepared_of(tmp_path)
    rows = np.asarray(prepared.store.column("row"))
    assert rows[0] == WARM_UP == prepared.warm_up
    assert np.isfinite(prepared.store.column("features")).all()
    blocks = [rows[prepared.labelled_rows(part)] for part in ("train", "valid", "test")]
    for earlier, later in itertools.pairwise(blocks):
        assert later.min() - earlier.max() > prepared.rule.horizon + WARM_UP + prepared.shape.context


def test_series_come_as_often_as_their_weight(tmp_path: Path) -> None:
    yaml = OURS.replace("bars_csv: bars.csv", "datasets: [{path: bars.csv, weight: 3}, {path: other.csv}]")
    make_folder(tmp_path, yaml)
    write_csv(tmp_path / "other.csv", market(3000, "none", 1))
    prepared = prepared_of(tmp_path)
    feed = prepared.feed("train", return_index=True)
    numbers = np.concatenate([batch["sample"][batch["valid"]].numpy() for batch in feed])
    starts = feed.samples.locate(numbers).starts
    first = (starts < int(np.asarray(prepared.store.lengths)[0])).mean()
    assert first == pytest.approx(0.75, abs=0.03)


def test_the_loss_is_that_of_known_labels_alone() -> None:
    class Answers(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[..., 0]

    nan = math.nan
    features = torch.tensor([[9.0, 1.0, -2.0, 0.5], [0.0, 0.0, 0.0, 0.0]])[..., None]
    batch = {
        "features": features,
        "label": torch.tensor([[1.0, 1.0, nan, 0.0], [0.0, 0.0, 0.0, 0.0]]),
        "valid": torch.tensor([True, False]),
    }
    found = direction_loss(3, torch.tensor(2.0))(Answers(), batch)
    expected = (2 * math.log1p(math.exp(-1.0)) + math.log1p(math.exp(0.5))) / 2
    assert float(found["loss"]) == pytest.approx(expected)
    assert found["valid"].tolist() == [[True, False, True], [False, False, False]]


@pytest.mark.parametrize(("area", "baseline"), [(1.0, 0.7), (0.97, 0.999), (0.9, 0.96), (0.6, 0.04), (0.02, 0.5)])
def test_an_area_near_1_is_suspicious_for_every_model(area: float, baseline: float) -> None:
    best = Line(name="linear", auc=baseline, log_loss=0.6, calibration=0.01)
    skilled, verdict = judge(area, 0.52, best, 0.1, 0.01)
    assert not skilled
    assert verdict.startswith("SUSPICIOUS: ")
    assert "simpler" not in verdict


def test_features_that_know_the_future_end_in_a_suspicious_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(tmp_path)
    spec = {**SPEC, "features": [*SPEC["features"], {"name": "volume", "op": "IDENT", "source": "volume"}]}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    close = market(3000, "lag", 0, follows=True)["close"]
    change_bars(tmp_path, volume=lambda volume: 1000 + 100.0 * (np.diff(close, append=0) > 0))
    done = train(settings_of(tmp_path, **LEARNS))
    assert done.score.lines[0].auc > 0.95
    assert not done.score.skilled
    assert done.score.verdict.startswith("SUSPICIOUS: ")
    monkeypatch.setattr(training, "SUSPICIOUS", 1.1)  # control: without the guard it is praised, or a simpler model is
    again = training.score(done.model, done.prepared)
    assert again.verdict.startswith(("better than every baseline", "NO BETTER"))


def test_baselines_are_what_they_say() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 3)).astype(np.float32)
    logits = x @ np.array([1.5, -0.5, 0.0]) + 0.3
    y = (rng.random(4000) < 1 / (1 + np.exp(-logits))).astype(np.float64)
    np.testing.assert_allclose(training.fit_linear(x, y), [1.5, -0.5, 0.0, 0.3], atol=0.15)
    assert training.chance_area(rng.normal(size=4000), y) < 0.53
    others = rng.normal(size=4000)
    mean, error = training.gain(logits, others, y)
    assert mean > 5 * error
    assert mean == pytest.approx(audit.auc(logits, y) - audit.auc(others, y)), "the difference of the areas that are told"
    mean, error = training.gain(logits, logits, y)
    assert (mean, error) == (0.0, 0.0)


def test_calibration_and_log_loss_are_those_of_the_definition() -> None:
    logits, labels = np.array([0.0, 2.0]), np.array([1.0, 0.0])
    assert training._log_loss(logits, labels) == pytest.approx((math.log(2) + 2 + math.log1p(math.exp(-2))) / 2)
    rng = np.random.default_rng(0)
    chances = rng.random(20_000)
    right, wrong = (rng.random(20_000) < chances).astype(float), (rng.random(20_000) < 0.5).astype(float)
    logits = np.log(chances / (1 - chances))
    assert training._calibration(logits, right) < 0.02
    assert training._calibration(logits, wrong) > 0.2


# The number of threads decides bits, so it is stated, kept with the run, and given back


@pytest.mark.promise("P23")
@pytest.mark.parametrize(
    ("yaml", "given", "expected"), [(OURS, None, 1), (THEIRS, None, 3), (OURS, 2, 2)], ids=["ours", "theirs", "two"]
)
def test_threads_are_stated_and_kept_with_the_run(
    yaml: Any, given: int | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError(f"{torch.get_num_threads()} threads")

    monkeypatch.setattr(training, "_fit", fit)  # what it computes does not matter here
    make_folder(tmp_path, yaml)
    with training.using(3):
        with pytest.raises(RuntimeError, match=f"^{expected} threads"):
            training.train(settings_of(tmp_path, threads=given, epochs=1), tmp_path / "run")
        assert torch.get_num_threads() == 3
    with training.using(1):  # another machine, or another moment
        assert training.threads_of(read_settings(tmp_path / "run" / "config.yaml")) == expected


def trained_with(count: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(128, 8, 256, dropout=0.0, batch_first=True)
    with training.using(count):
        layer(torch.randn(64, 96, 128)).square().sum().backward()
    return [weight.grad.clone() for weight in layer.parameters() if weight.grad is not None]


@pytest.mark.promise("P23", control=True)
def test_other_threads_give_other_bits() -> None:
    """Negative control: what a measured number of threads would do."""
    assert all(map(torch.equal, trained_with(1), trained_with(1)))
    assert not all(map(torch.equal, trained_with(1), trained_with(2)))
