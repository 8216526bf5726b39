"""Steps: milliseconds, memory, useful points per second, share of the peak, of both ways and of the recipe alone."""

from __future__ import annotations

import gc
import itertools
import time
from typing import Any

import torch

import stoker
from benchmarks.time_moe.setting import ON_GPU, PRECISIONS, Setting, synchronize
from benchmarks.time_moe.ways import original_steps, trainer_of
from stoker_recipes.time_moe import Size

PEAK = 790e12
"""Operations per second of a large bfloat16 product, measured on this GPU."""


def step(setting: Setting) -> dict[str, Any]:
    """Milliseconds per step of both ways."""
    found: dict[str, Any] = {}
    for batch in (setting.batch, 4 * setting.batch):
        steps = setting.steps if batch == setting.batch else max(4, setting.steps // 4)
        feed = setting.feed(steps, batch)
        for precision in PRECISIONS if batch == setting.batch else PRECISIONS[:1]:
            name = f"recipe {precision}, {batch} x {setting.length}"
            found[name] = recipe_step(setting, feed, precision, batch)
            print(name, found[name], flush=True)
        if batch > setting.batch:
            break
        for precision in ("fp32", "bf16"):
            name = f"original {precision}, {batch} x {setting.length}"
            found[name] = original_step(setting, feed, precision, batch)
            print(name, found[name], flush=True)
    return found


def recipe(setting: Setting) -> dict[str, Any]:
    """Steps of the recipe alone."""
    feed = setting.feed(setting.steps)
    found = {}
    for precision in PRECISIONS:
        found[precision] = recipe_step(setting, feed, precision, setting.batch)
        print(f"recipe {precision}", found[precision], flush=True)
    return found


def whole(setting: Setting) -> dict[str, Any]:
    """A step with the model compiled as a whole."""
    found = recipe_step(setting, setting.feed(setting.steps), setting.precision, setting.batch, whole=ON_GPU)
    print(found, flush=True)
    return found


def recipe_step(setting: Setting, feed: stoker.Feed, precision: str, batch: int, *, whole: bool = False) -> dict[str, Any]:
    """What four epochs take longer than one, so that compiling and capturing do not count."""
    reset_memory()
    model = setting.model()
    trainer = trainer_of(model, precision, whole=whole)
    seconds = []
    for epochs in (1, 1, 4):
        synchronize()
        begin = time.perf_counter()
        result = trainer.fit(feed, epochs=epochs)
        synchronize()
        seconds.append(time.perf_counter() - begin)
    a_step = (seconds[2] - seconds[1]) / 3 / len(feed)
    return numbers(
        setting,
        a_step,
        batch,
        **{"wait for the feed": round(result.wait, 5), "first epoch, s": round(seconds[0], 1), "setup": str(result.setup)},
    )


def original_step(setting: Setting, feed: stoker.Feed, precision: str, batch: int) -> dict[str, Any]:
    """Steps of the authors' loop, after two that are not counted."""
    reset_memory()
    count = 10
    steps = original_steps(setting.original(), itertools.cycle(feed), precision=precision)
    for _ in range(2):
        next(steps)
    synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        next(steps)
    synchronize()
    return numbers(setting, (time.perf_counter() - begin) / count, batch)


def flops(size: Size, batch: int, length: int) -> float:
    """Floating-point operations of one step, forward and backward, without recomputation."""
    attention = 3 * size.layers * 4 * batch * size.hidden * length**2 / 2  # a position looks at half of the others
    return 6 * size.parameters_with(size.top_k) * batch * length + attention


def numbers(setting: Setting, seconds: float, batch: int, **others: Any) -> dict[str, Any]:
    """A line of the table."""
    return {
        "ms per step": round(1e3 * seconds, 3),
        "it/s": round(1 / seconds, 2),
        "useful points/s": round(batch * setting.length / seconds),
        "share of the peak": round(flops(setting.size, batch, setting.length) / seconds / PEAK, 4),
        "peak GiB": peak_gib(),
        **others,
    }


def reset_memory() -> None:
    gc.collect()
    if ON_GPU:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_gib() -> float:
    return round(torch.cuda.max_memory_allocated() / 2**30, 2) if ON_GPU else 0.0
