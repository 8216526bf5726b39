"""Stoker beside what users would pick instead, on segments and on windows: each library in a process of its own.

    python -m benchmarks.feed.bench_peers --python litdata=/tmp/peers/litdata/bin/python --python grain=...
    python -m benchmarks.feed.bench_peers $(sh benchmarks/peers/environments.sh /tmp/peers)

A library that is not importable is named with the reason. With `--small` only what this Python can import is run, on
little data, to see that it works; its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.peers.measure import cases, why_not

QUESTION = "How many samples does a CPU second give, as a share of the ideal gather: stoker, and what users would pick instead?"

PEERS = (
    "stoker indexing dataloader tensordict scdataset datasets litdata grain lance mosaicml webdataset "
    "gluonts neuralforecast pytorch_forecasting"
).split()
LIMIT_SECONDS = 1800
WORKLOADS = {
    "segments": "20,000 segments of 2048 float32, batch 256, shuffled",
    "windows": "windows of 48 rows of 55 float32, stride 1 over 200,000 rows, batch 1024, shuffled",
}


def main() -> None:
    """Run the peers one after another, and put their rows side by side."""
    options = arguments()
    pythons = dict(pair.split("=", 1) for pair in options.python)
    answer: dict[str, Any] = {
        "how": "each library in its own process, torch on one thread; 'of ideal' compares CPU seconds of the process and its "
        "descendants with torch.index_select from the memory map into one reused buffer, timed before and after in that process",
        "rounds": options.rounds,
        "versions": {},
        "not measured": {},
    }
    for workload, words in WORKLOADS.items():
        rows = []
        for name in options.only or PEERS:
            if not cases(name, workload):
                continue
            found = run(name, workload, pythons.get(name, sys.executable), options)
            if "not measured" in found:
                answer["not measured"][name] = found["not measured"]
                continue
            answer["versions"][name] = found["version"]
            rows += [{"peer": name, **row, "seconds to prepare": found["seconds to prepare"]} for row in found["rows"]]
        answer[workload] = {"what": words, "rows": sorted(rows, key=lambda row: -row["of ideal"]["median"])}
    show(answer)
    if not options.small:
        record.save("bench_peers", QUESTION, answer)


def arguments() -> argparse.Namespace:
    """Those of every benchmark, and which Python has which library."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--small", action="store_true", help="A quick run that writes no result file.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH", help="The Python that has this library.")
    parser.add_argument("--only", action="append", choices=PEERS, help="Run this one; may be given several times.")
    return parser.parse_args()


def run(name: str, workload: str, python: str, options: argparse.Namespace) -> dict[str, Any]:
    """What a peer found, or why it found nothing."""
    if python == sys.executable and (reason := why_not(name)):
        return {"not measured": reason}
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [python, "-m", "benchmarks.peers.measure", name, workload, str(Path(folder) / "data"), str(answer)]
        command += ["--small"] if options.small else ["--rounds", str(options.rounds)]
        try:
            done = subprocess.run(command, cwd=record.ROOT, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return {"not measured": f"not done within {LIMIT_SECONDS} seconds"}
        if answer.exists():
            found: dict[str, Any] = json.loads(answer.read_text())
            return found
        return {"not measured": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}


def show(answer: dict[str, Any]) -> None:
    """A table for the eye."""
    for workload in WORKLOADS:
        for row in answer[workload]["rows"]:
            share, rate = row["of ideal"]["median"], row["samples per CPU second"]["median"]
            print(
                f"{workload:9} {row['peer']:20} {row['case'][:50]:50} {row['workers']:12} of ideal {share:<8.3g} "
                f"per CPU second {rate:<10.0f} in-batch spread {row.get('in-batch spread', '-')}"
            )
    for name, reason in answer["not measured"].items():
        print(f"{name}: {reason}")


if __name__ == "__main__":
    main()
