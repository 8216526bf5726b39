"""What do 55 indicators of a million bars cost, next to plain C of the same definition, and one bar at a time?

All times are CPU times of one thread. The plain C is benchmarks/before/sentio_features.c, compiled with -O2. Both sides make
the row-major matrix; the C has two ways to do that, and shares its sources, which the original does not. The physical limit is
a copy of the result.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import record
from benchmarks.before.sentio_features import OPERATORS, SentioBuilder, compiler
from stoker.store.store import Store
from stoker_recipes.tfa import FeatureStream, features
from stoker_recipes.tfa.indicators.spec import parse_spec

QUESTION = "What do 55 indicators of a million bars cost, next to plain C of the same definition, and one bar at a time?"

Bars = dict[str, npt.NDArray[np.float64]]

EMAS = (2, 3, 5, 8, 10, 12, 15, 20, 25, 26, 30, 35, 40, 45, 50, 55, 60, 70, 80, 90, 100, 120, 150, 200)
RSIS = (2, 3, 5, 7, 9, 14, 21, 25, 30)
ZWINS = (5, 10, 15, 20, 25, 30, 40, 50, 60, 80, 100)
MORE_EMAS = (4, 6, 7, 9, 11, 13, 14, 16)

FRESH = """
import json, sys, time
import numpy as np, stoker_recipes.tfa as encode
spec, compat = json.loads(sys.argv[1]), sys.argv[2] or None
features = encode.features  # imports the compiler
start = time.process_time()
features({"close": np.ones(300)}, spec, compat=compat)
print(time.process_time() - start)
"""


def main() -> None:
    """The matrix, the stream, short series, and the first use."""
    options = record.arguments(QUESTION)
    num_bars, pushes, rounds = (20_000, 2_000, 2) if options.small else (1_000_000, 20_000, options.rounds or 9)
    bars = market(num_bars)
    answer: dict[str, Any] = {"bars": num_bars, "rounds": rounds}
    with tempfile.TemporaryDirectory() as name:
        builder = SentioBuilder(Path(name)) if compiler() is not None else None
        answer["55 features"] = matrix(bars, spec_of_55(), builder, rounds)
        answer["all 32 operators"] = matrix(bars, spec_of_all(), builder, max(2, rounds // 3))
    answer["stream"] = {mode or "exact": stream(bars, mode, pushes, rounds) for mode in (None, "sentio")}
    answer["series of 100 bars over one long series"] = short_series(bars, rounds)
    if not options.small:  # it takes longer than all the rest
        answer["CPU seconds of the first use on a machine, and in a later process"] = {
            mode or "exact": first_use(mode) for mode in (None, "sentio")
        }
    print(json.dumps(answer, indent=1)) if options.small else record.save("bench_indicators", QUESTION, answer)


def market(num_bars: int) -> Bars:
    """A random walk with prices in cents."""
    rng = np.random.default_rng(0)
    close = np.round(300 * np.exp(np.cumsum(rng.normal(0, 5e-4, num_bars))), 2)
    open_ = np.concatenate([close[:1], close[:-1]])
    return {
        "open": open_,
        "high": np.round(np.maximum(open_, close) + rng.exponential(0.1, num_bars), 2),
        "low": np.round(np.minimum(open_, close) - rng.exponential(0.1, num_bars), 2),
        "close": close,
        "volume": rng.integers(1, 100_000, num_bars).astype(np.float64),
    }


def spec_of_55() -> dict[str, Any]:
    """The spec that Sentio's model is trained on."""
    features = [{"name": "close", "op": "IDENT"}, {"name": "logret", "op": "LOGRET"}]
    features += [{"name": f"ema_{w}", "op": "EMA", "window": w} for w in EMAS]
    features += [{"name": f"rsi_{w}", "op": "RSI", "window": w} for w in RSIS]
    features += [{"name": f"zwin_{w}", "op": "ZWIN", "source": "logret", "window": w} for w in ZWINS]
    features += [{"name": f"ema_{w}", "op": "EMA", "window": w} for w in MORE_EMAS] + [{"name": "rsi_4", "op": "RSI", "window": 4}]
    return {"features": features, "alignment_policy": {"emit_from_index": 64}}


def spec_of_all() -> dict[str, Any]:
    """Each operator once."""
    return {"features": [{"name": op, "op": op} for op in OPERATORS]}


def matrix(bars: Bars, content: dict[str, Any], builder: SentioBuilder | None, rounds: int) -> dict[str, Any]:
    """Both arithmetics, both ways of the C, and a copy of the result, interleaved."""
    theirs = parse_spec(content, compat="sentio")
    result = features(bars, theirs, threads=1).values
    target = np.empty_like(result)
    sides: dict[str, Any] = {
        "copy of the result": lambda: np.copyto(target, result),
        "sentio": lambda: features(bars, theirs, threads=1),
        "exact": lambda: features(bars, content, threads=1),
    }
    if builder is not None:
        sides["C, rows at the end"] = lambda: builder.build(bars, theirs, by_row=True)
        sides["C, column by column"] = lambda: builder.build(bars, theirs, by_row=False)
    seconds = record.interleave(sides, rounds=rounds, clock=time.process_time)
    answer: dict[str, Any] = {
        "CPU milliseconds": {side: record.spread([1e3 * s for s in found]) for side, found in seconds.items()}
    }
    for ours in ("sentio", "exact"):
        for side in sides:
            if side.startswith("C, "):
                answer[f"{ours}: times faster than {side}"] = record.ratio(seconds[side], seconds[ours])
        answer[f"{ours}: copies of the result"] = record.ratio(seconds[ours], seconds["copy of the result"])
    if builder is not None:
        answer["sentio has the bits of the C"] = result.tobytes() == builder.build(bars, theirs).tobytes()
    return answer


def stream(bars: Bars, compat: str | None, pushes: int, rounds: int) -> dict[str, Any]:
    """Bars as a program gets them, one mapping each."""
    rows = [
        dict(zip(bars, map(float, row), strict=True)) for row in zip(*(values[:pushes] for values in bars.values()), strict=True)
    ]
    engine = FeatureStream(spec_of_55(), compat=compat)
    taken: list[npt.NDArray[np.float32]] = []

    def push() -> None:
        engine.reset()
        taken[:] = [engine.push(row) for row in rows]

    seconds = record.interleave({"push": push}, rounds=rounds, clock=time.process_time)["push"]
    batch = features(bars, spec_of_55(), compat=compat, threads=1).values[:pushes]
    return {
        "microseconds per bar": record.spread([1e6 * s / pushes for s in seconds]),
        "has the bits of the batch": np.array(taken).tobytes() == batch.tobytes(),
    }


def short_series(bars: Bars, rounds: int) -> dict[str, Any]:
    """The same bars as one series and as many, in one thread."""
    num_bars = len(bars["close"])
    long = Store.from_arrays(lengths=[num_bars], close=bars["close"])
    short = Store.from_arrays(lengths=np.full(num_bars // 100, 100), close=bars["close"])
    sides = {
        name: (lambda store=store: features(store, spec_of_55(), threads=1))
        for name, store in {"long": long, "short": short}.items()
    }
    seconds = record.interleave(sides, rounds=max(2, rounds // 3), clock=time.process_time)
    return record.ratio(seconds["short"], seconds["long"])


def first_use(compat: str | None) -> list[float]:
    """With an empty cache of kernels, and then with what that left."""
    with tempfile.TemporaryDirectory() as name:
        environment = {**os.environ, "NUMBA_CACHE_DIR": name}
        command = [sys.executable, "-c", FRESH, json.dumps(spec_of_55()), compat or ""]
        done = [subprocess.run(command, env=environment, capture_output=True, text=True, check=True) for _ in range(2)]
    return [round(float(one.stdout), 2) for one in done]


if __name__ == "__main__":
    main()
