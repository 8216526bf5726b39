"""How much CPU time do an epoch of the tabular recipe and the encoding of a large table take?

The epoch: 5,000 subjects with about 101,000 events, 5 columns and 2 of context, size s, batches of 32, one thread. Both sides make the
same updates on the same batches, some of an epoch, interleaved; seconds are scaled to the 125 updates of a whole one. The usual
formulation is a loop over sub-columns with batches of subjects in random order, padded to the longest.
The table: 1,000,000 rows of 100,000 subjects with 50 numeric columns, half of them amounts with two decimals, and 100,000 contexts with
3 columns; fitted and encoded. With --wheels also a twentieth of it, by mostlyai-engine (analyze and encode) and by this recipe.
Frames: 200,000 rows with 20 columns, encoded from frames of Arrow, Polars and pandas. Categories: a column of 100,000 and two others,
200,000 rows; learned for one epoch, generated and compared.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet

from benchmarks import record
from benchmarks.before.tabular_heads import PlainModel
from stoker import _disk
from stoker_recipes.tabular import Synthesizer
from stoker_recipes.tabular.batches import EncodedSubjects, SubjectBatches, SubjectLoss, assemble, mean_events
from stoker_recipes.tabular.data import prepare
from stoker_recipes.tabular.files import to_frame
from stoker_recipes.tabular.layout import make_layout
from stoker_recipes.tabular.model import TabularModel
from stoker_recipes.tabular.settings import make_settings
from stoker_recipes.tabular.tables import encode_table, fit_table

QUESTION = "How much CPU time do an epoch of the tabular recipe and the encoding of a large table take?"
COLUMNS = [
    {"cat": 8}, {"cat": 30}, {"bin": 32, "fine": 33}, {"bin": 32, "fine": 33},
    {"start_year": 3, "start_month": 12, "start_day": 31, "gap_bin": 33, "gap_fine": 33},
]  # fmt: skip
CONTEXT = [{"cat": 4}, {"bin": 80}]


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--small", action="store_true", help="A quick run that writes no result file.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--wheels", help="A folder with wheels of mostlyai-engine and of its dependencies for tables.")
    parser.add_argument("--part", default="table,upstream,epoch,frames,categories", help="Others stay as the result file has them.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds, asked = 2 if options.small else options.rounds, options.part.split(",")
    parts: dict[str, Callable[[], Any]] = {
        "table": lambda: table(small=options.small),
        "epoch": lambda: epoch(rounds=rounds),
        "frames": lambda: frames(rounds=rounds, small=options.small),
    }
    parts["categories"] = lambda: categories(small=options.small)
    if options.wheels:
        parts["upstream"] = lambda: upstream(options.wheels, small=options.small)
    path = record.RESULTS / "bench_tabular.json"
    earlier = json.loads(path.read_text()) if path.is_file() and not options.small else {}
    answer = {name: one for name, one in earlier.items() if name in (*parts, "upstream") and name not in asked}
    if answer:
        answer["stayed"] = f"{', '.join(answer)}: of commit {earlier['commit']}"
    answer |= {name: work() for name, work in parts.items() if name in asked}
    if options.small:
        print(json.dumps(answer, indent=1))
    else:
        record.save("bench_tabular", QUESTION, answer)


def epoch(*, rounds: int, updates: int = 8) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.geometric(1 / 20.5, 5000), 100)
    layout = make_layout(COLUMNS, context=CONTEXT, max_length=100, median_length=float(np.median(lengths)), size="s")
    codes = np.stack([rng.integers(0, size, lengths.sum()) for column in COLUMNS for size in column.values()], 1).astype(np.int16)
    context = np.stack([rng.integers(0, size, 5000) for column in CONTEXT for size in column.values()], 1)
    data = EncodedSubjects.of(codes, np.cumsum(lengths) - lengths, lengths, context, torch.device("cpu"))
    mean = mean_events(lengths, 100)
    ours = list(SubjectBatches(data, layout, np.arange(4000), lengths=lengths, batch_size=32, seed=0))
    theirs = []
    for batch in ours:
        own = torch.from_numpy(rng.choice(4000, 32, replace=False))
        longest = int(lengths[own].max()) + 1
        theirs.append({**batch, "subjects": own, "begin": torch.zeros(32, dtype=torch.long), "steps": torch.arange(longest)})
    fused, plain = SubjectLoss(TabularModel(layout), data, mean), PlainModel(layout)
    optimizers = {id(one): torch.optim.AdamW(one.parameters(), lr=1e-3) for one in (fused, plain)}
    turn = [0]

    def run(model: Any, batches: list[Any]) -> None:
        for number in range(updates):
            batch = batches[(turn[0] * updates + number) % len(batches)]
            optimizers[id(model)].zero_grad()
            (model(batch) if model is fused else model.loss(assemble(layout, data, batch, mean))).backward()
            optimizers[id(model)].step()

    def next_turn() -> None:
        turn[0] += 1

    sides = {"usual": lambda: run(plain, theirs), "stoker": lambda: run(fused, ours)}
    seconds = record.interleave(sides, rounds=rounds, clock=time.process_time, before=next_turn)
    scaled = {name: [one * 125 / updates for one in many] for name, many in seconds.items()}
    return {
        "events": int(lengths.sum()),
        "cpu_seconds_per_epoch": {name: record.spread(many) for name, many in scaled.items()},
        "ratio": record.ratio(scaled["usual"], scaled["stoker"]),
    }


def make_tables(rows: int, columns: int) -> tuple[pa.Table, pa.Table]:
    """Events of subjects with 10 each, and their contexts."""
    rng = np.random.default_rng(0)
    made = {f"c{one}": np.round(rng.lognormal(3, 1, rows), 2) if one % 2 else rng.normal(size=rows) for one in range(columns)}
    users = rows // 10
    context = {
        "segment": rng.choice(list("wxyz"), users),
        "region": rng.choice(list("abcdefgh"), users),
        "income": rng.lognormal(10, 1, users),
    }
    return pa.table(made), pa.table(context)


def fit_and_encode(events: pa.Table, context: pa.Table) -> dict[str, float]:
    """CPU seconds to fit and to encode both tables, and the bytes of codes."""
    options: dict[str, Any] = {"encodings": {}, "protect": True, "seed": 0, "say": lambda *_: None}
    starts, owners = np.arange(0, len(events), 10), np.arange(len(context))
    cpu = time.process_time()
    specs = (
        fit_table(events, starts=starts, is_sequence=True, **options), fit_table(context, starts=owners, is_sequence=False, **options),
    )  # fmt: skip
    fitted = time.process_time()
    codes = encode_table(events, specs[0], starts=starts), encode_table(context, specs[1], starts=owners)
    done = time.process_time()
    return {"fit": round(fitted - cpu, 3), "encode": round(done - fitted, 3), "bytes": sum(code.nbytes for code in codes)}


def table(*, small: bool) -> dict[str, Any]:
    rows, columns = (50_000, 4) if small else (1_000_000, 50)
    events, context = make_tables(rows, columns)
    fit_and_encode(events.slice(0, 1000), context.slice(0, 100))  # compiles the kernels
    before, wall = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    found = fit_and_encode(events, context)
    seconds = time.perf_counter() - wall
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    given = events.nbytes + context.nbytes
    return {
        "rows": rows, "columns": columns, "contexts": len(context), "cpu_seconds": {name: found[name] for name in ("fit", "encode")},
        "wall_seconds": round(seconds, 2), "bytes_of_codes": found["bytes"], "bytes_of_table": given,
        "peak_bytes_beyond_table": peak, "overhead": round(max(0, peak - found["bytes"]) / given, 3),
    }  # fmt: skip


def upstream(wheels: str, *, small: bool) -> dict[str, Any]:
    """The same tables, smaller, by mostlyai-engine in a process of its own, and by this recipe, in turns."""
    events, context = make_tables(*((2_000, 4) if small else (50_000, 50)))
    users = pa.array(np.arange(len(context)))
    seconds: dict[str, list[float]] = {"mostlyai-engine": [], "stoker": []}
    with _disk.temporary_folder() as folder:
        keys = users.take(pa.array(np.repeat(np.arange(len(context)), 10)))
        parquet.write_table(events.add_column(0, "user", keys), folder / "events.parquet")
        parquet.write_table(context.add_column(0, "user", users), folder / "users.parquet")
        command = [sys.executable, "-m", "benchmarks.before.mostlyai_tabular", str(folder), "--wheels", wheels, "--steps", ""]
        for _ in range(1 if small else 2):
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            steps = {one["step"]: one for one in map(json.loads, done.stdout.splitlines())}
            seconds["mostlyai-engine"].append(steps["analyze"]["cpu_seconds"] + steps["encode"]["cpu_seconds"])
            found = fit_and_encode(events, context)
            seconds["stoker"].append(found["fit"] + found["encode"])
    return {
        "rows": len(events), "columns": events.num_columns, "contexts": len(context), "version": steps["split"]["version"],
        "cpu_seconds": seconds, "ratio": record.ratio(seconds["mostlyai-engine"], seconds["stoker"]),
    }  # fmt: skip


def frames(*, rounds: int, small: bool) -> dict[str, Any]:
    """The same table as a frame of each library, in turns."""
    events = make_tables(*((2_000, 4) if small else (200_000, 20)))[0]
    settings = make_settings(size="s")
    given = {"arrow": events, "polars": to_frame(events, "polars"), "pandas": to_frame(events, "pandas")}
    seconds: dict[str, list[float]] = {name: [] for name in given}
    codes = {}
    for turn in range(rounds + 1):  # the first compiles the kernels
        for name, frame in given.items():
            cpu = time.process_time()
            codes[name] = prepare(frame, settings=settings, say=lambda *_: None).codes
            if turn:
                seconds[name].append(time.process_time() - cpu)
    return {
        "rows": len(events), "columns": events.num_columns, "codes equal": all((code == codes["arrow"]).all() for code in codes.values()),
        "cpu_seconds": {name: record.spread(one) for name, one in seconds.items()},
        "times arrow": {name: record.ratio(seconds[name], seconds["arrow"]) for name in ("polars", "pandas")},
    }  # fmt: skip


def categories(*, small: bool) -> dict[str, Any]:
    """CPU seconds of a table with very many categories."""
    count, rows = (20_000, 30_000) if small else (100_000, 200_000)
    rng = np.random.default_rng(0)
    codes = np.concatenate([np.arange(count), rng.choice(count, rows - count)])
    words = pa.array([f"item {one * 7919 % 1_000_003:07d}" for one in range(count)])
    price = np.round(rng.lognormal(3, 1, rows) * (1 + codes % 7), 2)
    events = pa.table(
        {"item": words.take(pa.array(codes)), "price": price, "kind": pa.array(list("abcdefg")).take(pa.array(codes % 7))}
    )
    seconds, cpu = {}, time.process_time()

    def done(name: str) -> None:
        nonlocal cpu
        seconds[name], cpu = round(time.process_time() - cpu, 2), time.process_time()

    model = Synthesizer(size="s", epochs=1, protect=False).fit(events, device="cpu")
    done("fit")
    model.sample(rows // 2)
    done("sample")
    sizes = model.trained.spec.target.sizes[0]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"rows": rows, "categories": count, "classes": sizes, "cpu_seconds": seconds, "peak_bytes_of_process": peak}


if __name__ == "__main__":
    main()
