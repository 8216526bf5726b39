from __future__ import annotations

import math
from pathlib import Path

import optuna
import pytest

from stoker.errors import OptionError
from stoker.tune import Study, search
from stoker.tune.batch_sizes import BatchPoint, BatchSizeChoice


def test_a_study_is_plotted_with_all_its_parts(tmp_path: Path) -> None:
    def objective(params: dict[str, float], seed: int, trial: object) -> float:
        return (params["x"] - 0.3) ** 2 + 1e-3 * math.sin(seed)

    study = search(objective, {"x": ("uniform", 0, 1), "kind": ["a", "b"]}, budget=40, progress=False)
    text = study.plot(tmp_path / "study.svg").read_text()
    for words in ("history", "importance of parameters", "noise 0.000", "best so far", "other seeds"):
        assert words in text, words
    with pytest.raises(OptionError, match=r"expected .svg or .png"):
        study.plot(tmp_path / "study.pdf")
    with pytest.raises(OptionError, match=r"no trial of the study .* is complete, so there is nothing to plot"):
        Study(optuna_study=optuna.create_study()).plot(tmp_path / "none.svg")


def test_batch_sizes_are_plotted(tmp_path: Path) -> None:
    curve = (
        BatchPoint(size=8, samples_per_second=100.0, memory=10**6),
        BatchPoint(size=16, samples_per_second=150.0, memory=10**6),
        BatchPoint(size=32, samples_per_second=0.0, memory=0, fits=False),
    )
    choice = BatchSizeChoice(
        size=16, samples_per_second=150.0, memory=10**6, curve=curve, limit="memory", loader_samples_per_second=120.0
    )
    text = choice.plot(tmp_path / "batch.svg").read_text()
    assert "chosen: 16" in text
    assert "does not fit: 32" in text
    assert "what the loader delivers" in text
