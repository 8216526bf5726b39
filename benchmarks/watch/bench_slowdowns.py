"""How often does the watch raise a false alarm, and how soon does it find a slowdown of 10 %?

The detector of the watch itself runs over simulated step times: for each noise model ten runs of a million steps without a slowdown,
and runs with a slowdown of 10 % at a random moment. A false alarm is any slowdown that is reported in the former, or reported in the
latter before it began.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from typing import Any

import numpy as np

from benchmarks.record import arguments, save
from benchmarks.watch.step_times import MODELS, blocks_of, gaussian
from stoker._types import Array
from stoker.watch.detector import BLOCK, SlowdownDetector

QUESTION = "How often does the watch raise a false alarm, and how soon does it find a slowdown of 10 %?"
SEED = 20
BEFORE = 12_000  # steps before the slowdown
AFTER = 8_000
SCATTERS = (0.01, 0.03, 0.04, 0.05, 0.06, 0.07, 0.10)


def alarms(logarithms: Array) -> list[int]:
    """The steps after which a slowdown is reported."""
    times = SlowdownDetector()
    return [end * BLOCK for end, block in enumerate(blocks_of(logarithms, block=BLOCK), 1) if times.add(block) == "slower"]


def soak(name: str, *, runs: int, steps: int, rng: np.random.Generator) -> dict[str, Any]:
    false = [len(alarms(MODELS[name](steps, rng))) for _ in range(runs)]
    print(f"{name}: {sum(false)} false alarms in {runs * steps:,} steps", file=sys.stderr, flush=True)
    return {"steps": runs * steps, "false alarms": sum(false)}


def delays(make: Any, *, trials: int, rng: np.random.Generator) -> dict[str, Any]:
    """How soon a slowdown is found."""
    found, early = [], 0
    for _ in range(trials):
        at = BEFORE + int(rng.integers(0, 1000))
        logarithms = make(at + AFTER, rng)
        logarithms[at:] += math.log(1.1)
        reported = alarms(logarithms)
        early += sum(step <= at for step in reported)
        found.append(next((step - at for step in reported if step > at), None))
    seen = [delay for delay in found if delay is not None]
    return {
        "trials": trials,
        "within 100 steps": sum(delay <= 100 for delay in seen) / trials,
        f"within {AFTER} steps": len(seen) / trials,
        "median steps": statistics.median(seen) if seen else None,
        "false alarms": early,
    }


def main() -> None:
    options = arguments(QUESTION)
    rng = np.random.default_rng(SEED)
    runs, steps, trials = (1, 20_000, 2) if options.small else (options.rounds or 10, 1_000_000, 100)
    models = {name: soak(name, runs=runs, steps=steps, rng=rng) for name in MODELS}
    answer = {
        "soak": models,
        "steps in all": sum(model["steps"] for model in models.values()),
        "false alarms in all": sum(model["false alarms"] for model in models.values()),
        "most false alarms per million steps": max(model["false alarms"] / model["steps"] * 1e6 for model in models.values()),
        "slowdown of 10 %, independent steps that scatter by": {
            f"{scatter:.0%}": delays(lambda n, r, scatter=scatter: gaussian(n, r, scatter), trials=trials, rng=rng)
            for scatter in SCATTERS
        },
        "slowdown of 10 %, by model": {name: delays(MODELS[name], trials=trials, rng=rng) for name in MODELS},
    }
    if options.small:
        print(json.dumps(answer))
    else:
        save("bench_slowdowns", QUESTION, answer)


if __name__ == "__main__":
    main()
