"""Tables for the tests of the quality report: mixed types, and ways to spoil them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from stoker.recipes.tabular import make_bursts, make_shop


def mixed(num_subjects: int, seed: int, *, text_keys: bool = False) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Events and context with every kind of column, missing and empty values, and ties among rare categories."""
    rng = np.random.default_rng(seed)
    lengths = rng.geometric(0.2, num_subjects)
    lengths[0] = 130  # more events than count for coherence
    owner = np.repeat(np.arange(num_subjects), lengths)
    rng.shuffle(owner)  # subjects are interleaved
    n = len(owner)
    words = np.array([f"w{i}" for i in range(15)])
    events = pd.DataFrame({
        "user_id": owner + 10_000 * seed,
        "time": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 10**7, n), unit="s"),
        "amount": np.round(rng.lognormal(3, 1, n), 2),
        "word": words[np.minimum(rng.geometric(0.2, n) - 1, 14)],
        "flag": rng.random(n) < 0.3,
        "score": np.where(rng.random(n) < 0.2, np.nan, rng.normal(size=n)),
        "count": rng.integers(0, 4, n),
        "note": np.where(rng.random(n) < 0.1, "", np.where(rng.random(n) < 0.1, None, "x")),
        "spiky": np.where(rng.random(n) < 0.7, 0.0, rng.normal(size=n)),
    })  # fmt: skip
    context = pd.DataFrame({
        "user_id": np.arange(num_subjects) + 10_000 * seed,
        "segment": rng.choice(list("xyz"), num_subjects),
        "age": rng.integers(18, 90, num_subjects),
    })  # fmt: skip
    if text_keys:
        for frame in (events, context):
            frame["user_id"] = "u" + frame["user_id"].astype(str)
    return events, context


def shop(num_subjects: int, seed: int) -> pd.DataFrame:
    """Events of a shop."""
    frame: pd.DataFrame = make_shop(num_subjects, seed=seed)[1].to_pandas()
    return frame


def bursts(num_subjects: int, seed: int) -> pd.DataFrame:
    """Events in bursts."""
    frame: pd.DataFrame = make_bursts(num_subjects, seed=seed).to_pandas()
    return frame


def shuffled_events(frame: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """The events of each subject in a random order."""
    return frame.sample(frac=1, random_state=seed).sort_values("user_id", kind="stable").reset_index(drop=True)


def permuted_subjects(frame: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """Each event exchanged with the event of another subject at the same position; times stay."""
    place = frame.groupby("user_id").cumcount().to_numpy()
    mixed_up = np.lexsort((np.random.default_rng(seed).random(len(frame)), place))
    ordered = np.argsort(place, kind="stable")
    found = frame.copy()
    names: Any = [name for name in frame if name not in ("user_id", "time")]
    found.loc[ordered, names] = frame.loc[mixed_up, names].to_numpy()
    return found.astype(frame.dtypes)


def copied(frame: pd.DataFrame, num_subjects: int, seed: int = 0) -> pd.DataFrame:
    """Subjects of a table under other names."""
    picked = np.random.default_rng(seed).permutation(frame["user_id"].unique())[:num_subjects]
    found = frame[frame["user_id"].isin(picked)].copy()
    found["user_id"] += 1_000_000
    return found
