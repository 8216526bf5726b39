"""Loggers of other packages: a missing package is one line before a training starts."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import OptionError
from stoker.train.loggers import Mlflow, TensorBoard, Trackio, Wandb, Writer, make_writer


@pytest.mark.parametrize(("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb"), ("mlflow", "mlflow")])
def test_a_missing_package_is_one_line_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(OptionError, match=rf"pip install 'stoker\[{name}\]'") as caught:
        make_writer(name, folder=tmp_path)
    assert "\n" not in str(caught.value)


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"writer is 'csv'; expected 'tensorboard', 'trackio', 'wandb', 'mlflow'\."):
        make_writer("csv", folder=tmp_path)


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


def test_tensorboard_events_can_be_read_back(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    feed(TensorBoard(tmp_path))
    resumed = TensorBoard(tmp_path)
    resumed.write(100, {"loss": 0.25})
    resumed.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(50, 1.0), (100, 0.25)]


@pytest.mark.parametrize(("writer", "package"), [(Wandb, "wandb"), (Trackio, "trackio")])
def test_wandb_and_trackio_get_a_run_of_their_own(
    writer: Any, package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[Any] = []

    class Run:
        def log(self, values: dict[str, float], *, step: int) -> None:
            calls.append((step, values))

        def finish(self) -> None:
            calls.append("finished")

    def init(**options: Any) -> Run:
        calls.append(options)
        return Run()

    monkeypatch.setitem(sys.modules, package, types.SimpleNamespace(init=init))
    feed(writer(project="p", mode="offline"))
    assert calls == [{"project": "p", "mode": "offline"}, (50, {"loss": 1.0, "rate": 10.0}), (100, {"loss": 0.5}), "finished"]
    make_writer(package, folder=tmp_path / "tfa")
    assert calls[-1]["name"] == "tfa"


def test_trackio_keeps_the_values_on_this_machine(tmp_path: Path) -> None:
    """With the real package (`make test-adapters`): a SQLite file, and no connection at all."""
    if importlib.util.find_spec("trackio") is None:
        pytest.skip("trackio is not installed")
    code = """
import socket
def refuse(*arguments): raise AssertionError(f"a connection to {arguments[1:]}")
socket.socket.connect = refuse
from stoker.train import Trackio
for name, step in (("first", 50), ("second", 7)):
    writer = Trackio(project="walks", name=name)
    writer.write(step, {"loss": 1.0, "rate": 10.0})
    writer.write(step + 1, {"loss": 0.5})
    writer.close()
"""
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    with contextlib.closing(sqlite3.connect(tmp_path / "walks.db")) as database:
        rows = database.execute("SELECT run_name, step, metrics FROM metrics").fetchall()
    both, loss = {"loss": 1.0, "rate": 10.0}, {"loss": 0.5}
    found = [(name, step, json.loads(values)) for name, step, values in rows]
    assert found == [("first", 50, both), ("first", 51, loss), ("second", 7, both), ("second", 8, loss)]


def test_mlflow_logs_to_its_run_beside_one_that_is_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[Any] = []
    run = types.SimpleNamespace(info=types.SimpleNamespace(run_id="r1"))
    fake = types.SimpleNamespace(
        set_tracking_uri=lambda uri: calls.append(uri),
        set_experiment=lambda name: calls.append(name),
        active_run=lambda: run,
        start_run=lambda **options: calls.append(options) or run,
        log_metrics=lambda values, *, step, run_id: calls.append((run_id, step, values)),
        end_run=lambda: calls.append("ended"),
    )
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    feed(Mlflow(experiment="e", name="n", tracking_uri="file:x"))
    started = {"run_id": None, "run_name": "n", "nested": True}
    assert calls == ["file:x", "e", started, ("r1", 50, {"loss": 1.0, "rate": 10.0}), ("r1", 100, {"loss": 0.5}), "ended"]
    make_writer("mlflow", folder=tmp_path / "tfa")
    assert calls[-1]["run_name"] == "tfa"


def test_mlflow_writes_into_its_default_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real package, as the extra installs it: its default store is a SQLite file, and one of files is refused."""
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    writer = make_writer("mlflow", folder=tmp_path / "runs" / "one")
    assert isinstance(writer, Mlflow)
    for step in (1, 2):
        writer.write(step, {"loss": 1.0 / step, "an odd (name)": float("nan"), "val_auc": 0.5})
    writer.close()
    run = mlflow.get_run(writer.run_id)
    assert run.info.run_name == "one"
    assert run.data.metrics["loss"] == 0.5
    assert "an odd _name_" in run.data.metrics
    assert mlflow.active_run() is None


def test_a_store_that_mlflow_refuses_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(**options: object) -> None:
        raise RuntimeError("The filesystem tracking backend\nis in maintenance mode.")

    monkeypatch.setitem(sys.modules, "mlflow", types.SimpleNamespace(active_run=lambda: None, start_run=refuse))
    with pytest.raises(OptionError, match=r"^Mlflow cannot begin a run: The filesystem .* sqlite:///mlflow\.db or") as caught:
        make_writer("mlflow", folder=tmp_path)
    assert "\n" not in str(caught.value)
