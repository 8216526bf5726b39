"""Variants of a kernel, side by side."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from benchmarks.time_moe.setting import ON_GPU


def timed(run: Callable[[], Any], repeats: int = 20) -> float:
    """Milliseconds of a call, by events of the device."""
    for _ in range(3):
        run()
    if not ON_GPU:
        return math.nan
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(repeats):
        run()
    last.record()
    torch.cuda.synchronize()
    return round(first.elapsed_time(last) / repeats, 4)


def compare(title: str, variants: dict[str, Callable[[], Any]], *, threads: int = 8) -> dict[str, float]:
    """Milliseconds of each variant; what cannot run is reported. Kernels are compiled side by side."""

    def attempt(run: Callable[[], Any]) -> str | None:
        try:
            run()
        except Exception as error:
            return (str(error).splitlines() or [type(error).__name__])[0][:100]
        return None

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(attempt, variants.values()))
    failures = {name: attempt(run) for name, run in variants.items()}
    found = {name: timed(run) for name, run in variants.items() if failures[name] is None}
    print(title, {name: failures[name] or found[name] for name in variants}, flush=True)
    return found


def best_of(found: dict[str, float]) -> str:
    return min(found, key=lambda name: found[name] if found[name] == found[name] else 0.0)
