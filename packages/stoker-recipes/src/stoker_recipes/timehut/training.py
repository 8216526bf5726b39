"""Training: from a file of series to the folder of a run with an encoder, its representations and its score.

recipe.json          the data and all settings; marks the folder as one of this recipe
run.json, metrics.jsonl, checkpoints/      as every run of `stoker.Trainer` has them: it resumes exactly, and a NaN stops it
encoder.safetensors  the averaged weights of the whole encoder, in the names of TS2Vec's checkpoints
train.npz            representations and labels of the training series, from which classifiers are fitted
score.json           accuracies on the test series
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

import stoker
from stoker.extend import Array, check_device, disk
from stoker_recipes.run_folder import Say, check_same, claim_run, read_recipe, say_nothing
from stoker_recipes.timehut.batches import updates_per_epoch
from stoker_recipes.timehut.data import GlobalScaler, LabelledSeries, fit_scaler, for_training, read_series
from stoker_recipes.timehut.evaluation import CLASSIFIERS, accuracy
from stoker_recipes.timehut.model import make_layout, to_tensors
from stoker_recipes.timehut.population import EncoderPopulation, make_population, targets_of
from stoker_recipes.timehut.predicting import ENCODER_NAME, SCORE_NAME, TRAIN_NAME, TrainedEncoder, check_record
from stoker_recipes.timehut.settings import EncoderSettings, make_settings

RESULTS = (ENCODER_NAME, TRAIN_NAME, SCORE_NAME)
PASSES = 10
"""Checkpoints of a run."""


@dataclass(frozen=True, kw_only=True)
class TrainedTimeHut:
    """A finished run."""

    encoder: TrainedEncoder
    result: stoker.train.Result
    scores: dict[str, float]
    """Accuracies by classifier; empty without test series or labels."""
    majority: float | None
    """The share of the most frequent class among the test series: what an accuracy has to beat."""
    cpu_seconds: float
    """CPU time of training and scoring."""


class CropBatches:
    """The batches of a population for `stoker.Trainer`; a pass is a part of the updates."""

    def __init__(self, population: EncoderPopulation, *, per_pass: int) -> None:
        self._population, self._per_pass, self._total = population, per_pass, population.num_updates
        self._next = 0

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        end = min(self._total, (self._next // self._per_pass + 1) * self._per_pass)
        tables = self._population.tables
        while self._next < end:
            update, self._next = self._next, self._next + 1
            if tables.data.device.type == "cuda":  # one shape for all updates, which a graph needs
                yield self._population.batch_on_gpu(torch.tensor([update], device=tables.data.device))
            else:
                yield self._population.batch(update)

    def __len__(self) -> int:
        return min(self._per_pass, self._total)

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be this one."""
        self._next = epoch * self._per_pass

    def state_dict(self) -> dict[str, int]:
        """The number of the next update."""
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue with this update."""
        self._next = state["next"]

    def state_after(self, state: dict[str, int], batches: int) -> dict[str, int]:
        """The state after this number of further batches."""
        return {"next": state["next"] + batches}

    def identity(self) -> dict[str, Any]:
        """What the batches depend on."""
        settings, tables = self._population.settings[0], self._population.tables
        return {
            "seed": settings.seed,
            "batch_size": settings.batch_size,
            "updates": self._total,
            "data": [tables.data, tables.rows[:1]],
        }


def train(
    data: str | Path,
    *,
    test: str | Path | None = None,
    folder: str | Path,
    method: str = "timehut",
    normalize: str = "auto",
    device: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = False,
    say: Say = say_nothing,
    **options: Any,
) -> TrainedTimeHut:
    """Train an encoder on the series of a file.

    Args:
        data: Training series: `.tsv` (UCR), `.ts` or `.arff` (UEA), or a store. Labels are not used for training.
        test: Test series; with labels, the run gets a score.
        folder: Folder of the run.
        method: "timehut", "ts2vec" or "softclt".
        normalize: "auto" scales by the mean and deviation of all training series unless each is z-normalised; "global", "none".
        device: Default: a GPU if there is one.
        resume: Continue the run in `folder`.
        overwrite: Replace the run in `folder`.
        progress: Show a progress bar.
        say: Called with a word and a sentence for each thing to report.
        **options: Fields of `EncoderSettings`, such as `epochs`, `seed` or `amc_margin`.

    Returns:
        The encoder and its scores.

    Raises:
        OptionError: An option is invalid, or the folder holds something else.
        SourceError: A file cannot be read.
        NonFiniteError: The loss became NaN.
    """
    settings = make_settings(method, **options)
    folder, begin = Path(folder), time.process_time()
    where = check_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    paths = {name: None if path is None else str(Path(path).absolute()) for name, path in (("data", data), ("test", test))}
    known = {**paths, "normalize": normalize}
    series = read_series(data)
    held_out = None if test is None else read_series(test)
    record = {"recipe": "timehut", **known, "settings": asdict(settings)}
    if resume:
        check_same(folder, record, check=check_record)
    else:
        claim_run(folder, record, results=RESULTS, overwrite=overwrite)
    scaler = fit_scaler(series.values, normalize=normalize)
    for word, sentence in describe(series, held_out, scaler):
        say(word, sentence)
    scaled = series.values if scaler is None else scaler(series.values)
    population = new_population(for_training(scaled, max_length=settings.max_train_length), settings, device=where)
    say("encoder", _describe_encoder(population))
    population.prepare(precision="tf32")
    per_pass = -(-population.num_updates // PASSES)
    trainer = stoker.Trainer(
        population,
        lambda model, batch: model(batch).sum(),
        population.optimizer,
        precision="fp32" if where.type == "cpu" else "tf32",
        execution=stoker.train.Execution(graph="auto" if where.type == "cpu" else True, compile=False),
        folder=folder,
        checkpoints=stoker.train.Checkpoints(every=per_pass),
        logging=stoker.train.Logging(every=max(1, per_pass // 2), config={**known, **asdict(settings)}),
        seed=settings.seed,
        progress=progress,
    )
    result = trainer.fit(CropBatches(population, per_pass=per_pass), epochs=-(-population.num_updates // per_pass), resume=resume)
    encoder = TrainedEncoder(
        row=population.average_whole()[0],
        channels=series.values.shape[2],
        settings=settings,
        scaler=scaler,
        length=series.values.shape[1],
        updates=population.updates,
    )
    scores, majority = _finish(folder, encoder, series, held_out)
    used = time.process_time() - begin
    return TrainedTimeHut(encoder=encoder, result=result, scores=scores, majority=majority, cpu_seconds=used)


def new_population(values: Array, settings: EncoderSettings, **options: Any) -> EncoderPopulation:
    """The population of one member for training series, with SoftCLT's targets where it needs them."""
    return make_population(values, [settings], targets=[targets_of(values, settings)], **options)


def describe(series: LabelledSeries, test: LabelledSeries | None, scaler: GlobalScaler | None) -> list[tuple[str, str]]:
    """A description of the data, as words and sentences."""
    num, steps, channels = series.values.shape
    missing = np.isnan(series.values).any(-1).mean()
    lines = [("series", f"{num:,} of {steps:,} steps and {channels} channel{'s' * (channels > 1)}: {series.name}")]
    if missing:
        lines.append(("missing", f"{missing:.1%} of steps, from shorter series or NaN; they are masked"))
    if test is not None:
        lines.append(("test", f"{len(test.values):,} series" + ("" if test.labels is not None else ", without labels: no score")))
    if series.labels is not None:
        classes, counts = np.unique(series.labels, return_counts=True)
        sizes = f"{counts.min():,} to {counts.max():,} training series each"
        lines.append(("classes", f"{len(classes)}, {sizes}; not used for training"))
    off = "not needed: every series is z-normalised, or off"
    lines.append(("scaling", off if scaler is None else "by mean and deviation of all training series"))
    return lines


def _describe_encoder(population: EncoderPopulation) -> str:
    whole, count = make_layout(population.layout.size).num_values, population.layout.num_values
    per_epoch = updates_per_epoch(len(population.tables.data), population.settings[0].batch_size)
    dropped = f", {whole - count:,} of {whole:,} weights left out: their taps reach beyond {population.tables.length} steps"
    epochs = f"{population.num_updates:,} updates ({population.num_updates / per_epoch:,.4g} epochs of {per_epoch:,})"
    return f"{count:,} weights{dropped if whole > count else ''}; {epochs}"


def resume(folder: str | Path, **common: Any) -> TrainedTimeHut:
    """Continue the run of a folder, with its own data and settings."""
    record = read_recipe(Path(folder), "timehut", check=check_record)
    settings = dict(record["settings"])
    return train(
        record["data"], test=record["test"], folder=folder, normalize=record["normalize"], resume=True, **settings, **common
    )


def _finish(
    folder: Path, encoder: TrainedEncoder, series: LabelledSeries, test: LabelledSeries | None
) -> tuple[dict[str, float], float | None]:
    """Write the encoder and its representations, and score it where there are labels."""
    scaler = encoder.scaler
    scale = json.dumps(None if scaler is None else asdict(scaler))
    facts = {"length": str(encoder.length), "updates": str(encoder.updates), "scaler": scale}
    disk.write_file(folder / ENCODER_NAME, save(to_tensors(encoder.row, encoder.settings.size(encoder.channels)), facts))
    embeddings = encoder(series.values)
    saved: dict[str, Any] = {"embeddings": embeddings} | ({} if series.labels is None else {"labels": series.labels})
    disk.write_file(folder / TRAIN_NAME, disk.npy_bytes(saved))
    scores: dict[str, float] = {}
    majority = None
    if test is not None and test.labels is not None and series.labels is not None:
        representations, labels = encoder(test.values), test.labels
        majority = float(np.unique(labels, return_counts=True)[1].max() / len(labels))
        for name in CLASSIFIERS:
            sets = embeddings, series.labels, representations, labels
            scores[name] = accuracy(*sets, classifier=name, method=encoder.settings.method)
        record = {"test_series": len(labels), "majority": majority, "accuracy": scores}
        disk.write_file(folder / SCORE_NAME, json.dumps(record, indent=1).encode() + b"\n")
    return scores, majority
