"""Differentially private training: its gradient is that of clipped subjects, and its cost that of the literature."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.recipes.tabular.frames import make_events

from stoker.errors import OptionError
from stoker_recipes.tabular import load_model, train
from stoker_recipes.tabular.batches import EncodedSubjects, SubjectBatches, SubjectLoss
from stoker_recipes.tabular.layout import make_layout
from stoker_recipes.tabular.model import TabularModel
from stoker_recipes.tabular.privacy import PrivateLoss, epsilon_of, most_epochs

COLUMNS = [{"cat": 5}, {"bin": 9, "fine": 11}]


def make_loss(max_length: int | None, **options: Any) -> tuple[PrivateLoss, SubjectLoss, dict[str, torch.Tensor]]:
    rng = np.random.default_rng(0)
    lengths = np.ones(12, np.int64) if max_length is None else rng.integers(0, max_length, 12)
    layout = make_layout(COLUMNS, context=[{"cat": 4}], max_length=max_length, median_length=3, size="s")
    codes = np.stack([rng.integers(0, size, lengths.sum()) for column in COLUMNS for size in column.values()], 1)
    data = EncodedSubjects.of(codes, np.cumsum(lengths) - lengths, lengths, rng.integers(0, 4, (12, 1)), torch.device("cpu"))
    model = TabularModel(layout, seed=1).eval()
    batch = next(iter(SubjectBatches(data, layout, np.arange(12), lengths=lengths, batch_size=12, seed=0)))
    return PrivateLoss(model, data, 3.0, batch_size=12, **options), SubjectLoss(model, data, 3.0), batch


def gradients(loss: torch.Tensor, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    names = dict(model.named_parameters())
    return dict(zip(names, torch.autograd.grad(loss, list(names.values()), materialize_grads=True), strict=True))


@pytest.mark.parametrize("max_length", [None, 6])
def test_without_noise_and_limit_it_is_the_usual_gradient(max_length: int | None) -> None:
    private, plain, batch = make_loss(max_length, norm=1e9, noise=0.0)
    loss, expected = private(batch), plain(batch)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    theirs = gradients(expected, private.model)
    for name, gradient in gradients(loss, private.model).items():
        assert torch.allclose(gradient, theirs[name], rtol=1e-3, atol=1e-6), name


@pytest.mark.promise("P30")
def test_every_subject_is_clipped_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow way: one subject after the other."""
    monkeypatch.setattr("stoker_recipes.tabular.privacy.MOST_GRADIENTS", 5 * 80_000)  # in several parts
    private, plain, batch = make_loss(6, norm=0.5, noise=0.0)
    expected = {name: torch.zeros_like(weight) for name, weight in private.model.named_parameters()}
    norms = []
    for row in range(12):
        alone = {**batch, **{name: batch[name][row : row + 1] for name in ("subjects", "valid", "begin")}}
        own = gradients(plain(alone), private.model)
        norm = float(torch.stack([one.norm() for one in own.values()]).norm())
        norms.append(norm)
        for name, one in own.items():
            expected[name] += one * min(1.0, 0.5 / norm)
    assert min(norms) > 0.5  # the limit does something
    for name, gradient in private.clipped(batch)[0].items():
        assert torch.allclose(gradient, expected[name], rtol=1e-3, atol=1e-5), name


@pytest.mark.promise("P30")
def test_noise_has_its_size() -> None:
    private, _, batch = make_loss(None, norm=0.5, noise=4.0)
    torch.manual_seed(0)
    found = gradients(private(batch), private.model)
    clipped = private.clipped(batch)[0]
    rest = torch.cat([(12 * found[name] - clipped[name]).flatten() for name in found])
    assert float(rest.std()) == pytest.approx(4.0 * 0.5, rel=0.02)


@pytest.mark.promise("P30")
@pytest.mark.parametrize(
    ("updates", "rate", "noise", "delta", "known"),
    [(1000, 0.01, 1.5, 1e-5, 1.0130), (6400, 1 / 64, 1.5, 1e-5, 4.4731), (10, 1.0, 2.0, 1e-5, 8.0794), (20_000, 1e-3, 0.8, 1e-5, 1.5683)],
)  # fmt: skip
def test_the_cost_is_that_of_the_accountant_of_opacus(updates: int, rate: float, noise: float, delta: float, known: float) -> None:
    """Numbers of `RDPAccountant` of opacus 1.6.0; ours looks at integer orders only, so it may be a little more, never less."""
    found = epsilon_of(updates=updates, rate=rate, noise=noise, delta=delta)
    assert known - 1e-3 <= found <= 1.01 * known


def test_training_stops_before_it_costs_too_much() -> None:
    options: dict[str, Any] = {"rate": 1 / 64, "noise": 1.5, "delta": 1e-5}
    found = most_epochs(100, per_epoch=64, max_epsilon=2, **options)
    assert epsilon_of(updates=64 * found, **options) <= 2 < epsilon_of(updates=64 * (found + 1), **options)
    assert most_epochs(3, per_epoch=64, max_epsilon=100, **options) == 3
    assert most_epochs(100, per_epoch=64, max_epsilon=0.1, **options) == 0


def test_a_private_run_knows_its_cost(tmp_path: Path) -> None:
    options: dict[str, Any] = {"size": "s", "epochs": 2, "noise": 1.5, "batch_size": 16}
    done = train(make_events(60), key="user", folder=tmp_path / "run", **options)
    assert done.result is not None
    assert done.epsilon == pytest.approx(epsilon_of(updates=6, rate=16 / 48, noise=1.5, delta=1e-5))
    assert load_model(tmp_path / "run").epsilon == done.epsilon
    with pytest.raises(OptionError, match=r"max_epsilon is 0.01, but one epoch costs .*Raise max_epsilon or noise"):
        train(make_events(60), key="user", folder=tmp_path / "dear", **options, max_epsilon=0.01)
    with pytest.raises(OptionError, match=r"noise is 0; expected a number from 0\.1"):
        train(make_events(60), key="user", folder=tmp_path / "none", noise=0)
