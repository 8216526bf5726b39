"""Absurd values of every key of a configuration: each ends in one line, or in a run that they do not harm."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tests.cli.calling import Done
from tests.cli.training_folder import make_folder

from stoker.errors import ConfigError, OptionError
from stoker.experiment import load, prepare, run
from stoker.experiment.build import within_memory
from stoker.experiment.config import Config
from stoker.experiment.parse import known_paths

Stoker = Callable[..., Done]

HUGE = ("9223372036854775807", "9223372036854775808", "99999999999999999999", "1e30")
ABSURD = (
    *HUGE, "-1", "0", "-0.0", "0.5", "1e-320", "1e308", "-1e308", ".nan", ".inf", "-.inf", "true", "null", "''", '"a\\0b"',
    '"\\e[31m"', "[]", "[[]]", "[1, 2]", "[null]", "{}", "{a: 1}", "x", "'" + "y" * 500 + "'",
)  # fmt: skip

SEQUENCES = ("data.view={name: sequences, max_length: 20}", "target=[kind]", "split=null", "metrics=[]")
CLASSES = ("loss.name=cross_entropy", "target=[up]", "columns=[close]", "data.view={name: windows, length: 8}", "metrics=[]")
FIRST: dict[str, tuple[str, ...]] = {
    "data.view.max_length": SEQUENCES,
    "data.view.buckets": SEQUENCES,
    "data.view.shift": ("data.view={name: segments, length: 8}",),
    "data.order.block": ("data.order=block",),
    "data.order.window": ("data.order=block",),
    "data.order.pool": ("data.order=by_length",),
    "data.normalize": ("split=null",),
    "split.by": ("split={name: grouped, valid: 0.3}",),
    "model.function": ("model=own.py:make",),
    "model.options": ("model=own.py:make", "columns=[close]", "target=[close]"),
    "model.width": ("model=mlp",),
    "model.layers": ("model=gru", "model.width=4"),
    "model.heads": ("model=transformer", "model.width=8"),
    "model.hidden": ("model=transformer", "model.width=8"),
    "model.dropout": ("model=mlp", "model.width=4"),
    "loss.function": ("loss=own.py:slow",),
    "loss.options": ("loss=own.py:slow",),
    "loss.delta": ("loss=huber",),
    "loss.positive_weight": ("loss=bce",),
    "loss.classes": CLASSES,
    "loss.smoothing": (*CLASSES, "loss.classes=2"),
    "loss.quantiles": ("loss.name=quantile", "metrics=[]"),
    "optimizer.momentum": ("optimizer.name=sgd",),
    "optimizer.nesterov": ("optimizer={name: sgd, momentum: 0}",),
    "optimizer.alpha": ("optimizer.name=rmsprop",),
    "schedule.end": ("schedule.name=cosine",),
    "schedule.start": ("schedule.name=one_cycle",),
    "schedule.every": ("schedule.name=steps",),
    "schedule.factor": ("schedule={name: steps, every: 1}",),
    "schedule.warmup": ("schedule.name=cosine",),
}
"""What has to be set for a key to be one of the choice."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return make_folder(tmp_path)


def check(done: Done) -> None:
    assert done.code in (0, 2)
    assert done.code == 0 or (done.err.startswith("stoker: ") and done.err.count("\n") == 1), done.err
    assert len(done.err) < 6000
    assert done.err.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[] if i % 8 == 0 else pytest.mark.slow) for i, path in enumerate(known_paths(Config))],
    ids=".".join,
)
def test_an_absurd_value_of_any_key_ends_in_one_line_or_in_a_run(stoker: Stoker, folder: Path, path: tuple[str, ...]) -> None:
    key = ".".join(path)
    for number, value in enumerate(ABSURD):
        # Half an epoch at most: a value such as 10**18 epochs is valid.
        sets = ["train.max_seconds=1e-9", f"train.folder=run{number}", *FIRST.get(key, ()), f"{key}={value}"]
        check(stoker("train", "c.yaml", "--quiet", *[word for setting in sets for word in ("--set", setting)]))


def test_a_batch_that_does_not_fit_into_memory_is_one_line(stoker: Stoker, folder: Path) -> None:
    """Without a limit of the system, which may promise memory that it does not have, and then kills the process."""
    done = stoker("train", "c.yaml", "--quiet", "--set", "data.batch_size=2147483647")
    check(done)
    assert "batch_size is 2,147,483,647: a batch takes 171.8 GB, but " in done.err


def test_torch_says_in_several_ways_that_memory_is_not_enough() -> None:
    with pytest.raises(OptionError, match=r"does not fit into memory \(Storage size"), within_memory():
        torch.empty(2**40, 2**40)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), within_memory():
        torch.ones(2, 3) @ torch.ones(2, 3)


def config_with(path: str, value: Any) -> Config:
    """The configuration as a program may make it: Python checks no field."""
    config = load("c.yaml", ["epochs=1"])
    return replaced(config, path.split("."), value)


def replaced(section: Any, path: list[str], value: Any) -> Any:
    name, *rest = path
    return msgspec.structs.replace(section, **{name: replaced(getattr(section, name), rest, value) if rest else value})


@pytest.mark.promise("P6")
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("data.loading.threads", 10**6),
        ("data.batch_size", "x"),
        ("data.store", "a\0b"),
        ("data.columns", []),
        ("train.seed", 2**70),
        ("train.ema", 7.0),
        ("train.precision", "evil"),
        ("train.epochs", float("nan")),
        ("train.max_seconds", float("nan")),
        ("train.checkpoints.keep", -3),
    ],
)
def test_an_absurd_value_of_a_config_made_in_python_is_refused(folder: Path, path: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^the config: {path} is .*; expected"):
        run(config_with(path, value), progress=False)
    assert not (folder / "runs").exists()


@pytest.mark.promise("P6", control=True)
def test_negative_control_without_the_bounds_of_the_schema_numbers_end_in_a_traceback(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def start_few(thread: threading.Thread) -> None:
        started.append(thread)
        if len(started) > 100:
            raise RuntimeError("can't start new thread")  # as the system says, after some ten thousand
        start(thread)

    threads, seed = config_with("data.loading.threads", 10**6), config_with("train.seed", 2**70)
    monkeypatch.setattr(prepare, "check", lambda document, kind: seed)
    with pytest.raises((OverflowError, RuntimeError, ValueError)):
        run(seed, progress=False)
    monkeypatch.setattr(prepare, "check", lambda document, kind: threads)
    monkeypatch.setattr("stoker.feed.feed.checked", lambda value, **rest: value)
    monkeypatch.setattr(threading.Thread, "start", start_few)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        run(threads, progress=False)
    assert not [thread for thread in started[:100] if thread.is_alive() and thread.name.startswith("stoker-feed")]
