"""Time: it must rise within a series; where it does not, both rows are named, or everything is sorted and counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.store.shrink import shrunk

from stoker.errors import BadValueError, TimeOrderError
from stoker.store.pack.api import pack


def write(folder: Path, **files: str) -> str:
    for name, rows in files.items():
        (folder / f"{name}.csv").write_text("k,t,x\n" + rows)
    return str(folder / "*.csv")


SMALL = {"run_bytes": 1, "chunk_bytes": 1, "line_bytes": 1}


@pytest.mark.parametrize("limits", [{}, SMALL])
@pytest.mark.parametrize(
    ("files", "places"),
    [
        ({"a": "u,1,0\nu,3,0\nu,2,0\n"}, ["2 in row 3 of {}/a.csv", "3 in row 2 of {}/a.csv"]),
        ({"a": "u,1,0\nv,1,0\nu,1,0\n"}, ["1 in row 3 of {}/a.csv", "1 in row 1 of {}/a.csv"]),
        ({"a": "u,5,0\nv,9,0\n", "b": "v,10,0\nu,4,0\n"}, ["4 in row 2 of {}/b.csv", "5 in row 1 of {}/a.csv"]),
        ({"a": "u,5,0\n", "b": "v,1,0\n", "c": "w,1,0\nu,5,0\n"}, ["5 in row 2 of {}/c.csv", "5 in row 1 of {}/a.csv"]),
    ],
)
def test_both_places_are_named(tmp_path: Path, limits: dict[str, int], files: dict[str, str], places: list[str]) -> None:
    source = write(tmp_path, **files)
    with shrunk(**limits), pytest.raises(TimeOrderError) as caught:
        pack(source, tmp_path / "out", series="k", time="t")
    assert all(place.format(tmp_path) in str(caught.value) for place in ("k 'u'", *places))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("limits", [{}, SMALL, {"run_bytes": 300, "chunk_bytes": 100, "fan_in": 3}])
@pytest.mark.parametrize("kind", ["int", "float", "moment"])
def test_sorting_is_stable_and_counts_equal_times(tmp_path: Path, limits: dict[str, int], kind: str) -> None:
    rng = np.random.default_rng(11)
    times = rng.integers(0, 30, 200)
    keys = rng.integers(0, 3, 200)
    shown = {"int": times, "float": times / 4, "moment": times.astype("datetime64[s]")}[kind]
    with shrunk(**limits):
        store = pack({"k": keys, "t": shown, "x": np.arange(200)}, tmp_path / "out", series="k", time="t", sort=True)
    equal = 0
    for key, one in enumerate(store):
        mine = sorted(np.flatnonzero(keys == key).tolist(), key=lambda i: (times[i], i))
        assert one["x"].tolist() == mine
        ordered = times[mine]
        equal += int((ordered[1:] == ordered[:-1]).sum())
    assert equal > 0
    assert store.manifest is not None
    notes = [note for note in store.manifest.notes if "windows span such gaps" not in note]
    assert notes == [f"{equal:,} steps have the same time as the step before them"]


@pytest.mark.parametrize(
    ("times", "row"),
    [
        (pa.array([1, None, 3]), 2),
        (pa.array([1.0, 2.0, None]), 3),
        (pa.array([1.0, float("nan"), 3.0]), 2),
        (pa.array([None, 1], pa.timestamp("s")), 1),
        (pa.array([1, None], pa.date32()), 2),
    ],
)
@pytest.mark.parametrize("options", [{}, {"sort": True}, {"missing": "ffill"}, {"wide": True}])
def test_a_missing_time_is_named(tmp_path: Path, times: pa.Array, row: int, options: dict[str, Any]) -> None:
    table = pa.table({"t": times, "x": [0.0] * len(times)})
    with pytest.raises(BadValueError, match=rf"the time 't' is missing in row {row} of <Table>. Every row needs a time"):
        pack(table, tmp_path / "out", time="t", **options)
