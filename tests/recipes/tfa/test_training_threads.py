"""The number of threads decides bits, so it is stated, kept with the run, and given back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.recipes.tfa.training_folder import OURS, THEIRS, make_folder, settings_of

from stoker_recipes.tfa import training
from stoker_recipes.tfa.settings import read_settings


@pytest.mark.promise("P23")
@pytest.mark.parametrize(
    ("yaml", "given", "expected"), [(OURS, None, 1), (THEIRS, None, 3), (OURS, 2, 2)], ids=["ours", "theirs", "two"]
)
def test_threads_are_stated_and_kept_with_the_run(
    yaml: Any, given: int | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []
    original = training._fit
    monkeypatch.setattr(training, "_fit", lambda *a, **options: (used.append(torch.get_num_threads()), original(*a, **options))[1])
    make_folder(tmp_path, yaml)
    with training.using(3):
        training.train(settings_of(tmp_path, threads=given, epochs=1), tmp_path / "run")
        assert torch.get_num_threads() == 3
        assert used == [expected]
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
