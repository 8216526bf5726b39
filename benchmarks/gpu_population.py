"""How many times faster do trials train on a GPU as a population than one by one in eager mode?

Needs a GPU. Wall times of many steps with one wait at the end, in turns. Two models: a 2-layer transformer of width 64 in a
`stoker.tune.Population`, and the TimeHUT encoder in its own population, against the loops that people write.
Precisions: "fp32" is exact float32; in "tf32" the matrix products of both sides round their inputs to TF32.

Losses of some trials are compared with their own runs. Rounding alone changes a run, the more the larger its learning rate is, so each
of these trials also runs alone a second time with the rows of each batch in another order: the same mathematics in other rounding.

Parts are measured in order until `--seconds` are over; each is written to the result file when it is done.
"""

from __future__ import annotations

import argparse
import gc
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import record
from benchmarks.before import timehut_loop, trials_one_by_one
from benchmarks.gpu_timehut import walks
from benchmarks.gpu_trainer import Small
from stoker.recipes.timehut.population import make_population
from stoker.recipes.timehut.settings import make_settings
from stoker.tune import Population

QUESTION = "How many times faster do trials train on a GPU as a population than one by one in eager mode?"
ROWS, LENGTH, FEATURES = 64, 48, 8
STEPS = 50
COMPARED = 6


def main() -> None:
    """All parts, as far as the time suffices."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--small", action="store_true", help="Small parts, also without a GPU; writes no result file.")
    parser.add_argument("--seconds", type=float, default=600.0, help="No part begins after this time.")
    parser.add_argument("--only", default="", help="Only parts whose name has this text.")
    parser.add_argument("--out", type=Path, help="Where the result goes. [default: benchmarks/results/gpu_population.json]")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not options.small:
        raise SystemExit("torch sees no GPU here. Use --small to see that all parts run.")
    answer: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name() if device == "cuda" else "none",
        "torch": torch.__version__,
        "transformer": f"2 layers, d=64, batch {ROWS} x {LENGTH}, AdamW",
        "timehut": "encoder of 10 blocks, 64 hidden, 320 wide, batches of 8 series of 24 steps, every member with crops of its own",
    }
    begin = time.perf_counter()
    for name, part in make_parts(small=options.small).items():
        if options.only not in name or time.perf_counter() - begin > options.seconds:
            continue
        started = time.perf_counter()
        torch.set_float32_matmul_precision("high" if "tf32" in name else "highest")
        try:
            answer[name] = part(device)
        except Exception as error:  # a part that fails must not lose the others
            traceback.print_exc()
            answer[name] = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
        print(f"{name} ({time.perf_counter() - started:.0f} s): {answer[name]}", flush=True)
        if not options.small:
            record.save("gpu_population", QUESTION, answer, path=options.out, show=False)


def make_parts(*, small: bool) -> dict[str, Callable[[str], dict[str, Any]]]:
    """What is measured, by name, in order of importance."""
    few, many, rounds, steps = (2, 4, 1, 2) if small else (128, 1024, 3, STEPS)
    updates, fewer = (4, 4) if small else (30, 10)
    found: dict[str, Callable[[str], dict[str, Any]]] = {
        f"transformer, {many} trials, tf32": partial(transformer, many, rounds, steps // 2),
        f"transformer, {few} trials, fp32": partial(transformer, few, rounds, steps),
        f"timehut, {few} trials, tf32": partial(timehut, few, "tf32", updates),
        f"timehut, {many} trials, tf32": partial(timehut, many, "tf32", fewer),
        f"transformer, {many} trials, fp32": partial(transformer, many, rounds, steps // 2),
        f"transformer, {few} trials, float64": partial(exactness, few, steps),
        f"transformer, {few} trials, tf32": partial(transformer, few, rounds, steps),
    }
    if not small:
        found["transformer, 1024 trials, tf32, compiled"] = partial(transformer, many, rounds, steps // 2, compile=True)
        found["transformer, 1024 trials in chunks of 64, tf32"] = partial(transformer, many, rounds, steps // 2, chunk_size=64)
        for size in (8, 32, 512):
            found[f"transformer, {size} trials, fp32"] = partial(transformer, size, rounds, steps)
    found[f"timehut, {few} trials, fp32"] = partial(timehut, few, "fp32", updates)
    found[f"timehut, {many} trials, fp32"] = partial(timehut, many, "fp32", fewer)
    return found


def make_model(config: Mapping[str, Any]) -> nn.Module:
    """The model of the trials; configurations differ in the optimizer only."""
    return Small(width=64, layers=2, features=FEATURES)


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Of the label of each window."""
    return nn.functional.binary_cross_entropy_with_logits(model(batch["x"]), batch["y"])


def make_configs(size: int) -> list[dict[str, Any]]:
    """Learning rates from 1e-4 to 1e-2."""
    return [{"lr": 10 ** (-4 + 2 * row / size), "weight_decay": 0.01 * (1 + row % 3)} for row in range(size)]


def make_batches(device: str, steps: int, dtype: torch.dtype = torch.float32) -> list[dict[str, torch.Tensor]]:
    """Batches on the device."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(steps, ROWS, LENGTH, FEATURES, generator=generator)
    y = (x[:, :, -1, :1] + torch.randn(steps, ROWS, 1, generator=generator) > 0).float()
    return [{"x": a.to(device, dtype), "y": b.to(device, dtype)} for a, b in zip(x, y, strict=True)]


def transformer(size: int, rounds: int, steps: int, device: str, **options: Any) -> dict[str, Any]:
    """Steps per second of a trial, alone and in a population of this size."""
    configs, batches = make_configs(size), make_batches(device, steps)
    wait(device)
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else 0
    begin = time.perf_counter()
    population = Population(make_model, loss, configs, device=device, verbose=False, **options)
    built = time.perf_counter() - begin
    losses = torch.stack([population.step(batch) for batch in batches], 1)
    wait(device)
    started = time.perf_counter() - begin - built
    used = free - torch.cuda.mem_get_info()[0] if device == "cuda" else 0
    alone = trials_one_by_one.start(make_model, loss, configs[0], seed=0, device=device)
    seconds_per_step(alone, batches, device)
    times: dict[str, list[float]] = {"one by one": [], "population": []}
    for _ in range(rounds):
        times["one by one"].append(seconds_per_step(alone, batches, device))
        times["population"].append(seconds_per_step(population.step, batches[: 10 if size > 128 else None], device) / size)
    return {
        "trial steps per second": {name: record.spread([1 / one for one in values]) for name, values in times.items()},
        "faster than one by one": record.ratio(times["one by one"], times["population"]),
        "seconds to build the models": round(built, 2),
        "seconds of the first round of steps": round(started, 2),
        "GiB of the GPU in use": round(used / 2**30, 2),
        "report": str(population.report),
        "fused kernels": population._groups[0].group.fuses and device == "cuda",
        **compare(losses, configs, batches, device),
    }


def compare(losses: torch.Tensor, configs: list[dict[str, Any]], batches: list[Any], device: str) -> dict[str, Any]:
    """How far the losses of members are from those of their own runs, and these from the same in other rounding."""
    size = len(configs)
    dtype = batches[0]["x"].dtype
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1)).to(device)
    found = []
    for row in sorted({round(number * (size - 1) / (COMPARED - 1)) for number in range(COMPARED)}):
        runs = []
        for index in (slice(None), order):
            step = trials_one_by_one.start(lambda config: make_model(config).to(dtype), loss, configs[row], seed=row, device=device)
            runs.append(torch.stack([step({name: one[index] for name, one in batch.items()}) for batch in batches]))
        found.append(((losses[row] - runs[0]).abs().max().item(), (runs[1] - runs[0]).abs().max().item()))
    return {
        "members compared with their own runs": len(found),
        "steps of the comparison": len(batches),
        "members within 1e-4": sum(own < 1e-4 for own, _ in found),
        "losses differ by at most": max(own for own, _ in found),
        "those of a run alone in other rounding by": max(other for _, other in found),
        "of each member: from its run, its run in other rounding": [[float(f"{one:.2g}") for one in pair] for pair in found],
    }


def exactness(size: int, steps: int, device: str) -> dict[str, Any]:
    """The same comparison in float64, where rounding has no time to grow: what is left would be a fault."""
    configs, batches = make_configs(size), make_batches(device, steps, torch.float64)
    population = Population(lambda config: make_model(config).double(), loss, configs, device=device, verbose=False)
    losses = torch.stack([population.step(batch) for batch in batches], 1)
    return compare(losses, configs, batches, device)


def timehut(size: int, precision: str, updates: int, device: str) -> dict[str, Any]:
    """Milliseconds per update of one encoder in the usual loop, and in a population of this size, capture apart."""
    data = walks(20, 24, 1)[0]
    data = (data - data.mean()) / data.std()
    rounds, count = 3, min(updates, 12)
    settings = [make_settings("timehut", updates=(rounds + 2) * updates, seed=seed) for seed in range(size)]
    begin = time.perf_counter()
    population = make_population(data, settings, device=device)
    losses = population.advance(updates, precision=precision)
    wait(device)
    started = time.perf_counter() - begin
    differences = {}
    for row in (0, size - 1):
        one = make_population(data, [settings[row]], device=device)
        differences[row] = abs(float(one.advance(updates, precision=precision)[0]) - float(losses[row]))
    single = timed(lambda: one.advance(2 * updates, precision=precision), device) / updates
    with torch.device(device):  # the loop makes its index tensors there
        _, step = timehut_loop.make_loop(data, settings[0], (rounds + 1) * count, device=device)
    times: dict[str, list[float]] = {"one by one": [], "population": []}
    for number in range(rounds + 1):
        with torch.device(device):
            usual = timed(lambda number=number: [step(number * count + i) for i in range(count)], device) / count
        many = timed(lambda: population.advance(population.updates + updates, precision=precision), device) / updates / size
        if number:  # the first round warms up
            times["one by one"].append(usual)
            times["population"].append(many)
    return {
        "milliseconds per update of a trial": {name: record.spread([1e3 * one for one in each]) for name, each in times.items()},
        "faster than one by one": record.ratio(times["one by one"], times["population"]),
        "milliseconds per update of a population of one": float(f"{1e3 * single:.4g}"),
        f"seconds of the start and {updates} updates": round(started, 2),
        f"losses after {updates} updates differ from those of a population of one by at most": max(differences.values()),
    }


def timed(work: Callable[[], Any], device: str) -> float:
    """Seconds with one wait at the end."""
    wait(device)
    begin = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - begin


def seconds_per_step(step: Callable[[Any], Any], batches: list[Any], device: str) -> float:
    """Of all batches."""
    return timed(lambda: [step(batch) for batch in batches], device) / len(batches)


def wait(device: str) -> None:
    """Until the device has done all."""
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
