"""Times of training steps as they occur: the noise models of bench_slowdowns.py and of the tests of the detector."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from stoker._types import Array

STEP_NS = 1e6
BUCKETS = np.log([1, 1.3, 1.7, 2.2, 3])


def autocorrelated(size: int, rng: np.random.Generator, *, correlation: float, scatter: float) -> Array:
    """An AR(1) process that begins in its stationary state."""
    found = rng.standard_normal(size) * scatter * math.sqrt(1 - correlation**2)
    found[0] = rng.standard_normal() * scatter
    shift = 1
    while shift < size and correlation**shift > 1e-9:  # sums of 2, 4, 8, ... shocks
        found[shift:] += correlation**shift * found[:-shift].copy()
        shift *= 2
    return found


def bursts(size: int, rng: np.random.Generator) -> Array:
    """At random moments 5 to 40 steps take half as long again, at least 200 steps apart."""
    found = gaussian(size, rng)
    at = 0
    while (at := at + 200 + int(rng.exponential(2000))) < size:
        found[at : at + int(rng.integers(5, 41))] += 0.4
    return found


def gaussian(size: int, rng: np.random.Generator, scatter: float = 0.03) -> Array:
    """Independent steps."""
    return rng.standard_normal(size) * scatter


def _every(size: int, period: int, length: int, rise: float) -> Array:
    return np.where(np.arange(size) % period < length, rise, 0.0)


def everything(size: int, rng: np.random.Generator) -> Array:
    """A run as it is: scatter, bursts, a clock that wanders, pauses of the collector, log lines, checkpoints, epochs and a warm-up."""
    found = bursts(size, rng) + autocorrelated(size, rng, correlation=0.9999, scatter=0.01)
    found += np.where(rng.random(size) < 0.002, np.log1p(rng.pareto(1.5, size)), 0)
    found += _every(size, 50, 1, math.log(3)) + _every(size, 1000, 1, math.log(30)) + _every(size, 1000, 20, 0.3)
    return found + _every(size, 777, 10, 0.5) + 2 * np.exp(-np.arange(size) / 300)


MODELS: dict[str, Callable[[int, np.random.Generator], Array]] = {
    "gaussian, 3 %": gaussian,
    "lognormal, 10 %": lambda n, r: gaussian(n, r, 0.10),
    "lognormal, 30 %": lambda n, r: gaussian(n, r, 0.30),
    "Student t, 2 degrees of freedom": lambda n, r: r.standard_t(2, n) * 0.02,
    "log-Cauchy": lambda n, r: np.clip(r.standard_cauchy(n) * 0.01, -1, 5),
    "1 % of steps Pareto, no mean": lambda n, r: gaussian(n, r) + np.where(r.random(n) < 0.01, np.log1p(r.pareto(1.0, n)), 0),
    "AR(1) over 10 steps, 3 %": lambda n, r: autocorrelated(n, r, correlation=0.9, scatter=0.03),
    "AR(1) over 100 steps, 3 %": lambda n, r: autocorrelated(n, r, correlation=0.99, scatter=0.03),
    "AR(1) over 1,000 steps, 1.5 %": lambda n, r: autocorrelated(n, r, correlation=0.999, scatter=0.015) + gaussian(n, r, 0.02),
    "AR(1) over 10,000 steps, 1.5 %": lambda n, r: autocorrelated(n, r, correlation=0.9999, scatter=0.015) + gaussian(n, r, 0.02),
    "log line every 50 steps, 3x": lambda n, r: gaussian(n, r) + _every(n, 50, 1, math.log(3)),
    "checkpoint every 500 steps, 30x": lambda n, r: gaussian(n, r) + _every(n, 500, 1, math.log(30)),
    "checkpoint, then 20 slow steps": lambda n, r: gaussian(n, r) + _every(n, 1000, 1, math.log(30)) + _every(n, 1000, 20, 0.3),
    "epochs of 777 steps, 10 slow at first": lambda n, r: gaussian(n, r) + _every(n, 777, 10, 0.5),
    "bursts of 5 to 40 steps": bursts,
    "two lengths, at random": lambda n, r: gaussian(n, r) + np.where(r.random(n) < 0.5, math.log(2), 0),
    "five lengths, at random": lambda n, r: gaussian(n, r) + BUCKETS[r.integers(0, 5, n)],
    "five lengths, in runs of 30": lambda n, r: gaussian(n, r) + np.repeat(BUCKETS[r.integers(0, 5, n // 30 + 1)], 30)[:n],
    "the host waits for the device every 50 steps": lambda n, r: gaussian(n, r, 0.05) + _every(n, 50, 1, math.log(40)),
    "warm-up": lambda n, r: gaussian(n, r) + 2 * np.exp(-np.arange(n) / 300),
    "a run with all of it": lambda n, r: everything(n, r),
}
"""Logarithms of step times around 0, by name."""


def blocks_of(logarithms: Array, *, block: int) -> list[list[int]]:
    """Step times in ns, in blocks."""
    times = (np.exp(np.clip(logarithms, -3, 7)) * STEP_NS).astype(np.int64)
    found: list[list[int]] = times[: len(times) // block * block].reshape(-1, block).tolist()
    return found
