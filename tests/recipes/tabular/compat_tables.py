"""A table with a column for every encoding of `compat`, its contexts, and the workflow on both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

TYPES = {
    "rel": "TABULAR_DATETIME_RELATIVE",
    "price": "TABULAR_NUMERIC_AUTO",
    "when": "TABULAR_DATETIME",
}


def every_kind(num_subjects: int = 120, *, missing: bool = True, longest: int | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Events in no order of subjects, and contexts; with `longest` some subjects have this number of events."""
    rng = np.random.default_rng(0)
    lengths = rng.geometric(0.25, num_subjects) - 1
    if longest is not None:
        lengths[:20] = longest
    owner = np.repeat(np.arange(num_subjects), lengths)
    rng.shuffle(owner)
    n = len(owner)
    start = pd.Timestamp("2021-03-04 05:06:07")

    def some(values: Any) -> pd.Series:
        column = pd.Series(values)
        return column.mask(rng.random(n) < 0.1) if missing else column

    events = pd.DataFrame({
        "id": owner,
        "cat": some(rng.choice(["a", "b", "_RARE_", "<<NULL>>", "\x01x", "ä", ""], n)),
        "word": [f"v{number}" for number in rng.geometric(0.1, n)],
        "flag": rng.random(n) < 0.4,
        "few": rng.integers(0, 9, n),
        "digits": some(rng.integers(-50, 999, n).astype(float)),
        "money": some(np.round(rng.lognormal(3, 1, n), 2)),
        "normal": rng.normal(size=n),
        "tens": rng.integers(0, 99, n) * 10,
        "whole": some(rng.integers(0, 99999, n).astype(float)).astype("Int64"),
        "day": some(pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, n), unit="D")),
        "time": some(start + pd.to_timedelta(rng.integers(0, 10**9, n) * 37, unit="ms")),
        "rel": start + pd.to_timedelta(rng.integers(0, 10**7, n), unit="s"),
        "price": [f"{number} EUR" for number in rng.integers(0, 200, n)],
        "when": some([f"2020-{month:02d}-11" for month in rng.integers(1, 13, n)]),
        "lost": pd.Series([None] * n, dtype="object"),
        "nan": np.full(n, np.nan),
        "same": np.full(n, 7.5),
    })  # fmt: skip
    context = pd.DataFrame({
        "uid": rng.permutation(num_subjects),
        "segment": rng.choice(list("xyz"), num_subjects),
        "age": rng.integers(18, 90, num_subjects),
        "since": pd.Timestamp("2019-05-01") + pd.to_timedelta(rng.integers(0, 500, num_subjects), unit="D"),
    })  # fmt: skip
    return events, context


def encode_both(library: Any, folder: Path, events: pd.DataFrame, context: pd.DataFrame | None, **options: Any) -> None:
    """Split, analyze and encode, with `mostlyai.engine` or `compat`."""
    protect = options.pop("value_protection", True)
    keys = {} if context is None else {"ctx_data": context, "ctx_primary_key": "uid", "tgt_context_key": "id"}
    types = {name: kind for name, kind in TYPES.items() if name in events.columns}
    library.set_random_state(3)
    library.split(events, tgt_encoding_types=types, workspace_dir=folder, **(keys | options))
    library.analyze(workspace_dir=folder, value_protection=protect)
    library.encode(workspace_dir=folder)
