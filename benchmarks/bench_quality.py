"""What does the quality report cost, next to mostlyai-qa on the same tables?

Both get the same pandas frames with 5 columns of events; the accuracies must agree within 1e-6, which is checked. mostlyai-qa runs in the
same process without its plots and page: preparation, bins, accuracies and coherence. The last entry is our whole report, page included,
for a million real and a million synthetic rows. Times are CPU times. Needs mostlyai-qa (`make test-originals` installs it); run it with
that Python.
"""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import record
from stoker.recipes.tabular import make_bursts, make_shop, quality
from stoker.recipes.tabular.quality_accuracy import compare_accuracy
from stoker.recipes.tabular.quality_noise import make_splits
from stoker.recipes.tabular.quality_tables import read_events

QUESTION = "What does the quality report cost, next to mostlyai-qa on the same tables?"


def main() -> None:
    options = record.arguments(QUESTION)
    warnings.filterwarnings("ignore")
    few, many, rounds = (100, 300, 1) if options.small else (2000, 34_000, options.rounds or 2)
    answer: dict[str, Any] = {"rounds": rounds}
    try:
        answer[f"accuracies, {few:,} subjects"] = compare(few, rounds)
    except ImportError:
        if not options.small:
            raise
        answer["accuracies"] = "mostlyai-qa is not installed"
    answer["whole report"] = whole(many, rounds)
    print(json.dumps(answer, indent=1)) if options.small else record.save("bench_quality", QUESTION, answer)


def compare(num_subjects: int, rounds: int) -> dict[str, Any]:
    """Accuracies and coherence both ways, in one interleaved run."""
    from tests.recipes.tabular.originals.test_quality import check, original

    real, synthetic = (make_shop(num_subjects, seed=seed)[1].to_pandas() for seed in (0, 1))
    found: dict[str, Any] = {}

    def theirs() -> None:
        with TemporaryDirectory() as folder:
            found["theirs"] = original(Path(folder), 0, real, synthetic, key="user_id")

    def ours() -> None:
        tables = read_events({"real": real, "synthetic": synthetic}, {}, key="user_id")
        splits = make_splits(tables["real"].num_subjects, tables["synthetic"].num_subjects, np.random.default_rng(0))
        found["ours"] = compare_accuracy([tables["real"]], tables["synthetic"], splits, seed=0, is_sequence=True)

    seconds = record.interleave({"mostlyai-qa": theirs, "stoker": ours}, rounds=rounds, clock=time.process_time)
    check(found["theirs"], found["ours"])
    return {
        "rows": len(real) + len(synthetic),
        "accuracies equal within 1e-6": True,
        "stoker measures the noise of two real samples too": True,
        "CPU seconds": {name: record.spread(several) for name, several in seconds.items()},
        "times as fast": record.ratio(seconds["mostlyai-qa"], seconds["stoker"]),
    }


def wide(num_subjects: int, seed: int) -> pa.Table:
    """Ten columns: bursts, four amounts, three categories."""
    table, rng = make_bursts(num_subjects, seed=seed), np.random.default_rng(seed)
    for i in range(4):
        table = table.append_column(f"number{i}", pa.array(np.round(rng.lognormal(3, 1, table.num_rows), 2)))
    values = np.array([f"value{i}" for i in range(20)])
    for i in range(3):
        codes = np.minimum(rng.geometric(0.2, table.num_rows) - 1, 19)
        table = table.append_column(f"category{i}", pa.array(values[codes]))
    return table


def whole(num_subjects: int, rounds: int) -> dict[str, Any]:
    """Everything, with the page."""
    real, synthetic = wide(num_subjects, 0), wide(num_subjects, 1)
    quality(wide(50, 0), wide(50, 1), key="user_id")  # compiles the kernels
    seconds = []
    for _ in range(rounds):
        start = time.process_time()
        report = quality(real, synthetic, key="user_id")
        page = report.to_html()
        seconds.append(time.process_time() - start)
    return {
        "rows": [real.num_rows, synthetic.num_rows],
        "columns": real.num_columns,
        "CPU seconds": record.spread(seconds),
        "kilobytes of the page": round(len(page.encode()) / 1000),
        "verdict of two real samples": report.verdict,
    }


if __name__ == "__main__":
    main()
