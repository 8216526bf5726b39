"""How often is a receipt wrong, and what can it see? Programs against themselves (A/A), and true changes of the time of a step.

    python -m benchmarks.compare.bench_receipts --until 3600                   run what is not in the file yet, for at most an hour
    python -m benchmarks.compare.bench_receipts --busy 1 --until 3600          the same with one busy core
    python -m benchmarks.compare.bench_receipts --summary                      shares of each verdict, without running anything

Each comparison is one line of the file, so a run that ends early is continued. A/A must be called faster or changed in at most 1 % of
comparisons. Speed on a machine with other work says little: use `--busy` on a quiet machine instead.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import stoker
from benchmarks.record import RESULTS

QUESTION = "How often does a receipt call equal programs different, and true changes equal?"
PROGRAM = """
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
wasted = torch.randn(256, 256)
for epoch in range(100):
    for a, b in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
        for _ in range({waste}):
            wasted @ wasted
"""
USUAL: dict[str, Any] = {
    "threads": 1, "seed": 0, "rows": 2048, "width": 128, "depth": 2, "activation": "ReLU", "dropout": 0.1, "optimizer": "AdamW",
    "batch": 64, "workers": 0, "waste": 20,
}  # fmt: skip
PROGRAMS: dict[str, dict[str, Any]] = {
    "usual": {},
    "two threads": {"threads": 2, "width": 512},
    "workers": {"workers": 1},
    "narrow": {"width": 16, "batch": 16},
    "deep": {"depth": 8},
    "wide": {"width": 768},
    "tanh": {"activation": "Tanh", "optimizer": "SGD"},
    "no dropout": {"dropout": 0.0, "optimizer": "Adam"},
    "long steps": {"waste": 200},
    "short epochs": {"rows": 256},
}
EFFECTS = (0.02, 0.05, 0.1, 0.5)
"""Parts of the wasted work that AFTER does not do; its share of a step is measured by the comparison itself."""
BUDGETS = (60.0, 120.0)


def text_of(name: str, **changes: Any) -> str:
    """The text of a program."""
    return PROGRAM.format(**{**USUAL, **PROGRAMS[name], **changes})


def cases(repeats: int) -> Iterator[dict[str, Any]]:
    """All comparisons, those of different kinds in turn."""
    for repeat, name in product(range(repeats), PROGRAMS):
        yield {"kind": "A/A", "program": name, "effect": 0.0, "budget": 60.0, "repeat": repeat}
        for effect, budget in product(EFFECTS, BUDGETS):
            if repeat < repeats // 4:
                yield {"kind": "power", "program": name, "effect": effect, "budget": budget, "repeat": repeat}


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Make one comparison."""
    waste = 10 * {**USUAL, **PROGRAMS[case["program"]]}["waste"]
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "before.py"), Path(folder, "after.py")
        before.write_text(text_of(case["program"], waste=waste))
        after.write_text(text_of(case["program"], waste=round(waste * (1 - case["effect"]))))
        begin = time.monotonic()
        brief = stoker.compare(before, after, budget=case["budget"]).brief()
    return {"seconds": round(time.monotonic() - begin, 1), **brief}


@contextlib.contextmanager
def busy(cores: int) -> Iterator[None]:
    """Keep some cores busy with other programs."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def summary(lines: list[dict[str, Any]]) -> str:
    """Shares of verdicts by kind, condition, effect and budget."""
    groups: dict[tuple[Any, ...], Counter[str]] = {}
    for line in lines:
        case = line["case"]
        key = (case["kind"], case["busy"], case["effect"], case["budget"])
        found = line["result"]["speed"]["verdict"] if line["result"]["status"] != 4 else "changed"
        groups.setdefault(key, Counter())[found] += 1
    rows = ["kind   busy  effect  budget  comparisons  verdicts"]
    for (kind, cores, effect, budget), counts in sorted(groups.items()):
        verdicts = ", ".join(f"{name} {number}" for name, number in counts.most_common())
        rows.append(f"{kind:<6} {cores:<5} {effect:<7} {budget:<7} {counts.total():<12} {verdicts}")
    return "\n".join(rows)


def main() -> None:
    """Run the comparisons that are missing."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--until", type=float, default=600.0, metavar="SECONDS", help="Start no comparison after this time.")
    parser.add_argument("--repeats", type=int, default=20, help="A/A comparisons of each of the 10 programs.")
    parser.add_argument(
        "--busy", type=int, default=0, choices=range((os.cpu_count() or 1) + 1), help="Cores that other programs have."
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "compare_receipts.jsonl")
    parser.add_argument("--summary", action="store_true", help="Show what is known.")
    asked = parser.parse_args()
    lines = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    known = {json.dumps(line["case"], sort_keys=True) for line in lines}
    end = time.monotonic() + asked.until
    with contextlib.ExitStack() as stack:
        if not asked.summary:
            stack.enter_context(busy(asked.busy))
            out = stack.enter_context(asked.out.open("a"))
            for case in cases(asked.repeats):
                named = {**case, "busy": asked.busy}
                if json.dumps(named, sort_keys=True) in known:
                    continue
                if time.monotonic() > end:
                    break
                lines.append({"case": named, "result": run(case)})
                out.write(json.dumps(lines[-1]) + "\n")
                out.flush()
    print(summary(lines))


if __name__ == "__main__":
    main()
