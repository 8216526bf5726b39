"""One library, in a process of its own, beside the ideal gather: run by `bench_peers` with that library's Python.

The ideal is `torch.index_select` from the memory map into one reused buffer, on one thread, with the order made
beforehand. It is timed before, between and after; a ratio compares a case with the two ideals around it. Samples are
counted per CPU second of the process and its descendants, which a neighbour's load hardly changes, and per second.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.metadata
import importlib.util
import json
import random
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import record
from benchmarks.peers.cpu import cpu_seconds
from benchmarks.peers.served import Served, look
from benchmarks.peers.workload import SEED, WORKLOADS, Case, Epoch, Workload


@dataclass(frozen=True, kw_only=True)
class Limits:
    """`least` and `most`: seconds a timed window takes; fast loaders run for several epochs, slow ones stop early."""

    rounds: int
    least: float
    most: float


@dataclass(frozen=True)
class Rate:
    """Samples per second, by two clocks."""

    cpu: float
    wall: float


def main() -> None:
    """Prepare, check and time all cases of a peer for a workload; write what was found as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer")
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("answer", type=Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    limits = Limits(rounds=1, least=0.01, most=0.3) if options.small else Limits(rounds=options.rounds, least=0.3, most=8.0)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nothing here writes to batches
    answer = measure(options.peer, WORKLOADS[options.workload](options.small), options.folder, limits)
    options.answer.write_text(json.dumps(answer))


def measure(name: str, workload: Workload, folder: Path, limits: Limits) -> dict[str, Any]:
    """The rows of a peer, or why there are none."""
    if reason := why_not(name):
        return {"not measured": reason}
    peer = importlib.import_module(f"benchmarks.peers.{name}")
    folder.mkdir(parents=True)
    workload.write(folder)
    start = time.perf_counter()
    peer.prepare(folder, workload)
    prepared = round(time.perf_counter() - start, 2)
    rows = [row for case in cases(name, workload.name) for row in time_case(case, folder, workload, limits)]
    return {"version": _version(peer.NEEDS), "seconds to prepare": prepared, "rows": rows}


def cases(name: str, workload: str) -> list[Case]:
    """The ways in which a peer serves a workload; some serve only one of the two."""
    found: tuple[Case, ...] = importlib.import_module(f"benchmarks.peers.{name}").CASES
    return [case for case in found if case.workload == workload]


def why_not(name: str) -> str | None:
    """Why this Python cannot run a peer."""
    needs = importlib.import_module(f"benchmarks.peers.{name}").NEEDS
    missing = [need for need in needs if importlib.util.find_spec(need) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


def time_case(case: Case, folder: Path, workload: Workload, limits: Limits) -> Iterator[dict[str, Any]]:
    """One row for each number of workers, timed in turns."""
    loaders: dict[int, Epoch] = {}
    orders: dict[int, Served] = {}
    for workers in case.workers:
        _seed()
        loaders[workers] = case.open(folder, workload, workers)
        if case.checked:
            orders[workers] = look(loaders[workers](0), workload, 3 * limits.most)
    ideal = ideal_gather(folder, workload)
    rates: dict[int, list[Rate]] = {workers: [] for workers in case.workers}
    ideals: dict[int, list[Rate]] = {workers: [] for workers in case.workers}
    before = timed(ideal, 0, limits)
    for number in range(limits.rounds):
        for workers, epoch in loaders.items():
            rates[workers].append(timed(epoch, 1 + 1000 * number, limits))
            after = timed(ideal, 0, limits)
            ideals[workers].append(Rate((before.cpu + after.cpu) / 2, (before.wall + after.wall) / 2))
            before = after
    first = case.workers[0]
    for workers in case.workers:
        yield {
            "case": case.name,
            "workers": f"{workers} {case.kind}",
            "of ideal": record.ratio([rate.cpu for rate in rates[workers]], [rate.cpu for rate in ideals[workers]]),
            "samples per CPU second": record.spread([rate.cpu for rate in rates[workers]]),
            "samples per second": record.spread([rate.wall for rate in rates[workers]]),
            "ideal per CPU second": record.spread([rate.cpu for rate in ideals[workers]]),
            **(orders[workers].quality(workload) if case.checked else {}),
            **({f"batches as with {first}": orders[workers].same_as(orders[first])} if workers != first else {}),
            **({"remark": case.remark} if case.remark else {}),
        }


def ideal_gather(folder: Path, workload: Workload) -> Epoch:
    """Epochs of the ideal: the same batches each time, in one buffer."""
    samples = workload.samples(folder)
    order = torch.randperm(workload.num_samples, generator=torch.Generator().manual_seed(SEED))
    parts = torch.split(order, workload.batch_size)
    buffer = torch.empty(workload.batch_size, samples.shape[1])

    def epoch(_: int) -> Iterator[torch.Tensor]:
        for part in parts:
            yield torch.index_select(samples, 0, part, out=buffer[: len(part)])

    return epoch


def timed(epoch: Epoch, first: int, limits: Limits) -> Rate:
    """Whole epochs from the making of the iterator to its end, until `least` seconds went by; `most` breaks one off."""
    gc.collect()  # so that no loader pays for the garbage of another
    samples, number = 0, first
    cpu, wall = cpu_seconds(), time.perf_counter()
    while (elapsed := time.perf_counter() - wall) < limits.least:
        for batch in epoch(number):
            samples += len(batch)
            if time.perf_counter() - wall > limits.most:
                break
        number += 1
    elapsed = time.perf_counter() - wall
    return Rate(samples / (cpu_seconds() - cpu), samples / elapsed)


def _seed() -> None:
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)


def _version(needs: tuple[str, ...]) -> str:
    packages = importlib.metadata.packages_distributions()
    names = [packages.get(need, [need])[0] for need in needs]
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


if __name__ == "__main__":
    main()
