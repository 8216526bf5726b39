"""How many times faster do trials of a small transformer train on a GPU as a population than one by one in eager mode?

Needs a GPU. Wall times of many steps with one wait at the end, in turns; the losses of some trials are compared with their own runs.
Precisions: "fp32" is exact float32; in "tf32" the matrix products of both sides round their inputs to TF32.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from benchmarks import record
from benchmarks.before import trials_one_by_one
from benchmarks.gpu_trainer import Small
from stoker.tune import Population

QUESTION = "How many times faster do trials of a small transformer train on a GPU as a population than one by one in eager mode?"
DEVICE = "cuda"
SIZES = (1, 8, 32, 128, 512, 1024)
ROWS, LENGTH, FEATURES = 64, 48, 8
ROUNDS = 5


def main() -> None:
    """All sizes of populations, in both precisions."""
    options = record.arguments(QUESTION)
    rounds = 2 if options.small else options.rounds or ROUNDS
    answer: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "model": f"2-layer transformer, d=64, batch {ROWS} x {LENGTH}, AdamW",
    }
    for precision in ("fp32", "tf32"):
        torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
        for size in (8, 32) if options.small else SIZES:
            for compiled in (False, True) if size >= 128 else (False,):
                name = f"{size} trials, {precision}{', compiled' if compiled else ''}"
                begin = time.perf_counter()
                try:
                    answer[name] = measure(size, rounds, compiled=compiled)
                except torch.cuda.OutOfMemoryError as error:
                    answer[name] = {"failed": str(error).splitlines()[0]}
                gc.collect()
                torch.cuda.empty_cache()
                print(name, answer[name], f"{time.perf_counter() - begin:.0f} s", flush=True)
    print(answer) if options.small else record.save("gpu_population", QUESTION, answer)


def make_model(config: Mapping[str, Any]) -> nn.Module:
    """The model of the trials; configurations differ in the optimizer only."""
    return Small(width=64, layers=2, features=FEATURES)


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Of the label of each window."""
    return nn.functional.binary_cross_entropy_with_logits(model(batch["x"]), batch["y"])


def make_batches(count: int) -> list[dict[str, torch.Tensor]]:
    """Batches on the device."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, ROWS, LENGTH, FEATURES, generator=generator)
    y = (x[:, :, -1, :1] + torch.randn(count, ROWS, 1, generator=generator) > 0).float()
    return [{"x": a.to(DEVICE), "y": b.to(DEVICE)} for a, b in zip(x, y, strict=True)]


def measure(size: int, rounds: int, *, compiled: bool) -> dict[str, Any]:
    """Steps per second of a trial, alone and in a population of this size."""
    configs = [{"lr": 10 ** (-4 + 2 * row / size), "weight_decay": 0.01 * (1 + row % 3)} for row in range(size)]
    batches = make_batches(50)
    begin = time.perf_counter()
    population = Population(make_model, loss, configs, device=DEVICE, compile=compiled, verbose=False)
    built = time.perf_counter() - begin
    losses = torch.stack([population.step(batch) for batch in batches], 1)
    torch.cuda.synchronize()
    started = time.perf_counter() - begin - built
    rows = sorted({0, size // 2, size - 1})
    alone = {row: trials_one_by_one.start(make_model, loss, configs[row], seed=row, device=DEVICE) for row in rows}
    differences = {
        row: max(abs(float(step(batch)) - float(losses[row, n])) for n, batch in enumerate(batches)) for row, step in alone.items()
    }
    times: dict[str, list[float]] = {"one by one": [], "population": []}
    torch.cuda.reset_peak_memory_stats()
    for _ in range(rounds):
        times["one by one"].append(seconds_per_step(alone[0], batches))
        times["population"].append(seconds_per_step(population.step, batches) / size)
    return {
        "trial steps per second": {name: record.spread([1 / one for one in values]) for name, values in times.items()},
        "faster than one by one": record.ratio(times["one by one"], times["population"]),
        "losses of 50 steps differ by at most": max(differences.values()),
        "seconds to build the models": round(built, 2),
        "seconds of the first 50 steps": round(started, 2),
        "peak memory in GiB": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "report": str(population.report),
    }


def seconds_per_step(step: Callable[[Any], Any], batches: list[Any]) -> float:
    """Wall time with one wait at the end."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for batch in batches:
        step(batch)
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / len(batches)


if __name__ == "__main__":
    main()
