"""What a config of `stoker train` gives to tune: steps of any batch size, an objective for a search, and its space."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from stoker import _disk
from stoker.errors import ConfigError
from stoker.experiment.build import Fed, make_trainer, open_data
from stoker.experiment.config import Config
from stoker.experiment.parse import find, known_paths, read_document, to_yaml
from stoker.experiment.prepare import SEARCH_SECTION, choose_device, load
from stoker.tune.space import as_space

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

    from stoker.train.callbacks import CallbackReport
    from stoker.train.trainer import Trainer

KEYS = ("space", "budget", "metric", "direction", "repeats", "on_constant")
"""Of the section `search:`."""
READ_ROWS = 32


@dataclass(frozen=True, kw_only=True)
class SearchSection:
    """The section `search:` of a config."""

    space: Mapping[str, BaseDistribution]
    budget: str | int | float | None = None
    metric: str = "val_loss"
    direction: str | None = None
    repeats: int | None = None
    on_constant: Literal["error", "warn"] = "error"


def read_search(config: str | Path) -> SearchSection:
    """Read what to search: the section `search:` of a config.

    Raises:
        ConfigError: There is none, it has an unknown key, or a name of the space is not a field of a config.
    """
    path = Path(config)
    tree = read_document(path).tree.get(SEARCH_SECTION)
    if not isinstance(tree, dict) or not isinstance(tree.get("space"), dict):
        example = "search: {space: {optimizer.lr: [log, 1e-5, 1e-1]}}"
        raise ConfigError(f"{path} does not say what to search. Add a section such as `{example}`.")
    if unknown := [key for key in tree if key not in KEYS]:
        raise ConfigError(f"{path}: search.{unknown[0]} is not known; expected one of {', '.join(KEYS)}.")
    known = known_paths(Config)
    names = {".".join(find(name, known, option="search.space")): value for name, value in tree["space"].items()}
    kept = {key: tree[key] for key in KEYS[1:] if key in tree}
    return SearchSection(space=as_space(names), **kept)


@dataclass
class ConfigObjective:
    """Trains a config with other values, and returns its best validation score.

    Args:
        path: The config.
        overrides: Values that hold for all trials, as `NAME=VALUE`.
        metric: What is returned; those of the validation begin with `val_`.
        sign: 1 where less is better, -1 where more is.
    """

    path: str
    overrides: Sequence[str] = ()
    metric: str = "val_loss"
    sign: float = 1.0

    def __call__(self, params: Mapping[str, Any], trial: optuna.Trial, seed: int) -> float:
        """Train with these values; scores are reported after each epoch."""
        from stoker.experiment.build import within_memory

        values = [f"{name}={json.dumps(value)}" for name, value in params.items()]
        config = load(self.path, [*self.overrides, *values, f"train.seed={seed}"])
        seen: list[float] = []

        class Report:
            def on_epoch_end(inner, report: CallbackReport) -> None:
                seen.append(self.sign * float(report.metrics[self.metric]))
                trial.report(self.sign * min(seen), report.epoch + 1)
                if trial.should_prune():
                    report.stop()

        with within_memory():
            data = open_data(config, choose_device(config, 0))
            trainer = make_trainer(config, data, callbacks=[Report()])
            trainer.fit(data.train, valid=data.valid, epochs=config.train.epochs)
        return self.sign * min(seen) if seen else math.nan

    def check(self) -> None:
        """Check that an epoch has the metric: otherwise every trial would fail, and a new study would keep the name.

        Raises:
            ConfigError: An epoch has no such metric, or it is one of the validation and there is no data for it.
        """
        config = load(self.path, self.overrides)
        data = open_data(config, choose_device(config, 0))
        names = ["loss"]
        if data.valid is not None:
            names += [f"val_{name}" for name in make_trainer(config, data).evaluate([next(iter(data.valid))])]
        elif self.metric.startswith("val_"):
            raise ConfigError(
                f"the metric to search by is {self.metric!r}, but {self.path} has no data to validate on. Add a section `split`, set "
                f"`data.valid_store`, or search by another metric."
            )
        if self.metric not in names:
            raise ConfigError(f"the metric to search by is {self.metric!r}, but an epoch has {', '.join(names)}. Name one of them.")


def save_config(config: Config, path: str | Path) -> None:
    """Write a config as YAML."""
    _disk.write_file(Path(path), to_yaml(config))


def with_batch_size(config: Config, size: int) -> Config:
    """The config with another batch size, and without a global batch, which may not be a multiple of it."""
    return msgspec.structs.replace(config, data=msgspec.structs.replace(config.data, batch_size=size, global_batch_size=None))


def step_of(trainer: Trainer, batches: Iterable[Any]) -> Callable[[Any], None]:
    """A function that makes one update per call, as `fit` of the trainer would: for `batch_size` and measurements of your own.

    Args:
        trainer: Its options decide precision, graph and compile. `grad_accum_steps` is taken as 1.
        batches: What batches come from. A feed that lives on the GPU may be gathered within a graph; for others an empty list will do.

    Example:
        >>> import torch, stoker
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> step = step_of(stoker.Trainer(model, torch.nn.MSELoss(), optimizer, progress=False), [])
        >>> before = model.weight.clone()
        >>> step((torch.ones(8, 3), torch.zeros(8, 1)))
        >>> torch.equal(model.weight, before)
        False
    """
    from stoker.train.engine import Engine
    from stoker.train.stream import Stream

    engine = Engine(trainer.components, Stream(batches, trainer.device), total_updates=None)
    work = engine.work(engine.baseline())

    def step(batch: Any) -> None:
        if engine.readout.count >= READ_ROWS:
            engine.readout.begin(0)  # the losses are not read here, so their rows are written over
        work.micro(batch)
        work.update()

    return step


def steps_of(config: Config) -> tuple[Callable[[], Callable[[Any], None]], Callable[[int], Any], int]:
    """Return what `batch_size` needs of a config: steps, batches of a size, and the samples of an epoch."""
    device = choose_device(config, 0)

    def feed_of(size: int) -> Fed:
        return open_data(with_batch_size(config, size), device)

    first = feed_of(config.data.batch_size)

    def make_step() -> Callable[[Any], None]:
        return step_of(make_trainer(config, first), [])

    def make_batch(size: int) -> Any:
        return next(iter(feed_of(size).train))

    return make_step, make_batch, first.train.num_samples
