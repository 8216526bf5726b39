"""The pipeline: from a YAML to a model that is judged by a block of time that nothing has seen."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.markets import market, write_csv
from tests.recipes.tfa.trainings import OURS, THEIRS, WARM_UP, change_bars, make_folder, prepared_of, settings_of

import stoker
from stoker.errors import BadValue, OptionError
from stoker.recipes.tfa import audit, baselines, scoring
from stoker.recipes.tfa.pipeline import direction_loss, train
from stoker.recipes.tfa.scoring import Line, judge

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
    assert len(notes) == 2
    assert "cache.csv is not read" in notes[0]
    assert "num_workers: 6 is not needed" in notes[1]
    assert (tmp_path / "artifacts/TFA/v1/score.json").is_file()


def test_a_run_that_was_stopped_ends_as_one_that_was_not(tmp_path: Path) -> None:
    make_folder(tmp_path)
    whole = train(settings_of(tmp_path), tmp_path / "whole")
    train(settings_of(tmp_path, epochs=1, schedule="constant"), tmp_path / "part")
    plain = train(settings_of(tmp_path, schedule="constant"), tmp_path / "plain")
    gone_on = train(settings_of(tmp_path, schedule="constant"), tmp_path / "part", resume=True)
    assert gone_on.result.epoch == plain.result.epoch == whole.result.epoch == 2
    for ours, theirs in zip(gone_on.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_bars_that_were_refused_can_be_mended_under_the_same_folder(tmp_path: Path) -> None:
    make_folder(tmp_path)
    change_bars(tmp_path, close=lambda values: np.where(np.arange(3000) == 70, np.nan, values))
    with pytest.raises(BadValue, match="close is nan in bar 71"):
        train(settings_of(tmp_path))
    change_bars(tmp_path)
    done = train(settings_of(tmp_path, epochs=1))
    assert done.result.epoch == 1
    with pytest.raises(OptionError, match="has a run already"):
        train(settings_of(tmp_path))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "spec.json is not a spec of features: Object missing required field features"),
        ({"features": []}, "spec.json .*features"),
        ({"features": [{"op": "FOO"}]}, r"spec.json at \$.features\[0\].op: found 'FOO'"),
    ],
)
def test_what_is_no_spec_is_refused_by_its_name(tmp_path: Path, spec: dict[str, Any], message: str) -> None:
    make_folder(tmp_path)
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    with pytest.raises(OptionError, match=message):
        prepared_of(tmp_path)


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
    feed = prepared.feed("train", numbers=True)
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


def test_verdicts_say_what_was_beaten() -> None:
    best = Line(name="mlp", auc=0.7, log_loss=0.6, calibration=0.01)
    assert judge(0.51, 0.52, best, 0.1, 0.01) == (
        False,
        "NO SKILL: an AUC of 0.510 is what chance gives (up to 0.520 with labels moved in time). Do not use this model.",
    )
    assert judge(0.71, 0.52, best, 0.01, 0.01)[1].startswith(
        "NO BETTER than a small network on the last row (AUC 0.710 against 0.700"
    )
    assert judge(0.8, 0.52, best, 0.1, 0.01)[0]


def test_baselines_are_what_they_say() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 3)).astype(np.float32)
    logits = x @ np.array([1.5, -0.5, 0.0]) + 0.3
    y = (rng.random(4000) < 1 / (1 + np.exp(-logits))).astype(np.float64)
    np.testing.assert_allclose(baselines.fit_linear(x, y), [1.5, -0.5, 0.0, 0.3], atol=0.15)
    assert baselines.chance_area(rng.normal(size=4000), y) < 0.53
    others = rng.normal(size=4000)
    mean, error = baselines.gain(logits, others, y)
    assert mean > 5 * error
    assert mean == pytest.approx(audit.auc(logits, y) - audit.auc(others, y)), "the difference of the areas that are told"
    mean, error = baselines.gain(logits, logits, y)
    assert (mean, error) == (0.0, 0.0)


def test_calibration_and_log_loss_are_those_of_the_definition() -> None:
    logits, labels = np.array([0.0, 2.0]), np.array([1.0, 0.0])
    assert scoring._log_loss(logits, labels) == pytest.approx((math.log(2) + 2 + math.log1p(math.exp(-2))) / 2)
    rng = np.random.default_rng(0)
    chances = rng.random(20_000)
    right, wrong = (rng.random(20_000) < chances).astype(float), (rng.random(20_000) < 0.5).astype(float)
    logits = np.log(chances / (1 - chances))
    assert scoring._calibration(logits, right) < 0.02
    assert scoring._calibration(logits, wrong) > 0.2
