"""What a run keeps about its training store: columns, categories, and how new files are packed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

import stoker
from stoker.experiment.inputs import Inputs, options_for
from stoker.experiment.models import Task

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
        "time": "ts",
        "columns": ["x", "y", "color"],
        "dtype": {"x": "float64", "color": "category"},
    }


def test_changes_that_the_model_does_not_need_are_left_out(raw: Path) -> None:
    derive = {"half": "z / 2", "twice": "2 * y", "late": "diff(half)", "label": "y > 3"}
    store = stoker.pack(
        raw / "d.csv", raw / "d.stoker", series="shop", time="ts", rename={"x": "z", "color": "paint"}, derive=derive
    )
    inputs = inputs_of(store, "late", "y")
    assert {name: inputs.pack[name] for name in ("rename", "derive")} == {
        "rename": {"x": "z"},
        "derive": {"half": "z / 2", "late": "diff(half)"},
    }
    copied = store.save(raw / "copy.stoker")
    assert inputs_of(copied, "late", "y").pack == inputs.pack, "a copy of a store knows them too"
    assert inputs_of(store, "y").pack == {"series": "shop", "time": "ts"}


def test_series_that_are_files_columns_or_arrays(raw: Path) -> None:
    by_file = inputs_of(stoker.pack(raw / "d.csv", raw / "f.stoker"), "x")
    assert options_for(by_file) == {"columns": ["x"], "dtype": {"x": "float64"}}, "each file is a series"
    wide = inputs_of(stoker.pack(raw / "wide.csv", raw / "w.stoker", wide=True), "value")
    assert options_for(wide)["wide"] is True
    assert options_for(inputs_of(stoker.Store.from_arrays(x=np.ones((2, 3))), "x")) == {"columns": ["x"], "dtype": {"x": "float64"}}
