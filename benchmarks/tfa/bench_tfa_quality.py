"""How much CPU time does a TFA model need to come within 0.01 AUC of what can be known at all?

Markets of 200,000 bars whose labels are drawn from a known logit (benchmarks/tfa/markets.py), so the ceiling is known: the AUC of that
logit itself, on the same rows. Trained on the first 70 %, tested on 12,000 rows behind 85 %, with 400 rows between them that no one
uses. Times are process CPU time of training on one thread; evaluating the test rows does not count.

    banded                 ours: one token a label, prices as ratios to the close
    authors' loop          their loop and model, with positions, at their batch and learning rate, on the raw features
    windows                the best model of windows: the smaller proposal, with 48 rows, positions, one query, and our features
    last row, volatility   what a model must beat: a network that sees one row, and how restless the market was
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import stoker
import stoker_recipes.tfa
from benchmarks import record
from benchmarks.before import tfa_loop
from benchmarks.tfa.bench_indicators import spec_of_55
from benchmarks.tfa.markets import Signal, draw_labels, market
from stoker_recipes.tfa.model import Levels, build_model, levels_of, ratios

QUESTION = "How much CPU time does a TFA model need to come within 0.01 AUC of what can be known at all?"
Array = npt.NDArray[Any]

SIGNALS: tuple[Signal, ...] = ("lag", "agg")
NUM_BARS = 200_000
TESTED, GAP = 12_000, 400
WITHIN = 0.01
LABELS, RUN = 480, 240
BANDED_STEPS, WINDOWS_STEPS, WINDOWS_BATCH = 300, 500, 128
PATIENCE = 15
"""Their loop runs for this multiple of the time banded needs; one step takes as long as hundreds of ours."""
LENGTH = 48


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A market as rows: raw features and labels, and where the parts are."""

    x: Array
    y: Array
    logit: Array
    volatility: Array
    levels: Levels
    train: int
    """Rows before this one are trained on."""
    test: int
    """Rows from this one on are tested on."""

    def auc(self, scores: Array) -> float:
        """Of scores of the first test rows."""
        return auc(scores, self.y[self.test : self.test + len(scores)])

    @property
    def ceiling(self) -> float:
        """The AUC of the logit that the labels were drawn from."""
        return self.auc(self.logit[self.test : self.test + TESTED])

    def moments(self, levels: Levels | None) -> dict[str, Any]:
        """Mean and deviation of the training rows, as a model sees them."""
        seen = self.x[: self.train] if levels is None else ratios(self.x[: self.train], levels)
        mean, std = seen.mean(0, dtype=np.float64), seen.std(0, dtype=np.float64)
        return {"num_features": self.x.shape[1], "mean": mean, "std": std.clip(1e-6), "levels": levels}


def main() -> None:
    """All sides, for each signal and seed."""
    options = record.arguments(QUESTION)
    torch.set_num_threads(1)
    seeds = range(1 if options.small else 3)
    answer: dict[str, Any] = {"seeds": len(seeds), "bars": NUM_BARS}
    for signal in SIGNALS:
        found: dict[str, list[Any]] = {}
        for seed in seeds:
            rows = rows_of(signal, seed, 30_000 if options.small else NUM_BARS)
            for name, value in sides(rows, seed, small=options.small).items():
                found.setdefault(name, []).append(value)
        answer[signal] = found
    print(answer) if options.small else record.save("bench_tfa_quality", QUESTION, answer)


def rows_of(signal: Signal, seed: int, num_bars: int) -> Rows:
    """A market of bars, as rows of the usual 55 features; rows before all of them are there are left out."""
    bars = market(num_bars, signal, seed)
    spec = spec_of_55()
    features = stoker_recipes.tfa.features(
        {name: bars[name] for name in ("open", "high", "low", "close", "volume")}, spec, threads=1
    )
    moves = np.abs(np.diff(np.log(bars["close"]), prepend=np.log(bars["close"][0])))
    first = features.emit_from
    size = num_bars - first
    return Rows(
        x=features.values[first:],
        y=draw_labels(bars["logit"], seed)[first:],
        logit=bars["logit"][first:],
        volatility=np.convolve(moves, np.ones(20))[:num_bars][first:],
        levels=levels_of(spec["features"]),
        train=int(0.7 * size),
        test=max(int(0.85 * size), int(0.7 * size) + GAP),
    )


def sides(rows: Rows, seed: int, *, small: bool) -> dict[str, Any]:
    """What each side reached, and when."""
    few = 10 if small else 1
    found: dict[str, Any] = {"ceiling": round(rows.ceiling, 4)}
    print(f"seed {seed}, ceiling {rows.ceiling:.4f}", flush=True)

    def show(name: str, value: Any) -> None:
        found[name] = value
        print(f"  {name}: {value}", flush=True)

    show("banded", race(rows, *banded(rows, seed, BANDED_STEPS // few), every=10, labels=LABELS))
    show("windows", race(rows, *windows(rows, seed, WINDOWS_STEPS // few), every=50, labels=WINDOWS_BATCH, tested=TESTED // 3))
    soon = found["banded"]["CPU seconds to get there"]
    show("authors' loop", authors(rows, seed, seconds=PATIENCE * (soon or 0.1)))
    if soon is not None:
        for other in ("windows", "authors' loop"):
            late = found[other]["CPU seconds to get there"]
            least = "" if late else ", at least"
            show(f"banded gets there sooner than {other}{least}", round((late or found[other]["CPU seconds"]) / soon, 1))
    show("AUC of trailing volatility", round(rows.auc(rows.volatility[rows.test : rows.test + TESTED]), 4))
    show("AUC of a network on the last row", last_row(rows, seed, 600 // few))
    return found


Step = Iterator[float]
Scores = Callable[[int], Array]


def race(rows: Rows, steps: Step, scores: Scores, *, every: int, labels: int, tested: int = TESTED) -> dict[str, Any]:
    """Train to the end of the schedule; when the ceiling was near, and what the AUC is at last."""
    ceiling = rows.auc(rows.logit[rows.test : rows.test + tested])
    seconds, number, reached, best = 0.0, 0, None, 0.0
    while True:
        before = time.process_time()
        is_over = next(steps, None) is None
        if is_over:
            break
        seconds += time.process_time() - before
        number += 1
        if number % every == 0:
            best = rows.auc(scores(tested))
            if reached is None and best >= ceiling - WITHIN:
                reached = seconds
    return {
        "CPU seconds to get there": None if reached is None else round(reached, 2),
        "AUC": round(rows.auc(scores(tested)), 4),
        "of": round(ceiling, 4),
        "CPU seconds": round(seconds, 1),
        "labels a CPU second": round(number * labels / seconds),
    }


def banded(rows: Rows, seed: int, num_steps: int) -> tuple[Step, Scores]:
    """Runs of rows in random order, one cycle of the learning rate."""
    torch.manual_seed(seed)
    model = build_model("banded", length=LENGTH, **rows.moments(rows.levels))
    before = model.reach - 1
    store = stoker.Store.from_arrays(lengths=[rows.train], x=rows.x[: rows.train], y=rows.y[: rows.train])
    view = stoker.Windows(before + RUN, stride=RUN, tail="drop")
    feed = stoker.Feed(store, view, batch_size=LABELS // RUN, order=stoker.Shuffle(seed), last_batch="drop")
    return fit(model, feed, before, num_steps, lr=3e-3), lambda count: answers(model, rows, before, count, piece=3000)


def windows(rows: Rows, seed: int, num_steps: int) -> tuple[Step, Scores]:
    """Windows in random order, one cycle of the learning rate."""
    torch.manual_seed(seed)
    model = build_model("tfa-small", length=LENGTH, positions=True, **rows.moments(rows.levels))
    store = stoker.Store.from_arrays(lengths=[rows.train], x=rows.x[: rows.train], y=rows.y[: rows.train])
    feed = stoker.Feed(store, stoker.Windows(LENGTH), batch_size=WINDOWS_BATCH, order=stoker.Shuffle(seed), last_batch="drop")
    return fit(model, feed, LENGTH - 1, num_steps, lr=1.5e-3), lambda count: answers(model, rows, LENGTH - 1, count, piece=250)


def fit(model: nn.Module, feed: stoker.Feed, before: int, num_steps: int, *, lr: float) -> Step:
    """One step at a time. The rows `before` those with labels are only seen."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01, fused=True)
    schedule = stoker.train.OneCycle()
    number = 0
    while True:
        for batch in feed:
            for group in optimizer.param_groups:
                group["lr"] = lr * schedule(number, num_steps)
            expected = batch["y"][:, before:]
            logits = model(batch["x"])[:, -expected.shape[1] :]
            loss = nn.functional.binary_cross_entropy_with_logits(logits, expected)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            yield loss.item()
            number += 1
            if number == num_steps:
                return


class Placed(tfa_loop.Tfa):
    """The authors' model, with a learned vector for each place of a window."""

    def __init__(self, mean: torch.Tensor, std: torch.Tensor) -> None:
        super().__init__(mean, std)
        self.positions = nn.Parameter(torch.randn(LENGTH, 128) * 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.encoder(self.inp((x - self.mean) * self.inv_std) + self.positions)
        out: torch.Tensor = self.head(z[:, -1])
        return out


def authors(rows: Rows, seed: int, *, seconds: float) -> dict[str, Any]:
    """Their loop, for as many steps as fit into a budget of CPU seconds."""
    given = rows.moments(None)
    mean, std = (torch.as_tensor(given[name], dtype=torch.float32) for name in ("mean", "std"))
    share = float(rows.y[: rows.train].mean())

    def train(num_steps: int) -> tuple[nn.Module, float]:
        torch.manual_seed(seed)
        model = Placed(mean, std)
        x, y = rows.x[: rows.train], rows.y[: rows.train, None]
        begin = time.process_time()
        weight = (1 - share) / share
        tfa_loop.train(model, x, y, pos_weight=weight, batch=1024, length=LENGTH, num_steps=num_steps, device="cpu")
        return model, time.process_time() - begin

    _, one = train(1)
    num_steps = math.ceil(seconds / one)
    model, taken = train(num_steps)
    ours = build_model("tfa", length=LENGTH, positions=True, **given)  # the same numbers for less work
    ours.load_state_dict(model.state_dict())
    tested = TESTED // 3
    found, ceiling = rows.auc(answers(ours, rows, LENGTH - 1, tested, piece=250)), rows.auc(rows.logit[rows.test :][:tested])
    return {
        "CPU seconds to get there": round(taken, 1) if found >= ceiling - WITHIN else None,
        "AUC": round(found, 4),
        "of": round(ceiling, 4),
        "CPU seconds": round(taken, 1),
        "labels a CPU second": round(1024 * num_steps / taken),
    }


def last_row(rows: Rows, seed: int, num_steps: int) -> float:
    """The AUC of a small network that sees one row."""
    torch.manual_seed(seed)
    x = torch.from_numpy(ratios(rows.x, rows.levels))
    mean, std = x[: rows.train].mean(0), x[: rows.train].std(0).clamp(min=1e-6)
    model = nn.Sequential(nn.Linear(x.shape[1], 64), nn.GELU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(num_steps):
        chosen = torch.randint(rows.train, (512,), generator=generator)
        logits = model((x[chosen] - mean) / std)[:, 0]
        loss = nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(rows.y)[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        scores = model((x[rows.test : rows.test + TESTED] - mean) / std)[:, 0].numpy()
    return round(rows.auc(scores), 4)


@torch.no_grad()
def answers(model: nn.Module, rows: Rows, before: int, count: int, *, piece: int) -> Array:
    """Logits of the first test rows, some at a time."""
    x = torch.from_numpy(rows.x)
    last = min(rows.test + count, len(x))
    parts = []
    for first in range(rows.test, last, piece):
        end = min(first + piece, last)
        parts.append(model(x[None, first - before : end])[0, -(end - first) :].numpy())
    return np.concatenate(parts)


def auc(scores: Array, labels: Array) -> float:
    """The chance that a row with label 1 has the higher score of two."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores, kind="stable")] = np.arange(1, len(scores) + 1)
    positives = float(labels.sum())
    return float((ranks[labels > 0].sum() - positives * (positives + 1) / 2) / (positives * (len(labels) - positives)))


if __name__ == "__main__":
    main()
