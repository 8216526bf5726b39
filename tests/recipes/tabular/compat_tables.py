"""A table with a column for every encoding of `compat`, its contexts, and the workflow on both."""

from __future__ import annotations

import json
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


def split(
    folder: Path, events: pd.DataFrame, context: pd.DataFrame | None = None, *, key: str = "id", types: Any = None, parts: int = 1
) -> None:
    """The files of `mostlyai.engine.split`: even subjects (or rows) train, odd ones validate. The first column of contexts names them."""
    tables, owners = {"tgt": events}, {"tgt": np.arange(len(events))}
    keys = {"tgt": {} if context is None else {"context_key": key}}
    if context is not None:
        primary = str(context.columns[0])
        tables["ctx"], keys["ctx"], owners["ctx"] = context, {"primary_key": primary}, np.arange(len(context))
        owners["tgt"] = pd.Index(context[primary]).get_indexer(pd.Index(events[key]))
    for role, table in tables.items():
        meta, data = folder / f"OriginalData/{role}-meta", folder / f"OriginalData/{role}-data"
        for made in (meta, data):
            made.mkdir(parents=True, exist_ok=True)
        kinds = {name: kind_of(table[name]) for name in table.columns if name not in keys[role].values()}
        kinds |= {name: kind for name, kind in (types or {}).items() if name in kinds}
        (meta / "keys.json").write_text(json.dumps(keys[role]))
        (meta / "encoding-types.json").write_text(json.dumps(kinds))
        for number in range(2 * parts):
            name = f"part.{number // 2:06d}-{('trn', 'val')[number % 2]}.parquet"
            table[owners[role] % (2 * parts) == number].to_parquet(data / name, index=False)


def kind_of(column: pd.Series) -> str:
    """The encoding that `mostlyai.engine.split` chooses."""
    if pd.api.types.is_bool_dtype(column) or not (
        pd.api.types.is_numeric_dtype(column) or pd.api.types.is_datetime64_any_dtype(column)
    ):
        return "TABULAR_CATEGORICAL"
    return "TABULAR_NUMERIC_AUTO" if pd.api.types.is_numeric_dtype(column) else "TABULAR_DATETIME"
