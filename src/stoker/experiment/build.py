"""Load a config, build what it describes, and run it: what `stoker train` does, as functions.

config = stoker.experiment.load("config.yaml", overrides=["batch_size=512"])
result = stoker.experiment.run(config)
result = stoker.experiment.run("runs/config", resume=True)
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stoker.errors import ConfigError, OptionError, StokerError
from stoker.experiment.config import (
    BlockOrder,
    Config,
    CrossEntropy,
    Data,
    Grouped,
    Huber,
    LengthOrder,
    Mae,
    Mse,
    Own,
    Quantile,
    SegmentView,
    SequenceView,
    SequentialOrder,
    WindowView,
)
from stoker.experiment.parse import CONFIG_NAME, check, find, known_paths, override, read_document, read_saved, to_tree, to_yaml
from stoker.train.settings import Settings

if TYPE_CHECKING:
    from torch import nn

    from stoker.experiment.models import Task, When
    from stoker.feed.feed import Feed
    from stoker.feed.padding import AnyView
    from stoker.sampling.orders import Order
    from stoker.sampling.subset import Subset
    from stoker.split.split import Split
    from stoker.store.store import Store
    from stoker.train.loop import Result
    from stoker.train.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class Fed:
    """The data of a run."""

    store: Store
    task: Task
    train: Feed
    valid: Feed | None
    split: Split | None


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What is trained."""

    model: nn.Module
    loss: Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Process:
    """This process among those of a run."""

    rank: int
    world_size: int
    local_rank: int

    @property
    def is_first(self) -> bool:
        """Whether it is the one that prints and writes."""
        return self.rank == 0


def find_ranks() -> Process:
    """Which process this is. Nothing else of the command line asks."""
    import os

    from stoker.feed.prefetch import Ranks

    found = Ranks.find(None, None)
    return Process(rank=found.rank, world_size=found.world_size, local_rank=int(os.environ.get("LOCAL_RANK") or 0))


def choose_device(config: Config, local_rank: int) -> str:
    """As configured, or a GPU where there is one; each process of a machine has its own."""
    import torch

    if config.train.device is not None and config.train.device != "cuda":
        return config.train.device
    if config.train.device is None and not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{local_rank}"


def open_data(config: Config, device: str) -> Fed:
    """Open the store, say what is predicted from what, and make the feeds."""
    from stoker.sampling.orders import Sequential
    from stoker.store.store import open_store

    data = config.data
    store = open_store(data.store)
    view = _view(data.view)
    split = _split(config, store, view)
    task = _task(config, store)
    train = _feed(data, store, view, task, device, _order(data, config.train.seed), split.train if split else None)
    valid = _feed(data, store, view, task, device, Sequential(), split.valid) if split else None
    task = replace(task, padded=train.samples.padded)
    return Fed(store=store, task=task, train=train, valid=valid, split=split)


def make_trained(config: Config, fed: Fed) -> Trained:
    """The model, with the weights that its seed decides, and the loss."""
    import torch

    from stoker.experiment.models import make_loss, make_model

    scalers = _scalers(config, fed)
    torch.manual_seed(config.train.seed)
    return Trained(model=make_model(config.model, fed.task, **scalers), loss=make_loss(config.loss, fed.task))


def _scalers(config: Config, fed: Fed) -> dict[str, nn.Module]:
    """What centres and scales, fitted on the training samples: the features, and targets that are amounts."""
    from stoker.split.scaler import Scaler

    data = config.data
    if data.scale and data.normalize:
        raise ConfigError("data.scale is true and data.normalize is set: values would be scaled twice. Give one of them.")
    if data.scale is False or data.normalize:
        return {}
    part = fed.split.train if fed.split else None
    found: dict[str, nn.Module] = {"scaler": Scaler.fit(fed.store, part, columns=list(fed.task.inputs))}
    if isinstance(config.loss, Mse | Mae | Huber | Quantile):
        found["target_scaler"] = Scaler.fit(fed.store, part, columns=list(fed.task.targets))
    return found


def _view(view: WindowView | SegmentView | SequenceView) -> AnyView:
    from stoker.sampling.views import Segments, Sequences, Windows

    if isinstance(view, WindowView):
        return Windows(view.length, stride=view.stride, horizon=view.horizon, shift=view.shift, tail=view.tail)
    if isinstance(view, SegmentView):
        return Segments(view.length, horizon=view.horizon, shift=view.shift, tail=view.tail)
    return Sequences(view.max_length, buckets=tuple(view.buckets or (view.max_length,)), keep=view.end)


def _order(data: Data, seed: int) -> Order:
    from stoker.sampling.block_shuffle import BlockShuffle
    from stoker.sampling.orders import ByLength, Sequential, Shuffle

    if isinstance(data.order, SequentialOrder):
        return Sequential()
    if isinstance(data.order, BlockOrder):
        return BlockShuffle(seed, data.order.block, data.order.window)
    return ByLength(seed, pool=data.order.pool) if isinstance(data.order, LengthOrder) else Shuffle(seed)


def _task(config: Config, store: Store) -> Task:
    from stoker.experiment.models import Task, outputs_each

    data, view = config.data, config.data.view
    horizon = 0 if isinstance(view, SequenceView) else view.horizon
    shift = 0 if isinstance(view, SequenceView) else view.shift
    numbers = [name for name, column in store.schema.items() if column.kind in ("number", "bfloat16") and column.level == "step"]
    inputs = numbers if data.columns is None else data.columns
    targets = data.target if data.target is not None else inputs if horizon or shift else []
    for name in [*inputs, *targets]:
        if name not in store.schema:
            raise ConfigError(f"data.columns or data.target names {name!r}, but {store.name} has {', '.join(store.schema)}.")
    when = _when(data, store, targets, horizon, shift)
    if when in ("last", "series"):
        seen = [name for name in targets if name in inputs and data.columns is not None]
        if seen:
            raise ConfigError(f"data.columns holds {seen[0]!r}, which is the target: the model would see the answer. Leave it out.")
        inputs = [name for name in inputs if name not in targets]
    if not any(store.schema[name].level == "step" for name in inputs):
        raise ConfigError(f"no column of {store.name} has numbers of steps for the model to see. Name some in data.columns.")
    if not isinstance(config.model, Own):
        for name in inputs:
            if store.schema[name].kind not in ("number", "bfloat16"):
                raise ConfigError(
                    f"data.columns names {name!r}, which holds {store.schema[name].label}; builtin models see numbers. "
                    f"Leave it out, or use a model of your own (model: file.py:function)."
                )
    texts = store.schema[targets[0]].texts if len(targets) == 1 else None
    if isinstance(config.loss, CrossEntropy):
        _check_classes(store, targets[0], config.loss.classes or (len(texts) if texts is not None else None))
    return Task(
        inputs={name: store.schema[name].width or 1 for name in inputs},
        targets={name: store.schema[name].width or 1 for name in targets},
        length=view.max_length if isinstance(view, SequenceView) else view.length,
        when=when,
        horizon=horizon,
        outputs_each=outputs_each(config.loss, len(texts) if texts is not None else None),
    )


def _check_classes(store: Store, name: str, classes: int | None) -> None:
    """Refuse classes that a model has no output for: a GPU would only say that an index is wrong, and stop."""
    import numpy as np

    values = store.column(name)
    largest = np.fmax.reduce(values, axis=None) if values.size else -1
    if classes is not None and largest >= classes:
        raise ConfigError(f"data.target {name!r} holds {largest:g}, but loss.classes is {classes}; expected classes below it.")


def _when(data: Data, store: Store, targets: list[str], horizon: int, shift: int) -> When:
    levels = {store.schema[name].level for name in targets}
    if horizon or shift:
        if levels != {"step"}:
            raise ConfigError(f"data.target is {targets}; a horizon or shift predicts columns of steps.")
        return "horizon" if horizon else "shift"
    if len(levels) != 1:
        what = "is missing" if not targets else f"is {targets}, which mixes values of steps and of series"
        raise ConfigError(f"data.target {what}; expected the columns that are predicted, or a horizon or shift in data.view.")
    return "last" if levels == {"step"} else "series"


def _split(config: Config, store: Store, view: AnyView) -> Split | None:
    from stoker.split.kinds import chronological, grouped

    split = config.split
    if split is None:
        return None
    fractions = [1 - split.valid - split.test, split.valid, *([split.test] if split.test else [])]
    if isinstance(split, Grouped):
        return grouped(store, view, by=split.by, fractions=fractions, seed=config.train.seed)
    return chronological(
        store, view, fractions=fractions, horizon=split.horizon, warm_up=split.warm_up, embargo=split.embargo, time=split.time
    )


def _feed(data: Data, store: Store, view: AnyView, task: Task, device: str, order: Order, part: Subset | None) -> Feed:
    from stoker.feed.feed import Feed

    return Feed(
        store,
        view,
        batch_size=data.batch_size,
        subset=part,
        order=order,
        device=device,
        columns=list(dict.fromkeys([*task.inputs, *task.targets])),
        dtype=data.dtype,
        normalize=data.normalize,
        residency=data.residency,
        threads=data.threads,
    )


# ---- running a config ----

COMPARED = {
    "data": ("data", "valid", "model"),
    "split": ("data", "valid", "model"),
    "model": ("model",),
    "loss": ("loss", "model"),
    "optimizer": ("optimizer",),
    "optimizer.name": ("optimizer", "config.optimizer"),
    "optimizer.lr": ("config.lr",),
    "optimizer.weight_decay": ("config.weight_decay",),
    "schedule": ("schedule", "config.schedule"),
    "data.batch_size": ("data", "schedule"),
    "train.epochs": ("schedule",),
    "train.seed": ("data", "valid", "run"),
    "train.precision": ("setup.precision",),
    "train.graph": ("setup.graph",),
    "train.compile": ("setup.compile",),
    "train.fused": ("setup.fused",),
    "train.grad_accum_steps": ("config.accumulate", "schedule"),
    "train.max_grad_norm": ("config.clip",),
    "train.ema": ("config.ema",),
    "train.guard": ("config.guard",),
    "train.early_stopping": ("run",),
}
"""Fields of a config, and those of a trainer's fingerprint that follow from them. What is allowed here is compared by the config;
the trainer compares what a config does not say: values of a store, code of functions."""


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What is to be run."""

    config: Config
    folder: Path
    resume: bool = False
    allow: tuple[str, ...] = ()
    """What may differ from the run that is resumed, by the names of the trainer's fingerprint."""
    overwrite: bool = False


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read and check a config.

    Args:
        path: A YAML or JSON file.
        overrides: Values that replace those of the file, as `NAME=VALUE`. A name is a path like `data.batch_size`, or the end of
            one that only one field has.

    Returns:
        The config with all its values. `train.folder` is `runs/` and the name of the file, where it is not set.

    Raises:
        ConfigError: The file cannot be read, or a key or value is invalid. The message has the file and the line.

    Example:
        >>> import tempfile, stoker
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "waves.yaml"
        ...     text = "{data: {store: w.stoker, view: {name: windows, length: 8}, batch_size: 4}, model: gru}"
        ...     _ = path.write_text(text)
        ...     config = stoker.experiment.load(path, overrides=["batch_size=32"])
        >>> config.data.batch_size, config.train.folder
        (32, 'runs/waves')
    """
    path = Path(path)
    config = check(override(read_document(path), overrides, Config), Config)
    return config if config.train.folder is not None else _in_folder(config, Path("runs") / path.stem)


def run(
    config: Config | str | Path,
    *,
    overrides: Sequence[str] = (),
    folder: str | Path | None = None,
    resume: bool = False,
    allow: Sequence[str] = (),
    overwrite: bool = False,
    progress: bool = True,
    report: Callable[[str], None] | None = None,
    speed_option: str = "train.speed=measured",
) -> Result:
    """Train as a config says. The run's folder gets checkpoints, metrics and the config with all its values.

    Started by torchrun, all processes train together; rank 0 writes and reports.

    Args:
        config: A config, or the path of one. With `resume=True` the folder of a run.
        overrides: Values that replace those of the config, as `NAME=VALUE`.
        folder: Folder of the run; by default `train.folder` of the config.
        resume: Continue the run of this folder from its newest checkpoint.
        allow: With `resume=True`: fields whose values may differ from those of the run so far.
        overwrite: Replace the run that the folder holds. Files that stoker did not write stay.
        progress: Show progress on stderr.
        report: Gets lines that describe the data, before the training begins.
        speed_option: What a hint about a faster setup says to use.

    Returns:
        How the run ended, and its metrics.

    Raises:
        ConfigError: The config is invalid, or `config` is not the folder of a run.
        OptionError: The folder holds a run already, or the run does not fit into memory.

    Example:
        >>> import numpy as np, tempfile, stoker
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     wave = np.sin(np.arange(64.0)).astype("f4")
        ...     _ = stoker.Store.from_arrays(x=[wave]).save(Path(folder) / "w.stoker")
        ...     view = "{name: windows, length: 8, horizon: 1}"
        ...     path = Path(folder) / "c.yaml"
        ...     _ = path.write_text(f"data: {{store: {folder}/w.stoker, view: {view}, batch_size: 16}}\\nmodel: linear")
        ...     result = stoker.experiment.run(path, folder=f"{folder}/run", progress=False)
        >>> result.stopped, result.epoch
        ('finished', 1)
    """
    if allow and not resume:
        raise OptionError("allow= is for resume=True: a new run has nothing to differ from.")
    if overwrite and resume:
        raise OptionError("overwrite=True is for a new run, not for resume=True.")
    if resume and not isinstance(config, Config):
        return _train(_resumed(Path(config), overrides, allow), progress=progress, report=report, speed_option=speed_option)
    if not isinstance(config, Config):
        config = load(config, overrides)
    elif overrides:
        config = check(override(_document(config), overrides, Config), Config)
    where = folder if folder is not None else config.train.folder
    if where is None:
        raise OptionError("the config has no folder for the run. Pass folder=, or set train.folder.")
    if resume and (Path(where) / CONFIG_NAME).is_file():
        plan = _resumed(Path(where), (), allow, config=config)
    else:
        plan = _new(config, Path(where), overwrite=overwrite)
    return _train(plan, progress=progress, report=report, speed_option=speed_option)


def _document(config: Config) -> Any:
    from stoker.experiment.parse import Document

    return Document("the config", to_tree(config))


def _new(config: Config, folder: Path, *, overwrite: bool) -> _Plan:
    """A run of its own; its folder must not have another."""
    has_run = (folder / "run.json").exists()
    if has_run and not overwrite:
        raise OptionError(
            f"{folder} has a run already. Resume it (resume=True), replace it (overwrite=True), or choose another folder "
            f"(train.folder)."
        )
    config = _in_folder(config, folder)
    kept = folder / CONFIG_NAME
    if not has_run and folder.exists():
        from stoker.train.run import check_new

        check_new(folder)
        if kept.exists() and kept.read_bytes() != to_yaml(config):
            raise OptionError(f"{kept} is there, but no run.json says that it is of a run of stoker. Choose another folder.")
    return _Plan(config=config, folder=folder, overwrite=overwrite)


def _resumed(folder: Path, overrides: Sequence[str], allow: Sequence[str], *, config: Config | None = None) -> _Plan:
    """The run of a folder, with the config that it keeps; a value that differs must be allowed by name."""
    from stoker.train import state_dict
    from stoker.train.fingerprint import GROUPS

    if not (folder / CONFIG_NAME).is_file():
        raise ConfigError(f"{folder} has no {CONFIG_NAME}, so it is not the folder of a run. Begin one: stoker train CONFIG.")
    document = read_saved(folder)
    # A folder may have been moved since.
    saved = _in_folder(check(document, Config), folder)
    now = _in_folder(config or check(override(document, overrides, Config), Config), folder)
    known = known_paths(Config)
    theirs = [name for name in allow if tuple(name.split(".")) not in known and name.partition(".")[0] in (*GROUPS, "setup")]
    allowed = [".".join(find(name, known, option="allow")) for name in allow if name not in theirs]
    state_dict.check_facts(to_tree(saved), to_tree(now), where=str(folder), allow=allowed)
    for ours, names in COMPARED.items():
        if any(name == ours or ours.startswith(f"{name}.") or name.startswith(f"{ours}.") for name in allowed):
            theirs.extend(names)
    return _Plan(config=now, folder=folder, resume=True, allow=tuple(theirs))


def _in_folder(config: Config, folder: Path) -> Config:
    train = msgspec.structs.replace(config.train, folder=str(folder))
    return msgspec.structs.replace(config, train=train)


def _train(plan: _Plan, *, progress: bool, report: Callable[[str], None] | None, speed_option: str) -> Result:
    from stoker import _disk
    from stoker._kernels import ANNOUNCE
    from stoker.experiment.models import blaming

    ranks, config = find_ranks(), plan.config
    if progress:
        os.environ.setdefault(ANNOUNCE, "1")  # that kernels are compiled is said in a log file too, not on a terminal alone
    with within_memory():
        data = open_data(config, choose_device(config, ranks.local_rank))
        trainer = _make_trainer(
            plan, make_trained(config, data), device=data.train.device, progress=progress and ranks.is_first, logs=ranks.is_first
        )
    trainer.speed_option = speed_option
    if ranks.is_first:
        if report is not None:
            for line in str(data.train).splitlines():
                report(line)
        _disk.make_folder(plan.folder)
        _disk.write_file(plan.folder / CONFIG_NAME, to_yaml(config))
    with blaming(*(one.function for one in (config.model, config.loss) if isinstance(one, Own))), within_memory():
        return trainer.fit(data.train, valid=data.valid, epochs=config.train.epochs, resume=plan.resume, allow=plan.allow)


def _make_trainer(plan: _Plan, trained: Trained, *, device: Any, progress: bool, logs: bool) -> Trainer:
    from stoker.experiment.models import make_optimizer
    from stoker.train.loggers import make_writer
    from stoker.train.metrics import AUC, MAE, MSE, Accuracy
    from stoker.train.schedule import EarlyStopping
    from stoker.train.trainer import Trainer

    config, train = plan.config, plan.config.train
    makers: dict[str, Any] = {"mae": MAE, "mse": MSE, "accuracy": Accuracy, "auc": AUC}
    options = {name: getattr(train, name) for name in Settings.__struct_fields__}
    return Trainer(
        trained.model.to(device),
        trained.loss,
        partial(make_optimizer, config.optimizer),
        setup=train.setup,
        schedule=config.schedule,
        early_stopping=EarlyStopping(**msgspec.structs.asdict(train.early_stopping)) if train.early_stopping is not None else None,
        metrics={name: makers[name]() for name in train.metrics},
        folder=plan.folder,
        overwrite=plan.overwrite,
        loggers=[make_writer(name, folder=plan.folder) for name in train.loggers] if logs else (),
        device=device,
        config=to_tree(config),
        progress=progress,
        **options,
    )


@contextlib.contextmanager
def within_memory() -> Iterator[None]:
    """Raise one error for what does not fit into memory; torch has several."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = (str(error).splitlines() or [""])[0]
        words = ("memory", "Storage size", "numel: integer multiplication overflow", "array is too big")
        if isinstance(error, StokerError) or not (isinstance(error, MemoryError) or any(word in text for word in words)):
            raise
        reason = text.rpartition("] ")[2][:200] or "no memory is left"
        raise OptionError(
            f"the training does not fit into memory ({reason}). Lower data.batch_size or the size of the model."
        ) from error
