"""Benchmarks of encoders and trainers run small: to their end, with equal results on both sides, and a ratio with its spread.

What they measure on a busy machine means nothing, so no number is looked at but for being one.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import record
from benchmarks.tabular import bench_digits, bench_sequences, bench_statistics

QUICK = ("bench_indicators", "bench_watch")
"""Those that take less than three seconds; the others run with `make test-slow` and `make bench`."""
RATIOS = {
    "bench_digits": ["times faster than printing, as a drop-in frame"],
    "bench_sequences": ["200 contexts", "batches of 256 contexts and 12 columns"],
    "bench_statistics": ["analyze_numeric, 2,000 rows", "analyze_numeric, 20,000 rows"],
    "bench_indicators": ["55 features", "all 32 operators"],
    "bench_trainers": ["2-layer MLP, batch 32x16x8, batches in a list", "2-layer MLP, batch 32x16x8, batches of a DataLoader"],
    "bench_checkpoints": ["batch 64", "batch 128"],
    "bench_gaps": ["masks / none", "windows without gaps / plain, stride 1", "windows without gaps / plain, stride 24"],
    "bench_windows": ["batches and an MLP", "batches alone"],
    "bench_watch": ["empty steps", "steps of a millisecond"],
}
"""Where each result has ratios of two sides that were measured in turn."""


def entries(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """All names and values of a result, however deep."""
    yield name, value
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield from entries(inner, key)


def is_spread(value: Any) -> bool:
    """Whether a value is a median with its quartiles and extremes, all of them positive numbers."""
    names = ("median", "q1", "q3", "min", "max")
    return isinstance(value, dict) and all(isinstance(value.get(name), float) and 0 < value[name] < math.inf for name in names)


def module_of(name: str) -> str:
    [path] = (record.ROOT / "benchmarks").glob(f"*/{name}.py")
    return f"benchmarks.{path.parent.name}.{name}"


def checks(answer: Any) -> list[bool]:
    """The truth values of a result: each says that two sides are equal, bit for bit."""
    return [value for _, value in entries(answer) if isinstance(value, bool)]


@pytest.mark.promise("P11")
@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in RATIOS])
def test_a_small_run_ends_well_with_equal_results_and_a_ratio(name: str) -> None:
    kept = {path: path.read_bytes() for path in record.RESULTS.iterdir()}
    command = [sys.executable, "-m", module_of(name), "--small"]
    done = subprocess.run(command, cwd=record.ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert {path: path.read_bytes() for path in record.RESULTS.iterdir()} == kept
    assert checks(answer)
    assert all(checks(answer))
    for part in RATIOS[name]:
        assert any(is_spread(value) for _, value in entries(answer[part])), part


@pytest.mark.parametrize("name", RATIOS)
def test_the_kept_results_say_that_both_sides_were_equal(name: str) -> None:
    answer = json.loads((record.RESULTS / f"{name}.json").read_text())
    assert all(checks(answer))


def test_negative_control_digits_that_differ_stop_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    right = bench_digits.split_printed
    monkeypatch.setattr(bench_digits, "split_printed", lambda column: right(column) + 1)
    with pytest.raises(AssertionError):
        bench_digits.beside(np.array([19.99, 0.3]), 1)


def test_negative_control_sequences_that_differ_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    right = bench_sequences.pad_by_indices
    monkeypatch.setattr(bench_sequences, "pad_by_indices", lambda *given: {name: one + 1 for name, one in right(*given).items()})
    assert checks(bench_sequences.measure_loops(5, 1)) == [False]


def test_negative_control_statistics_that_differ_stop_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    right = bench_statistics.before.analyze_numeric
    monkeypatch.setattr(bench_statistics.before, "analyze_numeric", lambda *given: {**right(*given), "has_nan": True})
    with pytest.raises(SystemExit, match="not give the same JSON"):
        bench_statistics.compare(np.array([1.0, 2.0]), 1)


def test_negative_control_a_quantile_beyond_the_bound_stops_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker_recipes.tabular.statistics.quantiles.rank_error", lambda num_values, block: 1)
    with pytest.raises(SystemExit, match="ranks off"):
        bench_statistics.sketch(100_000, 1 << 10)


def test_small_runs_leave_results_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The control of what the runs are looked at for: a full run does write."""
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    record.save("bench_digits", "?", {"equal": True})
    assert [path.name for path in tmp_path.iterdir()] == ["bench_digits.json"]
