"""Scoring: how good a model is on the third block, next to what must be beaten, and what that means in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from stoker.recipes.tfa.audit import auc
from stoker.recipes.tfa.baselines import baseline_scores, chance_area, gain
from stoker.recipes.tfa.data import LABEL, Prepared

Array = npt.NDArray[Any]

BINS = 10
SURE = 2.0
"""Standard errors that a gain must have to count."""
SUSPICIOUS = 0.95
"""An AUC from which on, in either direction, a leak is likelier than skill: even the synthetic markets of benchmarks/markets.py,
made to be predictable, allow no more than 0.87."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of the table."""

    name: str
    auc: float
    log_loss: float | None
    calibration: float | None
    """Mean distance of probabilities from what happened, over ten groups of them."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """Of a model, and of what it must beat."""

    labels: int
    up: float
    """Share of labels that are 1."""
    lines: tuple[Line, ...]
    """The model first."""
    chance: float
    """An area that chance does not reach in 95 of 100 cases."""
    gain: float
    """Over the best baseline, in area under the curve."""
    error: float
    """Of the gain."""
    skilled: bool
    """Whether the model is better than all baselines and chance."""
    verdict: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@torch.no_grad()
def predict(model: nn.Module, prepared: Prepared, part: str, *, device: str = "cpu") -> Array:
    """The logits of all rows that a part has labels for, in the order of `Prepared.labelled_rows`; float64."""
    model.eval()
    found = []
    for batch in prepared.feed(part, batch_size=max(1, 4096 // prepared.shape.run), device=device):
        logits = model(batch["features"])[:, -prepared.shape.run :]
        found.append(logits[batch["valid"]].double().cpu().reshape(-1))
    return torch.cat(found).numpy()


def score(model: Any, prepared: Prepared, *, device: str = "cpu") -> Score:
    """Judge a model by the rows of the score block that have a label."""
    rows = prepared.labelled_rows("test")
    labels = np.asarray(prepared.store.column(LABEL), dtype=np.float64)[rows]
    known = np.isfinite(labels)
    logits = predict(model, prepared, "test", device=device)[known]
    rows, labels = rows[known], labels[known]
    if prepared.pos_weight is not None:  # trained as if labels 1 were so many times as frequent
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
    """Whether a model has shown any skill, and the sentence that says so."""
    named = {"the model": area, NAMES[best.name]: best.auc}
    sharpest = max(named, key=lambda name: abs(named[name] - 0.5))
    if abs(named[sharpest] - 0.5) >= SUSPICIOUS - 0.5:
        return False, (
            f"SUSPICIOUS: {sharpest} has an AUC of {named[sharpest]:.3f} on rows it never saw, which no market allows. Look for "
            "the future within the features: a cache of other bars, a column that knows the next close, bars shifted in time. Do "
            "not use this model."
        )
    if not area > chance:
        return False, (
            f"NO SKILL: an AUC of {area:.3f} is what chance gives (up to {chance:.3f} with labels moved in time). Do not use "
            "this model."
        )
    if not mean > SURE * error:
        return False, (
            f"NO BETTER than {NAMES[best.name]} (AUC {area:.3f} against {best.auc:.3f}, gain {mean:+.3f} ± {error:.3f}): "
            f"the rows before the last one gave nothing. Use the simpler one, or none."
        )
    return True, (
        f"better than every baseline: AUC {area:.3f} against {best.auc:.3f} of {NAMES[best.name]} "
        f"(gain {mean:+.3f} ± {error:.3f}; chance stays below {chance:.3f})."
    )


NAMES = {
    "model": "the model",
    "volatility": "trailing volatility",
    "linear": "a linear model of the last row",
    "mlp": "a small network on the last row",
}
"""What the lines of the table are, in words."""


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
