"""Statistics as an object and as JSON."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from stoker_recipes.tabular import Statistics, analyze


def table(size: int = 40) -> pa.Table:
    rng = np.random.default_rng(7)
    return pa.table(
        {
            "x": pa.array(rng.integers(0, 30, size) / 4, mask=rng.random(size) < 0.2),
            "s": rng.choice(["a", "b"], size),
            "d": pa.array(rng.integers(0, 10**12, size)).cast(pa.timestamp("us")),
            "n": pa.nulls(size),
            "l": pa.array([[1.5]] * size),
        }
    )


SMALL = analyze(table())
SKETCHED = analyze({"x": np.random.default_rng(7).normal(size=500), "s": list("abcdefghij") * 50}, exact=64, categories=3)


@pytest.mark.parametrize("statistics", [SMALL, SKETCHED], ids=["exact", "sketched"])
def test_the_json_holds_all_but_the_values(statistics: Statistics, tmp_path: Path) -> None:
    statistics.save(tmp_path / "stats.json")
    content = json.loads((tmp_path / "stats.json").read_bytes())
    assert (content["format"], content["num_rows"]) == ("stoker-statistics", statistics.num_rows)
    for column, written in zip(statistics.columns, content["columns"], strict=True):
        fields = set(column.__struct_fields__) - {"run"}
        assert set(written) == fields | {"kind"}
        assert all(written[name] == getattr(column, name) for name in fields)


def test_statistics_travel_between_processes() -> None:
    for statistics in (SMALL, SKETCHED):
        assert pickle.loads(pickle.dumps(statistics)) == copy.deepcopy(statistics) == statistics
    assert analyze(table(41)) != SMALL  # negative control
