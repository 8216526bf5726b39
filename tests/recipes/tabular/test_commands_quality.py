"""`stoker tabular quality`: the table, JSON, the report, and errors in its own words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from benchmarks.tabular.known_tables import make_shop
from tests.cli.calling import Done

from stoker_recipes import tabular

METRICS = {"accuracy": {"overall": 0.91234, "overall_max": 0.95}, "distances": {"ims_training": 0.0}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("real", "synthetic")):
        pq.write_table(make_shop(120, seed=seed)[1], f"{name}.parquet")
    return tmp_path


def test_metrics_are_printed(stoker: Callable[..., Done], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def quality(*tables: str, **options: Any) -> Any:
        asked.update(options, tables=tables)
        return METRICS

    monkeypatch.setattr(tabular, "quality", quality, raising=False)
    call = ["tabular", "quality", "real.parquet", "synthetic.parquet", "--key", "user_id", "--report", "q.html"]
    done = stoker(*call)
    assert (done.code, done.err) == (0, "stoker: the report is q.html\n")
    assert next(line.split() for line in done.out.splitlines() if "overall" in line) == ["accuracy", "overall", "0.9123"]
    assert json.loads(stoker(*call, "--json").out) == METRICS
    assert (asked["tables"], asked["key"], asked["report"]) == (("real.parquet", "synthetic.parquet"), "user_id", Path("q.html"))
