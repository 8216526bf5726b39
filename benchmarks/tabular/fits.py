"""Tables that Stoker and mostlyai-engine learn from the same rows, and the files in which they are kept."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from stoker_recipes.tabular import Synthesizer

SIZES = {"s": "Small", "m": "Medium", "l": "Large"}


def fit(
    path: Path,
    side: str,
    rows: Any,
    *,
    count: int,
    key: str | None = None,
    context: Any = None,
    fresh: Any = None,
    time_column: str | None = None,
    seed: int,
    size: str,
    **options: Any,
) -> None:
    """Make a file of generated rows, with the facts of the fit in its metadata.

    Args:
        path: The file.
        side: "upstream" or "mostlyai" is mostlyai-engine, all others are Stoker, as it is on the path of Python.
        rows: What is learned: a frame of pandas or Arrow.
        count: Subjects, or rows, to generate.
        key: The column of subjects.
        context: Facts of the subjects.
        fresh: Contexts to generate for.
        time_column: Dates that mostlyai-engine is asked to encode by their gaps, as Stoker does.
        seed: Of both.
        size: "s", "m" or "l".
        **options: Of `Synthesizer`.
    """
    start, wall = time.process_time(), time.perf_counter()
    if side in ("upstream", "mostlyai"):
        made, training = _upstream(rows, count, key, context, fresh, time_column, seed=seed, size=size)
    else:
        model = Synthesizer(size=size, seed=seed, **options).fit(rows, key=key, context=context)
        made, training = model.sample(None if fresh is not None else count, context=fresh, seed=seed), str(model.result)
    facts = {
        "cpu_seconds": round(time.process_time() - start, 1),
        "seconds": round(time.perf_counter() - wall, 1),
        "training": training,
    }
    table = made if isinstance(made, pa.Table) else pa.Table.from_pandas(made, preserve_index=False)
    pq.write_table(table.replace_schema_metadata({**(table.schema.metadata or {}), b"facts": json.dumps(facts).encode()}), path)
    print(path.name, facts, flush=True)


def facts_of(path: Path) -> dict[str, Any]:
    """The facts of the fit that made a file."""
    facts: dict[str, Any] = json.loads((pq.read_schema(path).metadata or {}).get(b"facts", b"{}"))
    return facts


def _pandas(table: Any) -> Any:
    return table.to_pandas() if isinstance(table, pa.Table) else table


def _upstream(
    rows: Any, count: int, key: str | None, context: Any, fresh: Any, time_column: str | None, *, seed: int, size: str
) -> tuple[pd.DataFrame, str]:
    """Learn and generate with mostlyai-engine."""
    from mostlyai import engine  # type: ignore[import-not-found, import-untyped, unused-ignore]

    split: dict[str, Any] = {} if key is None else {"tgt_context_key": key}
    if time_column is not None:
        split["tgt_encoding_types"] = {time_column: "TABULAR_DATETIME_RELATIVE"}
    if context is not None:
        split |= {"ctx_data": _pandas(context), "ctx_primary_key": key}
    asked: dict[str, Any] = {"sample_size": count}
    if key is not None:
        asked = {"ctx_data": pd.DataFrame({key: np.arange(count)}) if fresh is None else _pandas(fresh)}
    folder = Path(tempfile.mkdtemp())
    engine.set_random_state(seed)
    try:
        engine.split(tgt_data=_pandas(rows), workspace_dir=folder, **split)
        engine.analyze(workspace_dir=folder)
        engine.encode(workspace_dir=folder)
        engine.train(model=f"MOSTLY_AI/{SIZES[size]}", workspace_dir=folder)
        engine.generate(workspace_dir=folder, **asked)
        whole = pd.concat([pd.read_parquet(path) for path in sorted((folder / "SyntheticData").glob("*.parquet"))])
        messages = pd.read_csv(folder / "ModelStore" / "model-data" / "progress-messages.csv")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    whole = whole if key is None else whole.sort_values(key, kind="stable")
    return whole.reset_index(drop=True), f"{messages['epoch'].max():g} epochs"
