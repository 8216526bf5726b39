"""Tables for the tests of the recipe."""

from __future__ import annotations

import numpy as np
import pandas as pd


def make_events(num_subjects: int = 200, *, seed: int = 0, mean_length: float = 5.0) -> pd.DataFrame:
    """Events of shoppers: a state that follows the one before, an amount by state, a score that may be missing, increasing times."""
    rng = np.random.default_rng(seed)
    rows = []
    for subject in range(num_subjects):
        state, time = int(rng.integers(3)), 18_000 * 86_400 + int(rng.integers(1000)) * 86_400
        for _ in range(1 + rng.poisson(mean_length - 1)):
            state = int(rng.choice(3, p=[0.8, 0.1, 0.1])) if state == 0 else (state + 1) % 3
            time += int(rng.exponential(36_000 * (1 + state)))
            score = float(rng.normal(state)) if rng.random() > 0.2 * state else np.nan
            rows.append((subject, "abc"[state], round(float(rng.lognormal(state, 0.5)), 2), score, bool(state), time))
    found = pd.DataFrame(rows, columns=["user", "state", "amount", "score", "late", "time"])
    found["time"] = pd.to_datetime(found["time"], unit="s")
    return found


def make_users(num_subjects: int = 200, *, seed: int = 0) -> pd.DataFrame:
    """Facts of the shoppers of `make_events`."""
    rng = np.random.default_rng(seed + 1)
    return pd.DataFrame(
        {
            "user": np.arange(num_subjects),
            "segment": rng.choice(["x", "y", "z"], num_subjects),
            "age": rng.integers(18, 70, num_subjects),
        }
    )
