"""How full are rows of short series, what does packing them cost, and how fast are batches of them made?

The lengths are those of four parts of Time-300B, in the mean, spread in three ways: all equal, uniform from half to one and a half
of the mean, and log-normal. One piece a row is what the authors do.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np

import stoker
from benchmarks import record
from stoker_recipes.time_moe.batches import Batches, PackedRows
from stoker_recipes.time_moe.data import open_corpus
from stoker_recipes.time_moe.dataset import CorpusScales, Pieces

QUESTION = "How full are rows of short series, what does packing them cost, and how fast are batches of them made?"
MEANS = {"m1_monthly": 131, "kdd_cup_2018": 302, "beijing_air": 688, "wiki-rolling": 852}
SPREADS = ("equal", "uniform", "lognormal")
LENGTHS = (2048, 4096)


def main() -> None:
    """All of it; times are CPU times of the process, on one core."""
    options = record.arguments(QUESTION)
    points = 400_000 if options.small else 20_000_000
    answer: dict[str, Any] = {"points of each": points, "useful positions": {}}
    for length in LENGTHS:
        for name, mean in MEANS.items():
            shares = {spread: fullness(mean, spread, length, points) for spread in SPREADS}
            answer["useful positions"][f"{name} ({mean} points), rows of {length}"] = shares
    answer["packing and batches"] = speed(302, 2048, points, rounds=2 if options.small else 7)
    print(json.dumps(answer, indent=1)) if options.small else record.save("bench_packing", QUESTION, answer)


def lengths_of(mean: int, spread: str, points: int) -> np.ndarray[Any, Any]:
    """Lengths of series with about this many points in total."""
    rng = np.random.default_rng(0)
    number = points // mean
    if spread == "equal":
        return np.full(number, mean)
    if spread == "uniform":
        return rng.integers(mean // 2, mean * 3 // 2, number)
    return np.maximum(2, rng.lognormal(np.log(mean) - 0.5, 1.0, number)).astype(np.int64)


def rows_of(mean: int, spread: str, length: int, points: int, *, packed: bool) -> PackedRows:
    """Rows over random walks."""
    lengths = lengths_of(mean, spread, points)
    values = np.cumsum(np.random.default_rng(1).standard_normal(int(lengths.sum()), dtype=np.float32))
    corpus = open_corpus(stoker.Store.from_arrays(x=values, lengths=lengths))
    return PackedRows(Pieces(corpus, length), CorpusScales(corpus, "zero"), seed=0, packed=packed)


def fullness(mean: int, spread: str, length: int, points: int) -> dict[str, float]:
    """The share of positions that are targets, one piece a row and packed; and how many pieces are cut."""
    rows = rows_of(mean, spread, length, points, packed=True)
    made = [rows.pool(0, number) for number in range(rows.num_pools)]
    num_rows = sum(pool.num_rows for pool in made)
    placed = sum(len(pool.counts) for pool in made)
    return {
        "one piece a row": round(rows.pieces.filled, 4),
        "packed": round(rows.pieces.num_positions / (num_rows * length), 4),
        "pieces cut": round((placed - rows.pieces.num_samples) / rows.pieces.num_samples, 4),
    }


def speed(mean: int, length: int, points: int, *, rounds: int) -> dict[str, Any]:
    """Nanoseconds of packing a piece, and microseconds of a batch of 8 rows with it, against a copy of the batch."""
    rows = rows_of(mean, "lognormal", length, points, packed=True)
    batches = Batches(rows, batch_size=8, steps=40)
    kept = next(iter(batches))

    def pack() -> None:
        rows._make(0, 0)

    def make() -> None:
        for _ in batches:
            pass

    def copy() -> None:
        for _ in range(40):
            for tensor in kept.values():
                tensor.clone()

    seconds = record.interleave({"pack": pack, "batches": make, "copies": copy}, rounds=rounds, clock=time.process_time)
    pieces = rows.pieces.num_samples / rows.num_pools
    return {
        "nanoseconds to pack a piece": record.spread([1e9 * second / pieces for second in seconds["pack"]]),
        "microseconds of a batch of 8 x 2048": record.spread([1e6 * second / 40 for second in seconds["batches"]]),
        "copies of the batch in that time": record.ratio(seconds["batches"], seconds["copies"]),
    }


if __name__ == "__main__":
    main()
