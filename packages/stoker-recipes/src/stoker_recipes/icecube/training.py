"""Training: events of a store become steps, and the run can be resumed exactly.

    train("ice.stoker", size="5m", folder="runs/ice")

Defaults are the published recipe: batches of 4,096 events, 10 epochs, Muon with AdamW beside it, one cycle of learning rate and
momentum. What is different is declared: no dropout, only CLS rows behind the attention of the last layer, and a loss in which nothing
cancels. On a GPU a step is a CUDA graph in bf16; `residual="bf16"` also rounds the residual.

The folder of a run has checkpoints, metrics and `recipe.json` with its settings.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

import stoker
from stoker.extend import check_device
from stoker_recipes import run_folder
from stoker_recipes.icecube.batches import EventBatch
from stoker_recipes.icecube.data import geometry_of
from stoker_recipes.icecube.feed import EventFeed
from stoker_recipes.icecube.losses import DirectionLoss, VmfLoss
from stoker_recipes.icecube.model import IceCubeModel
from stoker_recipes.icecube.optimizer import MuonAdamW, one_cycle
from stoker_recipes.icecube.settings import IceCubeSettings
from stoker_recipes.icecube.tokens import expand, read_geometry, scale_geometry

RESIDUALS = {"fp32": torch.float32, "bf16": torch.bfloat16}
ROUNDING = 64, 2048
"""DOMs and pulses of a batch are rounded up to multiples of this times the root of its events. Their sums spread like the root, so few
shapes occur, and few graphs, whatever the size of a batch; of 4,096 events, 1 % of the rows are padding."""


@dataclass(frozen=True, kw_only=True)
class EventLoss:
    """The loss of a model on an `EventBatch`, for `stoker.Trainer`: pulses become tokens on the device, then the model's own loss."""

    geometry: Tensor
    """Positions of sensors, as `scale_geometry` gives them, on the device of the model."""

    def __call__(self, model: nn.Module, batch: EventBatch) -> dict[str, Tensor]:
        """The loss and what is logged with it."""
        device = self.geometry.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else next(model.parameters()).dtype
        raw = model(expand(batch, self.geometry, dtype=dtype), batch.dom_offsets)
        return model.loss(raw, batch.target, ~batch.target[:, 0].isnan())  # type: ignore[operator, no-any-return]


@dataclass(frozen=True, kw_only=True)
class TrainedIceCube:
    """The result of a training run."""

    result: stoker.train.Result
    model: IceCubeModel
    settings: IceCubeSettings
    num_events: int
    """Events per epoch."""

    @property
    def events_per_second(self) -> float:
        """Events of all updates over the time of the run."""
        done = self.result.step * self.settings.batch_size * self.settings.grad_accum_steps
        return min(done, self.num_events * self.settings.epochs) / self.result.seconds if self.result.seconds else 0.0


def make_feed(store: stoker.Store, settings: IceCubeSettings, *, device: torch.device, **options: Any) -> EventFeed:
    """Batches of events, with few different shapes where they go to a GPU: each shape is a graph."""
    size = settings.batch_size
    if device.type == "cuda":
        options["multiples"] = tuple(multiple * max(1, math.isqrt(size)) for multiple in ROUNDING)
    return EventFeed(store, batch_size=size, max_doms=settings.max_doms, device=device, **options)


def make_order(settings: IceCubeSettings) -> Any:
    """The order of training events."""
    if settings.order == "sequential":
        return stoker.Sequential()
    return (stoker.BlockShuffle if settings.order == "blocks" else stoker.Shuffle)(seed=settings.seed)


def make_model(settings: IceCubeSettings, *, num_batches: int = 0) -> IceCubeModel:
    """A model with random weights from the seed, for a run of this many batches."""
    loss: nn.Module = DirectionLoss()
    if settings.head == "vmf":
        loss = VmfLoss(num_batches, penalty=settings.kappa_penalty, angle_weight=settings.angle_weight)
    return IceCubeModel(settings.model_size, residual=RESIDUALS[settings.residual], loss=loss, seed=settings.seed)


def make_trainer(
    settings: IceCubeSettings,
    store: stoker.Store,
    model: IceCubeModel,
    *,
    total: int,
    device: torch.device,
    one_process: bool = True,
    **options: Any,
) -> stoker.Trainer:
    """A trainer for `total` updates of a model on the device. `options` are further ones of `stoker.Trainer`."""
    is_gpu = device.type == "cuda"
    optimizer = MuonAdamW(
        model.matrices(), model.others(), lr=settings.lr, side_lr=settings.side_lr, weight_decay=settings.weight_decay,
        warmup=settings.warmup, total=total,
    )  # fmt: skip
    return stoker.Trainer(
        model,
        EventLoss(geometry=scale_geometry(read_geometry(geometry_of(store))).to(device)),
        optimizer,
        precision=settings.precision if settings.precision != "auto" else "bf16" if is_gpu else "fp32",
        grad_accum_steps=settings.grad_accum_steps,
        max_grad_norm=settings.max_grad_norm,
        ema=settings.ema,
        execution=stoker.train.Execution(
            graph=is_gpu and one_process if settings.graph == "auto" else settings.graph, compile=False, fused=True
        ),
        schedule=one_cycle(warmup=settings.warmup, total=total),
        checkpoints=stoker.train.Checkpoints(every=settings.save_every),
        seed=settings.seed,
        logging=stoker.train.Logging(config=msgspec.to_builtins(settings)),
        **options,
    )


def train(
    data: str | os.PathLike[str],
    *,
    folder: str | os.PathLike[str] | None = None,
    device: str | None = None,
    progress: bool = False,
    callbacks: Sequence[Any] = (),
    **options: Any,
) -> TrainedIceCube:
    """Train a model on the events of a store.

    Args:
        data: A store that `pack_events` or `stoker pack --recipe icecube` made.
        folder: Folder of the run, which can be resumed. Default: nothing is saved.
        device: Default: a GPU if there is one.
        progress: Show a progress bar.
        callbacks: Those of `stoker.Trainer`.
        **options: Fields of `IceCubeSettings`.

    Returns:
        The model and the result.

    Raises:
        OptionError: An option is invalid, or the folder holds a run.

    Example:
        >>> import tempfile
        >>> from stoker_recipes.icecube import make_events, pack_events
        >>> with tempfile.TemporaryDirectory() as there:
        ...     _ = pack_events(make_events(f"{there}/icecube", files=1, events=32), f"{there}/ice.stoker")
        ...     done = train(f"{there}/ice.stoker", size="tiny", batch_size=16, epochs=2, warmup=1, device="cpu")
        >>> done.result.step, sorted(done.result.metrics)
        (4, ['loss'])
    """
    settings = run_folder.make_settings(IceCubeSettings, {"data": os.fspath(data), **options})
    where = run_folder.check_free(folder)
    return _run(settings, where, device=device, progress=progress, resume=False, callbacks=callbacks)


def resume(folder: str | os.PathLike[str], *, device: str | None = None, progress: bool = False, **changes: Any) -> TrainedIceCube:
    """Resume the run of a folder. Only `max_seconds` and `save_every` may change."""
    settings = run_folder.resumed_settings(Path(folder), IceCubeSettings, changes)
    return _run(settings, Path(folder), device=device, progress=progress, resume=True)


def _run(
    settings: IceCubeSettings,
    folder: Path | None,
    *,
    device: str | None,
    progress: bool,
    resume: bool,
    callbacks: Sequence[Any] = (),
) -> TrainedIceCube:
    """One process of a training run."""
    rank, world_size, local_rank = (int(os.environ.get(name) or 0) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    place = check_device(device or (f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu"))
    store = stoker.open(settings.data)
    where, valid = settings.where, None
    if settings.valid is not None and Path(settings.valid).is_dir():
        valid = make_feed(stoker.open(settings.valid), settings, device=place)
    elif settings.valid is not None:
        valid = make_feed(store, settings, where=settings.valid, device=place)
        where = f"not ({settings.valid})" if where is None else f"({where}) and not ({settings.valid})"
    feed = make_feed(store, settings, where=where, order=make_order(settings), device=place)
    total = -(-len(feed) // settings.grad_accum_steps) * settings.epochs
    model = make_model(settings, num_batches=len(feed) * settings.epochs).to(place)
    if settings.init is not None and not resume:
        stoker.train.load_trained(model, settings.init)
        if isinstance(model.loss, VmfLoss):
            model.loss.step.zero_()
    trainer = make_trainer(
        settings, store, model, total=total, device=place, one_process=world_size <= 1,
        callbacks=callbacks, progress=progress, folder=folder,
    )  # fmt: skip
    if folder is not None and not rank and not resume:
        run_folder.claim_run(folder, msgspec.to_builtins(settings))
    if progress and not rank:
        count = sum(weight.numel() for weight in model.parameters())
        print(
            f"  {store.name}: {feed.num_samples:,} events, {total:,} updates; {count:,} parameters\n  order: {feed.order}",
            flush=True,
        )
    result = trainer.fit(feed, valid=valid, epochs=settings.epochs, max_seconds=settings.max_seconds, resume=resume)
    return TrainedIceCube(result=result, model=model, settings=settings, num_events=feed.num_samples)
