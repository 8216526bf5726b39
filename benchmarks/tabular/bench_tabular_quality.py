"""How good are generated tables, next to mostlyai-engine on the same data, and next to a fresh sample of the law?

Three generators whose law is known (`make_shop`, `make_bursts`, `make_rules`), one sample per seed. Both sides learn the same rows with
models of the same size and their default stop, and generate as many subjects; in the shop, for the same fresh contexts. Dates are
relative on both sides, which mostlyai-engine has to be asked for. Then every measure is taken of both, and of fresh samples:

    law       distances to the law itself (benchmarks/tabular/laws.py)
    report    distances to the learned rows (benchmarks/tabular/measures.py), the accuracies of mostlyai-qa among them

Fits can be made one by one, also on other machines, as generated tables are kept in --folder:

    python -m benchmarks.tabular.bench_tabular_quality --folder F --fit mostlyai:shop:0
    python -m benchmarks.tabular.bench_tabular_quality --folder F                          makes what is missing, and compares
    python -m benchmarks.tabular.bench_tabular_quality --kept benchmarks/results/bench_tabular_quality.json --jobs 16

It needs the Python of `make test-originals`; mostlyai-engine may also come from its wheels (--wheels). That side does not change with this
package, and takes 4 to 12 minutes of CPU time for a fit of sequences: --kept takes its measures on the same rows and seeds from an earlier
result file, where --folder has no table of it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import record
from benchmarks.tabular import fits, measures
from benchmarks.tabular.known_tables import make_bursts, make_rules, make_shop
from benchmarks.tabular.laws import bursts_errors, rules_errors, shop_errors

QUESTION = "How good are generated tables, next to mostlyai-engine on the same data, and next to a fresh sample of the law?"
SUBJECTS = {"shop": 1000, "bursts": 500, "rules": 2000}
SIDES = ("stoker", "mostlyai")
NOISE = 20
"""Fresh samples whose mean distance to the law is its noise: the median of three may be near 0 by chance."""
REAL, FRESH, REFERENCE = 100, 200, 900
"""Added to the seed: of the sample that is learned, of the contexts that events are generated for, and of fresh samples."""


def make(generator: str, count: int, seed: int) -> tuple[pa.Table | None, pa.Table]:
    """Contexts, where there are some, and rows."""
    if generator == "shop":
        return make_shop(count, seed=seed)
    return None, make_bursts(count, seed=seed) if generator == "bursts" else make_rules(count, seed=seed)


def path_of(folder: Path, side: str, generator: str, seed: int, count: int, size: str) -> Path:
    return folder / f"{side}-{generator}-{seed}-{count}-{size}.parquet"


def fit(path: Path, side: str, generator: str, seed: int, count: int, size: str, **options: Any) -> None:
    """Make a file, with the facts of the fit in its metadata."""
    users, rows = make(generator, count, REAL + seed)
    keyed = {} if generator == "rules" else {"key": "user_id", "time_column": "time"}
    fresh = make(generator, count, FRESH + seed)[0]
    fits.fit(path, side, rows, count=count, context=users, fresh=fresh, seed=seed, size=size, **keyed, **options)


def law_of(generator: str, users: pa.Table | None, rows: pd.DataFrame) -> dict[str, float]:
    if users is not None:
        return shop_errors(users.to_pandas(), rows)
    return bursts_errors(rows) if generator == "bursts" else rules_errors(rows)


def measured(generator: str, seed: int, count: int, synthetic: pa.Table, contexts: pa.Table | None) -> dict[str, float]:
    """All measures of generated rows; 0 is best, and 0.5 for those that are an AUC or a share of nearer records."""
    users, rows = make(generator, count, REAL + seed)
    found = {f"law: {name}": value for name, value in law_of(generator, contexts, synthetic.to_pandas()).items()}
    key = None if generator == "rules" else "user_id"
    distances = measures.compare(rows, synthetic, key=key, context=users, synthetic_context=contexts, seed=seed)
    return found | {f"report: {name}": value for name, value in distances.items()}


def measured_of(task: tuple[str, int], folder: Path, generator: str, count: int, size: str) -> dict[str, float] | None:
    """The measures of a side and a seed; None where it has not generated anything."""
    side, seed = task
    if side == "fresh sample":
        contexts, rows = make(generator, count, REFERENCE + seed)
        return measured(generator, seed, count, rows, contexts)
    path = path_of(folder, side, generator, seed, count, size)
    if not path.is_file():
        return None
    return measured(generator, seed, count, pq.read_table(path), make(generator, count, FRESH + seed)[0])


def compare(
    folder: Path,
    generator: str,
    seeds: int,
    count: int,
    size: str,
    *,
    run: Callable[..., Any] = map,
    kept: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Medians over seeds of every measure, for both sides and for fresh samples; those of mostlyai-engine may be kept ones."""
    sides: tuple[str, ...] = (*SIDES, "fresh sample")
    if kept and not all(path_of(folder, "mostlyai", generator, seed, count, size).is_file() for seed in range(seeds)):
        sides = ("stoker", "fresh sample")
    else:
        kept = None
    tasks = [(side, seed) for side in sides for seed in range(seeds)]
    values: dict[str, list[dict[str, float]]] = {}
    work = partial(measured_of, folder=folder, generator=generator, count=count, size=size)
    for (side, _), one in zip(tasks, run(work, tasks), strict=True):
        if one is not None:
            values.setdefault(side, []).append(one)
    fresh = [make(generator, count, 2 * REFERENCE + number) for number in range(NOISE)]
    noise = [law_of(generator, contexts, rows.to_pandas()) for contexts, rows in fresh]
    for one in values["fresh sample"]:
        one |= {f"law: {name}": statistics.mean(each[name] for each in noise) for name in noise[0]}
    paths = {side: [path_of(folder, side, generator, seed, count, size) for seed in range(seeds)] for side in SIDES}
    facts = {
        side: [{"seed": seed, **fits.facts_of(path)} for seed, path in enumerate(own) if path.is_file()]
        for side, own in paths.items()
        if side in values
    }
    if kept:
        facts["mostlyai"] = kept["fits"]["mostlyai"]
    found: dict[str, Any] = {"subjects": count, "size": size, "fits": facts, "measures": {}}
    found["mostlyai-engine"] = "measures of an earlier run, of the same rows and seeds" if kept else "of the same run"
    for name in values["fresh sample"][0]:
        medians = {side: statistics.median(one[name] for one in several) for side, several in values.items()}
        if kept:
            medians["mostlyai"] = kept["measures"][name]["mostlyai"]
        row: dict[str, Any] = {side: float(f"{value:.4g}") for side, value in medians.items()}
        if all(side in medians for side in SIDES):
            row["stoker is as good"] = _is_as_good(name, medians)
        found["measures"][name] = row
    compared = [row["stoker is as good"] for row in found["measures"].values() if "stoker is as good" in row]
    found["as good as mostlyai-engine"] = f"{sum(compared)} of {len(compared)} measures"
    return found


def _is_as_good(name: str, medians: dict[str, float]) -> bool:
    """Whether ours is not worse, or within what a fresh sample has."""
    least = 0.5 if "classifier" in name or "closest" in name else 0.0  # below it is chance, and farther from the training data
    ours, theirs, noise = (max(medians[side] - least, 0.0) for side in (*SIDES, "fresh sample"))
    return bool(ours <= max(theirs, 1.5 * noise))


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--small", action="store_true", help="A quick run that writes no result file.")
    parser.add_argument("--folder", type=Path, help="Where generated tables are kept.")
    parser.add_argument("--fit", action="append", default=[], help="SIDE:GENERATOR:SEED. Make these files only.")
    parser.add_argument("--only-compare", action="store_true", help="Compare the files that are there.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--size", default="s", choices=list(fits.SIZES))
    parser.add_argument("--kept", type=Path, help="A result file, from which the measures of mostlyai-engine are taken.")
    parser.add_argument("--wheels", type=Path, help="A folder with wheels of mostlyai-engine, where it is not installed.")
    parser.add_argument("--jobs", type=int, default=1, help="Processes, with one thread each.")
    parser.add_argument("--out", type=Path, help="Where the result goes. [default: benchmarks/results/bench_tabular_quality.json]")
    options = parser.parse_args()
    if options.small and find_spec("mostlyai") is None:
        print("mostlyai-qa is not installed; make test-originals installs it")
        return
    warnings.filterwarnings("ignore")
    kept = json.loads(options.kept.read_text()) if options.kept else None
    if options.wheels is not None:
        from benchmarks.before.mostlyai_tabular import use_wheels

        use_wheels(options.wheels, Path(tempfile.mkdtemp()))
    context = multiprocessing.get_context("spawn")
    pool = context.Pool(options.jobs, initializer=_one_thread) if options.jobs > 1 else nullcontext()
    with tempfile.TemporaryDirectory() as place, pool as workers:
        run = map if workers is None else workers.map
        folder = options.folder or Path(place)
        folder.mkdir(parents=True, exist_ok=True)
        seeds = 1 if options.small else options.seeds
        subjects = {"shop": 120, "bursts": 120, "rules": 120} if options.small else SUBJECTS
        asked = [tuple(one.split(":")) for one in options.fit]
        sides = ("stoker",) if options.small or kept else SIDES
        tasks = []
        for side, generator, seed in asked or [(side, name, str(i)) for name in subjects for i in range(seeds) for side in sides]:
            path = path_of(folder, side, generator, int(seed), subjects[generator], options.size)
            if not path.is_file() and not options.only_compare:
                tasks.append((path, side, generator, int(seed), subjects[generator], options.size))
        list(run(partial(_fit_task, epochs=1 if options.small else None), tasks))
        if asked:
            return
        answer: dict[str, Any] = {}
        for name, count in subjects.items():
            earlier = kept[name] if kept else None
            answer[name] = compare(folder, name, seeds, count, options.size, run=run, kept=earlier)
            print(name, answer[name]["as good as mostlyai-engine"], flush=True)
    if kept:
        answer["earlier run"] = kept.get("earlier run", f"commit {kept['commit']}, {kept['when']}")
    print(json.dumps(answer, indent=1)) if options.small else record.save(
        "bench_tabular_quality", QUESTION, answer, path=options.out
    )


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")


def _fit_task(task: tuple[Any, ...], epochs: int | None) -> None:
    fit(*task, **({"epochs": epochs} if epochs else {}))


if __name__ == "__main__":
    main()
