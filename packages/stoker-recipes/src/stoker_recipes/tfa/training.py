"""Pipeline: `train` makes a trained and scored model from settings, in the folder of a run; `score` compares it with baselines.

    recipe.json        written first: marks the folder as one of this recipe
    config.yaml        all settings
    feature_spec.json  the features, as they were computed
    bars/              the bars, as they were packed
    data.stoker        rows with features, labels and times
    checkpoints/       the best model, and the latest
    score.json         the score block: the model next to its baselines

Training stops early by the validation block; the score block is used once, with the best weights. Its baselines, on the same rows:

    volatility      the standard deviation of the last 20 returns, which knows no direction
    linear          logistic regression on the last row
    mlp             a small network on the last row
    chance          the AUC that scores reach with labels shifted in time

The last row has all features, so the gain over `mlp` comes from the rows before it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import nn

import stoker
from stoker.errors import OptionError, StoreLockedError, TrainError
from stoker.experiment import to_tree, to_yaml
from stoker.extend import Array, check_device, disk
from stoker_recipes.run_folder import RECIPE_NAME, Say, claim_run, say_nothing
from stoker_recipes.tfa import audit
from stoker_recipes.tfa.data import (
    BARS_NAME,
    DATA_NAME,
    FEATURES,
    LABEL,
    VOLATILITY,
    Prepared,
    drop_store,
    prepare,
    read_spec,
)  # fmt: skip
from stoker_recipes.tfa.model import ScaledModel, TfaModel, build_model
from stoker_recipes.tfa.settings import IGNORED, Settings, ignored, map_paths, read_settings

SCORE_NAME, SPEC_NAME, CONFIG_NAME = "score.json", "feature_spec.json", "config.yaml"
RESULTS = (CONFIG_NAME, SPEC_NAME, SCORE_NAME, DATA_NAME)
"""Files of a run beside its bars and those of the trainer."""
MAY_CHANGE = {*IGNORED, *"epochs early_stopping_patience max_training_hours device feature_spec out_dir".split()}
"""Settings that may change when a run is resumed; of the spec the content is compared."""


@dataclass(frozen=True, kw_only=True)
class TrainedTfa:
    """A finished training run."""

    prepared: Prepared
    model: TfaModel  # with its best weights
    result: stoker.train.Result
    score: ModelScore


@contextlib.contextmanager
def using(count: int) -> Iterator[None]:
    """Use `count` threads of torch within the block. The number affects the bits of sums, so it is set and never measured."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def make_model(settings: Settings, *, mean: torch.Tensor, std: torch.Tensor, levels: Any = None) -> TfaModel:
    """The model of the settings, with random weights from their seed."""
    torch.manual_seed(settings.seed)
    options: dict[str, Any] = {"mean": mean, "std": std, "levels": levels, **settings.model_options}
    return build_model(settings.chosen_model, num_features=len(mean), length=settings.length, **options)


def prepare_run(settings: Settings, folder: Path, say: Say = say_nothing) -> Prepared:
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
    say: Say = say_nothing,
) -> TrainedTfa:
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
        prepared = prepare_run(settings, folder, say)
        model = make_model(settings, mean=prepared.scaler.mean, std=prepared.scaler.std, levels=prepared.levels)
        audit.check_model(model, prepared)
        say("model", _describe_model(settings, model))
        say("update", _describe_update(prepared))
        disk.write_file(folder / CONFIG_NAME, to_yaml(_kept(settings, prepared)))
        disk.write_file(folder / SPEC_NAME, json.dumps(prepared.spec, indent=1).encode() + b"\n")
        with using(threads_of(settings) if device == "cpu" else torch.get_num_threads()):
            result = _fit(prepared, model.to(device), folder, device, resume=resume, progress=progress)
            stoker.train.load_trained(model, folder)
            result_score = score(model.cpu(), prepared)
        training = {"best_validation_loss": result.best, "steps": result.step, "epochs": result.epoch, "stopped": result.stopped}
        disk.write_file(folder / SCORE_NAME, json.dumps({**asdict(result_score), **training}, indent=1).encode() + b"\n")
        return TrainedTfa(prepared=prepared, model=model, result=result, score=result_score)


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Lock the folder of a run for this process, from its first file on; the trainer locks it only while it trains."""
    advice = "Give the run its own folder: `out_dir: runs/tfa` in the YAML, or --set out_dir=runs/tfa."
    disk.claim_folder(folder, marker=RECIPE_NAME, sign=b'"recipe": "tfa"', advice=advice)
    disk.make_folder(folder / BARS_NAME)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(disk.Lock(folder / BARS_NAME))
        except StoreLockedError as error:
            process = str(error).partition("process ")[2].partition(".")[0]
            raise TrainError(f"{folder} is in use by process {process}. Wait for it to end, or set another out_dir.") from None
        yield


def _begin(folder: Path, *, overwrite: bool) -> None:
    """Remove the files of an earlier run; one that ended before its first step is replaced without `overwrite`."""
    record = {"recipe": "tfa", "settings": {}}  # these are in config.yaml
    claim_run(folder, record, results=RESULTS, overwrite=overwrite)
    for store in (folder / BARS_NAME).glob("*.stoker"):
        drop_store(store)


def _resumed(settings: Settings, folder: Path) -> Settings:
    """The settings of a run, with those that may change; other changes are errors, before a file of the run is touched."""
    if not (folder / CONFIG_NAME).is_file():
        return settings  # ended before its first step: there is nothing to differ from
    saved = read_settings(folder / CONFIG_NAME)
    differing = []
    for key in sorted(set(Settings.__struct_fields__) - MAY_CHANGE):
        now, then = (msgspec.to_builtins(getattr(map_paths(version, _absolute), key)) for version in (settings, saved))
        if now is None or now == then:
            settings = msgspec.structs.replace(settings, **{key: getattr(saved, key)})
        else:
            differing.append(f"{key}: {'the default' if then is None else then} saved, {now} now")
    if read_spec(settings) != json.loads((folder / SPEC_NAME).read_bytes()):
        differing.append(f"feature_spec: other features than {folder / SPEC_NAME} has")
    if differing:
        raise OptionError(
            f"{folder} is a run with other settings: {'; '.join(differing)}. Make them equal, or start a new run.", path=folder
        )
    return msgspec.structs.replace(settings, feature_spec=str(folder / SPEC_NAME))


def _absolute(path: str) -> str:
    return str(Path(path).absolute())


def threads_of(settings: Settings) -> int:
    """Threads of a step on a CPU. They affect the bits of the weights, so they are set and never measured."""
    return settings.threads or (1 if settings.chosen_model == "banded" else torch.get_num_threads())


def _kept(settings: Settings, prepared: Prepared) -> Settings:
    """The settings that a run saves: with absolute paths and resolved defaults."""
    return msgspec.structs.replace(
        map_paths(settings, _absolute),
        feature_spec=SPEC_NAME,  # the copy beside it
        model=settings.chosen_model,
        threads=threads_of(settings),
        stationary=prepared.levels is not None,
        run=prepared.shape.run,
        grad_accum_steps=settings.batches_per_update,
    )


def _fit(prepared: Prepared, model: TfaModel, folder: Path, device: str, *, resume: bool, progress: bool) -> stoker.train.Result:
    settings, usual = prepared.settings, prepared.settings.usual
    lr, hours = settings.lr or usual.lr, settings.max_training_hours
    weight = None if prepared.pos_weight is None else prepared.pos_weight.to(device)  # a graph cannot bring it there
    trainer = stoker.Trainer(
        model,
        direction_loss(prepared.shape.run, weight),
        torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=settings.weight_decay),
        precision=settings.precision if settings.precision != "auto" else "fp32" if device == "cpu" else "bf16",
        execution=stoker.train.Execution(
            fused=True, graph="auto" if device == "cpu" or int(os.environ.get("WORLD_SIZE") or 1) > 1 else True, compile=False
        ),
        grad_accum_steps=settings.batches_per_update,
        max_grad_norm=settings.gradient_clip_norm,
        schedule=stoker.train.OneCycle() if (settings.schedule or usual.schedule) == "one-cycle" else None,
        early_stopping=stoker.EarlyStopping("val_loss", patience=settings.early_stopping_patience or usual.patience, mode="min"),
        metrics={"auc": stoker.train.AUC()},
        folder=folder,
        checkpoints=stoker.train.Checkpoints(keep=1),
        seed=settings.seed,
        logging=stoker.train.Logging(config=to_tree(_kept(settings, prepared))),
        progress=progress,
    )
    train, valid = prepared.feed("train", device=device), prepared.feed("valid", device=device)
    seconds = hours * 3600 if hours else None
    return trainer.fit(train, valid=valid, epochs=settings.epochs or usual.epochs, max_seconds=seconds, resume=resume)


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
    several = f" in {len(bars.names):,} series" if len(bars.names) > 1 else ""
    labels = np.asarray(prepared.store.column("label"))
    labelled = labels[np.isfinite(labels)]
    up = float(labelled.mean()) if len(labelled) else 0.0
    arithmetic = "sentio's arithmetic" if prepared.spec.get("compat") == "sentio" else "exact"
    lines = [
        ("bars", f"{bars.num_bars:,}{several}, {_span(bars.times)}: {', '.join(dict.fromkeys(bars.sources))}"),
        ("features", f"{len(prepared.names)} ({arithmetic}), ready from bar {prepared.warm_up + 1} of a series on"),
        ("labels", f"{prepared.rule}: {len(labelled) / len(labels):.1%} of rows have one, {up:.1%} of them up"),
    ]
    lines += [("note", sentence) for sentence in ignored(settings)]
    times = np.asarray(prepared.store.column("ts"))
    for part, name in {"train": "train", "valid": "validation", "test": "score"}.items():
        rows = prepared.labelled_rows(part)
        lines.append((name, f"{len(rows):,} rows, {_span(times[rows])}"))
    return lines


def _span(times: Array) -> str:
    return " to ".join(str(np.datetime64(int(time), "ms"))[:16].replace("T", " ") for time in (times.min(), times.max()))


def _describe_model(settings: Settings, model: TfaModel) -> str:
    count = sum(parameter.numel() for parameter in model.parameters())
    kind = {"tfa": "the authors' transformer", "tfa-small": "the authors' smaller transformer", "banded": "each row computed once"}
    said = f"{settings.chosen_model} ({kind[settings.chosen_model]}), {count:,} weights, sees {model.reach} rows"
    if settings.model is None and settings.chosen_model == "tfa":
        said += "; `model: banded` learns the same in a fraction of the time"
    return said


def _describe_update(prepared: Prepared) -> str:
    labels, batches = prepared.batch_size * prepared.shape.run, prepared.settings.batches_per_update
    said = f"{labels:,} labels per batch"
    if batches > 1:
        theirs = "" if prepared.settings.grad_accum_steps else "; theirs, `grad_accum_steps` sets it"
        said += f", {batches} batches ({labels * batches:,} labels) per update{theirs}"
    return said


# ---- baselines ----

MOST_ROWS = 100_000  # rows that a baseline is fitted on: evenly spaced, where there are more
FARTHEST = 10.0  # standard deviations at which a scaled feature is clipped
STEPS_OF_NEWTON, RIDGE = 8, 1.0
SHIFTS = 200


def baseline_scores(prepared: Prepared, model: ScaledModel, rows: Array) -> dict[str, Array]:
    """The logits of each baseline for these rows of the store; for volatility, a score without a scale."""
    features, labels = (np.asarray(prepared.store.column(name)) for name in (FEATURES, LABEL))

    @torch.no_grad()
    def inputs(rows: Array) -> Array:
        """Rows as the model itself sees them, float32."""
        return model.scale(torch.from_numpy(features[rows])).clamp(-FARTHEST, FARTHEST).numpy()

    def labelled(part: str) -> tuple[Array, Array]:
        rows = prepared.labelled_rows(part)
        rows = rows[np.isfinite(labels[rows])]
        rows = rows[:: max(1, -(-len(rows) // MOST_ROWS))]
        return inputs(rows), labels[rows]

    x, y = labelled("train")
    network, weights, seen = _fit_network(x, y, *labelled("valid"), seed=prepared.settings.seed), fit_linear(x, y), inputs(rows)
    with torch.no_grad():
        answers = network(torch.from_numpy(seen)).reshape(-1).numpy().astype(np.float64)
    return {
        "volatility": np.asarray(prepared.store.column(VOLATILITY), dtype=np.float64)[rows],
        "linear": seen.astype(np.float64) @ weights[:-1] + weights[-1],
        "mlp": answers,
    }


def fit_linear(x: Array, y: Array) -> Array:
    """Logistic regression with a ridge penalty by Newton's method; the intercept is the last weight."""
    x = np.concatenate([x.astype(np.float64), np.ones((len(x), 1))], axis=1)
    weights = np.zeros(x.shape[1])
    for _ in range(STEPS_OF_NEWTON):
        chance = 1 / (1 + np.exp(-np.clip(x @ weights, -30, 30)))
        slope = x.T @ (y - chance) - RIDGE * weights
        curve = (x * (chance * (1 - chance))[:, None]).T @ x + RIDGE * np.eye(len(weights))
        weights += np.linalg.solve(curve, slope)
    return weights


def _fit_network(x: Array, y: Array, x_valid: Array, y_valid: Array, *, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(x.shape[1], 64), nn.GELU(), nn.Linear(64, 1))

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        target, valid = batch["y"][:, 0], batch["valid"]
        each = nn.functional.binary_cross_entropy_with_logits(model(batch["x"][:, 0]).reshape(-1), target, reduction="none")
        mean: torch.Tensor = torch.where(valid, each, 0).sum() / valid.sum().clamp(min=1)
        return mean

    def feed(x: Array, y: Array, order: Any) -> stoker.Feed:
        store = stoker.Store.from_arrays(lengths=[len(x)], x=x, y=y.astype(np.float32))
        return stoker.Feed(store, stoker.Windows(1), batch_size=512, order=order)

    trainer = stoker.Trainer(
        network,
        loss,
        torch.optim.AdamW(network.parameters(), lr=2e-3),
        precision="fp32",
        execution=stoker.train.Execution(fused=True, graph=False, compile=False),
        progress=False,
        early_stopping=stoker.EarlyStopping("val_loss", patience=2, mode="min", restore_best=False),
    )
    trainer.fit(feed(x, y, stoker.Shuffle(seed)), valid=feed(x_valid, y_valid, None), epochs=4)
    return network.eval()


def chance_area(scores: Array, labels: Array, *, seed: int = 0) -> float:
    """The 95 % quantile of the AUC with labels that are shifted in time as a whole, which keeps their autocorrelation."""
    shifts = np.random.default_rng(seed).integers(len(labels) // 20, max(len(labels) - len(labels) // 20, 1), SHIFTS)
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    positives = labels > 0.5
    count = int(positives.sum())
    if not 0 < count < len(labels):
        return float("nan")
    sums = np.array([ranks[np.roll(positives, int(shift))].sum() for shift in shifts])
    return float(np.quantile((sums - count * (count + 1) / 2) / (count * (len(labels) - count)), 0.95))


def gain(scores: Array, others: Array, labels: Array, *, chunks: int = 20) -> tuple[float, float]:
    """The difference of two AUCs and its standard error, by a jackknife over parts of time."""

    def difference(rows: Array) -> float:
        return audit.auc(scores[rows], labels[rows]) - audit.auc(others[rows], labels[rows])

    every = np.arange(len(labels))
    differences = np.array([difference(np.setdiff1d(every, part)) for part in np.array_split(every, chunks) if len(part)])
    if len(differences) < 2 or not np.isfinite(differences).all():
        return float("nan"), float("inf")
    error = np.sqrt((len(differences) - 1) * np.mean((differences - differences.mean()) ** 2))
    return difference(every), float(error)


# ---- the score ----

BINS = 10
SURE = 2.0  # standard errors that a gain must have to count
SUSPICIOUS = 0.95
"""From this AUC on, in either direction, a leak is more likely than skill: even the predictable synthetic markets of
benchmarks/tfa/markets.py allow no more than 0.87."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of the table."""

    name: str
    auc: float
    log_loss: float | None
    calibration: float | None  # mean distance of predicted probabilities from observed frequencies, in ten bins


@dataclass(frozen=True, kw_only=True)
class ModelScore:
    """The score of a model and its baselines."""

    labels: int
    up: float  # share of labels that are 1
    lines: tuple[Line, ...]  # the model first
    chance: float  # AUC that chance does not reach in 95 of 100 cases
    gain: float  # in AUC, over the best baseline
    error: float  # standard error of the gain
    skilled: bool  # whether the model is better than all baselines and chance
    verdict: str


@torch.no_grad()
def predict(model: nn.Module, prepared: Prepared, part: str, *, device: str = "cpu") -> Array:
    """The logits of all labelled rows of a part, in the order of `Prepared.labelled_rows`; float64."""
    model.eval()
    parts = []
    for batch in prepared.feed(part, batch_size=max(1, 4096 // prepared.shape.run), device=device):
        logits = model(batch["features"])[:, -prepared.shape.run :]
        parts.append(logits[batch["valid"]].double().cpu().reshape(-1))
    return torch.cat(parts).numpy()


def score(model: Any, prepared: Prepared, *, device: str = "cpu") -> ModelScore:
    """Score a model on the labelled rows of the score block."""
    rows = prepared.labelled_rows("test")
    labels = np.asarray(prepared.store.column(LABEL), dtype=np.float64)[rows]
    known = np.isfinite(labels)
    logits = predict(model, prepared, "test", device=device)[known]
    rows, labels = rows[known], labels[known]
    if prepared.pos_weight is not None:  # the model was trained as if labels 1 were more frequent by this factor
        logits = logits - float(torch.log(prepared.pos_weight))
    baselines = baseline_scores(prepared, model.cpu(), rows)
    lines = [_line("model", logits, labels)] + [_line(name, results, labels) for name, results in baselines.items()]
    best = max(lines[1:], key=lambda line: line.auc)
    chance = chance_area(logits, labels, seed=prepared.settings.seed)
    mean, error = gain(logits, baselines[best.name], labels)
    skilled, verdict = judge(lines[0].auc, chance, best, mean, error)
    results: dict[str, Any] = {"chance": chance, "gain": mean, "error": error, "skilled": skilled, "verdict": verdict}
    return ModelScore(labels=len(labels), up=float(labels.mean()), lines=tuple(lines), **results)


def judge(area: float, chance: float, best: Line, mean: float, error: float) -> tuple[bool, str]:
    """Whether a model shows skill, and the verdict in words."""
    simpler = NAMES[best.name]
    named = {"the model": area, simpler: best.auc}
    sharpest = max(named, key=lambda name: abs(named[name] - 0.5))
    if abs(named[sharpest] - 0.5) >= SUSPICIOUS - 0.5:
        return False, (
            f"SUSPICIOUS: {sharpest} has an AUC of {named[sharpest]:.3f} on held-out rows, which no market allows. Check the "
            "features for leaks of the future: a column with the next close, bars shifted in time. Do not use this model."
        )
    if not area > chance:
        within = f"within chance (up to {chance:.3f} with labels shifted in time)"
        return False, f"NO SKILL: an AUC of {area:.3f} is {within}. Do not use this model."
    if not mean > SURE * error:
        return False, (
            f"NO BETTER than {simpler} (AUC {area:.3f} against {best.auc:.3f}, gain {mean:+.3f} ± {error:.3f}): "
            f"the rows before the last one did not help. Use the simpler model, or none."
        )
    return True, (
        f"better than every baseline: AUC {area:.3f} against {best.auc:.3f} of {simpler} "
        f"(gain {mean:+.3f} ± {error:.3f}; chance is below {chance:.3f})."
    )


NAMES = {
    "model": "the model",
    "volatility": "trailing volatility",
    "linear": "a linear model of the last row",
    "mlp": "a small network on the last row",
}  # the lines of the table in words


def _line(name: str, logits: Array, labels: Array) -> Line:
    area = audit.auc(logits, labels)
    if name == "volatility":
        return Line(name=name, auc=area, log_loss=None, calibration=None)
    return Line(name=name, auc=area, log_loss=_log_loss(logits, labels), calibration=_calibration(logits, labels))


def _log_loss(logits: Array, labels: Array) -> float:
    return float(np.mean(np.logaddexp(0, logits) - labels * logits))


def _calibration(logits: Array, labels: Array) -> float:
    chances = 1 / (1 + np.exp(-np.clip(logits, -500, 500)))
    parts = np.array_split(np.argsort(chances, kind="stable"), BINS)
    return float(sum(len(part) * abs(chances[part].mean() - labels[part].mean()) for part in parts if len(part)) / len(labels))
