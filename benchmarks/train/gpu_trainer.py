"""What does a step cost on a GPU: a plain loop, the trainer's eager step, and the whole step as a CUDA graph?

Needs a GPU. Losses of all are compared. Times are wall times of many steps with one wait at the end, in turns.
"""

from __future__ import annotations

import copy
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import stoker
from benchmarks import record
from benchmarks.before import tfa_loop
from stoker._device import sync_debug_mode

QUESTION = "What does a step cost on a GPU: a plain loop, the trainer's eager step, and the whole step as a CUDA graph?"
DEVICE = "cuda"
ROUNDS = 5


def main() -> None:
    """All measurements."""
    options = record.arguments(QUESTION)
    answer: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    for name, measure in (
        ("small transformer (d=64, 2 layers, 64 x 48)", small),
        ("TFA (B=1024, T=48, d=128, 3 layers)", tfa),
        ("waits of the host per step", waits),
        ("saving every 100 steps", saving),
    ):
        begin = time.perf_counter()
        answer[name] = measure(options.small)
        print(name, answer[name], f"{time.perf_counter() - begin:.0f} s", flush=True)
    print(answer) if options.small else record.save("gpu_trainer", QUESTION, answer)


class Small(nn.Module):
    """A transformer whose kernels are so small that launching them takes longer than running them."""

    def __init__(self, width: int = 64, layers: int = 2, features: int = 8):
        super().__init__()
        self.inp = nn.Linear(features, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.encoder(self.inp(x))[:, -1])
        return out


def bars(num_rows: int, num_features: int) -> tuple[Any, Any]:
    """Random rows, and labels that a model can learn something of."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_rows, num_features), dtype=np.float32)
    y = (x[:, :1] + rng.standard_normal((num_rows, 1), dtype=np.float32) > 0).astype(np.float32)
    return x, y


def window_loss(criterion: nn.Module) -> Callable[[nn.Module, Any], torch.Tensor]:
    """The label of a window is that of its last row."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        out: torch.Tensor = criterion(model(batch["x"]), batch["y"][:, -1])
        return out

    return loss


def feed_of(x: Any, y: Any, *, length: int, batch: int) -> stoker.Feed:
    """Windows in order, as the authors' loop has them."""
    store = stoker.Store.from_arrays(lengths=[len(x)], x=x, y=y)
    return stoker.Feed(
        store,
        stoker.Windows(length),
        batch_size=batch,
        device=DEVICE,
        loading=stoker.feed.Loading(residency="device"),
        last_batch="drop",
    )


def steps_of(trainer: stoker.Trainer, feed: stoker.Feed, epochs: int) -> float:
    """Seconds per step: how much longer several epochs take than one, so that the capture of a graph does not count."""
    seconds = []
    for number in (1, epochs):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        trainer.fit(feed, epochs=number)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return (seconds[1] - seconds[0]) / (epochs - 1) / len(feed)


class Losses:
    """A writer that keeps what is logged."""

    def __init__(self) -> None:
        self.means: list[float] = []

    def write(self, step: int, values: Any) -> None:
        if "rate" in values:
            self.means.append(values["loss"])

    def close(self) -> None:
        pass


def small(is_small: bool) -> dict[str, Any]:
    """Eager against one graph of the step, the gather included, in the same precision."""
    x, y = bars(64 * 200 + 47, 8)
    feed = feed_of(x, y, length=48, batch=64)
    torch.manual_seed(0)
    first = Small().to(DEVICE)
    criterion = nn.BCEWithLogitsLoss()
    times: dict[str, list[float]] = {"plain loop": [], "eager": [], "graph": []}
    losses: dict[str, list[float]] = {}
    epochs = 3
    for _ in range(2 if is_small else ROUNDS):
        model = copy.deepcopy(first)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        torch.cuda.synchronize()
        begin, count = time.perf_counter(), 0
        for _ in range(epochs):
            for batch in feed:
                optimizer.zero_grad()
                loss = criterion(model(batch["x"]), batch["y"][:, -1])
                loss.backward()
                optimizer.step()
                count += 1
        torch.cuda.synchronize()
        times["plain loop"].append((time.perf_counter() - begin) / count)
        for name in ("eager", "graph"):
            model, kept = copy.deepcopy(first), Losses()
            trainer = stoker.Trainer(
                model,
                window_loss(criterion),
                torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True),
                precision="fp32",
                execution=stoker.train.Execution(graph=name == "graph", compile=False),
                callbacks=[kept],
                progress=False,
            )
            # A graph takes longer to capture than an epoch takes with it: many epochs, so that the capture does not count.
            times[name].append(steps_of(trainer, feed, epochs if name == "eager" else 10 * epochs))
            losses[name] = kept.means
    model, kept = copy.deepcopy(first), Losses()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    trainer = stoker.Trainer(
        model,
        window_loss(criterion),
        optimizer,
        execution=stoker.train.Execution(compile=False, measured=True),
        callbacks=[kept],
        progress=False,
    )
    result = trainer.fit(feed, epochs=epochs)
    return {
        "milliseconds per step": {name: record.spread([1e3 * value for value in values]) for name, values in times.items()},
        "graph faster than eager": record.spread([a / b for a, b in zip(times["eager"], times["graph"], strict=True)]),
        "graph faster than the plain loop": record.spread(
            [a / b for a, b in zip(times["plain loop"], times["graph"], strict=True)]
        ),
        "eager against the plain loop": record.spread([a / b for a, b in zip(times["eager"], times["plain loop"], strict=True)]),
        "losses of graph and eager differ by at most": max(
            abs(a - b) / abs(b) for a, b in zip(losses["graph"], losses["eager"], strict=False)
        ),
        "chosen by itself": str(result.setup),
        "trials": [str(trial) for trial in result.trials],
    }


def tfa(is_small: bool) -> dict[str, Any]:
    """The authors' loop against the trainer in bf16, compiled, as one graph with the gather."""
    num_steps = 100
    x, y = bars(1024 * num_steps + 47, 55)
    mean, std = torch.from_numpy(x.mean(0)), torch.from_numpy(x.std(0))
    torch.manual_seed(0)
    first = tfa_loop.Tfa(mean, std).to(DEVICE)
    pos_weight = float((1 - y.mean()) / y.mean())
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([pos_weight], device=DEVICE))
    feed = feed_of(x, y, length=48, batch=1024)
    setups = {"fp32": ("fp32", False), "bf16": ("bf16", False), "bf16, compiled": ("bf16", True)}
    times: dict[str, list[float]] = {"authors' loop": [], **{name: [] for name in setups}}
    losses: dict[str, list[float]] = {}
    tfa_loop.train(copy.deepcopy(first), x, y, pos_weight=pos_weight, batch=1024, length=48, num_steps=5, device=DEVICE)
    trainers = {}
    for name, (precision, compiled) in setups.items():
        model = copy.deepcopy(first)
        trainers[name] = stoker.Trainer(
            model,
            window_loss(criterion),
            torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01),
            precision=precision,
            execution=stoker.train.Execution(fused=True, graph=True, compile=compiled),
            max_grad_norm=1.0,
            callbacks=[kept := Losses()],
            logging=stoker.train.Logging(every=10),
            progress=False,
        )
        trainers[name].fit(feed, epochs=1)
        losses[name] = list(kept.means)
    for _ in range(2):
        model = copy.deepcopy(first)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        read = tfa_loop.train(model, x, y, pos_weight=pos_weight, batch=1024, length=48, num_steps=num_steps, device=DEVICE)
        times["authors' loop"].append((time.perf_counter() - begin) / num_steps)
        losses["authors' loop"] = [float(np.mean(read[i : i + 10])) for i in range(0, len(read), 10)]
        for name, trainer in trainers.items():
            times[name].append(steps_of(trainer, feed, 3))
    base = losses["authors' loop"]
    return {
        "milliseconds per step": {name: record.spread([1e3 * value for value in values]) for name, values in times.items()},
        "faster than the authors' loop": {
            name: record.spread([a / b for a, b in zip(times["authors' loop"], times[name], strict=True)]) for name in setups
        },
        "losses differ from the authors' by at most": {
            name: max(abs(a - b) / abs(b) for a, b in zip(losses[name], base, strict=True)) for name in setups
        },
    }


def waits(is_small: bool) -> dict[str, Any]:
    """Waits of the host that torch can see, of 400 more steps of the same training."""
    x, y = bars(64 * 100 + 47, 8)
    feed = feed_of(x, y, length=48, batch=64)
    found = {}
    for name, graph in (("eager", False), ("graph", True)):
        counts = []
        for epochs in (1, 5):
            model = Small().to(DEVICE)
            trainer = stoker.Trainer(
                model,
                window_loss(nn.BCEWithLogitsLoss()),
                torch.optim.AdamW(model.parameters(), fused=True),
                precision="bf16",
                execution=stoker.train.Execution(graph=graph, compile=False),
                max_grad_norm=1.0,
                ema=0.99,
                logging=stoker.train.Logging(every=20),
                progress=False,
            )
            counts.append(count_waits(partial(trainer.fit, feed, epochs=epochs)))
        found[name] = {"1 epoch": counts[0], "5 epochs": counts[1], "a step": (counts[1] - counts[0]) / 400}
    return found


def count_waits(run: Callable[[], Any]) -> int:
    """How often torch says that an operation waits for the device."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with sync_debug_mode("warn"):
            run()
    return sum("synchroniz" in str(one.message) for one in seen)


def saving(is_small: bool) -> dict[str, Any]:
    """The same training with and without a checkpoint every 100 steps."""
    x, y = bars(1024 * 200 + 47, 55)
    mean, std = torch.from_numpy(x.mean(0)), torch.from_numpy(x.std(0))
    feed = feed_of(x, y, length=48, batch=1024)
    times: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(2):
        for name in times:
            with tempfile.TemporaryDirectory() as folder:
                torch.manual_seed(0)
                model = tfa_loop.Tfa(mean, std).to(DEVICE)
                trainer = stoker.Trainer(
                    model,
                    window_loss(nn.BCEWithLogitsLoss()),
                    torch.optim.AdamW(model.parameters(), lr=2e-3),
                    precision="bf16",
                    execution=stoker.train.Execution(fused=True, graph=True, compile=False),
                    folder=Path(folder) / "run" if name == "with" else None,
                    checkpoints=stoker.train.Checkpoints(every=100),
                    progress=False,
                )
                torch.cuda.synchronize()
                begin = time.perf_counter()
                trainer.fit(feed, epochs=5)
                torch.cuda.synchronize()
                times[name].append((time.perf_counter() - begin) / 5 / len(feed))
    return {
        "milliseconds per step": {name: record.spread([1e3 * value for value in values]) for name, values in times.items()},
        "slower with saving": record.spread([a / b - 1 for a, b in zip(times["with"], times["without"], strict=True)]),
    }


if __name__ == "__main__":
    main()
