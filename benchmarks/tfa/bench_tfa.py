"""How long is the way from a CSV of 200,000 bars to a verified, early-stopped, exported model, with the commands that a user gives?

    stoker train tfa.yaml  ->  stoker export run bundle/  ->  stoker tfa verify bundle/

Each command is a process of its own, so imports count. The market has a known signal, so what the score could be at best is known.
The stages of the training are measured once more within one process, and so is the predictor, bar by bar.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import record
from benchmarks.tfa.bench_indicators import spec_of_55
from benchmarks.tfa.markets import Signal, market, write_csv
from stoker_recipes.tfa.audit import auc

QUESTION = "How long is the way from a CSV of bars to a verified, early-stopped, exported model on this machine?"
YAML = "symbol: QQQ\nbars_csv: bars.csv\nfeature_spec: spec.json\nout_dir: run\n"
SIGNALS: tuple[Signal, ...] = ("lag", "none")


def main() -> None:
    """All signals by the commands; the stages and the predictor with the first."""
    options = record.arguments(QUESTION)
    num_bars, extra = (6_000, ("--set", "epochs=1")) if options.small else (200_000, ())
    answer: dict[str, Any] = {"bars": num_bars}
    for signal in SIGNALS[:1] if options.small else SIGNALS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            ceiling = make_folder(folder, num_bars, signal)
            answer[f"signal {signal}"] = by_command(folder, ceiling, extra)
            if signal == "lag":
                answer["stages of the training"] = stages(folder, extra)
                answer["predictor"] = predictor(folder)
    print(json.dumps(answer, indent=1)) if options.small else record.save("bench_tfa", QUESTION, answer)


def make_folder(folder: Path, num_bars: int, signal: Signal) -> float:
    """Bars, spec and YAML; returns the area under the curve that the known logit has on the score block."""
    bars = market(num_bars, signal, 0, follows=True)
    write_csv(folder / "bars.csv", bars)
    (folder / "spec.json").write_text(json.dumps(spec_of_55()))
    (folder / "tfa.yaml").write_text(YAML)
    rows = slice(int(0.85 * num_bars), num_bars - 1)
    up = np.diff(bars["close"], append=np.nan)[rows]
    return auc(bars["logit"][rows][up != 0], (up[up != 0] > 0).astype(np.float32))


def by_command(folder: Path, ceiling: float, extra: tuple[str, ...]) -> dict[str, Any]:
    """The three commands, one after the other."""
    commands = {
        "train": ["train", "tfa.yaml", *extra],
        "export": ["export", "run", "bundle"],
        "verify the bundle": ["tfa", "verify", "bundle"],
        "verify the YAML (all checks, no training)": ["tfa", "verify", "tfa.yaml"],
    }
    reported: dict[str, Any] = {}
    answers = {
        name: run([sys.executable, "-m", "stoker", *words, "--json"], folder, reported, name) for name, words in commands.items()
    }
    score, proof = answers["train"]["score"], answers["verify the bundle"]
    to_the_proof = list(commands)[:3]
    return {
        **reported,
        "wall seconds from CSV to proof": round(sum(reported[name]["wall seconds"] for name in to_the_proof), 2),
        "CPU seconds from CSV to proof": round(sum(reported[name]["CPU seconds"] for name in to_the_proof), 2),
        "epochs": answers["train"]["epoch"],
        "updates": answers["train"]["step"],
        "stopped": answers["train"]["stopped"],
        "AUC of the score block": {line["name"]: round(line["auc"], 4) for line in score["lines"]},
        "AUC of the known logit": round(ceiling, 4),
        "verdict": score["verdict"],
        "rows of features equal bit for bit": proof["rows"],
        "largest difference of a logit": proof["difference"],
        "logits are those of the batch": proof["difference"] <= 1e-5,
    }


def run(command: list[str], folder: Path, reported: dict[str, Any], name: str) -> Any:
    """One command to its end: what it says, and what it cost."""
    start = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, record.SOURCES))}
    )
    out = process.stdout.read() if process.stdout is not None else b""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    reported[name] = {
        "wall seconds": round(time.perf_counter() - start, 2),
        "CPU seconds": round(usage.ru_utime + usage.ru_stime, 2),
    }
    return json.loads(out)


def stages(folder: Path, extra: tuple[str, ...]) -> dict[str, Any]:
    """What the training consists of, in one process that has everything imported and compiled."""
    import torch

    from stoker_recipes.tfa import audit, training
    from stoker_recipes.tfa.data import prepare
    from stoker_recipes.tfa.settings import read_settings
    from stoker_recipes.tfa.training import using

    settings = read_settings(folder / "tfa.yaml", assignments=extra[1:])
    found: dict[str, Any] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        wall, cpu = time.perf_counter(), time.process_time()
        result = work()
        seconds = {"wall seconds": time.perf_counter() - wall, "CPU seconds": time.process_time() - cpu}
        found[name] = {kind: round(value, 2) for kind, value in seconds.items()}
        return result

    target = folder / "stages"
    reach = training.make_model(settings, mean=torch.zeros(55), std=torch.ones(55)).reach
    prepared = timed("CSV to split rows", lambda: prepare(settings, target, reach=reach))
    timed("audit", lambda: audit.check_all(prepared))
    model = training.make_model(settings, mean=prepared.scaler.mean, std=prepared.scaler.std, levels=prepared.levels)
    with using(training.threads_of(settings)):
        timed("training", lambda: training._fit(prepared, model, target, "cpu", resume=False, progress=False))
        timed("score and baselines", lambda: training.score(model, prepared))
        return {**found, "threads of a step": torch.get_num_threads()}


def predictor(folder: Path) -> dict[str, Any]:
    """Bars as they come in: microseconds for each, on one thread."""
    import torch

    from stoker_recipes.tfa import BarPredictor

    torch.set_num_threads(1)
    serving = BarPredictor.load(folder / "bundle")
    bars = market(1_000, "lag", 1)
    names = ("open", "high", "low", "close", "volume")
    rows = [dict(zip(names, map(float, row), strict=True)) for row in zip(*(bars[name] for name in names), strict=True)]
    for bar in rows[:500]:
        serving.push(bar)
    seconds = []
    for bar in rows[500:]:
        start = time.process_time_ns()
        serving.push(bar)
        seconds.append((time.process_time_ns() - start) / 1e3)
    return {"CPU microseconds per bar": record.spread(seconds)}


if __name__ == "__main__":
    main()
