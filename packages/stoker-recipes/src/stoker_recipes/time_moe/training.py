"""Training of Time-MoE: series become rows, rows become steps, and the best weights an official checkpoint.

    train("ett.stoker", size="50m", length=2048, folder="runs/ett")
    train("time300b/", init="TimeMoE-50M/", steps=10_000, folder="runs/tuned")

The folder of a run has checkpoints, metrics and `recipe.json` (its settings), and at the end `weights/`: config.json and
model.safetensors under their official names.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import psutil
import torch

import stoker
from stoker.errors import OptionError, SourceNotFoundError
from stoker.extend import check_device, disk, printable, readable_bytes
from stoker_recipes import run_folder
from stoker_recipes.run_folder import RECIPE_NAME
from stoker_recipes.time_moe.batches import Batches, CompatRows, FirstBatches, PackedRows
from stoker_recipes.time_moe.data import Corpus, Report, open_corpus, warn
from stoker_recipes.time_moe.dataset import CompatSamples, CorpusScales, Pieces, train_ends
from stoker_recipes.time_moe.layers import SIZES, Size
from stoker_recipes.time_moe.model import CONFIG, TimeMoe, check_free, load_weights, read_size, save_weights, time_moe_loss
from stoker_recipes.time_moe.settings import MOST, Precision, TimeMoeSettings

# ---- training ----

WEIGHTS = "weights"
BETAS, EPS = (0.9, 0.95), 1e-8
WORTH_COMPILING = 800  # updates from which on compiling pays: on an H200 it takes 25 s, and a step is then 24 ms instead of 58
FEW_UPDATES = 100  # fewer updates by the default of one epoch are reported: random weights hardly learn in them
ROW_BYTES = 13  # bytes per position of a batch: two float32, a mask, a segment
PASSES = 10  # validations per run, by default


@dataclass(frozen=True, kw_only=True)
class Decay:
    """Learning rate schedule: linear warm-up, then cosine decay to `end` (a factor) at the last update."""

    total: int
    end: float
    warmup: int = 0

    def __call__(self, step: int, total: int | None) -> float:
        """The factor of one update."""
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        share = min(1.0, (step - self.warmup) / max(1, self.total - self.warmup))
        return self.end + (1.0 - self.end) * (1.0 + math.cos(math.pi * share)) / 2.0


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows of a run, with numbers to report."""

    corpus: Corpus
    train: PackedRows | CompatRows
    valid: PackedRows | None
    per_epoch: int  # rows of an epoch
    useful: float  # share of positions that are targets

    def __str__(self) -> str:
        corpus, rows = self.corpus, self.train
        kind = "compat" if isinstance(rows, CompatRows) else "packed" if rows.packed else "one piece per row"
        held = "no validation" if self.valid is None else f"validation: {self.valid.pieces.num_positions:,} targets"
        each = f"{self.per_epoch:,} rows of {rows.length:,} positions per epoch ({kind}), {self.useful:.1%} of them targets"
        return f"{corpus.name}: {len(corpus):,} series, {corpus.num_points:,} points\n  {each}; {held}"


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The result of a training run."""

    result: stoker.train.Result
    model: TimeMoe
    rows: Rows
    weights: Path | None  # the official checkpoint of the best weights
    points: float  # targets per second
    epochs: float  # passes over the data


def make_rows(settings: TimeMoeSettings, *, report: Report = warn) -> Rows:
    """Open the data and make its rows."""
    needed, free = settings.batch_size * settings.length * ROW_BYTES, psutil.virtual_memory().available
    if needed > free:
        raise OptionError(
            f"batch_size is {settings.batch_size:,}: a batch needs {readable_bytes(needed)}, but {readable_bytes(free)} of memory "
            f"are free. Use a smaller one, and accumulate.",
            parameter="batch_size",
        )
    corpus = open_corpus(settings.data, columns=settings.columns, report=report)
    length, seed, share = settings.length, settings.seed, settings.valid_share
    if settings.samples == "compat":
        _refuse_nonfinite(corpus)
        samples = CompatSamples(corpus, length, stride=settings.stride, method=settings.normalize)
        compat = CompatRows(samples, length, seed=seed)
        some = [batch["mask"][batch["valid"]] for batch in FirstBatches(compat, batch_size=64, most=4)]
        useful = float(torch.cat(some).float().mean())
        return Rows(corpus=corpus, train=compat, valid=None, per_epoch=len(samples), useful=useful)
    if settings.valid is None and not (corpus.ends - train_ends(corpus, share) > 1).any():
        report(f"{corpus.name}: no validation, as no series has 2 points in its last tenth. Use longer series, or set valid.")
        share = 0.0
    scales = CorpusScales(corpus, settings.normalize, ends=train_ends(corpus, share))
    packed = None if settings.samples == "packed" else False
    train = PackedRows(Pieces(corpus, length, valid=share), scales, seed=seed, packed=packed)
    valid = PackedRows(Pieces(corpus, length, valid=share, part="valid"), scales, seed=seed, packed=packed) if share else None
    per_epoch, known = train.count_rows(0), train.share_known()
    if not known:
        why = "its points are missing (NaN). Check it with `stoker inspect`"
        raise OptionError(f"{corpus.name} has no targets to train on: {why}.", parameter="data")
    useful = known * train.pieces.num_positions / (per_epoch * length)
    return Rows(corpus=corpus, train=train, valid=valid, per_epoch=per_epoch, useful=useful)


def _refuse_nonfinite(corpus: Corpus) -> None:
    """With the authors' windows one missing point makes the loss NaN: raise an error before the first step."""
    place = corpus.find_nonfinite()
    if place is None:
        return
    series, at = place
    missing = bool(np.isnan(corpus.series(series)[at]))
    what = "missing (NaN)" if missing else "infinite"
    fix = "pack the data again with missing='ffill' or 'drop'" if missing else "fix the data"
    raise OptionError(
        f"series {corpus.series_name(series)!r} of {corpus.name} is {what} at point {at + 1:,}, but samples='compat' needs "
        f"finite values. Use samples='packed' or 'padded', which leave such points out, or {fix}.",
        parameter="samples",
    )


def make_model(settings: TimeMoeSettings) -> TimeMoe:
    """A model with random weights from the seed, or those of a checkpoint."""
    torch.manual_seed(settings.seed)
    size = find_size(settings)
    shares = settings.head_weights
    if shares is not None and len(shares) != len(size.horizons):
        heads = ", ".join(map(str, size.horizons))
        raise OptionError(
            f"head_weights has {len(shares)} numbers; expected {len(size.horizons)}, for the horizons {heads}.",
            parameter="head_weights",
        )
    model = TimeMoe(size)
    if settings.init is not None:
        load_weights(model, _checkpoint(settings.init))
    if shares is not None:
        model.heads.shares = tuple(shares)
    return model


def _checkpoint(init: str) -> Path:
    """The folder of an official checkpoint; for a run, that of its best weights."""
    folder = Path(init)
    if not folder.exists():
        raise SourceNotFoundError(f"{folder} does not exist. Pass the folder of a checkpoint: config.json and model.safetensors.")
    if not (folder / RECIPE_NAME).is_file():
        return folder
    if not (folder / WEIGHTS).is_dir():
        raise OptionError(f"{folder} is an unfinished run. Export its weights first: stoker export {folder} FOLDER", path=folder)
    return folder / WEIGHTS


def find_size(settings: TimeMoeSettings) -> Size:
    """The size of the model, checked against the length of rows."""
    size = _named_size(settings)
    if settings.length > size.max_position:
        raise OptionError(
            f"length is {settings.length:,}, but the model has {size.max_position:,} positions. Use a shorter one.",
            parameter="length",
        )
    return size


def _named_size(settings: TimeMoeSettings) -> Size:
    if isinstance(settings.size, Size):
        return settings.size
    if settings.size is not None and settings.size not in SIZES:
        hint = " For the sizes of a config.json, use model." if Path(settings.size).exists() else ""
        raise OptionError(f"size is {settings.size!r}; expected one of {', '.join(SIZES)}.{hint}", parameter="size")
    named = read_size(settings.model) if settings.model is not None else SIZES.get(settings.size or "")
    if settings.init is None:
        return named or SIZES["50m"]
    folder = _checkpoint(settings.init)
    if not (folder / CONFIG).is_file():
        if named is None:
            raise OptionError(f"{settings.init} has no {CONFIG}, so its size is not known. Pass size= or model=.", parameter="size")
        return named
    size = read_size(folder)
    if named is not None and named != size:
        wanted = f"model is {settings.model!r}" if settings.model is not None else f"size is {settings.size!r}"
        raise OptionError(f"{wanted}, but {settings.init} is of another size ({size}). Leave it out.", parameter="init")
    return size


def make_optimizer(settings: TimeMoeSettings, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW without weight decay of biases and norms."""
    weights = list(parameters)
    groups = [
        {"params": [weight for weight in weights if weight.dim() > 1], "weight_decay": settings.weight_decay},
        {"params": [weight for weight in weights if weight.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.lr, betas=BETAS, eps=EPS)


def wants_compiling(settings: TimeMoeSettings, model: TimeMoe, total: int) -> bool:
    """Whether layers are compiled: as set, or on a GPU if the run is long enough to make up for the time."""
    if settings.compile != "auto":
        return settings.compile
    return next(model.parameters()).device.type == "cuda" and total >= WORTH_COMPILING


def best_on(device: torch.device, settings: TimeMoeSettings) -> tuple[Precision, bool | Literal["auto"]]:
    """Precision and graph as set; "auto" is known for a GPU (docs/recipes/time-moe.md) and need not be measured."""
    precision, graph = settings.precision, settings.graph
    if device.type == "cuda":
        if precision == "auto" and torch.cuda.is_bf16_supported(including_emulation=False):
            precision = "bf16"
        if graph == "auto" and int(os.environ.get("WORLD_SIZE") or 1) == 1:  # a graph is of one process
            graph = True
    return precision, graph


def train(
    data: str | os.PathLike[str],
    *,
    folder: str | os.PathLike[str] | None = None,
    device: str | None = None,
    progress: bool = False,
    report: Report = warn,
    **options: Any,
) -> Trained:
    """Train a Time-MoE.

    Args:
        data: A store, a tree of the authors' files, or a file of series.
        folder: Folder of the run, which can be resumed. Default: nothing is saved.
        device: Default: a GPU if there is one.
        progress: Show a progress bar.
        report: Called with one line on what was left out of the data, and if one epoch has very few updates.
        **options: Fields of `TimeMoeSettings`.

    Returns:
        The model, the result, and the exported weights.

    Raises:
        OptionError: An option is invalid, or the folder holds a run.
        SourceError: The data cannot be read.
    """
    settings = run_folder.make_settings(TimeMoeSettings, {"data": os.fspath(data), **options})
    where = run_folder.check_free(folder)
    return run(settings, where, device=device, progress=progress, resume=False, report=report)


def resume(
    folder: str | os.PathLike[str],
    *,
    device: str | None = None,
    progress: bool = False,
    report: Report = warn,
    **changes: Any,
) -> Trained:
    """Resume the run of a folder. Only `max_seconds` and `save_every` may change."""
    settings = run_folder.resumed_settings(Path(folder), TimeMoeSettings, changes)
    return run(settings, Path(folder), device=device, progress=progress, resume=True, report=report)


def run(
    settings: TimeMoeSettings,
    folder: Path | None,
    *,
    device: str | None,
    progress: bool,
    resume: bool,
    report: Report = warn,
) -> Trained:
    """One process of a training run, from the data to the exported weights."""
    rank, world_size, local_rank = (int(os.environ.get(name) or 0) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    is_first = not rank
    # Errors are raised before long work begins.
    size = find_size(settings)
    if not resume and (settings.model is not None or settings.init is not None):
        settings = msgspec.structs.replace(settings, size=size)  # so that a resumed run does not read them again
    if folder is not None and not (resume and (folder / "run.json").exists()):
        check_free(folder / WEIGHTS)
    place = check_device(device or (f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu"))
    rows = make_rows(settings, report=report if is_first else lambda _: None)
    # A checkpoint of the run replaces the initial weights.
    goes_on = resume and folder is not None and any((folder / "checkpoints").glob("*"))
    model = make_model(msgspec.structs.replace(settings, init=None) if goes_on else settings).to(place)
    per_update = settings.batch_size * settings.grad_accum_steps * (world_size or 1)
    total = settings.steps or max(1, math.ceil(settings.epochs * rows.per_epoch / per_update))
    if total > MOST:
        raise OptionError(f"epochs is {settings.epochs!r}, which are more than {MOST:,} updates. Use fewer.", parameter="epochs")
    if settings.warmup >= total and not resume:
        raise OptionError(
            f"warmup is {settings.warmup:,}, but the run has {total:,} updates in all. Use fewer.", parameter="warmup"
        )
    every = min(total, settings.validate_every or -(-total // PASSES))
    if settings.steps is None and total < FEW_UPDATES and is_first and not resume:
        report(
            f"{total:,} {'update' if total == 1 else 'updates'} in all, which is very few: epochs is {settings.epochs:g}, "
            f"{rows.per_epoch:,} rows each, and an update takes {per_update:,} rows. Raise epochs, or set steps."
        )
    if wants_compiling(settings, model, total):
        model.compile(dynamic=False)
    precision, graph = best_on(place, settings)
    trainer = stoker.Trainer(
        model,
        time_moe_loss,
        partial(make_optimizer, settings),
        precision=precision,
        grad_accum_steps=settings.grad_accum_steps,
        max_grad_norm=settings.max_grad_norm,
        execution=stoker.train.Execution(
            graph=graph,
            compile=False,  # layer by layer, above
            fused=True,  # also what a graph needs
            activation_checkpointing=settings.activation_checkpointing,
        ),
        schedule=Decay(total=total, end=settings.lr_end / settings.lr, warmup=settings.warmup),
        folder=folder,
        checkpoints=stoker.train.Checkpoints(every=settings.save_every),
        logging=stoker.train.Logging(every=max(1, min(50, every)), config=msgspec.to_builtins(settings)),
        seed=settings.seed,
        progress=progress,
    )
    common: dict[str, Any] = {"batch_size": settings.batch_size, "device": trainer.device}
    accumulated = settings.grad_accum_steps
    batches = Batches(rows.train, steps=every * accumulated, total=total * accumulated, **common)
    valid = None if rows.valid is None else FirstBatches(rows.valid, most=settings.valid_batches, **common)
    if folder is not None and is_first and not resume:
        run_folder.claim_run(folder, msgspec.to_builtins(settings))
    if progress and is_first:
        print("\n".join(printable(line) for line in str(rows).splitlines()), flush=True)
        print(f"  {total:,} updates of {per_update:,} rows: {total * per_update / rows.per_epoch:.3g} epochs", flush=True)
    with contextlib.ExitStack() as stack:
        if folder is not None and is_first and not resume:
            stack.enter_context(disk.removing_unless(folder / "run.json", folder / RECIPE_NAME))
        passes = -(-total // every)
        result = trainer.fit(batches, valid=valid, epochs=passes, max_seconds=settings.max_seconds, resume=resume)
    weights = None if folder is None else folder / WEIGHTS
    if folder is not None and weights is not None and is_first:
        stoker.train.load_trained(model, folder)
        save_weights(model, weights, overwrite=True)
    points = result.step * per_update * settings.length * rows.useful / result.seconds if result.seconds else 0.0
    epochs = result.step * per_update / rows.per_epoch
    return Trained(result=result, model=model, rows=rows, weights=weights, points=points, epochs=epochs)
