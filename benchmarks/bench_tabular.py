"""How much CPU time do an epoch of the tabular recipe and the encoding of a large table take?

The epoch: 5,000 subjects with about 101,000 events, 5 columns and 2 of context, size s, batches of 32, one thread. Both sides make the
same updates on the same batches, some of an epoch, interleaved; seconds are scaled to the 125 updates of a whole one. The usual
formulation is a loop over sub-columns with batches of subjects in random order, padded to the longest.
The table: 1,000,000 rows of 100,000 subjects and numeric columns, half of them amounts with two decimals; fitted and encoded.
"""

from __future__ import annotations

import json
import resource
import time
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from benchmarks import record
from benchmarks.before.tabular_heads import PlainModel
from stoker.recipes.tabular.batches import EncodedSubjects, SubjectBatches, SubjectLoss, assemble, mean_events
from stoker.recipes.tabular.layout import make_layout
from stoker.recipes.tabular.model import TabularModel
from stoker.recipes.tabular.tables import encode_table, fit_table

QUESTION = "How much CPU time do an epoch of the tabular recipe and the encoding of a large table take?"
COLUMNS = [
    {"cat": 8}, {"cat": 30}, {"bin": 32, "fine": 33}, {"bin": 32, "fine": 33},
    {"start_year": 3, "start_month": 12, "start_day": 31, "gap_bin": 33, "gap_fine": 33},
]  # fmt: skip
CONTEXT = [{"cat": 4}, {"bin": 80}]


def main() -> None:
    options = record.arguments(QUESTION)
    torch.set_num_threads(1)
    answer = {"epoch": epoch(rounds=2 if options.small else options.rounds or 5), "table": table(small=options.small)}
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


def table(*, small: bool) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    rows, columns = (50_000, 4) if small else (1_000_000, 50)
    made = {f"c{one}": np.round(rng.lognormal(3, 1, rows), 2) if one % 2 else rng.normal(size=rows) for one in range(columns)}
    given, starts = pa.table(made), np.arange(0, rows, 10)
    del made
    options: dict[str, Any] = {"encodings": {}, "protect": True, "seed": 0, "is_sequence": True, "say": lambda *_: None}
    fit_table(given.slice(0, 1000), starts=np.arange(0, 1000, 10), **options)  # compiles the kernels
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = time.perf_counter(), time.process_time()
    spec = fit_table(given, starts=starts, **options)
    fitted = time.perf_counter(), time.process_time()
    codes = encode_table(given, spec, starts=starts)
    done = time.perf_counter(), time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {
        "rows": rows, "columns": columns, "cpu_seconds": {"fit": round(fitted[1] - cpu, 2), "encode": round(done[1] - fitted[1], 2)},
        "wall_seconds": round(done[0] - wall, 2), "bytes_of_codes": codes.nbytes, "bytes_of_table": given.nbytes,
        "peak_bytes_beyond_table": peak * 1024,
    }  # fmt: skip


if __name__ == "__main__":
    main()
