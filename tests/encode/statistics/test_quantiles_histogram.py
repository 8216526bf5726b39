"""The histogram counts as NumPy does, also where whole numbers round up to an edge."""

from __future__ import annotations

import numpy as np
from benchmarks.before.mostlyai_statistics import log_histogram as slow_histogram

from stoker.encode.statistics.quantiles import EDGES, NUM_BINS, KeyRun, float_keys, log_histogram, whole_keys


def test_counts_of_floats(rng: np.random.Generator) -> None:
    edges = np.array(EDGES)
    values = np.concatenate(
        [
            rng.normal(size=1000) * 2.0 ** rng.integers(-70, 70, 1000),
            edges,
            np.nextafter(edges, np.inf),
            np.nextafter(edges, -np.inf),
            [-0.0, 0.0, 1e300, -1e300, 5e-324],
        ]
    )
    assert log_histogram(KeyRun.of(float_keys(values)[0]), "float").tolist() == slow_histogram(values)


def test_counts_of_integers(rng: np.random.Generator) -> None:
    around = [sign * 2**power + step for power in range(63) for sign in (1, -1) for step in (-2, -1, 0, 1, 2)]
    values = np.array([*around, -(2**63), 2**63 - 1, 2**63 - 512, 2**63 - 513], dtype=np.int64)
    assert log_histogram(KeyRun.of(whole_keys(values)), "int").tolist() == slow_histogram(values)
    positive = np.concatenate([values[values >= 0].astype(np.uint64), np.array([2**63, 2**64 - 1], dtype=np.uint64)])
    assert log_histogram(KeyRun.of(whole_keys(positive)), "uint").tolist() == slow_histogram(positive)


def test_nothing_is_zero_everywhere() -> None:
    assert log_histogram(KeyRun.empty(), "float").tolist() == [0] * NUM_BINS
