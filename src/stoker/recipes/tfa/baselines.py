"""Baselines: what a model must beat before anybody believes it, on the very rows that it is scored on.

    volatility      the deviation of the last 20 returns, which knows no direction
    linear          logistic regression on the last row
    mlp             a small network on the last row
    chance          what scores reach where labels are moved against them

The last row has all features, so what a model gains over `mlp` is what it takes from the rows before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import stoker
from stoker.recipes.tfa.audit import auc
from stoker.recipes.tfa.data import FEATURES, LABEL, VOLATILITY, Prepared
from stoker.recipes.tfa.scaler import Scaler

Array = npt.NDArray[Any]

MOST_ROWS = 100_000
"""Rows that a baseline is fitted on: evenly chosen, where there are more."""
FARTHEST = 10.0
"""Deviations beyond which a scaled feature is cut off."""
STEPS_OF_NEWTON, RIDGE = 8, 1.0
SHIFTS = 200


def baseline_scores(prepared: Prepared, model: Scaler, rows: Array) -> dict[str, Array]:
    """The logit that each baseline gives to these rows of the store; of volatility, a score without a scale."""
    train = _labelled(prepared, "train")
    valid = _labelled(prepared, "valid")
    x, y = _inputs(prepared, model, train), np.asarray(prepared.store.column(LABEL))[train]
    given = _inputs(prepared, model, rows)
    weights = fit_linear(x, y)
    network = _fit_network(x, y, _inputs(prepared, model, valid), np.asarray(prepared.store.column(LABEL))[valid], prepared)
    with torch.no_grad():
        answers = network(torch.from_numpy(given)).reshape(-1).numpy().astype(np.float64)
    return {
        "volatility": np.asarray(prepared.store.column(VOLATILITY), dtype=np.float64)[rows],
        "linear": given.astype(np.float64) @ weights[:-1] + weights[-1],
        "mlp": answers,
    }


def _labelled(prepared: Prepared, part: str) -> Array:
    rows = prepared.labelled_rows(part)
    rows = rows[np.isfinite(np.asarray(prepared.store.column(LABEL))[rows])]
    some: Array = rows[:: -(-len(rows) // MOST_ROWS)] if len(rows) else rows
    return some


def _inputs(prepared: Prepared, model: Scaler, rows: Array) -> Array:
    """Rows as the model itself sees them, float32."""
    features = torch.from_numpy(np.asarray(prepared.store.column(FEATURES))[rows])
    with torch.no_grad():
        return model.scale(features).clamp(-FARTHEST, FARTHEST).numpy()


def fit_linear(x: Array, y: Array) -> Array:
    """Logistic regression by Newton's method, with a ridge; the intercept is the last weight."""
    x = np.concatenate([x.astype(np.float64), np.ones((len(x), 1))], axis=1)
    weights = np.zeros(x.shape[1])
    for _ in range(STEPS_OF_NEWTON):
        chance = 1 / (1 + np.exp(-np.clip(x @ weights, -30, 30)))
        slope = x.T @ (y - chance) - RIDGE * weights
        curve = (x * (chance * (1 - chance))[:, None]).T @ x + RIDGE * np.eye(len(weights))
        weights += np.linalg.solve(curve, slope)
    return weights


def _fit_network(x: Array, y: Array, x_valid: Array, y_valid: Array, prepared: Prepared) -> nn.Module:
    seed = prepared.settings.seed
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(x.shape[1], 64), nn.GELU(), nn.Linear(64, 1))

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        target, valid = batch["y"][:, 0], batch["valid"]
        each = nn.functional.binary_cross_entropy_with_logits(model(batch["x"][:, 0]).reshape(-1), target, reduction="none")
        mean: torch.Tensor = torch.where(valid, each, 0).sum() / valid.sum().clamp(min=1)
        return mean

    def feed(x: Array, y: Array, order: Any) -> stoker.Feed:
        store = stoker.Store.from_arrays(lengths=[len(x)], x=x, y=y.astype(np.float32))
        return stoker.Feed(store, stoker.Windows(1), batch_size=512, order=order)

    trainer = stoker.Trainer(
        network,
        loss,
        torch.optim.AdamW(network.parameters(), lr=2e-3),
        precision="fp32",
        fused=True,
        graph=False,
        compile=False,
        progress=False,
        early_stopping=stoker.EarlyStopping("val_loss", patience=2, mode="min"),
    )
    trainer.fit(feed(x, y, stoker.Shuffle(seed)), valid=feed(x_valid, y_valid, None), epochs=4)
    return network.eval()


def chance_area(scores: Array, labels: Array, *, seed: int = 0) -> float:
    """The area under the curve that 95 % of labels moved in time stay below; moved as a whole, they keep their own rhythm."""
    shifts = np.random.default_rng(seed).integers(len(labels) // 20, max(len(labels) - len(labels) // 20, 1), SHIFTS)
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    positives = labels > 0.5
    count = int(positives.sum())
    if not 0 < count < len(labels):
        return float("nan")
    areas = [
        (ranks[np.roll(positives, int(shift))].sum() - count * (count + 1) / 2) / (count * (len(labels) - count))
        for shift in shifts
    ]
    return float(np.quantile(areas, 0.95))


def gain(scores: Array, others: Array, labels: Array, *, chunks: int = 20) -> tuple[float, float]:
    """How much larger the area of some scores is than that of others, and its error, by leaving out parts of time in turn."""

    def difference(rows: Array) -> float:
        return auc(scores[rows], labels[rows]) - auc(others[rows], labels[rows])

    every = np.arange(len(labels))
    found = np.array([difference(np.setdiff1d(every, part)) for part in np.array_split(every, chunks) if len(part)])
    if len(found) < 2 or not np.isfinite(found).all():
        return float("nan"), float("inf")
    error = np.sqrt((len(found) - 1) * np.mean((found - found.mean()) ** 2))
    return difference(every), float(error)
