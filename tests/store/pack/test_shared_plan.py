"""The plan that parts share: tasks of equal size that hold each row once, and one line where a process does not fit."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.store.pack.part_inputs import write_events

from stoker.errors import OptionError, SourceChangedError
from stoker.store.formats.base import RowLocation
from stoker.store.pack import shared_plan
from stoker.store.pack.api import join_parts, pack_part
from stoker.store.pack.options import PackOptions
from stoker.store.pack.shared_plan import make_shared_plan


def write_numbers(folder: Path, sizes: list[int], group: int) -> str:
    first = 0
    for i, size in enumerate(sizes):
        pq.write_table(pa.table({"x": pa.array(range(first, first + size))}), folder / f"{i:03}.parquet", row_group_size=group)
        first += size
    return str(folder / "*.parquet")


@pytest.mark.parametrize("sizes", [[1000], [10, 3000, 10], [5] * 40, [0, 7, 0], [1, 2000, 2000, 1]])
def test_tasks_hold_each_row_once_in_the_order_of_the_sources(
    tmp_path: Path, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_plan, "MIN_TASK_BYTES", 3000)
    shared, plan = make_shared_plan(write_numbers(tmp_path, sizes, 100), PackOptions())
    tasks = shared.tasks
    rows = []
    for task in tasks:
        for part in task:
            start = RowLocation(part.start, part.start, part.stop)
            for one in plan.sources[part.source].read(plan.schemas[part.source], start=start, chunk_bytes=100):
                rows += one().table.column("x").to_pylist()
    assert rows == list(range(sum(sizes)))
    assert {part.source for task in tasks for part in task} == set(range(len(sizes)))
    assert all(tasks)
    total = sum(source.num_bytes for source in plan.sources)
    assert len(tasks) == 1 if total <= 3000 else len(tasks) >= min(total // 6000, 5)


def test_tasks_of_a_large_pack_have_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_plan, "TASKS", 4)
    for limit, expected in (("MIN_TASK_BYTES", 1), ("MAX_TASK_BYTES", 100)):
        monkeypatch.setattr(shared_plan, limit, expected)
    shared, _ = make_shared_plan(write_numbers(tmp_path, [500] * 3, 10), PackOptions())
    assert len(shared.tasks) == 150  # a row group each: they are larger than 100 bytes


def test_what_does_not_fit_the_plan_is_one_line(tmp_path: Path) -> None:
    source = write_events(tmp_path / "raw", files=2)
    target = tmp_path / "a.stoker"
    for part in ("17/16", "0/4", "3", "a/b", "1/2/3"):
        with pytest.raises(OptionError, match="is invalid; expected one like 3/16"):
            pack_part(source, target, part, series="user")
    with pytest.raises(OptionError, match="a table in memory cannot be packed in parts"):
        pack_part({"x": [1.0]}, target, "1/2")
    with pytest.raises(OptionError, match="ambiguous='infer' follows the rows"):
        pack_part(source, target, "1/2", series="user", time="ts", timezone="Europe/Berlin")
    with pytest.raises(OptionError, match="color= is not an option of pack"):
        pack_part(source, target, "1/2", color="red")
    pack_part(source, target, "1/2", series="user")
    with pytest.raises(
        OptionError, match=r"missing is 'drop', but 'keep' in the plan of .*a\.stoker\.parts\. Use the same options"
    ):
        pack_part(source, target, "2/2", series="user", missing="drop")
    with pytest.raises(OptionError, match="time is 'ts', but None in the plan"):
        join_parts(source, target, series="user", time="ts")
    with pytest.raises(SourceChangedError, match=r"1.parquet is a source of the plan of .* but is not there now"):
        pack_part(str(tmp_path / "raw" / "0.parquet"), target, "2/2", series="user")
    write_events(tmp_path / "raw", files=3)
    with pytest.raises(SourceChangedError, match=r"2.parquet is not a source of the plan|has changed since it was in the plan"):
        pack_part(source, target, "2/2", series="user")
    (tmp_path / "raw" / "2.parquet").unlink()
    with pytest.raises(SourceChangedError, match=r"has changed since it was in the plan of .* and run all parts again"):
        join_parts(source, target, series="user")


def test_the_plan_holds_no_paths(tmp_path: Path) -> None:
    events = write_events(tmp_path / "raw")
    pack_part(events, tmp_path / "a.stoker", "1/1", series="user")
    plan = (tmp_path / "a.stoker.parts" / "plan").read_text()
    assert str(Path(events).parent) not in plan
    assert "0.parquet" in plan
