"""The archive: every data set, method and seed, paired by seed; intervals of differences; errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.timehut.archive import ArchiveRow, _executor, compare_methods, find_datasets, interval, run_archive
from tests.recipes.timehut.sets import write_tsv

from stoker_recipes.timehut.evaluation import accuracy

SMALL: dict[str, Any] = {"hidden": 4, "depth": 3, "width": 8, "updates": 2}


def test_an_interval_covers_the_mean() -> None:
    rng = np.random.default_rng(0)
    covered = [found.low <= 0.5 <= found.high for found in (interval(rng.uniform(size=16), draws=500) for _ in range(100))]
    assert 85 <= sum(covered) <= 99


def test_every_set_has_a_row_per_method(tmp_path: Path) -> None:
    for name in ("B", "A"):
        write_tsv(tmp_path / name, name)
    (tmp_path / "C_TRAIN.tsv").write_text("1\t2\t3\n")  # without a test file
    assert [name for name, _, _ in find_datasets(tmp_path)] == ["A", "B"]
    rows = run_archive(tmp_path, methods=["timehut", "softclt"], seeds=2, device="cpu", **SMALL)
    assert [(row.dataset, row.method, len(row.accuracies)) for row in rows] == [
        ("A", "timehut", 2), ("A", "softclt", 2), ("B", "timehut", 2), ("B", "softclt", 2)
    ]  # fmt: skip
    assert rows[1::2] == run_archive(tmp_path, methods=["softclt"], seeds=2, device="cpu", **SMALL)


def test_methods_are_compared_seed_by_seed() -> None:
    rng = np.random.default_rng(0)
    base = rng.uniform(0.5, 0.9, 16)
    rows = [
        ArchiveRow(dataset="A", method="one", accuracies=tuple(base + 0.01 + rng.normal(0, 0.002, 16)), test_series=100),
        ArchiveRow(dataset="A", method="two", accuracies=tuple(base), test_series=100),
    ]
    (found,) = compare_methods(rows)
    assert found.difference.low > 0  # though the seeds differ by far more than the methods
    assert found.wins + found.losses == 16
    assert rows[0].interval.low < rows[1].interval.high  # which two separate intervals would have missed


@pytest.mark.slow
def test_other_processes_fit_the_same_classifiers() -> None:
    rng = np.random.default_rng(0)
    inside, outside, labels = rng.normal(size=(20, 8)), rng.normal(size=(9, 8)), np.arange(20) % 2
    with _executor(1) as pool:
        found = pool.submit(accuracy, inside, labels, outside, labels[:9]).result()
    with _executor(0) as inline:
        assert inline.submit(accuracy, inside, labels, outside, labels[:9]).result() == found
