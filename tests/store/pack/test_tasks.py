"""Tasks of a pack: the bytes of a pack by one process, however they are cut and run; and one clear line where they do not fit together."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.store.pack.cluster import contents, pack_on_fake, small_tasks, write_events

import stoker
from stoker import pack
from stoker.errors import OptionError, SourceChangedError, StoreDamagedError, StoreExistsError, TimeOrderError
from stoker.store import PackOptions
from stoker.store.pack import on_ray, tasks
from stoker.store.pack.tasks import PackTasks, make_task_plan

OPTIONS: dict[str, dict[str, Any]] = {
    "keys": {"series": "user"},
    "sorted": {"series": "user", "time": "ts", "sort": True},
    "rules": {"series": "user", "time": stoker.Time("ts", duplicates="last")},
    "steps": {"series": "user", "time": stoker.Time("ts", duplicates="last", freq="1s"), "sort": True, "columns": "n,kind"},
    "files": {},
    "filled": {"series": "user", "time": "ts", "missing": "ffill", "sort": True},
    "texts": {"series": "kind", "columns": "x,n,file"},
}


@pytest.fixture(autouse=True)
def _small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    small_tasks(monkeypatch)


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_events(tmp_path_factory.mktemp("events"))


@pytest.mark.promise("P3")
@pytest.mark.parametrize("name", OPTIONS)
def test_tasks_make_the_bytes_of_one_pack(events: str, tmp_path: Path, name: str) -> None:
    source = stoker.Files(events, name_column="file") if name == "texts" else events
    pack(source, tmp_path / "one.stoker", **OPTIONS[name])
    pack_on_fake(source, tmp_path / "ray.stoker", **OPTIONS[name])
    assert contents(tmp_path / "ray.stoker") == contents(tmp_path / "one.stoker")
    assert not Path(f"{tmp_path}/ray.stoker.parts").exists()


def write_lists(folder: Path) -> str:
    rng = np.random.default_rng(1)
    for i in range(3):
        lengths = rng.integers(0, 9, 60)
        table = pa.table(
            {
                "x": [rng.standard_normal(n).tolist() for n in lengths],
                "t": [np.arange(n).tolist() for n in lengths],
                "label": [f"label {k}" for k in rng.integers(0, 9, 60)],
                "id": [f"{i}-{k}" for k in range(60)],
            }
        )
        pq.write_table(table, folder / f"{i}.parquet", row_group_size=20)
    return str(folder / "*.parquet")


def write_wide(folder: Path) -> str:
    for i in range(3):
        lines = [f"2026-01-{day:02},{day * i},{day + 0.5}" for day in range(1, 25)]
        (folder / f"{i}.csv").write_text("date,a,b\n" + "\n".join(lines) + "\n")
    return str(folder / "*.csv")


@pytest.mark.promise("P3")
@pytest.mark.parametrize("name", ["rows", "keyed rows", "wide"])
def test_rows_that_are_series_and_wide_tables(tmp_path: Path, name: str) -> None:
    (tmp_path / "raw").mkdir()
    source = write_wide(tmp_path / "raw") if name == "wide" else write_lists(tmp_path / "raw")
    options: dict[str, Any] = {
        "rows": {"time": "t", "dtype": {"label": "category"}},
        "keyed rows": {"series": "id"},
        "wide": {"wide": True, "time": "date"},
    }[name]
    pack(source, tmp_path / "one.stoker", **options)
    pack_on_fake(source, tmp_path / "ray.stoker", **options)
    assert contents(tmp_path / "ray.stoker") == contents(tmp_path / "one.stoker")


@pytest.mark.promise("P3")
@pytest.mark.parametrize("case", ["late float", "missing integers", "missing steps"])
def test_types_that_do_not_hold_all_values_are_widened(tmp_path: Path, case: str) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    options: dict[str, Any] = {"series": "k"}
    for i in range(4):
        if case == "late float":
            lines = "".join(f"{row % 5},{2.5 if i == 2 and row == 399 else row}\n" for row in range(400))
            (raw / f"{i}.csv").write_text("k,x\n" + lines)
        else:
            gap = case == "missing integers" and i == 2
            step = 2 if case == "missing steps" and i == 2 else 1
            values = pa.array([None if gap and row == 7 else row for row in range(400)], pa.int64())
            times = pa.array(np.arange(400) * step + i * 1000, pa.timestamp("s"))
            pq.write_table(pa.table({"k": np.full(400, i), "t": times, "x": values}), raw / f"{i}.parquet")
    if case == "missing steps":
        options |= {"time": stoker.Time("t", freq="1s")}
    expected = pack(str(raw / "*"), tmp_path / "one.stoker", **options)
    assert expected.schema["x"].dtype == np.float64
    pack_on_fake(str(raw / "*"), tmp_path / "ray.stoker", **options)
    assert contents(tmp_path / "ray.stoker") == contents(tmp_path / "one.stoker")


def test_a_task_with_little_memory_merges_its_runs(events: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "MAX_RUNS", 1)
    monkeypatch.setattr(PackOptions, "run_bytes", 2000)
    monkeypatch.setattr(PackOptions, "chunk_bytes", 1000)
    merged: list[int] = []
    merge_group: Any = tasks.merge_group
    monkeypatch.setattr(tasks, "merge_group", lambda *args, **more: (merged.append(args[3]), merge_group(*args, **more))[1])
    pack_on_fake(events, tmp_path / "ray.stoker", **OPTIONS["sorted"])
    pack(events, tmp_path / "one.stoker", **OPTIONS["sorted"])
    assert max(merged) > 0, "a task merged its runs; the join makes run 0"
    assert contents(tmp_path / "ray.stoker") == contents(tmp_path / "one.stoker")


def test_a_source_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_events(tmp_path / "raw", files=2)
    read_range = PackTasks._read_range

    def touch(self: PackTasks, *args: Any) -> int:
        count = read_range(self, *args)
        os.utime(tmp_path / "raw" / "0.parquet", ns=(1, 1))
        return count

    monkeypatch.setattr(PackTasks, "_read_range", touch)
    with pytest.raises(SourceChangedError, match=r"0\.parquet changed while it was packed") as caught:
        pack_on_fake(source, tmp_path / "a.stoker", series="user")
    assert caught.value.path == str(tmp_path / "raw" / "0.parquet")
    assert not [path.name for path in tmp_path.iterdir() if path.name != "raw"], "a pack that fails leaves nothing"


@pytest.mark.promise("P3")
def test_nodes_that_see_other_sources_or_no_target_are_refused(tmp_path: Path) -> None:
    source, target = write_events(tmp_path / "raw", files=2), str(tmp_path / "a.stoker")
    plan = make_task_plan(source, PackOptions())
    with pytest.raises(OptionError, match=r"a node of the cluster does not see .*a\.stoker\.parts"):
        PackTasks(source, target, PackOptions(), plan, replace=False)
    tasks.start(target, replace=False)
    os.utime(tmp_path / "raw" / "1.parquet", ns=(1, 1))
    with pytest.raises(
        SourceChangedError, match=r"the sources differ between nodes, or changed since the pack began: 1\.parquet"
    ) as caught:
        PackTasks(source, target, PackOptions(), plan, replace=False)
    assert caught.value.path == str(tmp_path / "raw" / "1.parquet")


def test_errors_of_rows_name_them_as_in_one_pack(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for i in range(3):
        times = [[0, 1, 2], [5, 4] if i == 2 else [4, 5], [7]]
        pq.write_table(pa.table({"t": times, "x": [[0.0] * len(one) for one in times]}), tmp_path / "raw" / f"{i}.parquet")
    source = str(tmp_path / "raw" / "*.parquet")
    with pytest.raises(TimeOrderError) as one:
        pack(source, tmp_path / "one.stoker", time="t")
    with pytest.raises(TimeOrderError) as several:
        pack_on_fake(source, tmp_path / "a.stoker", time="t")
    assert "4 in row 2 of" in str(one.value)
    assert str(several.value) == str(one.value)


def test_times_that_fall_between_two_tasks_are_found(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for i, start in enumerate((100, 0)):
        pq.write_table(pa.table({"k": [1] * 50, "t": np.arange(50) + start}), tmp_path / "raw" / f"{i}.parquet")
    source = str(tmp_path / "raw" / "*.parquet")
    with pytest.raises(TimeOrderError) as several:
        pack_on_fake(source, tmp_path / "ray.stoker", series="k", time="t")
    with pytest.raises(TimeOrderError) as one:
        pack(source, tmp_path / "one.stoker", series="k", time="t")
    assert str(several.value) == str(one.value)
    assert not (tmp_path / "ray.stoker").exists()


def test_a_damaged_file_of_a_task_ends_the_pack(events: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    join = PackTasks.join

    def damage(self: PackTasks, *args: Any) -> Any:
        for victim in (tmp_path / "a.stoker.parts").glob("read-0~*/run0.c1"):
            data = victim.read_bytes()
            victim.write_bytes(data[:-1] + bytes([7]))
        return join(self, *args)

    monkeypatch.setattr(PackTasks, "join", damage)
    with pytest.raises(StoreDamagedError, match=r"run0\.c1 is damaged .* Pack again"):
        pack_on_fake(events, tmp_path / "a.stoker", series="user")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise("P3")
def test_a_join_whose_node_died_after_its_commit_is_done(events: str, tmp_path: Path) -> None:
    """Each task runs twice here, the join too: its second attempt finds the store that the first one has committed."""
    store = pack_on_fake(events, tmp_path / "a.stoker", series="user")
    with pytest.raises(StoreExistsError, match="holds a store already"):
        pack_on_fake(events, tmp_path / "a.stoker", series="user")
    assert pack_on_fake(events, tmp_path / "a.stoker", series="user", replace=True).digest == store.digest


@pytest.mark.promise("P3")
def test_a_pack_that_was_killed_leaves_nothing_for_the_next_one(events: str, tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def run(function: Any, *args: Any) -> Any:
        if args[1] in ("join", "clear"):
            raise Killed
        return function(*args)

    with pytest.raises(Killed):
        pack_on_fake(events, tmp_path / "a.stoker", run=run, series="user", time="ts")
    assert (tmp_path / "a.stoker.parts").is_dir()
    pack_on_fake(events, tmp_path / "a.stoker", **OPTIONS["sorted"])
    assert not (tmp_path / "a.stoker.parts").exists()
    pack(events, tmp_path / "one.stoker", **OPTIONS["sorted"])
    assert contents(tmp_path / "a.stoker") == contents(tmp_path / "one.stoker")


def test_tasks_of_a_store_in_object_storage(events: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore", reason="needs stoker[remote]")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET-KEY")
    url, left = f"file://{tmp_path}/bucket/a.stoker", b""

    def run(function: Any, *args: Any) -> Any:
        nonlocal left
        if args[1] == "clear":
            left = b"".join(path.read_bytes() for path in (tmp_path / "bucket").rglob("*") if path.is_file())
        return function(*args)

    pack_on_fake(events, url, run=run, **OPTIONS["sorted"])
    assert b"SECRET-KEY" not in left
    assert str(tmp_path).encode() not in left
    assert not [path for path in (tmp_path / "bucket" / "a.stoker.parts").rglob("*") if path.is_file()]
    one = pack(events, tmp_path / "one.stoker", **OPTIONS["sorted"])
    assert stoker.open(url, cache=tmp_path / "cache").digest == one.digest
    with pytest.raises(StoreExistsError):
        pack_on_fake(events, url, **OPTIONS["sorted"])


@pytest.mark.promise("P3", control=True)
def test_negative_control_without_the_order_of_the_sources_bytes_differ(
    events: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_all = on_ray._read_all
    monkeypatch.setattr(on_ray, "_read_all", lambda *args: read_all(*args)[::-1])
    pack_on_fake(events, tmp_path / "ray.stoker", series="user")
    pack(events, tmp_path / "one.stoker", series="user")
    assert contents(tmp_path / "ray.stoker") != contents(tmp_path / "one.stoker")
