"""What the live page knows of runs: curves that are thinned while they are read, and files that grow, shrink or break."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.live.follow import MOST_POINTS, Board, ThinnedCurve, newest_checkpoint
from stoker.train.run import Run
from stoker.watch.cause import Slowdown

VALUES = st.floats(-1e6, 1e6)


def thin_slowly(values: list[float]) -> list[tuple[int, float, float, float]]:
    """The obvious way: the least power of two whose groups are few enough, then each group at once."""
    width = 1
    while math.ceil(len(values) / width) > MOST_POINTS:
        width *= 2
    groups = [range(start, min(start + width, len(values))) for start in range(0, len(values), width)]
    return [(g[-1], sum(values[i] for i in g) / len(g), min(values[i] for i in g), max(values[i] for i in g)) for g in groups]


@given(st.lists(VALUES, max_size=5), st.integers(0, 3000))
def test_a_curve_equals_its_slow_twin(first: list[float], length: int) -> None:
    values = (first or [0.5]) * (length // max(1, len(first)) + 1)
    curve = ThinnedCurve()
    for step, value in enumerate(values):
        curve.add(step, value)
    expected = thin_slowly(values)
    assert curve.steps == [step for step, *_ in expected]
    assert len(curve.steps) <= MOST_POINTS
    assert [total / count for total, count in zip(curve.sums, curve.counts, strict=True)] == pytest.approx(
        [row[1] for row in expected]
    )
    assert (curve.lows, curve.highs) == ([row[2] for row in expected], [row[3] for row in expected])
    assert curve.least is not None
    assert curve.least[0] == min(values)
    assert curve.greatest is not None
    assert curve.greatest[0] == max(values)


def start_run(folder: Path, **config: Any) -> Run:
    run = Run(folder, config=config)
    run.metrics.write(10, {"loss": 3.0, "rate": 80.0, "wait": 0.2, "memory": 2.0**30, "skipped": 0.0})
    return run


def rows(board: Board) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in board.view()["runs"]}


def test_a_run_is_followed_while_it_grows(tmp_path: Path) -> None:
    run = start_run(tmp_path / "a", lr=0.1)
    board = Board(tmp_path)
    assert board.refresh()
    row = rows(board)["a"]
    assert (row["state"], row["step"], row["loss"], row["rate"], row["data_free"]) == ("running", 10, 3.0, 80.0, 100.0)
    assert not board.refresh()  # nothing new
    run.metrics.write(20, {"loss": 1.0, "val_loss": 0.5, "skipped": 2.0})
    assert board.refresh()
    row = rows(board)["a"]
    assert (row["step"], row["loss"], row["metric"], row["best"], row["best_step"], row["skipped"]) == (
        20,
        1.0,
        "val_loss",
        0.5,
        20,
        2,
    )
    run.end("finished", step=20)
    assert board.refresh()
    assert rows(board)["a"]["state"] == "finished"
    assert board.view()["details"]["a"]["facts"]["lr"] == "0.1"


@pytest.mark.parametrize("num_more", [0, 1, 40])
def test_a_run_that_was_cut_back_is_read_again(tmp_path: Path, num_more: int) -> None:
    """A resumed run cuts lines of later steps; by the next look the file may be longer than before."""
    run = start_run(tmp_path / "a")
    for step in (20, 30, 40):
        run.metrics.write(step, {"loss": 100.0 + step})
    run.end("signal", step=40)
    board = Board(tmp_path)
    board.refresh()
    resumed = Run(tmp_path / "a", from_step=10)
    for index in range(num_more):
        resumed.metrics.write(11 + index, {"loss": float(index)})
    resumed.end("finished", step=50)
    board.refresh()
    expected = [3.0, *map(float, range(num_more))]
    assert board.view()["details"]["a"]["curves"]["loss"]["means"] == expected


def test_half_a_line_is_read_once_it_is_whole(tmp_path: Path) -> None:
    run = start_run(tmp_path / "a")
    board = Board(tmp_path)
    board.refresh()
    line = json.dumps({"step": 20, "loss": 1.5}).encode() + b"\n"
    with run.metrics.path.open("ab") as file:
        for part in (line[:7], line[7:]):
            assert rows(board)["a"]["loss"] == 3.0
            file.write(part)
            file.flush()
            board.refresh()
    assert rows(board)["a"]["loss"] == 1.5
    run.end("finished")


def test_damage_is_said_and_hides_no_other_run(tmp_path: Path) -> None:
    start_run(tmp_path / "good").end("finished")
    for name in ("no record", "lines", "fifo"):
        start_run(tmp_path / name).end("finished")
    (tmp_path / "no record" / "run.json").chmod(0o644)
    (tmp_path / "no record" / "run.json").write_text("{")
    with (tmp_path / "lines" / "metrics.jsonl").open("ab") as file:
        file.write(b"\xff\xfe\n[1]\n" + b"x" * 3_000_000 + b"\n")
    (tmp_path / "fifo" / "metrics.jsonl").unlink()
    os.mkfifo(tmp_path / "fifo" / "metrics.jsonl")
    board = Board(tmp_path)
    board.refresh()
    found = rows(board)
    assert {name: row["state"] for name, row in found.items()} == {
        "good": "finished", "no record": "damaged", "lines": "finished", "fifo": "finished",
    }  # fmt: skip
    assert "damaged" in found["no record"]["reason"]
    assert "3 lines of metrics.jsonl cannot be read" in found["lines"]["reason"]
    assert found["good"]["reason"] is None


DEEP = '{"a":' * 900 + "1" + "}" * 900


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("run.json", DEEP),
        ("run.json", '{"config": ' + DEEP),
        ("metrics.jsonl", '{"step": 20, "loss": ' + "9" * 400 + "}\n"),
        ("metrics.jsonl", '{"step": ' + "9" * 400 + ', "loss": 1}\n'),
        ("metrics.jsonl", DEEP + "\n"),
        ("run.json", "[" * 100_000),
        ("metrics.jsonl", "[" * 100_000 + "\n"),
        ("diagnosis.json", "[" * 100_000),
        ("diagnosis.json", DEEP),
        ("diagnosis.json", '{"measurements": {"loop": {"seconds": [1e-400]}, "cached": {"seconds": [0]}}}'),
        ("diagnosis.json", '{"measurements": {"loop": {"seconds": [' + "9" * 400 + "]}}}"),
    ],
)
def test_a_file_that_no_run_writes_hides_no_other_run(tmp_path: Path, file: str, text: str) -> None:
    for name in ("good", "odd"):
        start_run(tmp_path / name).end("finished")
    path = tmp_path / "odd" / file
    path.unlink(missing_ok=True)
    path.write_text(text)
    board = Board(tmp_path)
    board.refresh()
    view = board.view(["good", "odd"])
    json.dumps(view, allow_nan=False)
    assert {row["name"] for row in view["runs"]} == {"good", "odd"}
    assert rows(board)["good"]["reason"] is None


def test_a_pipe_in_the_place_of_a_checkpoint_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "LATEST")
    assert newest_checkpoint(tmp_path) is None
    (tmp_path / "LATEST").unlink()
    (tmp_path / "LATEST").write_text("step-000000020\n")
    assert (newest_checkpoint(tmp_path) or {})["step"] == 20, "negative control"


def test_a_configuration_of_many_levels_is_shown_as_text(tmp_path: Path) -> None:
    config: dict[str, Any] = {}
    for _ in range(300):
        config = {"a": config}
    start_run(tmp_path / "deep", config=config).end("finished")
    board = Board(tmp_path)
    board.refresh()
    json.dumps(board.view(["deep"]), allow_nan=False)


def test_a_name_that_is_not_utf8_is_shown_with_escapes(tmp_path: Path) -> None:
    start_run(Path(os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff"))).end("finished")
    board = Board(tmp_path)
    board.refresh()
    assert [row["name"] for row in json.loads(json.dumps(board.view()).encode())["runs"]] == ["odd\\xff"]


def test_slowdowns_checkpoints_and_the_speed_without_loading_are_shown(tmp_path: Path) -> None:
    run = start_run(tmp_path / "a")
    found = Slowdown(step=500, since=480, before_seconds=0.01, after_seconds=0.02, cause="loader", evidence="waits grew")
    run.note_slowdown(found)
    folder = tmp_path / "a" / "checkpoints"
    folder.mkdir()
    (folder / "LATEST").write_text("step-000000400")
    diagnosis = tmp_path / "a" / "diagnosis.json"
    diagnosis.write_text(json.dumps({"measurements": {"loop": {"seconds": [0.02, 0.02]}, "cached": None}}))
    board = Board(tmp_path)
    board.refresh()
    row = rows(board)["a"]
    assert (row["slowdowns"], row["checkpoint"]["step"]) == (1, 400)
    assert row["ceiling"] is None, "steps on cached batches were not measured"
    diagnosis.write_text(
        json.dumps({"measurements": {"loop": {"seconds": [0.02, 0.02]}, "cached": {"seconds": [0.009, 0.01, 0.02]}}})
    )
    assert board.refresh()
    assert rows(board)["a"]["ceiling"] == 100.0
    assert "Cause: loader" in board.view()["details"]["a"]["slowdowns"][0]
    run.end("finished")
