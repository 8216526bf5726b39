"""Scoring: how good a model is on the score block, next to baselines on the same rows, and a verdict in words.

    volatility      the standard deviation of the last 20 returns, which knows no direction
    linear          logistic regression on the last row
    mlp             a small network on the last row
    chance          the AUC that scores reach with labels shifted in time

The last row has all features, so the gain over `mlp` comes from the rows before it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

import stoker
from stoker._types import Array
from stoker.recipes.tfa.audit import auc
from stoker.recipes.tfa.data import FEATURES, LABEL, VOLATILITY, Prepared
from stoker.recipes.tfa.model import Scaler

# ---- baselines ----

MOST_ROWS = 100_000
"""Rows that a baseline is fitted on: evenly spaced, where there are more."""
FARTHEST = 10.0
"""Standard deviations at which a scaled feature is clipped."""
STEPS_OF_NEWTON, RIDGE = 8, 1.0
SHIFTS = 200


def baseline_scores(prepared: Prepared, model: Scaler, rows: Array) -> dict[str, Array]:
    """The logits of each baseline for these rows of the store; for volatility, a score without a scale."""
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
    """Logistic regression with a ridge penalty by Newton's method; the intercept is the last weight."""
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
    """The 95 % quantile of the AUC with labels that are shifted in time as a whole, which keeps their autocorrelation."""
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
    """The difference of two AUCs and its standard error, by a jackknife over parts of time."""

    def difference(rows: Array) -> float:
        return auc(scores[rows], labels[rows]) - auc(others[rows], labels[rows])

    every = np.arange(len(labels))
    found = np.array([difference(np.setdiff1d(every, part)) for part in np.array_split(every, chunks) if len(part)])
    if len(found) < 2 or not np.isfinite(found).all():
        return float("nan"), float("inf")
    error = np.sqrt((len(found) - 1) * np.mean((found - found.mean()) ** 2))
    return difference(every), float(error)


# ---- the score ----

BINS = 10
SURE = 2.0
"""Standard errors that a gain must have to count."""
SUSPICIOUS = 0.95
"""From this AUC on, in either direction, a leak is more likely than skill: even the predictable synthetic markets of
benchmarks/markets.py allow no more than 0.87."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of the table."""

    name: str
    auc: float
    log_loss: float | None
    calibration: float | None
    """Mean distance of predicted probabilities from observed frequencies, in ten bins."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """The score of a model and its baselines."""

    labels: int
    up: float
    """Share of labels that are 1."""
    lines: tuple[Line, ...]
    """The model first."""
    chance: float
    """AUC that chance does not reach in 95 of 100 cases."""
    gain: float
    """Gain in AUC over the best baseline."""
    error: float
    """Standard error of the gain."""
    skilled: bool
    """Whether the model is better than all baselines and chance."""
    verdict: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@torch.no_grad()
def predict(model: nn.Module, prepared: Prepared, part: str, *, device: str = "cpu") -> Array:
    """The logits of all labelled rows of a part, in the order of `Prepared.labelled_rows`; float64."""
    model.eval()
    found = []
    for batch in prepared.feed(part, batch_size=max(1, 4096 // prepared.shape.run), device=device):
        logits = model(batch["features"])[:, -prepared.shape.run :]
        found.append(logits[batch["valid"]].double().cpu().reshape(-1))
    return torch.cat(found).numpy()


def score(model: Any, prepared: Prepared, *, device: str = "cpu") -> Score:
    """Score a model on the labelled rows of the score block."""
    rows = prepared.labelled_rows("test")
    labels = np.asarray(prepared.store.column(LABEL), dtype=np.float64)[rows]
    known = np.isfinite(labels)
    logits = predict(model, prepared, "test", device=device)[known]
    rows, labels = rows[known], labels[known]
    if prepared.pos_weight is not None:  # the model was trained as if labels 1 were more frequent by this factor
        logits = logits - float(torch.log(prepared.pos_weight))
    baselines = baseline_scores(prepared, model.cpu(), rows)
    lines = [_line("model", logits, labels)] + [_line(name, found, labels) for name, found in baselines.items()]
    best = max(lines[1:], key=lambda line: line.auc)
    chance = chance_area(logits, labels, seed=prepared.settings.seed)
    mean, error = gain(logits, baselines[best.name], labels)
    skilled, verdict = judge(lines[0].auc, chance, best, mean, error)
    return Score(
        labels=len(labels),
        up=float(labels.mean()),
        lines=tuple(lines),
        chance=chance,
        gain=mean,
        error=error,
        skilled=skilled,
        verdict=verdict,
    )


def judge(area: float, chance: float, best: Line, mean: float, error: float) -> tuple[bool, str]:
    """Whether a model shows skill, and the verdict in words."""
    named = {"the model": area, NAMES[best.name]: best.auc}
    sharpest = max(named, key=lambda name: abs(named[name] - 0.5))
    if abs(named[sharpest] - 0.5) >= SUSPICIOUS - 0.5:
        return False, (
            f"SUSPICIOUS: {sharpest} has an AUC of {named[sharpest]:.3f} on held-out rows, which no market allows. Check the "
            "features for leaks of the future: a cache of other bars, a column with the next close, bars shifted in time. Do not "
            "use this model."
        )
    if not area > chance:
        return False, (
            f"NO SKILL: an AUC of {area:.3f} is within chance (up to {chance:.3f} with labels shifted in time). Do not use this "
            "model."
        )
    if not mean > SURE * error:
        return False, (
            f"NO BETTER than {NAMES[best.name]} (AUC {area:.3f} against {best.auc:.3f}, gain {mean:+.3f} ± {error:.3f}): "
            f"the rows before the last one did not help. Use the simpler model, or none."
        )
    return True, (
        f"better than every baseline: AUC {area:.3f} against {best.auc:.3f} of {NAMES[best.name]} "
        f"(gain {mean:+.3f} ± {error:.3f}; chance is below {chance:.3f})."
    )


NAMES = {
    "model": "the model",
    "volatility": "trailing volatility",
    "linear": "a linear model of the last row",
    "mlp": "a small network on the last row",
}
"""The lines of the table in words."""


def _line(name: str, logits: Array, labels: Array) -> Line:
    area = auc(logits, labels)
    if name == "volatility":
        return Line(name=name, auc=area, log_loss=None, calibration=None)
    return Line(name=name, auc=area, log_loss=_log_loss(logits, labels), calibration=_calibration(logits, labels))


def _log_loss(logits: Array, labels: Array) -> float:
    return float(np.mean(np.logaddexp(0, logits) - labels * logits))


def _calibration(logits: Array, labels: Array) -> float:
    chances = 1 / (1 + np.exp(-np.clip(logits, -500, 500)))
    parts = np.array_split(np.argsort(chances, kind="stable"), BINS)
    return float(sum(len(part) * abs(chances[part].mean() - labels[part].mean()) for part in parts if len(part)) / len(labels))
