"""The page of a quality report: one HTML file with inline SVG, which needs nothing beside it and holds no script.

Names of columns and values are data of the user: all markup is in the template, Jinja escapes every value, and a policy in the page
forbids scripts and requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

import stoker
from stoker._text import printable
from stoker._types import Array
from stoker.recipes.tabular.quality_accuracy import Accuracies, Marginal
from stoker.recipes.tabular.quality_noise import Measure, Verdict
from stoker.recipes.tabular.quality_records import Proximity, RecordFindings
from stoker.recipes.tabular.quality_sequences import SequenceCurve, SequenceFindings, TransitionMatrix

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATE = "quality.html.jinja"
ORDER: dict[Verdict, int] = {"same": 0, "close": 1, "differs": 2}
WIDTH, HEIGHT = 300, 90
MOST_FIGURES, MOST_MATRICES, MOST_DETAILS = 60, 12, 60
LABEL = 16
HEADINGS = {
    "same": "As good as a second real sample",
    "close": "Close to real data",
    "differs": "Differs from real data",
}
ACCURACY, PRIVACY = ("univariate", "bivariate", "trivariate", "coherence"), ("closest", "identical")


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What a report holds."""

    measures: tuple[Measure, ...]
    """Every measure: score, noise, limit and verdict."""
    accuracy: Accuracies
    sequences: SequenceFindings | None
    records: RecordFindings
    sizes: Mapping[str, tuple[int, int]]
    """Subjects and events of each table."""
    time: str | None
    seed: int

    @property
    def verdict(self) -> Verdict:
        """The worst of all measures."""
        return max((one.verdict for one in self.measures), key=ORDER.__getitem__)


def render(report: Contents, *, title: str) -> str:
    """The page; the same report gives the same bytes."""
    return _environment().get_template(TEMPLATE).render(title=title, **_values(report))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    def finalize(value: Any) -> Any:
        if isinstance(value, Markup):  # the output of a macro, whose values have been here before
            return value
        return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else printable(str(value))

    folder = resources.files("stoker.recipes.tabular")
    loader = FunctionLoader(lambda name: folder.joinpath(name).read_text(encoding="utf-8"))
    return Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, finalize=finalize, trim_blocks=True, lstrip_blocks=True
    )


def _values(report: Contents) -> dict[str, Any]:
    """The values of the template."""
    sequences, records = report.sequences, report.records
    return {
        "version": stoker.__version__,
        "seed": report.seed,
        "verdict": report.verdict,
        "heading": HEADINGS[report.verdict],
        "sentence": _sentence(report.measures),
        "cards": _cards(report),
        "groups": _groups(report.measures),
        "gaps": _lines(sequences.gaps, prefix="share of gaps: ") if sequences and sequences.gaps else None,
        "lags": [_lines(one, prefix="autocorrelation: ") for one in sequences.autocorrelations[:MOST_FIGURES]] if sequences else [],
        "transitions": [_transition(one) for one in sequences.transitions[:MOST_MATRICES]] if sequences else [],
        "marginals": [_bars(one) for one in report.accuracy.marginals[:MOST_FIGURES]],
        "pairs": _pairs(report.accuracy),
        "reference": "to unseen real data" if "holdout" in report.sizes else "from real records to other real ones",
        "proximity": [_distances(name, one) for name, one in records.proximity.items()],
        "details": [_detail(one) for one in report.measures if len(one.columns) > 1],
    }


def _sentence(measures: Sequence[Measure]) -> str:
    wrong = [one for one in measures if one.verdict == "differs"]
    if not wrong:
        return f"All {len(measures)} measures are within or near the noise of two real samples."
    worst = sorted(wrong, key=lambda one: -one.ratio)[:3]
    return f"{len(wrong)} of {len(measures)} measures differ, first of all: {'; '.join(one.title for one in worst)}."


def _cards(report: Contents) -> list[dict[str, str]]:
    accuracy = report.accuracy.overall
    cards = [{"name": "Accuracy", "value": f"{accuracy.value:.1%}", "note": f"a real sample: {accuracy.maximum:.1%}"}]
    for name, title in (
        ("classifier of sequences", "Classifier AUC, sequences"),
        ("classifier of events", "Classifier AUC, events"),
    ):
        found = next((one for one in report.measures if one.name == name), None)
        if found is not None:
            cards.append({"name": title, "value": f"{found.score:.2f}", "note": "0.50: indistinguishable"})
    name, near = list(report.records.proximity.items())[-1]
    cards.append({"name": f"Closer to training, {name}", "value": f"{near.share:.0%}", "note": "50% without copies"})
    subjects, events = report.sizes["synthetic"]
    real = report.sizes["real"]
    cards.append(
        {"name": "Synthetic data", "value": f"{events:,} rows", "note": f"{subjects:,} subjects; real: {real[1]:,} and {real[0]:,}"}
    )
    return cards


def _groups(measures: Sequence[Measure]) -> list[dict[str, Any]]:
    first = [one for one in measures if one.name in ACCURACY]
    privacy = [one for one in measures if one.name.startswith(PRIVACY)]
    rest = [one for one in measures if one not in first and one not in privacy]
    notes = (
        (
            "Sequences",
            "Time, order, memory and subjects. Distances (0 is equal), or the AUC of a classifier (0.5 is by chance).",
            rest,
        ),
        (
            "Distributions of single events",
            "1 minus the accuracies of mostlyai-qa, on a random event of each subject and the next.",
            first,
        ),
        ("Copies of training data", "A model that generalises is as near to unseen data as to its training data.", privacy),
    )
    return [{"title": title, "note": note, "rows": [_row(one) for one in rows]} for title, note, rows in notes if rows]


def _row(one: Measure) -> dict[str, Any]:
    # An AUC or a share of nearer records lies between 0.5 and 1, so its scale begins at 0.5.
    low = 0.5 if one.name.startswith(("classifier", "closest")) else 0.0
    high = max(one.score, 2 * one.limit - low, 1e-9)
    places = {name: 100 * min(max((value - low) / (high - low), 0.0), 1.0) for name, value in _numbers(one).items()}
    return {
        "title": one.title,
        "verdict": one.verdict,
        "score": f"{one.score:.4f}",
        "noise": f"{one.noise:.4f}",
        "ratio": f"{one.ratio:.1f}x" if math.isfinite(one.ratio) else "-",
        "score_x": places["score"],
        "noise_x": places["noise"],
        "limit_x": places["limit"],
    }


def _numbers(one: Measure) -> dict[str, float]:
    return {"score": one.score, "noise": one.noise, "limit": one.limit}


# ---- figures: coordinates in units of the view box ----


def _lines(curve: SequenceCurve, *, prefix: str = "") -> dict[str, Any]:
    return _figure(prefix + curve.title, curve.real, curve.synthetic, curve.ticks)


def _distances(name: str, found: Proximity) -> dict[str, Any]:
    near, reference = found.curve
    return _figure(f"distance of {name}, by decile", reference, near, [f"{10 * i}%" for i in range(len(near))])


def _figure(title: str, real: Array, synthetic: Array, ticks: Sequence[str]) -> dict[str, Any]:
    low = min(0.0, float(np.nanmin([real.min(), synthetic.min()])))
    high = max(float(np.nanmax([real.max(), synthetic.max()])), low + 1e-9)
    step = WIDTH / max(len(ticks) - 1, 1)

    def height(value: float) -> float:
        return 14 + (HEIGHT - 14) * (1 - (value - low) / (high - low))

    def points(values: Array) -> str:
        return " ".join(f"{step * i:.1f},{height(float(value)):.1f}" for i, value in enumerate(values))

    shown = sorted({0, len(ticks) // 2, len(ticks) - 1})
    anchors = {0: "start", len(ticks) - 1: "end"}
    return {
        "title": title,
        "height": HEIGHT,
        "zero": height(0.0),
        "top": f"{high:.3g}",
        "real": points(real),
        "synthetic": points(synthetic),
        "ticks": [{"x": step * i, "label": ticks[i], "anchor": anchors.get(i, "middle")} for i in shown],
    }


def _bars(one: Marginal) -> dict[str, Any]:
    most = max(float(one.real.max(initial=0)), float(one.synthetic.max(initial=0)), 1e-9)
    scale = (WIDTH - 110) / most
    bars = [
        {
            "label": _short(label),
            "real": scale * mine,
            "synthetic": scale * other,
            "real_text": f"{mine:.1%}",
            "synthetic_text": f"{other:.1%}",
        }
        for label, mine, other in zip(one.labels, one.real.tolist(), one.synthetic.tolist(), strict=True)
    ]
    caption = f"accuracy {one.accuracy.value:.1%}, a real sample {one.accuracy.maximum:.1%}"
    return {"title": one.column, "caption": caption, "bars": bars}


def _transition(one: TransitionMatrix) -> dict[str, Any]:
    size, left, top = 128 / len(one.labels), 74, 14
    most = max(float(one.real.max(initial=0)), float(one.synthetic.max(initial=0)), 1e-9)
    cells, texts = [], []
    for side, (name, shares) in enumerate((("real", one.real), ("synthetic", one.synthetic))):
        begin = left + side * 146
        texts.append({"x": begin + 64.0, "y": 9.0, "anchor": "middle", "label": name})
        for row, column in np.ndindex(shares.shape):
            label = f"{name}: {one.labels[row]} → {one.labels[column]}: {shares[row, column]:.1%}"
            place = {"x": begin + size * column, "y": top + size * row, "size": max(size - 1, 1)}
            cells.append({**place, "kind": "heat", "share": float(shares[row, column]) / most, "label": label})
    texts += [
        {"x": left - 5.0, "y": top + size * (row + 0.5) + 3, "anchor": "end", "label": _short(label, 12)}
        for row, label in enumerate(one.labels)
    ]
    return {"title": one.column, "width": left + 280, "height": top + 134, "cells": cells, "texts": texts}


def _pairs(accuracy: Accuracies) -> dict[str, Any] | None:
    """A matrix of all pairs; the colour is the missing accuracy, beyond that of a real sample, up to 10 points."""
    rows = list(dict.fromkeys(name for pair in accuracy.pairs for name in pair))[:40]
    columns = [name for name in rows if not name.startswith("context: ")]
    if not accuracy.pairs or len(columns) < 2:
        return None
    left, size = 150.0, min(24.0, 520 / len(columns))
    cells, texts = [], []
    for y, row in enumerate(rows):
        texts.append({"x": left - 6, "y": size * (y + 0.6) + 4, "anchor": "end", "label": _short(row, 24)})
        for x, column in enumerate(columns):
            found = accuracy.pairs.get((row, column)) or accuracy.pairs.get((column, row))
            if found is None:
                continue
            share = min(max((found.maximum - found.value) / 0.1, 0.0), 1.0)
            label = f"{row} and {column}: {found.value:.1%}, a real sample {found.maximum:.1%}"
            cells.append({"x": left + size * x, "y": size * y, "size": size - 1.5, "kind": "wrong", "share": share, "label": label})
    below = size * len(rows) + 8
    texts += [
        {"x": left + size * (x + 0.6), "y": below, "anchor": "end", "label": _short(name, 20), "turn": True}
        for x, name in enumerate(columns)
    ]
    return {"title": "", "width": 700, "height": below + 70, "cells": cells, "texts": texts}


def _detail(one: Measure) -> dict[str, Any]:
    worst = sorted(one.columns.items(), key=lambda item: -item[1].score / max(item[1].noise, 1e-9))[:MOST_DETAILS]
    rows = [(name, f"{each.score:.4f}", f"{each.noise:.4f}", name in one.outliers) for name, each in worst]
    return {"title": one.title, "rows": rows}


def _short(text: str, most: int = LABEL) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
