"""`stoker.load(run).predict(bars)` for TFA: the logits of the predictor bar by bar, with names and times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.tfa.markets import market, write_csv
from tests.recipes.tfa.training_folder import OURS, make_folder, settings_of

import stoker
from stoker.errors import OptionError
from stoker_recipes.tfa import BarPredictor, train, write_bundle


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tfa")
    make_folder(folder, OURS)
    train(settings_of(folder, epochs=1), folder / "run")
    write_bundle(folder / "run", folder / "bundle")
    return folder / "run"


@pytest.mark.promise("P27")
def test_the_logits_of_the_predictor_with_times(run: Path, tmp_path: Path) -> None:
    bars = market(120, "lag", 7)
    write_csv(tmp_path / "new.csv", bars)
    found = stoker.load(run, device="cpu").predict(tmp_path / "new.csv", which="all")
    predictor = BarPredictor.load(run.parent / "bundle")
    names = [name for name in ("open", "high", "low", "close", "volume") if name in bars]
    pushed = [predictor.push({name: float(bars[name][i]) for name in names}) for i in range(120)]
    expected = {i: logit for i, logit in enumerate(pushed) if logit is not None}
    assert found["step"].to_pylist() == list(expected)
    assert found["logit"].to_pylist() == pytest.approx(list(expected.values()), abs=1e-5)
    assert found["prediction"].to_pylist() == pytest.approx([1 / (1 + np.exp(-logit)) for logit in expected.values()], abs=1e-5)
    assert set(found["series"].to_pylist()) == {"new.csv"}
    assert found["time"].to_pylist() == sorted(found["time"].to_pylist())
    last = stoker.load(run, device="cpu").predict(tmp_path / "new.csv")
    assert last.to_pylist() == found.to_pylist()[-1:]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv"]


def test_a_series_that_is_too_short_is_named(run: Path, tmp_path: Path) -> None:
    write_csv(tmp_path / "new.csv", market(12, "lag", 7))
    opened = stoker.load(run, device="cpu")
    with pytest.raises(
        OptionError, match=r"series 'new\.csv' of .*new\.csv has no prediction at its end: it needs \d+ complete bars"
    ):
        opened.predict(tmp_path / "new.csv")
    with pytest.raises(OptionError, match="Leave out horizon"):
        opened.predict(tmp_path / "new.csv", horizon=3)
