"""Build what a config describes, and run it: what `stoker train` does, as functions.

config = stoker.experiment.load("config.yaml", overrides=["batch_size=512"])
result = stoker.experiment.run(config)
result = stoker.experiment.run("runs/config", resume=True)
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stoker._text import how_to_install
from stoker.errors import ConfigError, OptionError, StokerError
from stoker.experiment import config as named
from stoker.experiment.config import Config, Data
from stoker.experiment.parse import CONFIG_NAME, Document, check, to_tree, to_yaml
from stoker.experiment.prepare import RunPlan, choose_device, find_ranks, prepare, ranks_of
from stoker.train.settings import TrainerSettings

if TYPE_CHECKING:
    from torch import nn

    from stoker.experiment.models import Task, When
    from stoker.feed.feed import Feed
    from stoker.sampling.orders import Order
    from stoker.sampling.subset import Subset
    from stoker.sampling.views import AnyView
    from stoker.split.series_scaler import SeriesScaler
    from stoker.split.split import Split
    from stoker.store.store import Store
    from stoker.train.callbacks import Callback
    from stoker.train.fit import Result
    from stoker.train.trainer import Trainer


AMOUNTS = (named.Mse, named.Mae, named.Huber, named.Quantile)
"""Losses of targets that are amounts, and are scaled."""


@dataclass(frozen=True, kw_only=True)
class Fed:
    """The data of a run."""

    store: Store
    task: Task
    train: Feed
    valid: Feed | None
    split: Split | None
    """Of the store; of the first one, where there are several."""
    scaler: SeriesScaler | None = None
    """That of the feeds, where each series has scales of its own."""
    stores: Sequence[Store] = ()
    """All stores to train on."""
    splits: Sequence[Split] = ()
    """One per store, where they are split."""
    test: Feed | None = None
    """What the trained model is evaluated on at the end."""


def open_data(config: Config, device: str) -> Fed:
    """Open the stores, say what is predicted from what, and make the feeds."""
    from stoker.experiment.models import load_function
    from stoker.feed import CategoryCodes, Distributed, OnDevice, Returns
    from stoker.feed.columns import lengths_of
    from stoker.feed.feed import Feed
    from stoker.sampling.mixture import Mixture
    from stoker.sampling.orders import BlockShuffle, ByLength, Sequential, Shuffle
    from stoker.sampling.views import Segments, Sequences, Windows
    from stoker.split.selection import where
    from stoker.split.split import by_value, chronological, grouped

    data, cut, seed = config.data, config.split, config.train.seed
    stores, held_back = _open_stores(data, data.store, "data.store"), _open_held_back(config)
    store = stores[0]
    for name, others in held_back.items():
        _refuse_training_data(name, stores, others)
    view: AnyView
    if isinstance(data.view, named.SequenceView):
        longest = data.view.max_length
        view = Sequences(longest, buckets=tuple(data.view.buckets or (longest,)), keep=data.view.keep)
    else:
        view = (Windows if isinstance(data.view, named.WindowView) else Segments)(**msgspec.structs.asdict(data.view))
    order: Order = Shuffle(seed)
    if isinstance(data.order, named.SequentialOrder):
        order = Sequential()
    elif isinstance(data.order, named.BlockOrder):
        order = BlockShuffle(seed, data.order.block, data.order.window)
    elif isinstance(data.order, named.LengthOrder):
        order = ByLength(seed, pool=data.order.pool)
    splits: list[Split] = []
    if isinstance(cut, named.ByValue):
        splits = [by_value(store, view, cut.column, train=cut.train, valid=cut.valid, test=cut.test) for store in stores]
    elif cut is not None:
        if cut.valid + cut.test >= 1:
            raise ConfigError(
                f"split.valid is {cut.valid} and split.test {cut.test}: nothing is left to train on. Together they are less than 1."
            )
        fractions = [1 - cut.valid - cut.test, cut.valid, *([cut.test] if cut.test else [])]
        if isinstance(cut, named.Grouped):
            splits = [grouped(store, view, by=cut.by, fractions=fractions, seed=seed) for store in stores]
        else:
            distances: Any = {"horizon": cut.horizon, "warm_up": cut.warm_up, "embargo": cut.embargo, "overlap": cut.overlap}
            splits = [chronological(store, view, fractions=fractions, time=cut.time, **distances) for store in stores]
    all_stores = [*stores, *chain(*held_back.values())]
    task = _task(config, store, all_stores[1:], num_train=len(stores))
    scaler = _fit_series_scaler(config, all_stores, task, splits[0] if splits else None)
    padded = {view.over(lengths_of(store, view)).padded for store in all_stores} if len(all_stores) > 1 else set()
    feed = partial(
        Feed,
        view=view,
        batch_size=data.batch_size,
        device=device,
        columns=list(dict.fromkeys([*task.inputs, *task.targets])),
        dtype=data.dtype,
        normalize=scaler if scaler is not None else data.normalize,
        observed=list(task.observed),
        # All batches have masks, if those of some stores need them.
        returns=Returns(series=scaler is not None, masks=True if len(padded) > 1 else None),
        loading=data.loading,
    )
    if data.where is not None:
        splits = [where(one, split, data.where) for one, split in zip(stores, splits, strict=True)] if splits else []
    chosen = [split.train for split in splits] or _chosen(stores, view, data.where)
    augment = load_function(data.augment) if data.augment is not None else None
    if augment is not None:
        try:
            inspect.signature(augment).bind("batch", "rng")
        except TypeError as error:
            raise ConfigError(f"data.augment is {data.augment}, which cannot be called as f(batch, rng): {error}.") from None
    train = feed(
        stores,
        order=order if data.weights is None else Mixture(order, data.weights),
        subset=chosen,
        transform=None if augment is None else OnDevice(augment),
        distributed=Distributed(global_batch_size=data.global_batch_size),
    )
    feed = partial(feed, order=Sequential(), categories=CategoryCodes(texts=train.categories))
    evaluated: dict[str, Feed | None] = {"valid": None, "test": None}
    for name in evaluated:
        if name in held_back:
            evaluated[name] = feed(held_back[name], subset=_chosen(held_back[name], view, data.where))
        # A test subset of fractions is kept for later, as it always was; one that is named is evaluated.
        elif name in (splits[0].subsets if splits else ()) and (name == "valid" or isinstance(cut, named.ByValue)):
            evaluated[name] = feed(stores, subset=[split.subsets[name] for split in splits])
    task = replace(task, padded=train.samples.padded or True in padded)
    first = splits[0] if splits else None
    return Fed(store=store, task=task, train=train, split=first, scaler=scaler, stores=stores, splits=splits, **evaluated)


def _chosen(stores: Sequence[Store], view: AnyView, condition: str | None) -> list[Subset] | None:
    """The samples of series that fulfil the condition, of each store; None for all samples."""
    from stoker.split.selection import where

    return None if condition is None else [where(store, view, condition) for store in stores]


def _fit_series_scaler(config: Config, stores: Sequence[Store], task: Task, split: Split | None) -> SeriesScaler | None:
    """The scaler of `data.scale: per_series`: of features and of targets that are amounts, as far as they are numbers of steps."""
    from stoker.split.series_scaler import SeriesScaler

    scale = named.SeriesScale() if config.data.scale == "per_series" else config.data.scale
    if not isinstance(scale, named.SeriesScale):
        return None
    if len(stores) > 1:
        raise ConfigError(
            f"data.scale is per series, which is for one store, but {len(stores)} are fed: {', '.join(store.name for store in stores)}. "
            f"Leave data.scale out, or set data.normalize."
        )
    store = stores[0]
    if config.data.normalize:
        raise ConfigError("data.scale and data.normalize are set: values would be scaled twice. Give one of them.")
    has_amounts = isinstance(config.loss, AMOUNTS)
    names = [name for name in dict.fromkeys([*task.numbers, *task.targets]) if has_amounts or name not in task.targets]
    names = [name for name in names if store.schema[name].level == "step"]
    if not names:
        raise ConfigError("data.scale is per series, but no column has numbers of steps to scale. Leave data.scale out.")
    part = split.train if split else None
    return SeriesScaler.fit(store, part, columns=names, method=scale.method, unseen=scale.unseen)


def _open_stores(data: Data, paths: str | list[str], name: str) -> list[Store]:
    from stoker._text import is_url
    from stoker.store.opening import open_store

    listed = [paths] if isinstance(paths, str) else paths
    if len({one if is_url(one) else Path(one).resolve() for one in listed}) < len(listed):
        raise ConfigError(
            f"{name} names a store twice: {', '.join(listed)}. Name each once; data.weights says how often it is read."
        )
    cache = {} if data.cache is None else {"cache": data.cache.folder, "cache_size": data.cache.size}
    return [open_store(one, **(cache if is_url(one) else {})) for one in listed]  # type: ignore[arg-type]


def _open_held_back(config: Config) -> dict[str, list[Store]]:
    """The stores to validate and to test on, by the name of their subset."""
    data, cut, found = config.data, config.split, {}
    for name, paths in (("valid", data.valid_store), ("test", data.test_store)):
        if paths is None:
            continue
        if cut is not None and (name == "valid" or cut.test):
            raise ConfigError(f"data.{name}_store and split both say what {name} samples are. Give one of them.")
        found[name] = _open_stores(data, paths, f"data.{name}_store")
    return found


def _refuse_training_data(name: str, stores: Sequence[Store], others: Sequence[Store]) -> None:
    known = {store.digest: store.name for store in stores}
    for other in others:
        if other.digest is not None and other.digest in known:
            raise ConfigError(
                f"data.{name}_store is {other.name}, which has the data of {known[other.digest]} in data.store: the model would be "
                f"evaluated on what it was trained on. Name another store, or use a split."
            )


def make_trained(config: Config, fed: Fed) -> tuple[nn.Module, Callable[..., Any]]:
    """The model, with the weights that its seed decides, and the loss."""
    from stoker.experiment.models import TargetScales, TaskLoss, make_loss, make_model
    from stoker.split.scaler import Scaler
    from stoker.train import state_dict

    data = config.data
    if data.scale and data.normalize:
        raise ConfigError("data.scale is true and data.normalize is set: values would be scaled twice. Give one of them.")
    scalers: dict[str, nn.Module] = {}
    if data.scale is not False and not data.normalize and fed.scaler is None:
        # Fitted on the training samples: features, and targets that are amounts.
        stores = list(fed.stores) or [fed.store]
        subsets: Any = fed.train.subsets
        scalers["scaler"] = Scaler.fit(stores, subsets, columns=list(fed.task.numbers))
        if isinstance(config.loss, AMOUNTS):
            scalers["target_scaler"] = Scaler.fit(stores, subsets, columns=list(fed.task.targets))
    state_dict.seed_all(config.train.seed)
    loss = make_loss(config.loss, fed.task)
    if fed.scaler is not None and isinstance(loss, TaskLoss):
        loss.unscale = TargetScales.of(fed.scaler, fed.task, fed.train.device)
    return make_model(config.model, fed.task, **scalers), loss


def _task(config: Config, store: Store, others: Sequence[Store] = (), *, num_train: int = 1) -> Task:
    """What is predicted from what. `others` are the other stores; the first `num_train` of all are trained on."""
    import numpy as np

    from stoker.experiment.models import Task, outputs_each

    data, view, schema = config.data, config.data.view, store.schema
    length, horizon, shift = (
        (view.max_length, 0, 0) if isinstance(view, named.SequenceView) else (view.length, view.horizon, view.shift)
    )
    numbers = [name for name, column in schema.items() if column.kind in ("number", "bfloat16") and column.level == "step"]
    known = data.known or []
    inputs = list(dict.fromkeys([*(numbers if data.columns is None else data.columns), *known]))
    ahead = [name for name in inputs if name in numbers and name not in known] if horizon or shift else []
    targets = data.target if data.target is not None else ahead
    for name in [*inputs, *targets]:
        for one in [store, *others]:
            if name not in one.schema:
                raise ConfigError(f"data.columns or data.target names {name!r}, but {one.name} has {', '.join(one.schema)}.")
    levels = {schema[name].level for name in targets}
    if known and not horizon:
        raise ConfigError("data.known is what is known of predicted steps, but data.view has no horizon. Set data.view.horizon.")
    for name in known:
        if name in targets or schema[name].level != "step":
            why = "which is predicted" if name in targets else "which has one value per series: it needs data.columns alone"
            raise ConfigError(f"data.known names {name!r}, {why}. Leave it out of data.known.")
    if (horizon or shift) and levels != {"step"}:
        raise ConfigError(f"data.target is {targets}; a horizon or shift predicts columns of steps.")
    if len(levels) != 1:
        what = "is missing" if not targets else f"is {targets}, which mixes values of steps and of series"
        raise ConfigError(f"data.target {what}; expected the columns that are predicted, or a horizon or shift in data.view.")
    when: When = "horizon" if horizon else "shift" if shift else "last" if levels == {"step"} else "series"
    if when in ("last", "series"):
        seen = [name for name in targets if name in inputs and data.columns is not None]
        if seen:
            raise ConfigError(f"data.columns holds {seen[0]!r}, which is the target: the model would see the answer. Leave it out.")
        inputs = [name for name in inputs if name not in targets]
    if not any(schema[name].level == "step" and schema[name].kind in ("number", "bfloat16") for name in inputs):
        raise ConfigError(f"no column of {store.name} has numbers of steps for the model to see. Name some in data.columns.")
    for name in inputs if not isinstance(config.model, named.Own) else ():
        if schema[name].kind not in ("number", "bfloat16", "category"):
            raise ConfigError(
                f"data.columns names {name!r}, which holds {schema[name].label}; built-in models read numbers and categories. "
                f"Leave it out, pack a number instead (`stoker pack --sql`), or use a model of your own (model: file.py:function)."
            )
    texts = schema[targets[0]].texts if len(targets) == 1 else None
    num_categories = None
    if texts is not None:  # of the stores to train on; a feed refuses other texts elsewhere
        num_categories = len({text for other in [store, *others][:num_train] for text in other.schema[targets[0]].texts or ()})
    classes = (config.loss.classes or num_categories) if isinstance(config.loss, named.CrossEntropy) else None
    if classes is not None:  # a model has no output for more: a GPU would only say that an index is wrong, and stop
        for one in [store, *others] if texts is None else [store]:
            values = one.column(targets[0])
            largest = np.fmax.reduce(values, axis=None) if values.size else -1
            if largest >= classes:
                raise ConfigError(
                    f"data.target {targets[0]!r} holds {largest:g}, but loss.classes is {classes}; expected classes below it."
                )
    train_stores = [store, *others][:num_train]
    categories = {
        name: len({text for store in train_stores for text in store.schema[name].texts or ()})
        for name in inputs
        if schema[name].kind == "category"
    }
    fed = dict.fromkeys([*inputs, *targets])
    steps = [schema[name] for name in fed if schema[name].level == "step"]
    can_miss = [step.name for step in steps if step.kind == "bfloat16" or (step.dtype is not None and step.dtype.kind == "f")]
    return Task(
        observed=tuple(can_miss) if data.observed else (),
        inputs={name: schema[name].width or 1 for name in inputs},
        targets={name: schema[name].width or 1 for name in targets},
        length=length,
        when=when,
        horizon=horizon,
        outputs_each=outputs_each(config.loss, num_categories),
        categories=categories,
        known=tuple(known),
    )


# ---- running a config ----


def run(
    config: Config | Mapping[str, Any] | str | Path,
    *,
    overrides: Sequence[str] = (),
    folder: str | Path | None = None,
    resume: bool = False,
    allow: Sequence[str] = (),
    overwrite: bool = False,
    progress: bool = True,
    report: Callable[[str], None] | None = None,
    on_saved: Callable[[Path, dict[str, float]], None] | None = None,
) -> Result:
    """Train as a config says. The run's folder gets checkpoints, metrics and the config with all its values.

    Started by torchrun, all processes train together; rank 0 writes and reports.

    Args:
        config: A config, the path of one, or a dict with the sections of one. With `resume=True` the folder of a run.
        overrides: Values that replace those of the config, as `NAME=VALUE`.
        folder: Folder of the run; by default `train.folder` of the config.
        resume: Continue the run of this folder from its newest checkpoint.
        allow: With `resume=True`: fields whose values may differ from those of the run so far.
        overwrite: Replace the run that the folder holds. Files that stoker did not write stay.
        progress: Show progress on stderr.
        report: Gets lines that describe the data, before the training begins.
        on_saved: Called on every rank when a checkpoint is on the disk, with the folder of the run and the metrics of the last epoch,
            and `step`. The run waits for it.

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
        raise OptionError("allow= is for resume=True: a new run has nothing to differ from.", parameter="allow")
    if overwrite and resume:
        raise OptionError("overwrite=True is for a new run, not for resume=True.", parameter="overwrite")
    if isinstance(config, Mapping):
        config = check(Document("the config", dict(config)), Config)
    train = partial(_train, progress=progress, report=report, on_saved=on_saved)
    begin = partial(prepare, config, overrides=overrides, folder=folder, resume=resume, allow=allow, overwrite=overwrite)
    if find_ranks().world_size == 1:
        return train(begin())
    # One rank reads the folder, which it will write to while the others come; these may be on machines that do not have it.
    found = ranks_of(config, overrides).first(lambda: begin().to_tree())
    return train(RunPlan.from_tree(found))


def make_trainer(
    config: Config,
    data: Fed,
    *,
    folder: Path | None = None,
    progress: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Trainer:
    """The trainer of a config, with a new model. Without a folder nothing is written, and there are no loggers."""
    from stoker.experiment.models import make_optimizer
    from stoker.train.early_stopping import EarlyStopping
    from stoker.train.loggers import make_writer
    from stoker.train.trainer import Trainer

    train, stopping = config.train, config.train.early_stopping
    writes = folder is not None and find_ranks().is_first
    loggers = [make_writer(name, folder=folder) for name in train.loggers] if writes and folder is not None else []
    settings = {name: getattr(train, name) for name in TrainerSettings.__struct_fields__}
    settings["logging"] = msgspec.structs.replace(train.logging, config={**to_tree(config), **train.logging.config})
    if config.data.global_batch_size is not None:
        settings["grad_accum_steps"] = 1
    model, loss = make_trained(config, data)
    return Trainer(
        model.to(data.train.device),
        loss,
        partial(make_optimizer, config.optimizer),
        schedule=config.schedule,
        early_stopping=EarlyStopping(**msgspec.structs.asdict(stopping)) if stopping is not None else None,
        metrics=dict(_metric(name, config.loss, data.task) for name in train.metrics),
        folder=folder,
        callbacks=[*callbacks, *loggers],
        progress=progress,
        **settings,
    )


def _unread(config: Config, data: Fed) -> Iterator[str]:
    """A note on the columns that a built-in model does not read although the config leaves the choice of columns open."""
    if config.data.columns is not None or isinstance(config.model, named.Own):
        return
    used = {*data.task.inputs, *data.task.targets, data.store.key, data.store.time}
    unread = [f"{name} ({column.label})" for name, column in data.store.schema.items() if name not in used]
    if unread:
        yield (
            f"  note       the model does not read {', '.join(unread)}: by default it reads the numeric columns with one value per "
            "step. `stoker pack --sql` makes numbers of categories."
        )


@dataclass(frozen=True)
class _RunFiles:
    """A callback that writes the config of a run, and what predictions need, into its folder."""

    config: Config
    data: Fed
    folder: Path

    def keep_config(self) -> None:
        """Write the config alone."""
        from stoker import _disk

        _disk.make_folder(self.folder)
        _disk.write_file(self.folder / CONFIG_NAME, to_yaml(self.config))

    def on_open(self) -> None:
        """Write both. Not before: a resume that is refused, or a new run that fails, leaves the config of the run there."""
        from stoker import _disk
        from stoker.experiment.inputs import INPUTS_NAME, Inputs

        self.keep_config()
        inputs = Inputs.of(self.data.store, self.data.task, self.data.train.categories)
        _disk.write_file(self.folder / INPUTS_NAME, inputs.to_json())


@dataclass(frozen=True)
class _Saved:
    """A callback that passes on where a checkpoint is, and the metrics of the last epoch."""

    folder: Path
    on_saved: Callable[[Path, dict[str, float]], None]

    def on_save(self, step: int, metrics: dict[str, float]) -> None:
        """Pass them on."""
        self.on_saved(self.folder, {"step": step, **metrics})


def _train(
    run: RunPlan,
    *,
    progress: bool,
    report: Callable[[str], None] | None,
    on_saved: Callable[[Path, dict[str, float]], None] | None,
) -> Result:
    from stoker import _disk
    from stoker._kernels import ANNOUNCE
    from stoker.experiment.inputs import INPUTS_NAME
    from stoker.experiment.models import blaming
    from stoker.experiment.traffic import report_traffic

    config, folder, ranks, train = run.config, run.folder, find_ranks(), run.config.train
    if progress:
        os.environ.setdefault(ANNOUNCE, "1")  # that kernels are compiled is said in a log file too, not on a terminal alone
    with within_memory():
        data = open_data(config, choose_device(config, ranks.local_rank))
        files = _RunFiles(config, data, folder)
        callbacks: list[Callback] = [files] if ranks.is_first else []
        if ranks.is_first and report is not None:
            callbacks += report_traffic(data.stores, report)
        if on_saved is not None:
            callbacks.append(_Saved(folder, on_saved))
        showing = progress and ranks.is_first
        trainer = make_trainer(config, data, folder=folder, progress=showing, callbacks=callbacks)
    if ranks.is_first and report is not None:
        for line in str(data.train).splitlines():
            report(line)
        for line in _unread(config, data):
            report(line)
    kept, record = folder / CONFIG_NAME, folder / "run.json"
    is_new = ranks.is_first and not kept.exists() and not record.exists()
    if is_new:
        files.keep_config()  # so that `--resume` begins again with what is stopped before its first step
    cleaning = _disk.removing_unless(record, kept, folder / INPUTS_NAME) if is_new else contextlib.nullcontext()
    own = [one.function for one in (config.model, config.loss) if isinstance(one, named.Own)]
    own += [config.data.augment] if config.data.augment is not None else []
    with cleaning, blaming(*own), within_memory():
        result = trainer.fit(
            data.train,
            valid=data.valid,
            epochs=train.epochs,
            max_seconds=train.max_seconds,
            resume=run.resume,
            overwrite=run.overwrite,
            allow=run.allow,
        )
        if data.test is not None and result.stopped != "signal":
            tested = {f"test_{name}": value for name, value in trainer.evaluate(data.test).items()}
            result = replace(result, metrics={**result.metrics, **tested})
        return result


_OF_TORCHMETRICS = {
    "mae": "MeanAbsoluteError",
    "mse": "MeanSquaredError",
    "accuracy": "classification.MulticlassAccuracy",
    "binary accuracy": "classification.BinaryAccuracy",
}


def _metric(name: str, loss: object, task: Task) -> tuple[str, Any]:
    """Make a metric of a config, with its name in the log: one by a short name, or a class of torchmetrics without arguments."""
    import torch

    from stoker.train.metrics import AUC, Adapted

    if name == "auc":
        return name, AUC()
    if name in ("mae", "mse"):  # float32 would lose small errors in large sums
        return name, _made(name, _OF_TORCHMETRICS[name]).set_dtype(torch.float64)
    if name != "accuracy":
        path = name.partition(":")[2]
        return path.rpartition(".")[2], _made(name, path)
    if isinstance(loss, named.Bce):  # whose predictions are logits, which torchmetrics would have to guess
        return name, Adapted(name, _made(name, _OF_TORCHMETRICS["binary accuracy"]), transform=torch.sigmoid)
    if isinstance(loss, named.CrossEntropy):
        options = {"num_classes": task.outputs_each, "average": "micro"}
        return name, _made(name, _OF_TORCHMETRICS[name], **options)
    raise ConfigError(
        "train.metrics has accuracy, which needs the loss bce or cross_entropy. Use stoker.Trainer(metrics=…) in Python."
    )


def _made(name: str, path: str, **options: Any) -> Any:
    """Make a metric of torchmetrics; `name` is what the config calls it."""
    try:
        kind: Any = import_module("torchmetrics")
        for part in path.split("."):
            kind = getattr(kind, part)
    except ModuleNotFoundError:
        raise ConfigError(f"train.metrics names {name!r}, which needs torchmetrics. {how_to_install('metrics')}") from None
    except AttributeError:
        raise ConfigError(f"train.metrics names {name!r}, but torchmetrics has no {path!r}.") from None
    try:
        return kind(**options)
    except (TypeError, ValueError) as error:
        line = (str(error).splitlines() or [""])[0]
        raise ConfigError(
            f"train.metrics names {name!r}, which cannot be made without arguments: {line}. Use stoker.Trainer(metrics=…) in Python."
        ) from None


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
            f"the training does not fit into memory ({reason}). Lower data.batch_size or the size of the model.",
            parameter="data.batch_size",
        ) from error
