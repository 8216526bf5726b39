"""Going on: a pack that was stopped anywhere ends in the same bytes, and does not begin anew."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.store.pack.cluster import contents
from tests.store.shrink import shrunk

import stoker
from stoker import pack

LIMITS = {"chunk_bytes": 600, "run_bytes": 1500, "line_bytes": 500, "journal_bytes": 900, "fan_in": 2}


def scattered(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for name in "ab":
        keys = rng.integers(0, 9, 150)
        columns = {
            "k": [f"key {key}" for key in keys.tolist()],
            "t": rng.permutation(150),
            "x": pa.array(rng.normal(size=150), mask=rng.random(150) < 0.2),
            "w": [f"word {word}" for word in rng.integers(0, 40, 150).tolist()],
        }
        pq.write_table(pa.table(columns), folder / f"{name}.parquet", row_group_size=31)


def text(folder: Path) -> None:
    rng = np.random.default_rng(1)
    for i, name in enumerate("ab"):
        rows = [f'{t},{a},"{b}\n",{t % 7}' for t, (a, b) in enumerate(rng.integers(0, 99, (120, 2)).tolist())]
        (folder / f"{name}.csv").write_text("t,left,right,k\n" + "\n".join(rows) + ("\n120.5,1,2,3\n" if i else "\n"))


def various(folder: Path) -> None:
    rng = np.random.default_rng(3)
    for name, columns in (("a", "xyz"), ("b", "y"), ("c", "wx")):
        lines = [",".join(map(str, [t, *row])) for t, row in enumerate(rng.integers(0, 99, (80, len(columns))).tolist())]
        (folder / f"{name}.csv").write_text("\n".join([",".join(["t", *columns]), *lines, f"80.5{',' * len(columns)}"]) + "\n")


def lists(folder: Path) -> None:
    rng = np.random.default_rng(2)
    rows = [rng.normal(size=size).tolist() for size in rng.integers(0, 25, 60).tolist()]
    table = pa.table({"k": rng.permutation(60), "x": rows, "name": [f"series {i % 5}" for i in range(60)]})
    pq.write_table(table, folder / "a.parquet", row_group_size=13)


def hourly(folder: Path) -> None:
    """Hours in any order, with gaps and repeated times; integers become floats, so the pack begins again."""
    rng = np.random.default_rng(4)
    for name in "ab":
        times = np.datetime64("2020-01-01", "s") + rng.integers(0, 90, 150) * np.timedelta64(3600, "s")
        table = {"k": rng.integers(0, 4, 150), "t": times, "x": rng.normal(size=150), "n": rng.integers(0, 9, 150)}
        pq.write_table(pa.table(table), folder / f"{name}.parquet", row_group_size=31)


def local(folder: Path) -> None:
    """Local times around the hour that occurs twice, with gaps."""
    utc = np.datetime64("2021-10-30T20:00", "m") + np.flatnonzero(np.random.default_rng(5).random(150) < 0.9) * np.timedelta64(
        15, "m"
    )
    clock = utc + np.where(utc < np.datetime64("2021-10-31T01:00", "m"), 2, 1) * np.timedelta64(60, "m")
    lines = [f"{str(time).replace('T', ' ')},{i},{i % 7}.5,{i % 3}" for i, time in enumerate(clock)]
    (folder / "a.csv").write_text("\n".join(["t,A_x,A_y,B_x", *lines]) + "\n")


SHAPES: dict[str, tuple[Callable[[Path], None], dict[str, Any]]] = {
    "series": (scattered, {"series": "k"}),
    "sorted and filled": (scattered, {"series": "k", "time": "t", "sort": True, "missing": "ffill"}),
    "one series a file": (scattered, {"missing": "ffill"}),
    "text that settles": (text, {"series": "k", "columns": "k,t,right"}),
    "wide": (text, {"wide": True, "columns": "left,k"}),
    "wide, each file its own": (various, {"wide": True, "time": "t"}),
    "wide with a time": (text, {"wide": True, "time": "t", "columns": "t,left"}),
    "merged and regular": (hourly, {"series": "k", "time": stoker.Time("t", duplicates="last", freq="1h"), "sort": True}),
    "merged and filled": (hourly, {"time": stoker.Time("t", duplicates="last"), "sort": True, "missing": "ffill"}),
    "wide and local": (local, {"wide": "{series}_{value}", "time": stoker.Time("t", timezone="Europe/Berlin", freq="15min")}),
    "lists": (lists, {"series": "k", "dtype": "name=category"}),
    "lists in rows": (lists, {}),
}


class Stopped(KeyboardInterrupt):
    """As Ctrl-C is: not an Exception, so that the work stays."""


class Reports:
    """Counts reports of progress, and stops at one of them."""

    def __init__(self, stop_at: int = -1) -> None:
        self.stop_at = stop_at
        self.seen: list[tuple[str, float, int]] = []

    def __call__(self, phase: str, share: float, rows: int) -> None:
        self.seen.append((phase, share, rows))
        if len(self.seen) - 1 == self.stop_at:
            raise Stopped


@pytest.mark.promise("P3")
@pytest.mark.promise("P25")
@pytest.mark.parametrize("stops", [2, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_stopped_pack_ends_in_the_same_bytes(tmp_path: Path, shape: str, stops: int) -> None:
    make, options = SHAPES[shape]
    (tmp_path / "in").mkdir()
    make(tmp_path / "in")
    with shrunk(**LIMITS):
        whole = Reports()
        expected = contents(pack(tmp_path / "in", tmp_path / "whole", progress=whole, **options))
        count = len(whole.seen)
        assert count > 10
        for stop in range(count // (2 * stops), count, count // stops):
            out = tmp_path / f"stopped {stop}"
            with pytest.raises(Stopped):
                pack(tmp_path / "in", out, progress=Reports(stop), **options)
            again = Reports()
            assert contents(pack(tmp_path / "in", out, progress=again, **options)) == expected


def phases(reports: Reports) -> list[str]:
    return [phase for phase, _ in itertools.groupby(phase for phase, _, _ in reports.seen)]


@pytest.mark.promise("P3")
def test_what_was_read_is_not_read_again(tmp_path: Path) -> None:
    make, options = SHAPES["series"]
    make(tmp_path)
    with shrunk(**LIMITS):
        whole = Reports()
        pack(str(tmp_path / "*.parquet"), tmp_path / "whole", progress=whole, **options)
        assert phases(whole) == ["reading", "merging", "sealing"]
        last_read = max(i for i, (phase, _, _) in enumerate(whole.seen) if phase == "reading")
        with pytest.raises(Stopped):
            pack(str(tmp_path / "*.parquet"), tmp_path / "out", progress=Reports(last_read), **options)
        again = Reports()
        pack(str(tmp_path / "*.parquet"), tmp_path / "out", progress=again, **options)
        assert again.seen[0][0] == "reading"
        assert again.seen[0][2] > 200, "most of the 300 rows were read before"
        with pytest.raises(Stopped):
            pack(str(tmp_path / "*.parquet"), tmp_path / "merging", progress=Reports(last_read + 12), **options)
        again = Reports()
        pack(str(tmp_path / "*.parquet"), tmp_path / "merging", progress=again, **options)
        assert phases(again) == ["merging", "sealing"]
        with pytest.raises(Stopped):
            pack(str(tmp_path / "*.parquet"), tmp_path / "sealing", progress=Reports(len(whole.seen) - 1), **options)
        again = Reports()
        pack(str(tmp_path / "*.parquet"), tmp_path / "sealing", progress=again, **options)
        assert phases(again) == ["sealing"]


@pytest.mark.promise("P3")
def test_what_rules_have_counted_outlives_a_stop_after_the_last_merge(tmp_path: Path) -> None:
    make, options = SHAPES["merged and regular"]
    make(tmp_path)
    source, whole = str(tmp_path / "*.parquet"), Reports()
    with shrunk(**LIMITS):
        expected = pack(source, tmp_path / "whole", progress=whole, **options)
        with pytest.raises(Stopped):
            pack(source, tmp_path / "out", progress=Reports(len(whole.seen) - 1), **options)
        again = Reports()
        assert contents(pack(source, tmp_path / "out", progress=again, **options)) == contents(expected)
    assert any("were missing and were added" in note for note in expected.manifest.notes)
    assert "reading" not in phases(again)


@pytest.mark.parametrize("change", ["options", "source", "fewer sources"])
def test_a_pack_of_something_else_begins_again(tmp_path: Path, change: str) -> None:
    make, options = SHAPES["series"]
    make(tmp_path)
    source = str(tmp_path / "*.parquet")
    with shrunk(**LIMITS):
        with pytest.raises(Stopped):
            pack(source, tmp_path / "out", progress=Reports(12), **options)
        if change == "options":
            options = {**options, "missing": "drop"}
        elif change == "source":
            (tmp_path / "a.parquet").write_bytes((tmp_path / "b.parquet").read_bytes())
        else:
            (tmp_path / "b.parquet").unlink()
        again = Reports()
        store = pack(source, tmp_path / "out", progress=again, **options)
        assert again.seen[0][2] < 60
        assert contents(store) == contents(pack(source, tmp_path / "fresh", **options))


def test_memory_and_threads_may_change_in_between(tmp_path: Path) -> None:
    make, options = SHAPES["series"]
    make(tmp_path)
    source = str(tmp_path / "*.parquet")
    with shrunk(**LIMITS):
        expected = contents(pack(source, tmp_path / "whole", resources=stoker.Resources(threads=1), **options))
        with pytest.raises(Stopped):
            pack(source, tmp_path / "out", progress=Reports(14), resources=stoker.Resources(threads=1), **options)
    with shrunk(**{**LIMITS, "chunk_bytes": 233, "run_bytes": 4000, "fan_in": 5}):
        again = Reports()
        store = pack(source, tmp_path / "out", progress=again, resources=stoker.Resources(memory="300MB", threads=3), **options)
    assert again.seen[0][2] > 60
    assert contents(store) == expected
