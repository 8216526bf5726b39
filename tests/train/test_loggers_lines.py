"""metrics.jsonl: strict JSON that comes back as it went, cut to a step on resume, whole after any death."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from stoker.train.loggers import JsonLines, read_lines


def write(path: Path, steps: range, *, from_step: int | None = None) -> None:
    writer = JsonLines(path, from_step=from_step)
    for step in steps:
        writer.write(step, {"loss": 1 / (step + 1), "rate": 10.0})
    writer.close()


def without_times(path: Path) -> list[dict[str, object]]:
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(entry.pop("time").endswith("Z") for entry in entries)
    return entries


def test_values_come_back_as_they_went(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = JsonLines(path)
    values = {"loss": 0.1 + 0.2, "tiny": 5e-324, "bad": math.nan, "up": math.inf, "down": -math.inf}
    writer.write(7, values)
    writer.write(9, {"loss": 1})
    writer.close()
    lines = read_lines(path)
    assert lines.curves["loss"] == ([7, 9], [0.1 + 0.2, 1.0])
    assert [lines.curves[name][1][0] for name in ("tiny", "up", "down")] == [5e-324, math.inf, -math.inf]
    assert math.isnan(lines.curves["bad"][1][0])
    assert lines.last_step == 9
    json.loads(path.read_text().splitlines()[0], parse_constant=pytest.fail)  # no NaN that only Python can read


def test_damaged_lines_are_counted_and_a_torn_one_is_not_yet_there(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(
        b'{"step":1,"loss":1}\n\xff\xfe\n[1]\n{"loss":2}\n{"step":true}\n{"step":2,"loss":0.5,"note":"x"}\n{"step":3,"lo'
    )
    lines = read_lines(path)
    assert (lines.curves, lines.last_step, lines.damaged) == ({"loss": ([1, 2], [1.0, 0.5])}, 2, 4)
    assert read_lines(tmp_path / "missing").last_step is None
