"""Loggers of other packages: a missing package is one line before a training starts."""

from __future__ import annotations

import json
import math
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import OptionError
from stoker.train import TensorBoard, Wandb, Writer
from stoker.train.loggers import JsonLines, Log, make_writer, read_lines


@pytest.mark.parametrize(("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb")])
def test_a_missing_package_is_one_line_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(OptionError, match=rf"pip install './packages/stoker\[{name}\]'") as caught:
        make_writer(name, folder=tmp_path)
    assert "\n" not in str(caught.value)


def feed(writer: Writer) -> None:
    writer.write(50, {"loss": 1.0, "rate": 10.0})
    writer.write(100, {"loss": 0.5})
    writer.close()


def test_tensorboard_makes_its_file_at_the_first_step_and_drops_older_ones_from_it_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[Any] = []

    class SummaryWriter:
        def __init__(self, **options: Any) -> None:
            calls.append(options)

        def add_scalar(self, name: str, value: float, *, global_step: int) -> None:
            calls.append((name, value, global_step))

        def close(self) -> None:
            calls.append("closed")

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", types.SimpleNamespace(SummaryWriter=SummaryWriter))
    idle = TensorBoard(tmp_path)
    idle.close()
    assert calls == []
    feed(TensorBoard(tmp_path))
    scalars = [("loss", 1.0, 50), ("rate", 10.0, 50), ("loss", 0.5, 100)]
    assert calls == [{"log_dir": str(tmp_path), "purge_step": 50}, *scalars, "closed"]


def test_wandb_gets_a_run_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[Any] = []

    class Run:
        def log(self, values: dict[str, float], *, step: int) -> None:
            calls.append((step, values))

        def finish(self) -> None:
            calls.append("finished")

    def init(**options: Any) -> Run:
        calls.append(options)
        return Run()

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    feed(Wandb(project="p", mode="offline"))
    assert calls == [{"project": "p", "mode": "offline"}, (50, {"loss": 1.0, "rate": 10.0}), (100, {"loss": 0.5}), "finished"]
    make_writer("wandb", folder=tmp_path / "tfa")
    assert calls[-1]["name"] == "tfa"


# metrics.jsonl: strict JSON that comes back as it went, cut to a step on resume, whole after any death


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


# The log of a run: a failing writer never stops a training


class Keeps:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.seen.append((step, dict(values)))

    def close(self) -> None:
        self.seen.append("closed")


class Fails(Keeps):
    def write(self, step: int, values: Mapping[str, float]) -> None:
        super().write(step, values)
        if step >= 2:
            raise ConnectionError("no\nroute")


def test_a_writer_that_fails_is_dropped_with_one_warning_and_the_others_continue() -> None:
    good, bad = Keeps(), Fails()
    writers = Log([bad, good])
    writers.write(1, {"loss": 1.0})
    with pytest.warns(
        RuntimeWarning, match=r"writer Fails failed at step 2; no further values are sent to it\. ConnectionError: no route"
    ) as seen:
        writers.write(2, {"loss": 0.5})
    assert len(seen) == 1
    writers.write(3, {"loss": 0.2})
    writers.close()
    assert [entry[0] for entry in good.seen[:-1]] == [1, 2, 3]
    assert len(bad.seen) == 2
    assert good.seen[-1] == "closed"


def test_negative_control_alone_it_would_stop_the_training() -> None:
    with pytest.raises(ConnectionError):
        Fails().write(2, {})


def test_an_error_on_close_is_a_warning_and_the_rest_is_closed() -> None:
    class Sticks(Keeps):
        def close(self) -> None:
            raise OSError

    good = Keeps()
    with pytest.warns(RuntimeWarning, match="writer Sticks failed as it was closed.*OSError: no reason given"):
        Log([Sticks(), good]).close()
    assert good.seen == ["closed"]
