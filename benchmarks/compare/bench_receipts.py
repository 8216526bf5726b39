"""How often is a receipt wrong, what can it see, and what does watching a run cost?

    python -m benchmarks.compare.bench_receipts --lanes 6 --until 530 --out receipts.jsonl             all of it, side by side
    python -m benchmarks.compare.bench_receipts --lanes 6 --until 530 --out receipts.jsonl --missing   what is not in the file yet
    python -m benchmarks.compare.bench_receipts --gpu 1 --until 200 --out receipts.jsonl --missing     what needs a GPU
    python -m benchmarks.compare.bench_receipts --out receipts.jsonl --record                          the result file, without running

- `A/A`: ten programs against themselves, on a quiet lane, with one of its two cores busy, with both busy, and with other seeds. They must
  be called faster, slower or changed in at most 1 % of 200 comparisons.
- `power`: programs whose step becomes 2, 5, 10 or 50 % shorter: the share that is called faster, by the budget.
- `traps`: edits with the right answer by construction (tests/compare/traps.py, those kept apart, and those of frameworks), by their
  results alone.
- `judged`: edits of a project whose checkpoints an evaluator judges (tests/compare/apart_judged.py).
- `cost`: the processor time of a program's steps, run by Python, by the engine, and by the engine with all observations, in turn.

A lane is two cores (verdicts/lanes.py). Each comparison is one line of the file as soon as it is known, so that a run that is ended keeps
what it has. A line has the load of the machine, which other programs may have.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from tests.compare import apart, apart_judged, traps
from tests.compare.frameworks import PROGRAMS as FRAMEWORKS
from tests.compare.frameworks import TRAPS as FRAMEWORK_TRAPS
from tests.compare.frameworks import framework_program
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
            begin = time.process_time()
        if steps == {timed}:
            print((time.process_time() - begin) / ({timed} - {timed} // 2), flush=True)
            raise SystemExit
"""
RAGGED = """
import torch
from torch.nn.utils.rnn import pad_sequence
torch.manual_seed({seed})
series = [torch.randn(int(length), 8) for length in torch.randint(5, 60, (1024,))]
model, head = torch.nn.GRU(8, 32, batch_first=True), torch.nn.Linear(32, 1)
optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-3)
loader = torch.utils.data.DataLoader(series, batch_size=16, shuffle=True, collate_fn=lambda rows: pad_sequence(rows, batch_first=True))
for epoch in range(100):
    for batch in loader:
        optimizer.zero_grad()
        head(model(batch)[0][:, -1]).square().mean().backward()
        optimizer.step()
"""
ON_GPU = """
import torch
torch.manual_seed({seed})
x = torch.randn(8192, {width})
model = torch.nn.Sequential(torch.nn.Linear({width}, 4 * {width}), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(4 * {width}, 1))
model = model.cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(1000):
    for rows in torch.randperm(len(x)).split(256):
        batch = x[rows].cuda()
        optimizer.zero_grad()
        loss = (model(batch)[:, 0] - batch[:, 0]).square().mean()
        loss.backward()
        optimizer.step()
        {read}
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
    "dropout": {"depth": 8, "dropout": 0.3},
    "long steps": {"waste": 1500},
}
"""Values of `PROGRAM`."""
TEXTS = {
    "ragged batches": RAGGED,
    **{
        name: framework_program(name, epochs=100).replace("manual_seed(0)", "manual_seed({seed})")
        for name in ("Hugging Face", "Lightning", "Accelerate")
    },
}
"""Other programs."""
GPU_PROGRAMS = {"gpu": {"width": 1024, "read": "pass"}, "gpu, short steps": {"width": 64, "read": "loss.item()"}}
GPU_TRAPS = (
    "a sync removed", "fused optimizer", "bfloat16", "another shuffle", "fewer samples per epoch", "dropout off", "a smaller model",
    "augmented batches cached",
)  # fmt: skip
TO_GPU = {
    "Linear(32, 1))\n": "Linear(32, 1)).cuda()\n", "Linear(24, 1))\n": "Linear(24, 1)).cuda()\n",
    "in loader:\n": "in loader:\n        a, b = a.cuda(), b.cuda()\n", "generator=noise)": "generator=noise).to(a.device)",
    "for a, b in loader]": "for a, b in ((c.cuda(), d.cuda()) for c, d in loader)]", "model(xv), yv": "model(xv.cuda()), yv.cuda()",
    "autocast('cpu'": "autocast('cuda'",
}  # fmt: skip
"""Replacements in the program of the traps."""
CONDITIONS = {"quiet": 0, "one busy core": 1, "both cores busy": 2, "other seeds": 0, "a busy machine": 0}
"""The cores of the lane that this benchmark keeps busy. The last one is for a machine that others keep busy."""
USUAL_CONDITIONS = list(CONDITIONS)[:-1]
REPEATS = 5
EFFECTS = (0.02, 0.05, 0.1, 0.5)
STEPS = {"short steps": 1000, "long steps": 5000}
BUDGETS = (("short steps", 30.0), ("short steps", 60.0), ("long steps", 60.0))
OF_WASTE, REST = {"width": 16, "batch": 16, "depth": 1}, 50
"""Programs of which nearly all of a step is waste, and what the rest of a step takes in units of it. An effect is a part of the step."""
POWER_REPEATS = 5
AA_BUDGET = 30.0
COST_ROUNDS, COST_STEPS = 12, 1000
SECONDS = {"A/A": 30.0, "power": 50.0, "traps": 20.0, "judged": 60.0, "cost": 150.0}
"""What a comparison is expected to take."""
LATE_SECONDS = 40.0  # that comparisons may take after the end


@dataclass(frozen=True, kw_only=True)
class Case:
    """One comparison."""

    kind: str
    program: str
    condition: str = "quiet"
    effect: float = 0.0
    budget: float = 0.0
    repeat: int = 0
    device: str = "cpu"

    @property
    def name(self) -> str:
        """Unique among all comparisons."""
        return f"{self.kind}: {self.program}, {self.condition}, {self.effect:g}, {self.budget:g} s, {self.repeat}, {self.device}"


def cases(gpu: bool) -> Iterator[Case]:
    """All comparisons: the short ones first, then each kind in turn, so that a run that is ended has some of each."""
    if gpu:
        yield from (Case(kind="traps", program=name, device="cuda") for name in GPU_TRAPS)
        yield from (
            Case(kind="A/A", program=name, budget=AA_BUDGET, repeat=repeat, device="cuda")
            for repeat, name in product(range(2), GPU_PROGRAMS)
        )
        return
    frameworks = [f"{name}: {trap}" for name, edits in FRAMEWORK_TRAPS.items() for trap in edits]
    yield from (
        Case(kind="traps", program=name) for name in [*traps.TRAPS, *(f"apart: {name}" for name in apart.TRAPS), *frameworks]
    )
    yield from (Case(kind="judged", program=name) for name in apart_judged.EDITS)
    yield from (Case(kind="cost", program=name) for name in ("usual", "narrow", "long steps"))
    for repeat in range(REPEATS):
        for condition, program in product(CONDITIONS, [*PROGRAMS, *TEXTS]):
            yield Case(kind="A/A", program=program, condition=condition, budget=AA_BUDGET, repeat=repeat)
        for effect, (program, budget) in product(EFFECTS, BUDGETS):
            yield Case(kind="power", program=program, effect=effect, budget=budget, repeat=repeat)


def run(case: Case) -> dict[str, Any]:
    """Make one comparison in this process."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, busy(CONDITIONS[case.condition]):
        os.chdir(folder)
        result = {"traps": _trap, "judged": _judged, "cost": _cost}.get(case.kind, _compare)(case)
    return {"seconds": round(time.monotonic() - begin, 1), **result}


def _written(name: str, text: str) -> Path:
    path = Path(name).absolute()
    path.write_text(text)
    return path


def _program(case: Case, seed: int) -> tuple[str, str]:
    """Return both versions."""
    if case.kind == "power":
        values = {**USUAL, **OF_WASTE, "seed": seed, "waste": STEPS[case.program]}
        less = round(values["waste"] * (1 - case.effect) - case.effect * REST)
        return PROGRAM.format(**values), PROGRAM.format(**{**values, "waste": less})
    if case.device == "cuda":
        text = ON_GPU.format(seed=seed, **GPU_PROGRAMS[case.program])
    elif case.program in TEXTS:
        text = TEXTS[case.program].replace("{seed}", str(seed))
    else:
        text = PROGRAM.format(**{**USUAL, **PROGRAMS[case.program], "seed": seed})
    return text, text


def _compare(case: Case) -> dict[str, Any]:
    import stoker

    before, after = _program(case, 1000 + case.repeat if case.condition == "other seeds" else 0)
    receipt = stoker.compare(_written("before.py", before), _written("after.py", after), budget=case.budget)
    speed = receipt.speed
    step = statistics.median(receipt.before.step_seconds) if receipt.before.step_seconds else None
    timed = {"pairs": speed.pairs, "excluded": speed.excluded if speed.known else None} if speed is not None else {}
    runs = [[float(f"{seconds:.4g}") for seconds in side.step_seconds] for side in (receipt.before, receipt.after)]
    return {**timed, "step_seconds": step, "runs": runs, "disturbed": receipt.conditions.disturbed, **receipt.brief()}


def _trap(case: Case) -> dict[str, Any]:
    import stoker

    table, _, name = case.program.rpartition(": ")
    if table in FRAMEWORKS:
        trap = FRAMEWORK_TRAPS[table][name]
        texts, options = [framework_program(table), framework_program(table, name)], {}
    else:
        program, known = (apart.BEFORE, apart.TRAPS) if table else (traps.BEFORE, traps.TRAPS)
        trap = known[name]
        texts, options = [program, traps.edited(name, program, known)], {"steps": 80}
    if case.device == "cuda":
        texts = [functools.reduce(lambda text, change: text.replace(*change), TO_GPU.items(), text) for text in texts]
    before, after = _written("before.py", texts[0]), _written("after.py", texts[1])
    receipt = stoker.compare(before, after, budget=0, tolerance=trap.tolerance, **options)
    different = {fact.name for fact in receipt.facts if fact.same is False}
    right = (receipt.losses.verdict, receipt.status) == (trap.verdict, trap.status) and trap.facts - {"steps"} <= different
    return {"right": right, "expected": [trap.verdict, trap.status, sorted(trap.facts)], **receipt.brief()}


def _judged(case: Case) -> dict[str, Any]:
    edit = apart_judged.EDITS[case.program]
    accepted, reason = apart_judged.judge_edit(edit)
    return {"right": accepted == edit.accepted and edit.reason in reason, "verdict": reason}


def _cost(case: Case) -> dict[str, Any]:
    """Take the processor time of a program's steps, run by Python and by the engine."""
    from stoker.compare.intervals import effect_of
    from stoker.compare.sides import Version, prepared

    program = _written("train.py", PROGRAM.format(**{**USUAL, **PROGRAMS[case.program], "timed": COST_STEPS}))
    with prepared(Version(program=str(program))) as side:
        ways = {
            "plain": lambda: subprocess.run([sys.executable, program], capture_output=True, text=True, check=True).stdout,
            "timed": lambda: side.run([], whole=True).output,
            "observed": lambda: side.run([], whole=True, observe=True).output,
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(COST_ROUNDS):
            for name in list(ways)[:: 1 if number % 2 else -1]:
                seconds[name].append(float(ways[name]()))
    costs = {name: effect_of([b / a - 1 for a, b in zip(seconds["plain"], seconds[name], strict=True)]) for name in ways}
    step = {"step_seconds": statistics.median(seconds["plain"])}
    return step | {
        name: {"cost": effect.center, "low": effect.low, "high": effect.high} for name, effect in costs.items() if name != "plain"
    }


@contextlib.contextmanager
def busy(cores: int) -> Iterator[None]:
    """Keep some of the cores of this process busy with other programs."""
    mine = sorted(os.sched_getaffinity(0))
    others = [
        subprocess.Popen(
            [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile os.getppid() == {os.getpid()}: pass"]
        )
        for core in mine[:cores]
    ]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def run_apart(case: Case, end: float) -> dict[str, Any]:
    """Make one comparison in a process of its own, which inherits the cores of its lane. It is ended soon after the time `end`."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "benchmarks.compare.bench_receipts", "--one", json.dumps(vars(case))]
    limit = min(10 * SECONDS[case.kind] + 300, end - time.monotonic() + LATE_SECONDS)
    try:
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {limit:.0f} s"}
    if done.returncode or not done.stdout.strip():
        return {"error": done.stderr.strip()[-600:]}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"load": round(os.getloadavg()[0], 1), **result}


def verdict_of(result: dict[str, Any]) -> str:
    """Return what a comparison says, in one word."""
    if "error" in result:
        return "error"
    return "changed" if result["status"] == 4 else str(result["speed"]["verdict"] if result["speed"] else "not timed")


def summary(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the shares of verdicts by kind, condition, effect and budget."""
    same: dict[str, Counter[str]] = {}
    loads: dict[str, list[float | None]] = {}
    seen: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        case, result = line["case"], line["result"]
        if case["kind"] == "A/A":
            condition = f"{case['condition']}{', GPU' * (case['device'] == 'cuda')}"
            same.setdefault(condition, Counter())[verdict_of(result)] += 1
            loads.setdefault(condition, []).append(result.get("load"))
        elif case["kind"] == "power":
            seen.setdefault(f"{case['program']}, {case['effect']:.0%} within {case['budget']:.0f} s", []).append(result)
    judged = {kind: [line for line in lines if line["case"]["kind"] == kind] for kind in ("traps", "judged")}
    total = sum(same.values(), Counter[str]())
    return {
        "equal_programs": {
            "comparisons": total.total(),
            "called_different": sum(total[name] for name in ("faster", "slower", "changed")),
            "by_condition": {name: {**counts, "median_load": _median(loads[name])} for name, counts in same.items()},
            "median_excluded": _median(line["result"].get("excluded") for line in lines if line["case"]["kind"] == "A/A"),
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
        **{
            kind: {
                "number": len(answers),
                "right": sum(line["result"].get("right", False) for line in answers),
                "wrong": [Case(**line["case"]).name for line in answers if not line["result"].get("right", False)],
            }
            for kind, answers in judged.items()
        },
        "cost_of_watching": {line["case"]["program"]: line["result"] for line in lines if line["case"]["kind"] == "cost"},
        "errors": [line["result"]["error"] for line in lines if "error" in line["result"]][:5],
    }


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def main() -> None:
    """Run the comparisons, or those that are missing."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--until", type=float, default=600.0, metavar="SECONDS", help="Start none that would end after this time.")
    parser.add_argument("--lanes", type=int, default=0, metavar="N", help="N comparisons at a time, each on two cores of its own.")
    parser.add_argument("--missing", action="store_true", help="Only comparisons that are not in the file.")
    parser.add_argument("--gpu", type=int, default=0, metavar="N", help="Comparisons on the GPU alone, N at a time.")
    parser.add_argument("--kinds", nargs="+", choices=SECONDS, default=list(SECONDS), help="Which comparisons.")
    parser.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=USUAL_CONDITIONS, help="Under which conditions.")
    parser.add_argument("--small", action="store_true", help="Two comparisons of each kind.")
    parser.add_argument("--out", type=Path, default=RESULTS / "bench_receipts.jsonl", metavar="FILE")
    parser.add_argument(
        "--record", action="store_true", help="Write the result file of the same name from what is known, and run nothing."
    )
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
        chosen = [case for case in cases(bool(asked.gpu)) if case.kind in asked.kinds and case.condition in asked.conditions]
        chosen = [case for case in chosen if case.name not in known]
        if asked.small:
            chosen = [case for kind in asked.kinds for case in [case for case in chosen if case.kind == kind][:2]]
        deadline = Deadline(seconds={case.name: SECONDS[case.kind] for case in chosen}, usual=60.0, end=end)
        lanes = make_lanes(max(asked.lanes, asked.gpu > 1), usable_cores(), gpu=asked.gpu if asked.gpu > 1 else 0)
        machine = {
            "machine": platform.machine(),
            "cores": len(usable_cores()),
            "load_at_start": round(os.getloadavg()[0], 1),
            "lanes": asked.lanes,
            "python": platform.python_version(),
        }
        with asked.out.open("a" if keep else "w") as out:
            for case, result in side_by_side(lanes, chosen, functools.partial(run_apart, end=end), may_start=deadline.allows):
                lines.append({"case": vars(case), "result": result, **machine})
                out.write(json.dumps(lines[-1]) + "\n")
                out.flush()
                print(f"{case.name}: {result.get('verdict') or result.get('error') or result.get('timed')}", flush=True)
    print(json.dumps(summary(lines), indent=1))
    if asked.record:
        save(asked.out.stem, QUESTION, {"measured_on": lines[0].get("cores") if lines else None, **summary(lines)}, show=False)


if __name__ == "__main__":
    main()
