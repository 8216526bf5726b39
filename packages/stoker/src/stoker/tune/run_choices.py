"""How a config runs fastest on this machine: precision, fused optimizer, CUDA graph, compile, placement, threads and prefetch.

Each choice is a paired test of the trainer (`stoker.train.autotune`): both sides run the same steps from the same state, in turn, and
a candidate is taken only if it is faster in nearly all rounds. What is chosen becomes a new config; the file of the user stays.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast

import msgspec

from stoker import _disk
from stoker._clock import now_ns
from stoker.errors import OptionError
from stoker.experiment.build import make_trainer, open_data
from stoker.experiment.config import Config
from stoker.experiment.parse import to_yaml
from stoker.experiment.prepare import choose_device
from stoker.train.autotune import MOST_STEPS, ROUND_SECONDS, Chooser, Setup, Timed, Trial
from stoker.train.engine import Engine, Snapshot, Stream
from stoker.tune.configured import step_of

MOST_THREADS = 8


@dataclass(frozen=True, kw_only=True)
class RunChoices:
    """What was measured, and the config with the choices.

    Args:
        config: The config with what was chosen.
        trials: What was measured, in order.
        changed: Fields of the config whose values are new.
    """

    config: Config
    trials: tuple[Trial, ...]
    changed: Mapping[str, Any]

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the config as YAML.

        Raises:
            OptionError: The file is there already, and `overwrite` is False.
        """
        path = Path(path)
        if path.exists() and not overwrite:
            raise OptionError(
                f"{path} already exists. Pass overwrite=True to replace it, or choose another name.", parameter="overwrite"
            )
        _disk.write_file(path, to_yaml(self.config))
        return path

    def __str__(self) -> str:
        return "\n".join(str(trial) for trial in self.trials)


def choose_run(config: Config, *, report: Callable[[str], None] = lambda line: None) -> RunChoices:
    """Measure how a config runs fastest here. Losses stay the same within the tolerance of `train.execution.measured`.

    Args:
        config: The config, as `stoker.experiment.load` reads it.
        report: Gets a line per candidate.

    Returns:
        The choices, and the config with them.
    """
    setup, trials = _choose_setup(config)
    for one in trials:
        report(str(one))
    changed: dict[str, Any] = {}
    precision = config.train.precision if config.train.precision != "auto" or setup.precision == "fp32" else setup.precision
    if any(trial.chosen for trial in trials):
        chosen = {
            "train.precision": precision,
            **{f"train.execution.{name}": getattr(setup, name) for name in ("graph", "compile", "fused")},
        }
        changed |= {field: value for field, value in chosen.items() if _value_of(config, field) != value}
    config = _with(config, changed)
    for field, candidates in _feed_candidates(config).items():
        for value in candidates:
            trial = _compare_feeds(config, field, value)
            trials = (*trials, trial)
            report(str(trial))
            if trial.chosen:
                changed[field] = value
                config = _with(config, {field: value})
    return RunChoices(config=config, trials=trials, changed=changed)


def _with(config: Config, values: Mapping[str, Any]) -> Config:
    for field, value in values.items():
        config = _replaced(config, field.split("."), value)
    return config


def _replaced(section: Any, path: list[str], value: Any) -> Any:
    """Return a copy of a section with one value that is different."""
    name, *rest = path
    inner = _replaced(getattr(section, name), rest, value) if rest else value
    return msgspec.structs.replace(section, **{name: inner})


def _value_of(config: Config, field: str) -> Any:
    return reduce(getattr, field.split("."), config)


def _choose_setup(config: Config) -> tuple[Setup, tuple[Trial, ...]]:
    """Precision, fused, graph and compile: what `train.execution.measured` would choose, without training."""
    measured = _with(config, {"train.execution.measured": True})
    data = open_data(measured, choose_device(measured, 0))
    trainer = make_trainer(measured, data)
    stream = Stream(data.train, trainer.device)
    total = stream.num_updates(config.train.grad_accum_steps, config.train.epochs)
    with Engine(trainer.components, stream, total_updates=total) as engine:
        return engine.choose()


def _feed_candidates(config: Config) -> dict[str, list[Any]]:
    """Other values of the feed that give the same batches."""
    cores = len(os.sched_getaffinity(0))
    places = ["host", "stream", *(["device"] if choose_device(config, 0).startswith("cuda") else [])]
    threads = [count for count in (1, 2, 4, MOST_THREADS) if count <= max(1, cores)]
    return {
        "data.loading.residency": [place for place in places if place != config.data.loading.residency],
        "data.loading.threads": [thread for thread in threads if thread != config.data.loading.threads],
        "data.loading.prefetch": [one for one in (2, 8) if one != config.data.loading.prefetch],
    }


def _compare_feeds(config: Config, field: str, value: Any) -> Trial:
    """A paired test of one value: the same steps, with batches as they arrive."""
    data = open_data(config, choose_device(config, 0))
    trainer = make_trainer(config, data)
    step = step_of(trainer, [])
    parts = trainer.components
    snapshot = Snapshot(parts.model, parts.optimizer, *parts.loss_modules)
    feeds = {"now": data.train, "candidate": None}

    def batches(side: str) -> Iterator[Any]:
        if feeds[side] is None:
            feeds[side] = open_data(_with(config, {field: value}), choose_device(config, 0)).train
        feed: Any = feeds[side]
        return chain.from_iterable(iter(feed) for _ in range(1_000_000))

    def run(side: Setup, num_steps: int, *, shaken: bool = False, bits: bool = False) -> Timed:
        snapshot.restore()
        for key, feed in list(feeds.items()):
            if key == cast("str", side) and feed is not None:
                feed.set_epoch(0)
        stream = batches(cast("str", side))
        first = next(stream)  # the start of an epoch is not what is compared
        step(first)
        begin = now_ns()
        for batch in islice(stream, num_steps):
            step(batch)
        _synchronize(trainer.device)
        seconds = (now_ns() - begin) / 1e9 / num_steps
        return Timed(seconds, [0.0] * num_steps, snapshot.digest() if bits else "")

    chooser = Chooser(run=cast("Any", run))
    name = f"{field.partition('.')[2]}={value}"
    try:
        once = run(cast("Setup", "now"), 2).seconds
        num_steps = max(2, min(MOST_STEPS, int(ROUND_SECONDS / max(once, 1e-6))))
        return chooser.compare(name, cast("Setup", "now"), cast("Setup", "candidate"), num_steps=num_steps, exact=True)
    finally:
        snapshot.restore()


def _synchronize(device: Any) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
