"""Packs in parts: the bytes of a pack by one process, whatever the parts; and one clear line where parts do not fit together."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.store.pack.part_inputs import contents, pack_in_parts, small_tasks, write_events

import stoker
from stoker import _disk
from stoker.errors import (
    OptionError,
    PartsMissingError,
    SourceChangedError,
    StoreDamagedError,
    StoreExistsError,
    TimeOrderError,
)
from stoker.store.pack import parts
from stoker.store.pack.api import join_parts, pack, pack_part
from stoker.store.pack.exchange import open_exchange

OPTIONS: dict[str, dict[str, Any]] = {
    "keys": {"series": "user"},
    "sorted": {"series": "user", "time": "ts", "sort": True},
    "rules": {"series": "user", "time": "ts", "duplicates": "mean"},
    "steps": {
        "series": "user",
        "time": "ts",
        "sort": True,
        "duplicates": "last",
        "freq": "1s",
        "columns": "n,kind",
    },
    "files": {},
    "filled": {"series": "user", "time": "ts", "missing": "ffill", "sort": True},
    "texts": {"series": "kind", "columns": "x,n", "segment": 50, "source_column": "file"},
}


@pytest.fixture(autouse=True)
def _small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    small_tasks(monkeypatch)


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_events(tmp_path_factory.mktemp("events"))


@pytest.mark.parametrize("name", OPTIONS)
def test_parts_make_the_bytes_of_one_pack(events: str, tmp_path: Path, name: str) -> None:
    pack(events, tmp_path / "one.stoker", **OPTIONS[name])
    expected = contents(tmp_path / "one.stoker")
    for count, merge in ((1, True), (3, False), (16, True)):
        target = tmp_path / f"{count}.stoker"
        pack_in_parts(events, target, count, merge=merge, **OPTIONS[name])
        assert contents(target) == expected, (count, merge)
        assert not Path(f"{target}.parts").exists()


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
    for merge in (False, True):
        pack_in_parts(source, tmp_path / f"{merge}.stoker", 2, merge=merge, **options)
        assert contents(tmp_path / f"{merge}.stoker") == contents(tmp_path / "one.stoker")


@pytest.mark.parametrize("case", ["late float", "missing integers", "missing steps"])
def test_types_that_do_not_hold_all_values_are_widened_for_all_parts(tmp_path: Path, case: str) -> None:
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
        options |= {"time": "t", "freq": "1s"}
    source = str(raw / "*")
    expected = pack(source, tmp_path / "one.stoker", **options)
    assert expected.schema["x"].dtype == np.float64
    target = tmp_path / "parts.stoker"
    pack_in_parts(source, target, 4, merge=case != "late float", **options)
    assert contents(target) == contents(tmp_path / "one.stoker")


def test_a_task_that_runs_again_keeps_its_result_and_a_damaged_one_is_made_again(events: str, tmp_path: Path) -> None:
    target, options = tmp_path / "a.stoker", OPTIONS["sorted"]
    pack_part(events, target, "1/1", **options)
    folder = Path(f"{target}.parts")
    before = {path: path.stat().st_ino for path in folder.rglob("*") if path.is_file()}
    pack_part(events, target, "1/1", **options)
    assert {path: path.stat().st_ino for path in folder.rglob("*") if path.is_file()} == before
    victim = sorted(folder.glob("read-0-*~*/run0.c0"))[0]
    data = bytearray(victim.read_bytes())
    data[200] ^= 1
    victim.write_bytes(data)
    with pytest.raises(StoreDamagedError, match=r"run0\.c0 is damaged"):
        join_parts(events, target, **options)
    assert not target.exists()
    pack_part(events, target, "1/1", **options)
    assert victim not in set(folder.rglob("*"))
    join_parts(events, target, **options)
    pack(events, tmp_path / "one.stoker", **options)
    assert contents(target) == contents(tmp_path / "one.stoker")


def test_ctrl_c_leaves_what_is_done(events: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, options = tmp_path / "a.stoker", OPTIONS["keys"]
    read_rows = parts.PartedPack._read_rows
    calls = []

    def stop(self: Any, *args: Any) -> Any:
        calls.append(0)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return read_rows(self, *args)

    monkeypatch.setattr(parts.PartedPack, "_read_rows", stop)
    with pytest.raises(KeyboardInterrupt):
        pack_part(events, target, "1/1", **options)
    num_tasks = pack_part(events, target, "1/1", **options)
    assert len(calls) == num_tasks + 1  # only the task that was stopped ran twice
    join_parts(events, target, **options)
    pack(events, tmp_path / "one.stoker", **options)
    assert contents(target) == contents(tmp_path / "one.stoker")


def test_a_join_that_was_killed_after_its_commit_ends(events: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.stoker"
    pack_part(events, target, "1/1", series="user")
    with monkeypatch.context() as patch:
        patch.setattr(parts, "clear_parts", lambda path: None)
        join_parts(events, target, series="user")
    before = contents(target)
    join_parts(events, target, series="user")
    assert contents(target) == before
    assert not Path(f"{target}.parts").exists()
    with pytest.raises(StoreExistsError, match="holds a store already"):
        pack_part(events, target, "1/1", series="user")
    pack_part(events, target, "1/1", series="user", replace=True)
    with pytest.raises(StoreExistsError):
        join_parts(events, target, series="user")
    join_parts(events, target, series="user", replace=True)
    assert contents(target) == before


def test_a_task_that_outlives_its_pack_leaves_nothing_for_the_next_one(tmp_path: Path) -> None:
    """As where a node was taken for dead and its task was run elsewhere: it publishes a result when the pack has ended."""
    events, target = tmp_path / "events.csv", tmp_path / "a.stoker"
    events.write_text("user,ts,kind\n2,2,a\n1,1,b\n2,1,a\n")
    late = parts.PartedPack(str(events), str(target), stoker.store.PackOptions(series="user"), lambda *args: None)
    pack_in_parts(str(events), str(target), 1, merge=False, series="user")
    late.read(0)
    assert list(Path(f"{target}.parts").glob("read-0*.mark"))
    pack_in_parts(str(events), str(target), 1, merge=False, series="user", time="ts", sort=True, replace=True)
    stoker.pack(events, tmp_path / "sorted.stoker", series="user", time="ts", sort=True)
    assert contents(target) == contents(tmp_path / "sorted.stoker")


class Killed(BaseException):
    """Ends a join at once, as `kill -9` does; nothing handles it."""


@pytest.mark.parametrize("joins", [True, False])
def test_a_join_that_is_killed_while_it_removes_results_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, joins: bool) -> None:
    """At each removal: the next join ends it, and what is left never counts for a pack with other options, also without that join."""
    events, target, others = tmp_path / "events.csv", tmp_path / "a.stoker", tmp_path / "a.stoker.parts"
    events.write_text("user,ts,kind\n2,2,a\n1,1,b\n2,1,a\n")
    stoker.pack(events, tmp_path / "one.stoker", series="user")
    stoker.pack(events, tmp_path / "sorted.stoker", series="user", time="ts", sort=True)  # other rows first
    for number in itertools.count():
        pack_part(events, target, "1/1", series="user")
        removed: list[Path] = []
        with monkeypatch.context() as patch:
            for name in ("unlink", "rmdir"):
                patch.setattr(_disk.disk, name, _killing(getattr(_disk.disk, name), others, removed, number))
            try:
                join_parts(events, target, series="user")
                break
            except Killed:
                pass
        assert contents(target) == contents(tmp_path / "one.stoker")
        if not (others / "joined").exists():  # it was done but for an empty folder
            assert {path.name for path in others.rglob("*")} <= {".stoker-parts"}
            with pytest.raises(StoreExistsError, match="holds a store already"):
                join_parts(events, target, series="user")
        elif joins or (others / "plan").exists():
            join_parts(events, target, series="user")
            assert not others.exists()
        if not (others / "plan").exists():
            pack_in_parts(str(events), str(target), 1, merge=False, series="user", time="ts", sort=True, replace=True)
            assert contents(target) == contents(tmp_path / "sorted.stoker")
        _disk.remove_folder(target)
    assert len(removed) == number > 10
    assert not others.exists()


def _killing(remove: Callable[[Path], None], folder: Path, removed: list[Path], number: int) -> Callable[[Path], None]:
    def call(path: Path) -> None:
        if (path == folder or folder in path.parents) and (folder.parent / "a.stoker" / "manifest.json").exists():
            if len(removed) == number:
                raise Killed
            removed.append(path)
        remove(path)

    return call


def test_missing_parts_are_named_with_what_runs(events: str, tmp_path: Path) -> None:
    target = tmp_path / "a.stoker"
    with pytest.raises(OptionError, match=r"a.stoker.parts has no parts of a pack. First run the parts"):
        join_parts(events, target, series="user")
    for number in (1, 3, 4, 6):
        pack_part(events, target, f"{number}/6", series="user")
    exchange = open_exchange(target)
    with exchange.attempt("read-1") as attempt:
        exchange.report(attempt, json.dumps({"share": 0.25, "rows": 10}).encode())
        with pytest.raises(PartsMissingError, match=r"\(1 of them are being read, 25% done\). Run --part 2/6, 5/6\.") as caught:
            join_parts(events, target, series="user")
    assert "tasks are not done" in str(caught.value)
    with pytest.raises(PartsMissingError, match="Run --part 2/6, 5/6"):
        pack_part(events, target, "1/6", merge=True, series="user")
    assert not target.exists()


def test_memory_and_threads_may_differ_between_parts(events: str, tmp_path: Path) -> None:
    target, options = tmp_path / "a.stoker", OPTIONS["sorted"]
    pack_part(events, target, "1/2", memory="192MB", threads=1, **options)
    pack_part(events, target, "2/2", threads=2, **options)
    join_parts(events, target, memory="256MB", **options)
    pack(events, tmp_path / "one.stoker", **options)
    assert contents(target) == contents(tmp_path / "one.stoker")


def test_a_task_with_little_memory_merges_its_runs(events: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MAX_RUNS", 1)
    monkeypatch.setattr(stoker.store.PackOptions, "run_bytes", 2000)
    monkeypatch.setattr(stoker.store.PackOptions, "chunk_bytes", 1000)
    target, options = tmp_path / "a.stoker", OPTIONS["sorted"]
    pack_part(events, target, "1/1", **options)
    runs = {path.name for path in Path(f"{target}.parts").rglob("run*.n")}
    assert len({name for name in runs if name != "run0.n"}) > 0
    join_parts(events, target, **options)
    pack(events, tmp_path / "one.stoker", **options)
    assert contents(target) == contents(tmp_path / "one.stoker")


def test_a_source_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_events(tmp_path / "raw", files=2)
    target = tmp_path / "a.stoker"
    read_range = parts.PartedPack._read_range

    def touch(self: Any, *args: Any) -> Any:
        yield from read_range(self, *args)
        os.utime(tmp_path / "raw" / "0.parquet", ns=(1, 1))

    monkeypatch.setattr(parts.PartedPack, "_read_range", touch)
    with pytest.raises(SourceChangedError, match=r"0\.parquet changed while it was packed"):
        pack_part(source, target, "1/1", series="user")


def test_errors_of_rows_name_them_as_in_one_pack(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for i in range(3):
        times = [[0, 1, 2], [5, 4] if i == 2 else [4, 5], [7]]
        pq.write_table(pa.table({"t": times, "x": [[0.0] * len(one) for one in times]}), tmp_path / "raw" / f"{i}.parquet")
    source = str(tmp_path / "raw" / "*.parquet")
    with pytest.raises(TimeOrderError) as one:
        pack(source, tmp_path / "one.stoker", time="t")
    with pytest.raises(TimeOrderError) as parted:
        pack_part(source, tmp_path / "a.stoker", "1/1", time="t")
    assert "4 in row 2 of" in str(one.value)
    assert str(parted.value) == str(one.value)


def test_times_that_fall_between_two_parts_are_found_by_the_join(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for i, start in enumerate((100, 0)):
        pq.write_table(pa.table({"k": [1] * 50, "t": np.arange(50) + start}), tmp_path / "raw" / f"{i}.parquet")
    source, messages = str(tmp_path / "raw" / "*.parquet"), []
    for merge in (False, True):
        with pytest.raises(TimeOrderError) as caught:
            pack_in_parts(source, tmp_path / f"{merge}.stoker", 2, merge=merge, series="k", time="t")
        messages.append(str(caught.value))
        assert not (tmp_path / f"{merge}.stoker").exists()
    with pytest.raises(TimeOrderError) as caught:
        pack(source, tmp_path / "one.stoker", series="k", time="t")
    assert set(messages) == {str(caught.value)}


def test_the_parts_of_a_store_in_object_storage(events: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore", reason="needs stoker[remote]")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET-KEY")
    monkeypatch.setattr(parts, "_REPORT_NS", 0)
    url = f"file://{tmp_path}/bucket/a.stoker"
    options = OPTIONS["sorted"]
    for number in (2, 1, 2):
        pack_part(events, url, f"{number}/2", **options)
    pack_part(events, url, "1/2", merge=True, **options)
    left = b"".join(path.read_bytes() for path in (tmp_path / "bucket").rglob("*") if path.is_file())
    assert b"SECRET-KEY" not in left
    assert str(tmp_path).encode() not in left
    join_parts(events, url, **options)
    assert not [path for path in (tmp_path / "bucket" / "a.stoker.parts").rglob("*") if path.is_file()]
    one = pack(events, tmp_path / "one.stoker", **options)
    assert stoker.open(url, cache=tmp_path / "cache").digest == one.digest
    with pytest.raises(StoreExistsError):
        pack_in_parts(events, url, 1, merge=False, **options)


def test_a_merged_range_that_is_damaged_is_merged_again(events: str, tmp_path: Path) -> None:
    target, options = tmp_path / "a.stoker", OPTIONS["keys"]
    pack_part(events, target, "1/1", **options)
    pack_part(events, target, "1/1", merge=True, **options)
    victim = sorted(Path(f"{target}.parts").glob("merge-1-*~*/run0.c1"))[0]
    victim.write_bytes(victim.read_bytes()[:-1] + b"?")
    with pytest.raises(StoreDamagedError, match="Run all parts and the join again"):
        join_parts(events, target, **options)
    join_parts(events, target, **options)
    pack(events, tmp_path / "one.stoker", **options)
    assert contents(target) == contents(tmp_path / "one.stoker")


@pytest.mark.parametrize("name", ["../../secret", "read-0~0123456789abcde", "", "read-0~0123456789abcdef/../.."])
def test_a_mark_cannot_lead_elsewhere(events: str, tmp_path: Path, name: str) -> None:
    target = tmp_path / "a.stoker"
    pack_part(events, target, "1/1", series="user")
    mark = next(Path(f"{target}.parts").glob("read-0-*.mark"))
    body = mark.read_bytes().partition(b"\n")[2]
    mark.chmod(0o600)
    mark.write_bytes(name.encode() + b"\n" + body)
    with pytest.raises(StoreDamagedError, match="which is not an attempt"):
        join_parts(events, target, series="user")


def test_progress_is_that_of_all_tasks_of_a_part(events: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_REPORT_NS", 0)
    target, seen = tmp_path / "a.stoker", list[tuple[str, float]]()

    def show(phase: str, share: float, rows: int) -> None:
        seen.append((phase, share))

    for merge in (False, True):
        pack_part(events, target, "1/1", merge=merge, series="user", progress=show)
    join_parts(events, target, series="user", progress=show)
    phases = [phase for i, (phase, _) in enumerate(seen) if not i or seen[i - 1][0] != phase]
    assert phases == ["reading", "merging", "sealing"]
    reading = [share for phase, share in seen if phase == "reading"]
    assert reading == sorted(reading)
    assert 0 < reading[0] < 0.5 < reading[-1] <= 1
