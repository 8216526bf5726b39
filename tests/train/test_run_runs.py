"""Runs: each in one line, whatever became of it, and a folder that is damaged does not hide the others."""

from __future__ import annotations

import io
import json
import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.harness import NOT_JSON, Zygote

from stoker.train.run import Run, RunSummary, collect, table


def write_run(folder: Path, how: str | None = "finished", *, losses: tuple[float, ...] = (3.0, 1.0, 2.0)) -> Run:
    run = Run(folder)
    for step, loss in enumerate(losses, start=1):
        numbers = {"loss": loss, "rate": 10.0 * step, "wait": 0.1 * step, "val_loss": loss / 2, "val_auc": 1 - loss / 10}
        run.metrics.write(10 * step, numbers)
    if how is not None:
        run.end(how, step=10 * len(losses) + 5)
    return run


def die(folder: str) -> None:
    write_run(Path(folder), None)
    os.kill(os.getpid(), signal.SIGKILL)


def states(folder: Path) -> dict[str, str]:
    return {run.name: run.state for run in collect(folder)}


def test_a_run_in_one_line(tmp_path: Path) -> None:
    write_run(tmp_path / "a" / "one")
    (run,) = collect(tmp_path)
    assert (run.path, run.name, run.state, run.how) == (tmp_path / "a" / "one", "a/one", "finished", "finished")
    assert (run.metric, run.best, run.best_step) == ("val_loss", 0.5, 20)
    assert (run.loss, run.rate, run.step, run.reason) == (2.0, 20.0, 35, None)
    assert run.wait == pytest.approx(0.2)
    assert run.seconds >= 0


def test_every_end_has_its_state(tmp_path: Path, zygote: Zygote) -> None:
    for how in ("finished", "early", "budget", "signal", "NonFiniteError"):
        write_run(tmp_path / how, how)
    running = write_run(tmp_path / "running", None)
    assert zygote.run(die, folder=tmp_path / "killed").signal == signal.SIGKILL
    assert states(tmp_path) == {
        "finished": "finished",
        "early": "finished",
        "budget": "stopped",
        "signal": "stopped",
        "NonFiniteError": "stopped",
        "running": "running",
        "killed": "killed",
    }
    running.end("finished")
    assert states(tmp_path)["running"] == "finished"


def test_runs_come_in_the_order_of_their_start_and_damaged_ones_last_with_the_reason(tmp_path: Path) -> None:
    for name in ("c", "a", "b"):
        write_run(tmp_path / name)
    started = (tmp_path / "c" / "run.json").read_text()
    (tmp_path / "b" / "run.json").chmod(0o644)
    (tmp_path / "b" / "run.json").write_text(started[: len(started) // 2])
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "metrics.jsonl").write_text("{}\n")
    runs = collect(tmp_path)
    assert [run.name for run in runs] == ["c", "a", "0", "b"]
    assert [run.state for run in runs] == ["finished", "finished", "damaged", "damaged"]
    assert "holds no run.json" in runs[2].reason
    assert "truncated" in runs[3].reason


def shown(runs: list[RunSummary]) -> list[str]:
    console = Console(file=io.StringIO(), width=140)
    console.print(table(runs))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return [line.rstrip() for line in text.splitlines()]


BAD_RECORDS = {
    **NOT_JSON,
    "no session": b'{"format": "stoker-run", "version": 1, "sessions": []}',
    "another format": b'{"format": "x", "version": 1}',
    "newer": b'{"format": "stoker-run", "version": 99}',
}


def changed(folder: Path, **values: object) -> None:
    tree = json.loads((folder / "run.json").read_bytes())
    tree["sessions"][0].update(values)
    (folder / "run.json").chmod(0o644)
    (folder / "run.json").write_text(json.dumps(tree))


def test_a_run_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    """Whatever stands in its files, it is listed with one line that says why."""
    write_run(tmp_path / "good")
    for name, data in BAD_RECORDS.items():
        write_run(tmp_path / name)
        (tmp_path / name / "run.json").chmod(0o644)
        (tmp_path / name / "run.json").write_bytes(data)
    odd: dict[str, dict[str, object]] = {
        "a clock of another kind": {"started": "2026-01-01T00:00:00", "ended": "2026-01-01T00:00:00Z"},
        "no time": {"started": "yesterday"},
        "a huge step": {"last_step": 10**30},
        "a step below zero": {"from_step": -1},
        "a step of text": {"last_step": "9"},
    }
    for name, values in odd.items():
        write_run(tmp_path / name)
        changed(tmp_path / name, **values)
    (tmp_path / "a FIFO").mkdir()
    os.mkfifo(tmp_path / "a FIFO" / "metrics.jsonl")
    (tmp_path / "a link to all zeros").mkdir()
    (tmp_path / "a link to all zeros" / "run.json").symlink_to("/dev/zero")
    found = {run.name: run for run in collect(tmp_path)}
    assert found["good"].state == "finished"
    bad = set(BAD_RECORDS) | set(odd) | {"a FIFO", "a link to all zeros"}
    assert {name for name, run in found.items() if run.state == "damaged"} == bad
    for name in bad:
        reason = found[name].reason
        assert reason
        assert "\n" not in reason
        assert len(reason) < 300
    on_a_terminal(list(found.values()))


def on_a_terminal(runs: list[RunSummary]) -> str:
    console = Console(file=io.StringIO(), width=400, force_terminal=True, highlight=False)
    console.print(table(runs))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return re.sub(r"\x1b\[[0-9;]*m", "", text)  # without the colours of the table itself


EVIL = ["val_\x1b[2J_loss", "val_\x9b31m_loss", "val_[red]_loss", "val_\u202e_loss", "val_\r\n_loss", "val_loss_" + "y" * 9999]


def test_names_from_files_steer_no_terminal(tmp_path: Path) -> None:
    """Names of metrics, ends, times and folders are shown with their escapes written out, and markup is text."""
    for number, evil in enumerate(EVIL):
        run = Run(tmp_path / f"n\x1b[1m{number}")
        run.metrics.write(1, {evil: 0.5, "loss": 1.0})
        run.end(f"\x1b]0;{evil}\x07")
    runs = [replace(run, started="\x1b[1m" + (run.started or "")) for run in collect(tmp_path)]
    assert [run.metric for run in runs] == EVIL
    for some in (runs, *([one] for one in runs)):
        text = on_a_terminal(some)
        assert all(char.isprintable() or char == "\n" for char in text)
        assert max(map(len, text.splitlines())) <= 400
    assert "best val_[red]_loss" in on_a_terminal([runs[2]])


def test_negative_control_a_name_that_is_printed_raw_steers_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.train.run.printable", str)
    run = Run(tmp_path / "one")
    run.metrics.write(1, {"val_\x9b_loss": 0.5})
    run.end("finished")
    assert "\x9b" in on_a_terminal(collect(tmp_path))
