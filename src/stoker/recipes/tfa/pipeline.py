"""Pipeline: `train` makes a trained and scored model from settings, in the folder of a run.

    recipe.json        written first: marks the folder as one of this recipe
    config.yaml        all settings
    feature_spec.json  the features, as they were computed
    bars/              the bars, as they were packed
    data.stoker        rows with features, labels and times
    checkpoints/       the best model, and the latest
    score.json         the score block: the model next to its baselines

Training stops early by the validation block; the score block is used once, with the best weights.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import nn

import stoker
from stoker import _disk
from stoker._text import check_device
from stoker.errors import OptionError, StoreLockedError, TrainError
from stoker.experiment.parse import to_tree, to_yaml
from stoker.recipes.tfa import audit, scoring
from stoker.recipes.tfa.data import BARS_NAME, DATA_NAME, Prepared, count_labels, drop_store, prepare, read_spec
from stoker.recipes.tfa.model import TfaModel, build_model
from stoker.recipes.tfa.settings import IGNORED, Settings, ignored, read_settings


@contextlib.contextmanager
def using(count: int) -> Iterator[None]:
    """Use `count` threads of torch within the block. The number affects the bits of sums, so it is set and never measured."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


SCORE_NAME, SPEC_NAME, RECIPE_NAME, CONFIG_NAME = "score.json", "feature_spec.json", "recipe.json", "config.yaml"
SIGN = b'"recipe": "tfa"'
"""The content of recipe.json."""
OF_A_RUN = ("run.json", "metrics.jsonl", CONFIG_NAME, SPEC_NAME, SCORE_NAME, "checkpoints", DATA_NAME)
"""Files of a run beside its bars; only these are removed for a new one."""
MAY_CHANGE = {
    "epochs",
    "early_stopping_patience",
    "max_training_hours",
    "device",
    "feature_spec",
    "feature_cache",
    "out_dir",
    *IGNORED,
}
"""Settings that may change when a run is resumed; of the spec the content is compared."""
ACCUMULATE = 4
"""Batches of one update of the authors' trainer of one series; that of several series has one."""
LENGTHS = {"tfa": 48, "tfa-small": 32, "banded": 48}
"""Rows of a window where T is not given."""
Say = Callable[[str, str], None]
"""Called with a word and a sentence."""


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """Defaults of training: those of the authors for their models, faster ones for ours."""

    epochs: int
    lr: float
    patience: int
    schedule: str


WINDOWED = Defaults(epochs=25, lr=2e-3, patience=5, schedule="constant")
BANDED = Defaults(epochs=4, lr=3e-3, patience=2, schedule="one-cycle")


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A finished training run."""

    prepared: Prepared
    model: TfaModel
    """With its best weights."""
    result: stoker.train.Result
    score: scoring.Score


def _silent(word: str, sentence: str) -> None:
    return None


def length_of(settings: Settings) -> int:
    """Rows of a window."""
    return settings.T or LENGTHS[settings.chosen_model]


def make_model(settings: Settings, *, mean: torch.Tensor, std: torch.Tensor, levels: Any = None) -> TfaModel:
    """The model of the settings, with random weights from their seed."""
    torch.manual_seed(settings.seed)
    sizes: dict[str, Any] = {name: size for name, size in settings.sizes.items() if name != "length"}
    if settings.positions is not None and settings.chosen_model != "banded":
        sizes["positions"] = settings.positions
    return build_model(
        settings.chosen_model, num_features=len(mean), mean=mean, std=std, length=length_of(settings), levels=levels, **sizes
    )


def prepare_run(settings: Settings, folder: Path, say: Say = _silent) -> Prepared:
    """Prepare and audit the data, without training."""
    width = len(read_spec(settings)["features"])
    reach = make_model(settings, mean=torch.zeros(width), std=torch.ones(width)).reach
    prepared = prepare(settings, folder, reach=reach)
    for word, sentence in describe(prepared):
        say(word, sentence)
    for sentence in audit.check_all(prepared):
        say("checked", sentence)
    return prepared


def train(
    settings: Settings,
    folder: str | Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = False,
    say: Say = _silent,
) -> Trained:
    """Train and score a model.

    Args:
        settings: The settings, from `read_settings`.
        folder: Folder of the run: new, empty, or of an earlier run of this recipe. Default: `settings.out_dir`.
        resume: Continue the run in `folder`.
        overwrite: Replace the run in `folder`.
        progress: Show a progress bar.
        say: Called with a word and a sentence for each thing to report.

    Returns:
        The model with its best weights, the data, and the score.

    Raises:
        OptionError: The folder holds a run, or `resume` finds other settings.
        ConfigError, BadValueError, LeakError, TimeOrderError: The data or the settings failed a check.
        TrainError: Another process trains in the folder.
    """
    folder = Path(folder if folder is not None else settings.out_dir or "runs/tfa")
    device = str(check_device(settings.device or ("cuda" if torch.cuda.is_available() else "cpu")))
    with _held(folder):
        if resume:
            settings = _resumed(settings, folder)
        else:
            _begin(folder, overwrite=overwrite)
        return _train(settings, folder, device, resume=resume, progress=progress, say=say)


def _train(settings: Settings, folder: Path, device: str, *, resume: bool, progress: bool, say: Say) -> Trained:
    prepared = prepare_run(settings, folder, say)
    model = make_model(settings, mean=prepared.scaler.mean, std=prepared.scaler.std, levels=prepared.levels)
    audit.check_model(model, prepared)
    say("model", _describe_model(settings, model))
    say("update", _describe_update(prepared))
    kept = {CONFIG_NAME: to_yaml(_kept(settings, prepared)), SPEC_NAME: json.dumps(prepared.spec, indent=1).encode() + b"\n"}
    for name, data in kept.items():
        _disk.write_file(folder / name, data)
    with using(threads_of(settings) if device == "cpu" else torch.get_num_threads()):
        result = _fit(prepared, model.to(device), folder, device, resume=resume, progress=progress)
        stoker.train.load_trained(model, folder)
        found = scoring.score(model.cpu(), prepared)
    training = {"best_validation_loss": result.best, "steps": result.step, "epochs": result.epoch, "stopped": result.stopped}
    _disk.write_file(folder / SCORE_NAME, json.dumps({**found.to_dict(), **training}, indent=1).encode() + b"\n")
    return Trained(prepared=prepared, model=model, result=result, score=found)


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Lock the folder of a run for this process, from its first file on; the trainer locks it only while it trains."""
    advice = "Give the run its own folder: `out_dir: runs/tfa` in the YAML, or --set out_dir=runs/tfa."
    _disk.claim_folder(folder, marker=RECIPE_NAME, sign=SIGN, advice=advice)
    _disk.make_folder(folder / BARS_NAME)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_disk.Lock(folder / BARS_NAME))
        except StoreLockedError as error:
            process = str(error).partition("process ")[2].partition(".")[0]
            raise TrainError(f"{folder} is in use by process {process}. Wait for it to end, or set another out_dir.") from None
        yield


def _begin(folder: Path, *, overwrite: bool) -> None:
    """Remove the files of an earlier run; one that ended before its first step is replaced without `overwrite`."""
    if not overwrite and ((folder / "run.json").exists() or (folder / "checkpoints").exists()):
        raise OptionError(
            f"{folder} has a run already. Pass resume=True to continue it, overwrite=True to replace it, or choose another folder "
            "(out_dir)."
        )
    for name in OF_A_RUN:
        _disk.remove_folder(folder / name)
    for store in (folder / BARS_NAME).glob("*.stoker"):
        drop_store(store)


def _resumed(settings: Settings, folder: Path) -> Settings:
    """The settings of a run, with those that may change; other changes are errors, before a file of the run is touched."""
    if not (folder / CONFIG_NAME).is_file():
        return settings  # ended before its first step: there is nothing to differ from
    saved = read_settings(folder / CONFIG_NAME)
    saved = msgspec.structs.replace(saved, grad_accum_steps=saved.grad_accum_steps or 1)  # older runs lack the key
    differing = []
    for key in sorted(set(Settings.__struct_fields__) - MAY_CHANGE):
        now, then = (_absolute(one, key) for one in (settings, saved))
        if now is None or now == then:
            settings = msgspec.structs.replace(settings, **{key: getattr(saved, key)})
        else:
            differing.append(f"{key}: {'the default' if then is None else then} saved, {now} now")
    if read_spec(settings) != json.loads((folder / SPEC_NAME).read_bytes()):
        differing.append(f"feature_spec: other features than {folder / SPEC_NAME} has")
    if differing:
        raise OptionError(f"{folder} is a run with other settings: {'; '.join(differing)}. Make them equal, or start a new run.")
    return msgspec.structs.replace(settings, feature_spec=str(folder / SPEC_NAME))


def _absolute(settings: Settings, key: str) -> Any:
    """A value for comparison: with absolute paths."""
    value = getattr(settings, key)
    if key == "datasets" and value is not None:
        return [{**msgspec.to_builtins(one), "path": str(Path(one.path).absolute())} for one in value]
    return str(Path(value).absolute()) if key == "bars_csv" and value is not None else value


def threads_of(settings: Settings) -> int:
    """Threads of a step on a CPU. They affect the bits of the weights, so they are set and never measured."""
    return settings.threads or (1 if settings.chosen_model == "banded" else torch.get_num_threads())


def _kept(settings: Settings, prepared: Prepared) -> Settings:
    """The settings that a run saves: with absolute paths and resolved defaults."""

    def whole(path: str | None) -> str | None:
        return None if path is None else str(Path(path).absolute())

    return msgspec.structs.replace(
        settings,
        bars_csv=whole(settings.bars_csv),
        datasets=None
        if settings.datasets is None
        else [msgspec.structs.replace(one, path=str(Path(one.path).absolute())) for one in settings.datasets],
        feature_spec=SPEC_NAME,  # the copy beside it
        feature_cache=whole(settings.feature_cache),
        out_dir=whole(settings.out_dir),
        model=settings.chosen_model,
        threads=threads_of(settings),
        stationary=prepared.levels is not None,
        run=prepared.shape.run,
        grad_accum_steps=grad_accum_steps_of(settings),
    )


def grad_accum_steps_of(settings: Settings) -> int:
    """Batches of one update: the authors' number for the authors' model, where nothing else is said."""
    theirs = settings.chosen_model != "banded" and settings.datasets is None
    return settings.grad_accum_steps or (ACCUMULATE if theirs else 1)


def _fit(prepared: Prepared, model: TfaModel, folder: Path, device: str, *, resume: bool, progress: bool) -> stoker.train.Result:
    settings = prepared.settings
    usual = BANDED if settings.chosen_model == "banded" else WINDOWED
    lr, hours = settings.lr or usual.lr, settings.max_training_hours
    weight = None if prepared.pos_weight is None else prepared.pos_weight.to(device)  # a graph cannot bring it there
    trainer = stoker.Trainer(
        model,
        direction_loss(prepared.shape.run, weight),
        torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=settings.weight_decay),
        precision=settings.precision if settings.precision != "auto" else "fp32" if device == "cpu" else "bf16",
        fused=True,
        graph="auto" if device == "cpu" or int(os.environ.get("WORLD_SIZE") or 1) > 1 else True,
        compile=False,
        grad_accum_steps=grad_accum_steps_of(settings),
        max_grad_norm=settings.gradient_clip_norm,
        schedule=stoker.train.OneCycle() if (settings.schedule or usual.schedule) == "one-cycle" else None,
        early_stopping=stoker.EarlyStopping("val_loss", patience=settings.early_stopping_patience or usual.patience, mode="min"),
        metrics={"auc": stoker.train.AUC()},
        folder=folder,
        keep_checkpoints=1,
        max_seconds=hours * 3600 if hours else None,
        seed=settings.seed,
        config=to_tree(_kept(settings, prepared)),
        progress=progress,
    )
    train, valid = prepared.feed("train", device=device), prepared.feed("valid", device=device)
    return trainer.fit(train, valid=valid, epochs=settings.epochs or usual.epochs, resume=resume)


def direction_loss(run: int, pos_weight: torch.Tensor | None) -> Callable[[nn.Module, Any], dict[str, torch.Tensor]]:
    """The loss over the last `run` rows of each sample, without masked labels."""

    def loss(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
        valid = batch["valid"][:, None]
        # Padding rows of a batch are zeros, and a price of zero has no ratios: gradients would be NaN.
        features = torch.where(valid[..., None], batch["features"], 1.0)
        logits, labels = model(features)[:, -run:], batch["label"][:, -run:]
        known = torch.isfinite(labels) & valid
        targets = torch.where(known, labels, 0)
        each = nn.functional.binary_cross_entropy_with_logits(logits, targets, pos_weight=pos_weight, reduction="none")
        mean = torch.where(known, each, 0).sum() / known.sum().clamp(min=1)
        return {"loss": mean, "prediction": logits.detach(), "target": targets, "valid": known}

    return loss


def describe(prepared: Prepared) -> list[tuple[str, str]]:
    """A description of the data, as words and sentences."""
    bars, settings = prepared.bars, prepared.settings
    first, last = (str(np.datetime64(int(moment), "ms"))[:16].replace("T", " ") for moment in (bars.times.min(), bars.times.max()))
    several = f" in {len(bars.names):,} series" if len(bars.names) > 1 else ""
    counts = count_labels(np.asarray(prepared.store.column("label")))
    arithmetic = "sentio's arithmetic" if prepared.spec.get("compat") == "sentio" else "exact"
    lines = [
        ("bars", f"{bars.num_bars:,}{several}, {first} to {last}: {', '.join(dict.fromkeys(bars.sources))}"),
        ("features", f"{len(prepared.names)} ({arithmetic}), ready from bar {prepared.warm_up + 1} of a series on"),
        ("labels", f"{prepared.rule}: {counts['labelled']:.1%} of rows have one, {counts['up']:.1%} of them up"),
    ]
    if settings.feature_cache and not (Path(settings.feature_cache) / "manifest.json").is_file():
        lines.append(("note", f"{settings.feature_cache} is not read: only a store of `stoker indicators` records its spec"))
    lines += [("note", sentence) for sentence in ignored(settings)]
    names = {"train": "train", "valid": "validation", "test": "score"}
    for part, name in names.items():
        rows = prepared.labelled_rows(part)
        moments = np.asarray(prepared.store.column("ts"))[rows]
        begin, end = (str(np.datetime64(int(one), "ms"))[:16].replace("T", " ") for one in (moments.min(), moments.max()))
        lines.append((name, f"{len(rows):,} rows, {begin} to {end}"))
    return lines


def _describe_model(settings: Settings, model: TfaModel) -> str:
    count = sum(parameter.numel() for parameter in model.parameters())
    kind = {"tfa": "the authors' transformer", "tfa-small": "the authors' smaller transformer", "banded": "each row computed once"}
    said = f"{settings.chosen_model} ({kind[settings.chosen_model]}), {count:,} weights, sees {model.reach} rows"
    if settings.model is None and settings.chosen_model == "tfa":
        said += "; `model: banded` learns the same in a fraction of the time"
    return said


def _describe_update(prepared: Prepared) -> str:
    labels, batches = prepared.batch_size * prepared.shape.run, grad_accum_steps_of(prepared.settings)
    said = f"{labels:,} labels per batch"
    if batches > 1:
        theirs = "" if prepared.settings.grad_accum_steps else "; theirs, `grad_accum_steps` sets it"
        said += f", {batches} batches ({labels * batches:,} labels) per update{theirs}"
    return said
