"""What does a step of a trainer cost the host, over the plainest correct torch loop? Ours beside what users would pick instead.

The cost of a step is the CPU time of the process for a long run less that for a short one, over the steps between: what comes
before the first step (imports, measuring choices, hooks) is in both, and counts for no side. All sides take turns in each round,
on one thread, over the same batches. Peers run as their users run them, without a progress bar and without saving.

Ours can come out below the loop although it does more: it leaves out the ranges of the profiler that torch opens around each
`zero_grad` and `step` (as long as nothing profiles or hooks them), and its guard takes less than those.
"""

from __future__ import annotations

import copy
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import stoker
from benchmarks import record
from benchmarks.peers import trainers as peers

QUESTION = "How many times the CPU time of the plainest torch loop does a step of a trainer take?"

DECAY, CLIP, LOG_EVERY = 0.999, 1.0, 50
Weights = list[torch.Tensor]
Side = Callable[[int], Weights]
"""Train for a number of steps and return the weights."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and its batches."""

    make: Callable[[], nn.Module]
    rows: int
    shape: tuple[int, ...]
    short: int
    long: int
    has_defaults: bool
    """Whether the defaults are measured too: choices are measured from 200 steps on, which large models take too long for."""

    def model(self) -> nn.Module:
        """The model, the same each time."""
        torch.manual_seed(0)
        return self.make()

    def dataset(self) -> TensorDataset:
        """All samples of the long run, in the order of training."""
        generator = torch.Generator().manual_seed(1)
        samples = self.rows * self.long
        return TensorDataset(torch.randn(samples, *self.shape, generator=generator), torch.randn(samples, 1, generator=generator))


class Mlp(nn.Sequential):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(16 * 8, 64), nn.ReLU(), nn.Linear(64, 1))


class Transformer(nn.Module):
    """Two layers of 64 features."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.first = nn.Linear(8, 64)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(64, 1)

    def forward(self, x_btf: torch.Tensor) -> torch.Tensor:
        """One number per sample."""
        out: torch.Tensor = self.last(self.encoder(self.first(x_btf))[:, -1])
        return out


def cases(small: bool) -> dict[str, Case]:
    """A model whose step is all overhead, and a small real one."""
    mlp = Case(make=Mlp, rows=32, shape=(16, 8), short=5 if small else 250, long=15 if small else 850, has_defaults=not small)
    transformer = Case(
        make=Transformer, rows=64, shape=(48, 8), short=1 if small else 2, long=2 if small else 22, has_defaults=False
    )
    return {"2-layer MLP, batch 32x16x8": mlp, "transformer, d=64, 2 layers, batch 64x48x8": transformer}


def adamw(model: nn.Module, fused: bool | None) -> torch.optim.Optimizer:
    """AdamW; None leaves the implementation to torch (or to our trainer)."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """As our trainer takes it."""
    x, y = batch
    return mse_loss(model(x), y)


def run_plain(case: Case, batches: Callable[[int], Any], fused: bool, steps: int) -> Weights:
    """The plainest correct loop."""
    model = case.model()
    optimizer = adamw(model, fused)
    model.train()
    for x, y in batches(steps):
        optimizer.zero_grad()
        value = mse_loss(model(x), y)
        value.backward()
        optimizer.step()
    return list(model.parameters())


def run_ours(case: Case, batches: Callable[[int], Any], fused: bool, steps: int) -> Weights:
    """Our trainer with nothing left open: the same operations, and what it adds (the finite guard, numbers, signals, a clock)."""
    model = case.model()
    trainer = stoker.Trainer(
        model,
        loss,
        adamw(model, fused),
        precision="fp32",
        execution=stoker.train.Execution(graph=False, compile=False),
        progress=False,
    )
    trainer.fit(batches(steps))
    return list(model.parameters())


def run_defaults(case: Case, batches: Callable[[int], Any], steps: int) -> Weights:
    """Our trainer as it comes, with a criterion of torch and an optimizer as people make it."""
    model = case.model()
    stoker.Trainer(model, nn.MSELoss(), adamw(model, None), progress=False).fit(batches(steps))
    return list(model.parameters())


def run_plain_with_all(case: Case, batches: Callable[[int], Any], fused: bool, steps: int) -> Weights:
    """A loop that clips, averages the weights, and logs the mean loss now and then, by hand; it has no finite guard."""
    model = case.model()
    optimizer = adamw(model, fused)
    weights = list(model.parameters())
    average = [weight.detach().clone() for weight in weights]
    losses: list[float] = []
    norms: list[float] = []
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "metrics.jsonl").open("w") as file:
        for number, (x, y) in enumerate(batches(steps), 1):
            optimizer.zero_grad()
            value = mse_loss(model(x), y)
            value.backward()
            norm = nn.utils.clip_grad_norm_(weights, CLIP)
            optimizer.step()
            with torch.no_grad():
                torch._foreach_lerp_(average, weights, 1.0 - DECAY)
            losses.append(value.item())
            norms.append(norm.item())
            if number % LOG_EVERY == 0:
                means = {"step": number, "loss": sum(losses) / len(losses), "norm": sum(norms) / len(norms)}
                file.write(json.dumps(means) + "\n")
                file.flush()
                losses.clear()
                norms.clear()
    return [*weights, *average]


def run_ours_with_all(case: Case, batches: Callable[[int], Any], fused: bool, steps: int) -> Weights:
    """Our trainer with a folder, clipping and the EMA of the weights."""
    model = case.model()
    with tempfile.TemporaryDirectory() as folder:
        trainer = stoker.Trainer(
            model,
            loss,
            adamw(model, fused),
            precision="fp32",
            execution=stoker.train.Execution(graph=False, compile=False),
            progress=False,
            max_grad_norm=CLIP,
            ema=DECAY,
            logging=stoker.train.Logging(every=LOG_EVERY),
            folder=Path(folder) / "run",
        )
        trainer.fit(batches(steps))
    return [*model.parameters(), *(trainer.ema.tensors() if trainer.ema is not None else ())]


class Listed:
    """Batches in memory: a list of as many as are asked for."""

    def __init__(self, case: Case) -> None:
        x, y = case.dataset().tensors
        self._all = list(zip(x.split(case.rows), y.split(case.rows), strict=True))

    def __call__(self, steps: int) -> Sequence[tuple[torch.Tensor, torch.Tensor]]:
        return self._all[:steps]


class Loaded:
    """The same batches by a DataLoader without workers."""

    def __init__(self, case: Case) -> None:
        self._samples = case.dataset().tensors
        self._rows = case.rows

    def samples(self, steps: int) -> TensorDataset:
        """The samples of a number of batches."""
        return TensorDataset(*(tensor[: steps * self._rows] for tensor in self._samples))

    def __call__(self, steps: int) -> DataLoader[Any]:
        return DataLoader(self.samples(steps), batch_size=self._rows)


def sides_of(case: Case, batches: Listed | Loaded) -> tuple[dict[str, Side], dict[str, str]]:
    """All that take part, and why some do not."""
    sides: dict[str, Side] = {
        "plain": partial(run_plain, case, batches, False),
        "ours": partial(run_ours, case, batches, False),
        "plain, fused": partial(run_plain, case, batches, True),
        "ours, fused": partial(run_ours, case, batches, True),
    }
    if case.has_defaults:
        sides["ours, defaults"] = partial(run_defaults, case, batches)
    if isinstance(batches, Listed):
        sides["plain with clip, average, log"] = partial(run_plain_with_all, case, batches, True)
        sides["ours with clip, average, log"] = partial(run_ours_with_all, case, batches, True)
    missing: dict[str, str] = {}
    for name, make in peers.PEERS.items():
        try:
            run = make()
        except ImportError as error:
            missing[name] = f"not importable: {error}"
            continue
        if name == "HF Trainer":
            if isinstance(batches, Loaded):
                sides[name] = lambda steps, run=run: run(case.model(), batches.samples(steps), case.rows)
        else:
            sides[name] = lambda steps, run=run: run(case.model(), partial(adamw, fused=False), batches(steps))
    return sides, missing


PAIRS = {
    "ours over plain, same AdamW": ("ours", "plain"),
    "ours over plain, both fused AdamW": ("ours, fused", "plain, fused"),
    "ours with defaults over plain": ("ours, defaults", "plain"),
    "ours with defaults over plain, fused": ("ours, defaults", "plain, fused"),
    "ours over plain, both with clip, average, log": ("ours with clip, average, log", "plain with clip, average, log"),
    "HF Trainer over plain, fused (its default; it clips too)": ("HF Trainer", "plain, fused"),
    "noise: plain over itself": ("plain, again", "plain"),
} | {f"{name} over plain": (name, "plain") for name in peers.PEERS if name != "HF Trainer"}


def measure(case: Case, batches: Listed | Loaded, rounds: int) -> dict[str, Any]:
    """CPU time a step of all sides, their ratios, and whether weights are equal."""
    sides, missing = sides_of(case, batches)
    sides["plain, again"] = sides["plain"]
    calls = {f"{steps} steps {name}": partial(run, steps) for name, run in sides.items() for steps in (case.short, case.long)}
    seconds = record.interleave(calls, rounds=rounds, clock=time.process_time)
    costs = {}
    for name in sides:
        pairs = zip(seconds[f"{case.short} steps {name}"], seconds[f"{case.long} steps {name}"], strict=True)
        costs[name] = [(long - short) / (case.long - case.short) for short, long in pairs]
    answer: dict[str, Any] = {
        "times": {title: record.ratio(costs[one], costs[other]) for title, (one, other) in PAIRS.items() if one in costs},
        "microseconds per step": {name: record.spread([1e6 * cost for cost in found]) for name, found in costs.items()},
        "final weights equal, bit for bit": is_equal(sides, case.short),
    }
    return answer | ({"missing": missing} if missing else {})


def is_equal(sides: Mapping[str, Side], steps: int) -> dict[str, bool]:
    """Whether ours ends with the weights (and averages) of the loop beside it."""
    pairs = {
        "ours": "plain",
        "ours, fused": "plain, fused",
        "ours with clip, average, log": "plain with clip, average, log",
    }
    return {
        one: all(map(torch.equal, copy.deepcopy(sides[one](steps)), sides[other](steps)))
        for one, other in pairs.items()
        if one in sides
    }


def parts(case: Case) -> Iterator[tuple[str, Listed | Loaded]]:
    """Both ways in which batches come."""
    yield "batches in a list", Listed(case)
    yield "batches of a DataLoader", Loaded(case)


def main() -> None:
    """Each case with both kinds of batches."""
    options = record.arguments(QUESTION)
    rounds = options.rounds or (1 if options.small else 8)
    torch.set_num_threads(1)
    peers.be_quiet()
    answer: dict[str, Any] = {"rounds": rounds, "torch": torch.__version__, "peers": peers.versions()}
    for name, case in cases(options.small).items():
        for kind, batches in parts(case):
            if case.make is Transformer and isinstance(batches, Loaded):
                continue  # the loader's cost is that of the first case
            answer[f"{name}, {kind}"] = measure(case, batches, rounds)
    print(json.dumps(answer, indent=1)) if options.small else record.save("bench_trainers", QUESTION, answer)


if __name__ == "__main__":
    main()
