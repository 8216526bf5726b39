"""How often is a receipt wrong, what can it see, and what does watching a run cost?

    python -m benchmarks.compare.bench_receipts --lanes 8 --until 480 --out receipts.jsonl             all of it, side by side
    python -m benchmarks.compare.bench_receipts --lanes 8 --until 480 --out receipts.jsonl --missing   what is not in the file yet
    python -m benchmarks.compare.bench_receipts --out receipts.jsonl --record                          the result file, without running

- `A/A`: ten programs against themselves, on a quiet lane, with one of its two cores busy, with both busy, and with other seeds. They must
  be called faster, slower or changed in at most 1 % of 200 comparisons.
- `power`: programs whose step becomes 2, 5, 10 or 50 % shorter: the share that is called faster, by the budget.
- `traps`: edits with the right answer by construction (tests/compare/traps.py, and those kept apart), by their results alone.
- `cost`: a program that times its own steps, run by Python and by the engine, in turn.

A lane is two cores (verdicts/lanes.py). Each comparison is one line of the file as soon as it is known, so that a run that is ended keeps
what it has.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from verdicts.lanes import Deadline, make_lanes, side_by_side, usable_cores

from benchmarks.record import RESULTS, ROOT, save

QUESTION = "How often is a receipt wrong, which changes of a step can it see, and what does watching a run cost?"
PROGRAM = """
import time
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads({threads})
torch.manual_seed({seed})
x = torch.randn({rows}, {width})
y = x[:, :1].tanh()
blocks = [[torch.nn.Linear({width}, {width}), torch.nn.{activation}(), torch.nn.Dropout({dropout})] for _ in range({depth})]
layers = [layer for block in blocks for layer in block]
model = torch.nn.Sequential(*layers, torch.nn.Linear({width}, 1))
optimizer = torch.optim.{optimizer}(model.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(x, y), batch_size={batch}, shuffle=True, num_workers={workers})
wasted = torch.randn(64, 64)
steps = 0
for epoch in range(100):
    for a, b in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
        for _ in range({waste}):
            wasted @ wasted
        steps += 1
        if steps == {timed} // 2:
            begin = time.perf_counter()
        if steps == {timed}:
            print((time.perf_counter() - begin) / ({timed} - {timed} // 2), flush=True)
            raise SystemExit
"""
USUAL: dict[str, Any] = {
    "threads": 1, "seed": 0, "rows": 2048, "width": 128, "depth": 2, "activation": "ReLU", "dropout": 0.1, "optimizer": "AdamW",
    "batch": 64, "workers": 0, "waste": 100, "timed": 1_000_000,
}  # fmt: skip
PROGRAMS: dict[str, dict[str, Any]] = {
    "usual": {},
    "two threads": {"threads": 2, "width": 512},
    "workers": {"workers": 1},
    "narrow": {"width": 16, "batch": 16},
    "deep": {"depth": 8},
    "wide": {"width": 512},
    "tanh": {"activation": "Tanh", "optimizer": "SGD"},
    "no dropout": {"dropout": 0.0, "optimizer": "Adam"},
    "long steps": {"waste": 1500},
    "short epochs": {"rows": 256},
}
CONDITIONS = {"quiet": 0, "one busy core": 1, "both cores busy": 2, "other seeds": 0}
"""The cores of the lane that other programs keep busy."""
REPEATS = 5
EFFECTS, BUDGETS = (0.02, 0.05, 0.1, 0.5), (20.0, 60.0)
OF_WASTE = {"waste": 1000, "width": 16, "batch": 16, "depth": 1}
"""Programs whose steps are nearly all of what AFTER does less of: an effect is a part of the step."""
POWER_REPEATS = 5
AA_BUDGET = 30.0
COST_PAIRS, COST_STEPS = 8, 400
SECONDS = {"A/A": 25.0, "power": 45.0, "traps": 10.0, "cost": 60.0}
"""What a comparison is expected to take."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One comparison."""

    kind: str
    program: str
    condition: str = "quiet"
    effect: float = 0.0
    budget: float = 0.0
    repeat: int = 0

    device = "cpu"

    @property
    def name(self) -> str:
        """Unique among all comparisons."""
        return f"{self.kind}: {self.program}, {self.condition}, {self.effect:g}, {self.budget:g} s, {self.repeat}"


def cases() -> Iterator[Case]:
    """All comparisons: the short ones first, then each kind in turn, so that a run that is ended has some of each."""
    from tests.compare import apart, traps

    yield from (Case(kind="traps", program=name) for name in [*traps.TRAPS, *(f"apart: {name}" for name in apart.TRAPS)])
    yield from (Case(kind="cost", program=name) for name in ("usual", "narrow", "long steps"))
    powers = list(product(range(POWER_REPEATS), EFFECTS, BUDGETS))
    for repeat in range(REPEATS):
        for condition, program in product(CONDITIONS, PROGRAMS):
            yield Case(kind="A/A", program=program, condition=condition, budget=AA_BUDGET, repeat=repeat)
        for number, effect, budget in powers:
            if number == repeat:
                yield Case(kind="power", program="usual", effect=effect, budget=budget, repeat=repeat)


def run(case: Case) -> dict[str, Any]:
    """Make one comparison in this process."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, busy(CONDITIONS[case.condition]):
        os.chdir(folder)
        result = {"traps": _trap, "cost": _cost}.get(case.kind, _compare)(case)
    return {"seconds": round(time.monotonic() - begin, 1), **result}


def _written(name: str, text: str) -> Path:
    path = Path(name).absolute()
    path.write_text(text)
    return path


def _compare(case: Case) -> dict[str, Any]:
    import stoker

    values = {**USUAL, **PROGRAMS[case.program], **(OF_WASTE if case.kind == "power" else {})}
    values["seed"] = 1000 + case.repeat if case.condition == "other seeds" else 0
    before = _written("before.py", PROGRAM.format(**values))
    after = _written("after.py", PROGRAM.format(**{**values, "waste": round(values["waste"] * (1 - case.effect))}))
    receipt = stoker.compare(before, after, budget=case.budget)
    pairs = receipt.speed.pairs if receipt.speed is not None else 0
    step = statistics.median(receipt.before.step_seconds) if receipt.before.step_seconds else None
    return {"pairs": pairs, "step_seconds": step, "disturbed": receipt.conditions.disturbed, **receipt.brief()}


def _trap(case: Case) -> dict[str, Any]:
    from tests.compare import apart, traps

    import stoker

    name = case.program.removeprefix("apart: ")
    program, table = (apart.BEFORE, apart.TRAPS) if name != case.program else (traps.BEFORE, traps.TRAPS)
    trap = table[name]
    before, after = _written("before.py", program), _written("after.py", traps.edited(name, program, table))
    receipt = stoker.compare(before, after, budget=0, steps=80, tolerance=trap.tolerance)
    different = {fact.name for fact in receipt.facts if fact.same is False}
    right = (receipt.losses.verdict, receipt.status) == (trap.verdict, trap.status) and trap.facts - {"steps"} <= different
    return {"right": right, "expected": [trap.verdict, trap.status, sorted(trap.facts)], **receipt.brief()}


def _cost(case: Case) -> dict[str, Any]:
    """Time a program that times itself, run by Python and by the engine."""
    from stoker.compare.intervals import effect_of
    from stoker.compare.sides import Version, prepared

    program = _written("train.py", PROGRAM.format(**{**USUAL, **PROGRAMS[case.program], "timed": COST_STEPS}))
    plain, watched = [], []
    with prepared(Version(program=str(program))) as side:
        for number in range(2 * COST_PAIRS):
            if number % 4 in (0, 3):  # A B B A
                done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
                plain.append(float(done.stdout))
            else:
                watched.append(float(side.run([], whole=True).output))
    effect = effect_of([b / a - 1 for a, b in zip(plain, watched, strict=True)])
    return {"step_seconds": statistics.median(plain), "cost": effect.mean, "low": effect.low, "high": effect.high}


@contextlib.contextmanager
def busy(cores: int) -> Iterator[None]:
    """Keep some of the cores of this process busy with other programs."""
    mine = sorted(os.sched_getaffinity(0))
    others = [
        subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"])
        for core in mine[:cores]
    ]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def run_apart(case: Case) -> dict[str, Any]:
    """Make one comparison in a process of its own, which inherits the cores of its lane."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "2"}
    words = [sys.executable, "-m", "benchmarks.compare.bench_receipts", "--one", json.dumps(vars(case))]
    limit = 6 * SECONDS[case.kind] + 120
    try:
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {limit:.0f} s"}
    if done.returncode or not done.stdout.strip():
        return {"error": done.stderr.strip()[-600:]}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def verdict_of(result: dict[str, Any]) -> str:
    """Return what a comparison says, in one word."""
    if "error" in result:
        return "error"
    return "changed" if result["status"] == 4 else str(result["speed"]["verdict"] if result["speed"] else "not timed")


def summary(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the shares of verdicts by kind, condition, effect and budget."""
    same: dict[str, Counter[str]] = {}
    seen: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        case, result = line["case"], line["result"]
        if case["kind"] == "A/A":
            same.setdefault(case["condition"], Counter())[verdict_of(result)] += 1
        elif case["kind"] == "power":
            seen.setdefault(f"{case['effect']:.0%} within {case['budget']:.0f} s", []).append(result)
    traps = [line for line in lines if line["case"]["kind"] == "traps"]
    total = sum(same.values(), Counter[str]())
    return {
        "equal_programs": {
            "comparisons": total.total(),
            "called_different": sum(total[name] for name in ("faster", "slower", "changed")),
            "by_condition": {name: dict(counts) for name, counts in same.items()},
        },
        "faster_programs": {
            name: {
                "comparisons": len(results),
                "called_faster": sum(verdict_of(result) == "faster" for result in results),
                "median_speedup": _median(result["speed"]["speedup"] for result in results if result.get("speed")),
                "median_seconds": _median(result["seconds"] for result in results if "seconds" in result),
            }
            for name, results in sorted(seen.items())
        },
        "traps": {
            "number": len(traps),
            "right": sum(line["result"].get("right", False) for line in traps),
            "wrong": [line["case"]["program"] for line in traps if not line["result"].get("right", False)],
        },
        "cost_of_watching": {line["case"]["program"]: line["result"] for line in lines if line["case"]["kind"] == "cost"},
        "errors": [line["result"]["error"] for line in lines if "error" in line["result"]][:5],
    }


def _median(values: Iterator[float]) -> float | None:
    known = list(values)
    return statistics.median(known) if known else None


def main() -> None:
    """Run the comparisons, or those that are missing."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--until", type=float, default=600.0, metavar="SECONDS", help="Start none that would end after this time.")
    parser.add_argument("--lanes", type=int, default=0, metavar="N", help="N comparisons at a time, each on two cores of its own.")
    parser.add_argument("--missing", action="store_true", help="Only comparisons that are not in the file.")
    parser.add_argument("--kinds", nargs="+", choices=SECONDS, default=list(SECONDS), help="Which comparisons.")
    parser.add_argument("--small", action="store_true", help="Two comparisons of each kind.")
    parser.add_argument("--out", type=Path, default=RESULTS / "bench_receipts.jsonl", metavar="FILE")
    parser.add_argument("--record", action="store_true", help="Write the result file from what is known, and run nothing.")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        print(json.dumps(run(Case(**json.loads(asked.one)))))
        return
    keep = asked.missing or asked.record
    lines = [json.loads(line) for line in asked.out.read_text().splitlines()] if keep and asked.out.exists() else []
    lines = [line for line in lines if "error" not in line["result"]]
    if not asked.record:
        end = time.monotonic() + asked.until
        known = {Case(**line["case"]).name for line in lines}
        chosen = [case for case in cases() if case.kind in asked.kinds and case.name not in known]
        if asked.small:
            chosen = [case for kind in asked.kinds for case in [case for case in chosen if case.kind == kind][:2]]
        deadline = Deadline(seconds={case.name: SECONDS[case.kind] for case in chosen}, usual=60.0, end=end)
        lanes = make_lanes(asked.lanes, usable_cores(), gpu=0)
        machine = {
            "machine": platform.machine(),
            "cores": len(usable_cores()),
            "lanes": asked.lanes,
            "python": platform.python_version(),
        }
        with asked.out.open("a" if keep else "w") as out:
            for case, result in side_by_side(lanes, chosen, run_apart, may_start=deadline.allows):
                lines.append({"case": vars(case), "result": result, **machine})
                out.write(json.dumps(lines[-1]) + "\n")
                out.flush()
                print(f"{case.name}: {result.get('verdict') or result.get('error') or result.get('cost')}", flush=True)
    print(json.dumps(summary(lines), indent=1))
    if asked.record:
        save("bench_receipts", QUESTION, {"measured_on": lines[0].get("cores") if lines else None, **summary(lines)}, show=False)


if __name__ == "__main__":
    main()
