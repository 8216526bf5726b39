"""A run of the Python Trainer is opened with its model: the same weights, the same feed, the same predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import stoker
from stoker.errors import CheckpointInvalidError, ConfigError, StokerError
from stoker.feed import CategoryCodes

VIEW = stoker.Windows(8, stride=2, horizon=2, tail="drop")


def store_of(seed: int = 0) -> stoker.Store:
    rng = np.random.default_rng(seed)
    return stoker.Store.from_arrays(**{name: [np.cumsum(rng.standard_normal(60)) for _ in range(4)] for name in ("load", "temp")})


def trained(folder: Path, **options: Any) -> tuple[stoker.Trainer, stoker.Feed]:
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    feed = stoker.Feed(store_of(), VIEW, batch_size=16, columns=["load"], **options)
    trainer = stoker.Trainer(model, nn.MSELoss(), torch.optim.AdamW(model.parameters()), folder=folder, progress=False)
    trainer.fit(feed, epochs=2)
    return trainer, feed


@pytest.mark.parametrize("scaled", [False, True])
def test_a_run_predicts_as_its_trainer_did(scaled: bool, tmp_path: Path) -> None:
    options = {"normalize": stoker.split.SeriesScaler.fit(store_of(), None, columns=["load"])} if scaled else {"normalize": "zero"}
    trainer, feed = trained(tmp_path / "run", **options)
    run = stoker.load(tmp_path / "run", model=nn.Linear(8, 2), device="cpu")
    assert run.step == 2 * len(feed)
    found, expected = run.predict(store_of()), trainer.predict(feed)["prediction"]
    assert torch.equal(found["prediction"], expected)
    assert found["series"].tolist() == [series for series in range(4) for _ in range(len(expected) // 4)]
    assert not torch.equal(run.predict(store_of(1))["prediction"] if not scaled else expected + 1, expected)
    assert torch.equal(run.predict(feed)["prediction"], expected), "batches of one's own"


def test_a_feed_of_the_run_has_the_settings_of_its_feed(tmp_path: Path) -> None:
    _, feed = trained(tmp_path / "run", observed=True, categories=CategoryCodes(offset=1))
    again = stoker.Feed.from_settings(json.loads((tmp_path / "run" / "feed.json").read_bytes()), store_of(), batch_size=16)
    assert again.identity() == feed.identity()


def test_a_run_without_its_model_says_how_to_open_it(tmp_path: Path) -> None:
    trained(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"stoker\.load\(run, model=model\)"):
        stoker.load(tmp_path / "run")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"view": {"name": "Evil"}}', '{"view": 3}'])
def test_a_forged_feed_is_one_line(text: str, tmp_path: Path) -> None:
    trained(tmp_path / "run")
    (tmp_path / "run" / "feed.json").write_text(text)
    run = stoker.load(tmp_path / "run", model=nn.Linear(8, 2), device="cpu")
    with pytest.raises(CheckpointInvalidError, match=r"feed\.json is damaged") as caught:
        run.predict(store_of())
    assert "\n" not in str(caught.value)


def test_negative_control_another_model_is_refused(tmp_path: Path) -> None:
    trained(tmp_path / "run")
    with pytest.raises(StokerError):
        stoker.load(tmp_path / "run", model=nn.Linear(7, 2), device="cpu")
