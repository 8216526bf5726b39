"""Loggers of other packages: a missing package is one line before a training starts."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import OptionError
from stoker.train.loggers import TensorBoard, Wandb, Writer, make_writer


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
