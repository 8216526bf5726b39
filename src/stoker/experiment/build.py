"""From a config to the store, the feeds, the task, the model and the loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stoker.errors import ConfigError
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

if TYPE_CHECKING:
    from torch import nn

    from stoker.experiment.models import Task, When
    from stoker.feed.feed import Feed
    from stoker.feed.layout import AnyView
    from stoker.sampling.orders import Order
    from stoker.sampling.subset import Subset
    from stoker.split.split import Split
    from stoker.store.store import Store


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

    from stoker.feed.cursor import Ranks

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
