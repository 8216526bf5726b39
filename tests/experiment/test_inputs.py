"""What a run keeps about its training store: columns, categories, and how new files are packed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import stoker
from stoker.experiment.inputs import Inputs, options_for
from stoker.experiment.models import Task
from stoker.store.pack.options import Time

TABLE = "shop,ts,x,y,color\na,2024-01-01,1.5,2,red\na,2024-01-02,2.5,3,blue\nb,2024-01-01,3.5,4,red\n"


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    (tmp_path / "d.csv").write_text(TABLE)
    (tmp_path / "wide.csv").write_text("ts,a,b\n2024-01-01,1,2\n2024-01-02,2,3\n")
    return tmp_path


def inputs_of(store: stoker.Store, *columns: str) -> Inputs:
    task = Task(inputs=dict.fromkeys(columns, 1), targets={columns[0]: 1}, length=2, when="horizon", horizon=1)
    return Inputs.of(store, task)


def test_it_survives_json_and_names_what_pack_needs(raw: Path) -> None:
    inputs = inputs_of(stoker.pack(raw / "d.csv", raw / "d.stoker", series="shop", time="ts"), "x", "y", "color")
    assert msgspec.json.decode(inputs.to_json(), type=Inputs) == inputs
    assert inputs.column("color").texts == list(stoker.open(raw / "d.stoker").texts("color"))
    assert options_for(inputs) == {
        "series": "shop",
        "time": Time("ts"),
        "columns": ["x", "y", "color"],
        "dtype": {"x": "float64", "color": "category"},
    }


def test_the_statement_of_the_pack_is_kept(raw: Path) -> None:
    statement = "SELECT shop, ts, x / 2 AS half FROM source"
    store = stoker.pack(raw / "d.csv", raw / "d.stoker", series="shop", time="ts", sql=statement)
    assert inputs_of(store, "half").pack == {"sql": statement, "series": "shop", "time": "ts"}
    assert inputs_of(store.save(raw / "copy.stoker"), "half").pack["sql"] == statement, "a copy of a store knows it too"
