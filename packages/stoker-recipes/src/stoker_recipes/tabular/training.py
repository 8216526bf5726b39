"""Training: from tables to the folder of a run with a model that generates.

recipe.json          the tables and all settings; marks the folder as one of this recipe
columns.json         columns, their types and encodings
run.json, metrics.jsonl, checkpoints/      as every run of `stoker.Trainer` has them: it resumes exactly, and a NaN stops it
model.safetensors    the best weights, in the names of TabularARGN
privacy.json         of differentially private training: what it has cost
context/             a run of the same kind for the contexts, where there are some: new subjects need new contexts
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

import stoker
from stoker.errors import CheckpointError, ConfigError, OptionError
from stoker.extend import Array, check_device, disk
from stoker_recipes.run_folder import RECIPE_NAME, check_same, claim_run, read_recipe
from stoker_recipes.tabular import refinement
from stoker_recipes.tabular.batches import EncodedSubjects, SubjectBatches, SubjectLoss, mean_events
from stoker_recipes.tabular.data import ModelSpec, PreparedSubjects, Say, prepare
from stoker_recipes.tabular.files import are_files, read_table
from stoker_recipes.tabular.layout import ModelLayout
from stoker_recipes.tabular.model import TabularModel, set_frequencies, set_order
from stoker_recipes.tabular.privacy import PrivateLoss, epsilon_of, most_epochs
from stoker_recipes.tabular.settings import TabularSettings, make_settings

COLUMNS_NAME, MODEL_NAME, CONTEXT_NAME, PRIVACY_NAME = "columns.json", "model.safetensors", "context", "privacy.json"
RESULTS = (COLUMNS_NAME, MODEL_NAME, CONTEXT_NAME, PRIVACY_NAME)
WEIGHT_DECAY, LARGE_WEIGHT_DECAY = 0.3, 0.1
"""Of tables of up to `refinement.MOST_REPEATED` subjects, and of larger ones. Some sub-columns cannot be predicted. With the 0.01 of
PyTorch their heads learn the training subjects by heart within three epochs; the sum of all validation losses rises, and training stops
before the others have learned. The fewer subjects there are, the sooner it happens."""
TABLE_ORDER = 0.5
"""The share of batches in which columns have the order of the table; the others draw it."""
LEAST_GAIN = 0.001
"""The validation loss per sub-column, in nats, that an epoch over single rows must gain to count as progress. Sequences learn slowly."""
EMA = 0.99
"""The EMA of the weights is validated and kept."""


def _silent(word: str, sentence: str) -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class TrainedTabular:
    """A finished run."""

    spec: ModelSpec
    model: TabularModel
    context: TrainedTabular | None
    """The model of contexts."""
    result: stoker.train.Result | None
    """How training ended; None for a model that was loaded."""
    epsilon: float | None = None
    """What differentially private training has cost, that of contexts included; None for other training."""


class Plateau:
    """The learning rate halves when the validation loss has not improved for three epochs, down to a tenth.

    It is a function of the validation losses so far, which metrics.jsonl holds: so a resumed run has the same rates.
    """

    def __init__(self) -> None:
        self.best, self.waited, self.factor = math.inf, 0, 1.0

    def add(self, loss: float) -> None:
        """Take the validation loss of an epoch."""
        if loss < self.best * (1 - 1e-4):
            self.best, self.waited = loss, 0
            return
        self.waited += 1
        if self.waited > 2:
            self.factor, self.waited = max(0.1, self.factor / 2), 0

    def on_epoch_end(self, report: stoker.train.CallbackReport) -> None:
        """Called by the trainer."""
        self.add(report.metrics["val_loss"])

    def read(self, path: Path) -> None:
        """Take the losses of a run that is resumed."""
        for line in path.read_bytes().splitlines() if path.is_file() else []:
            try:
                entry = json.loads(line)
            except ValueError:  # a torn last line
                continue
            if "val_loss" in entry:
                self.add(float(entry["val_loss"]))


def default_batch_size(num_subjects: int, num_weights: int, points: float) -> int:
    """A power of two, about 1/64 of the subjects, smaller for large models and for many codes per subject (`points`)."""
    limits = ((8, 1e9, 1e5), (32, 1e8, 1e4), (128, 1e7, 1e3), (512, 1e6, 1e2))
    most = next((limit for limit, weights, codes in limits if num_weights > weights or points > codes), 2048)
    return int(min(most, max(8, 2 ** int(math.log2(max(1, num_subjects / 64))))))


def split_subjects(count: int, settings: TabularSettings) -> tuple[Array, Array]:
    """Subjects to train and to validate with."""
    order = np.random.default_rng([settings.seed, 3]).permutation(count)
    held_out = min(count - 1, max(1, round(settings.valid_share * count)))
    return order[held_out:], order[:held_out]


def train(
    events: Any,
    *,
    folder: str | Path,
    key: str | None = None,
    context: Any = None,
    context_key: str | None = None,
    encodings: Mapping[str, str] | None = None,
    device: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = False,
    say: Say = _silent,
    **options: Any,
) -> TrainedTabular:
    """Learn a table of events, or of single rows.

    Args:
        events: Files that `stoker.pack` reads (a path, a folder, a pattern, or a list of them), or a frame of pandas, Polars or Arrow.
            Events of a subject are in order, also over several files.
        folder: Folder of the run.
        key: The column that names the subject; without it every row is one.
        context: Facts of the subjects, one row each.
        context_key: The key of the contexts. Default: `key`.
        encodings: Kinds of columns that are not to be chosen automatically, such as {"place": "lat_long"}.
        device: Default: a GPU if there is one.
        resume: Continue the run in `folder`.
        overwrite: Replace the run in `folder`.
        progress: Show a progress bar.
        say: Called with a word and a sentence for each thing to report.
        **options: Fields of `TabularSettings`, such as `size`, `epochs` or `seed`.

    Returns:
        The model with its best weights.

    Raises:
        OptionError: An option is invalid, or the folder holds something else.
        SourceError: A table cannot be used.
        NonFiniteError: The loss became NaN.
    """
    settings = make_settings(**options)
    folder = Path(folder)
    where = check_device(device or ("cuda" if torch.cuda.is_available() and settings.noise is None else "cpu"))
    if settings.noise is not None and where.type != "cpu":
        raise OptionError(f"device is {device!r}, but training with noise runs on the CPU only. Leave device out, or noise.")
    prepared = prepare(events, key=key, context=context, context_key=context_key, encodings=encodings, settings=settings, say=say)
    record: dict[str, Any] = {
        "recipe": "tabular",
        "target": _named(events),
        "key": key,
        "context": _named(context),
        "context_key": context_key,
        "encodings": dict(encodings or {}),
        "settings": asdict(settings),
    }
    if resume:
        check_same(folder, record, check=check_record)
    else:
        claim_run(folder, record, results=RESULTS, overwrite=overwrite)
    disk.write_file(folder / COLUMNS_NAME, msgspec.json.encode(prepared.spec))
    for word, sentence in describe(prepared):
        say(word, sentence)
    inner = None
    if prepared.spec.context is not None:
        say("model", "of contexts first, then of events")
        inner = _train_context(
            context, context_key or key, folder / CONTEXT_NAME, encodings, where, resume=resume, progress=progress, options=options
        )
    model, result = _fit(prepared, settings, folder, where, resume=resume, progress=progress, say=say)
    disk.write_file(folder / MODEL_NAME, save({name: weight.cpu() for name, weight in model.upstream_weights().items()}))
    epsilon = _epsilon(settings, model, prepared, result, inner, say)
    if epsilon is not None:
        privacy = {"epsilon": epsilon, "delta": settings.delta, "noise": settings.noise, "updates": result.step}
        disk.write_file(folder / PRIVACY_NAME, json.dumps(privacy).encode())
    return TrainedTabular(spec=prepared.spec, model=model, context=inner, result=result, epsilon=epsilon)


def _epsilon(
    settings: TabularSettings, model: TabularModel, prepared: PreparedSubjects, result: stoker.train.Result,
    context: TrainedTabular | None, say: Say,
) -> float | None:  # fmt: skip
    """What training has cost; both models see every subject, so their costs add up."""
    if settings.noise is None:
        return None
    count = len(split_subjects(len(prepared.starts), settings)[0])
    rate = _batch_size(settings, count, model, prepared) / count
    cost = epsilon_of(updates=result.step, rate=rate, noise=settings.noise, delta=settings.delta)
    total = cost + (context.epsilon or 0.0 if context is not None else 0.0)
    say("privacy", f"epsilon {total:.2f} with delta {settings.delta:g}, for the weights alone")
    return total


def _batch_size(settings: TabularSettings, count: int, model: TabularModel, prepared: PreparedSubjects) -> int:
    num_weights = sum(parameter.numel() for parameter in model.parameters())
    points = mean_events(prepared.lengths, settings.window) * len(model.layout.subs) + len(model.layout.context)
    return min(settings.batch_size or default_batch_size(count, num_weights, points), count)


def _named(source: Any) -> str | list[str] | None:
    """The files that a table comes from; frames have none."""
    if isinstance(source, str | Path):
        return str(Path(source).absolute())
    return [str(Path(path).absolute()) for path in source] if are_files(source) else None


def _train_context(
    context: Any, key: str | None, folder: Path, encodings: Mapping[str, str] | None, where: torch.device, *, resume: bool,
    progress: bool, options: Mapping[str, Any],
) -> TrainedTabular:  # fmt: skip
    """Learn the contexts, as a table of single rows."""
    if resume and (folder / MODEL_NAME).is_file():
        return load_model(folder, device=str(where))
    table = read_table(context, "context")[0].drop_columns([key] if key is not None else [])
    of_context = {name: kind for name, kind in (encodings or {}).items() if name in table.column_names}
    again = resume and (folder / RECIPE_NAME).is_file()
    return train(table, folder=folder, encodings=of_context, device=str(where), resume=again, progress=progress, **options)


def _fit(
    prepared: PreparedSubjects,
    settings: TabularSettings,
    folder: Path,
    where: torch.device,
    *,
    resume: bool,
    progress: bool,
    say: Say,
) -> tuple[TabularModel, stoker.train.Result]:
    spec = prepared.spec
    layout = spec.layout()
    model = TabularModel(layout, seed=settings.seed)
    known, held_out = split_subjects(len(prepared.starts), settings)
    is_private, is_small = settings.noise is not None, len(prepared.starts) <= refinement.MOST_REPEATED
    set_order(model, spec.ordered())
    if not is_private:  # which are exact counts
        set_frequencies(model, count_classes(prepared, model.layout, known))
    model.to(where)
    data = EncodedSubjects.of(prepared.codes, prepared.starts, prepared.lengths, prepared.context, where)
    per_subject = mean_events(prepared.lengths, settings.window)
    batch_size = _batch_size(settings, len(known), model, prepared)
    lr = settings.lr or min(0.008, round(0.004 * math.sqrt(batch_size / 32), 5))
    say(
        "model",
        f"{sum(parameter.numel() for parameter in model.parameters()):,} weights; batches of {batch_size:,} subjects, learning rate {lr:g}",
    )
    common: dict[str, Any] = {
        "lengths": prepared.lengths,
        "batch_size": batch_size,
        "window": settings.window,
        "table_order": TABLE_ORDER,
    }
    batches = SubjectBatches(data, model.layout, known, seed=settings.seed, is_drawn=is_private, **common)
    valid = SubjectBatches(data, model.layout, held_out, seed=settings.seed + 1, is_fixed=True, **common)
    whole, epochs = SubjectLoss(model, data, per_subject), settings.epochs
    if settings.noise is not None:
        whole = PrivateLoss(
            model, data, per_subject, batch_size=batch_size, norm=settings.max_grad_norm or 1.0, noise=settings.noise
        )  # fmt: skip
        options = {"rate": batch_size / len(known), "noise": settings.noise, "delta": settings.delta}
        epochs = most_epochs(epochs, per_epoch=len(batches), max_epsilon=settings.max_epsilon, **options)
        if not epochs:
            cost = epsilon_of(updates=len(batches), **options)
            raise OptionError(
                f"max_epsilon is {settings.max_epsilon:g}, but one epoch costs {cost:.3g}. Raise max_epsilon or noise, or lower batch_size."
            )
    plateau = Plateau()
    if resume and not is_private:
        plateau.read(folder / "metrics.jsonl")
    on_gpu = where.type == "cuda"
    trainer = stoker.Trainer(
        whole,
        lambda model, batch: model(batch),
        torch.optim.AdamW(_decayed(whole), lr=lr, weight_decay=WEIGHT_DECAY if is_small else LARGE_WEIGHT_DECAY),
        precision="tf32" if on_gpu else "fp32",
        # The dropout between the layers of "l" may not be captured.
        execution=stoker.train.Execution(
            fused=True, compile=False, graph=False if is_private else True if on_gpu and settings.size != "l" else "auto"
        ),
        max_grad_norm=None if is_private else settings.max_grad_norm,
        ema=EMA,
        schedule=lambda step, total: plateau.factor,
        # With privacy neither the rate nor the end of training may depend on exact losses.
        early_stopping=None
        if is_private
        else stoker.EarlyStopping(
            "val_loss",
            patience=settings.patience,
            mode="min",
            min_delta=0.0 if layout.is_sequence else LEAST_GAIN * len(layout.subs),
        ),
        callbacks=[] if is_private else [plateau],
        folder=folder,
        checkpoints=stoker.train.Checkpoints(keep=1),
        seed=settings.seed,
        logging=stoker.train.Logging(config=asdict(settings)),
        progress=progress,
    )
    seconds, held_back = settings.max_seconds, None if is_private else valid
    result = trainer.fit(batches, valid=held_back, epochs=epochs, max_seconds=seconds, resume=resume)
    if not any((folder / "checkpoints").glob("step-*")):  # the trainer has said why, and goes on where another one may follow
        raise CheckpointError(
            f"{folder} has no checkpoint, as none could be written; so there is no model. Free some space, and train again with "
            f"overwrite=True."
        )
    stoker.train.load_trained(whole, folder, latest=is_private)
    if not is_private and result.stopped in ("finished", "early"):
        _refine(prepared, settings, model, data, common, (known, held_out), say)
    return model, result


def _refine(
    prepared: PreparedSubjects, settings: TabularSettings, model: TabularModel, data: EncodedSubjects, common: dict[str, Any],
    split: tuple[Array, Array], say: Say,
) -> None:  # fmt: skip
    """Train the layers of heads on; see `refinement`."""
    known, held_out = split
    everyone, per_subject = np.concatenate(split), mean_events(prepared.lengths, settings.window)
    size = min(len(known), refinement.refining_batch_size(model, common["batch_size"], per_subject))
    many = common | {"batch_size": size, "table_order": refinement.TABLE_ORDER}
    heads = sum(len(bias) for bias in model.out_biases)
    epochs = refinement.refining_epochs(model, len(known), per_subject)
    if not epochs:
        say("heads", f"{heads} stay as they are: the columns have too many classes to refine them")
        return
    is_small, ordered = len(everyone) <= refinement.MOST_REPEATED, prepared.spec.ordered()
    again = SubjectBatches(data, model.layout, everyone, seed=settings.seed + 2, **many)
    better, gain = refinement.refine_heads(
        model,
        data,
        SubjectBatches(data, model.layout, known, seed=settings.seed + 2, **many),
        SubjectBatches(data, model.layout, held_out, seed=settings.seed + 1, is_fixed=True, **many),
        per_subject,
        ordered=ordered,
        all_batches=again if is_small else None,
        with_first=is_small,
        epochs=epochs,
    )
    say("heads", f"{better} of {heads} are better without dropout: the validation loss is {gain:.3f} lower")
    if is_small and data.context is not None and model.layout.is_sequence:
        before, after = refinement.calibrate_lengths(model, data, ordered=ordered)
        say("lengths", f"their means by context were up to {before:.2f} deviations off, and are {after:.2f}")


def _decayed(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Weights in two groups. Biases do not decay, since those of last layers hold the frequencies of classes; nor does what encodes the
    context: decay would draw the lengths and events of all contexts towards their mean."""
    is_free = {name: "bias" in name or "context" in name for name, _ in model.named_parameters()}
    decayed, free = ([weight for name, weight in model.named_parameters() if is_free[name] == which] for which in (False, True))
    return [{"params": decayed}, {"params": free, "weight_decay": 0.0}]


def count_classes(prepared: PreparedSubjects, layout: ModelLayout, subjects: Array) -> dict[int, Array]:
    """How often each class of each sub-column occurs, of subjects; of lengths once per subject."""
    lengths, first = prepared.lengths[subjects], prepared.starts[subjects]
    rows = np.repeat(first - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
    is_first = np.zeros(len(rows), bool)
    is_first[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
    counts = {}
    for number, sub in enumerate(layout.subs):
        if sub.position:
            place = sub.name.rpartition("_")[2]
            codes = lengths if place == "cat" else lengths // 10 ** int(place[1:]) % 10
        else:
            chosen = rows if not sub.moment else rows[is_first] if sub.moment == "first" else rows[~is_first]
            codes = prepared.codes[chosen, number - layout.num_positions]
        counts[number] = np.bincount(codes, minlength=sub.num_classes)
    return counts


def describe(prepared: PreparedSubjects) -> list[tuple[str, str]]:
    """A description of the data, as words and sentences."""
    spec, lengths = prepared.spec, prepared.lengths
    lines = []
    if spec.max_length is None:
        lines.append(("rows", f"{len(lengths):,}"))
    else:
        mean = f"{lengths.mean():,.1f} on average, at most {spec.max_length:,}"
        lines.append(("subjects", f"{len(lengths):,} with {int(lengths.sum()):,} events, {mean}"))
    for name, table in (("columns", spec.target), ("context", spec.context)):
        if table is not None:
            kinds = ", ".join(f"{column.name} ({column.encoding.__struct_config__.tag})" for column in table.columns)
            lines.append((name, kinds))
    return lines


class TabularRecord(TypedDict):
    """The content of recipe.json. Tables that were frames are None."""

    recipe: str
    target: str | list[str] | None
    key: str | None
    context: str | list[str] | None
    context_key: str | None
    encodings: dict[str, str]
    settings: dict[str, Any]


def check_record(record: dict[str, Any]) -> None:
    """Check the record of a run: its fields, and its settings."""
    make_settings(**msgspec.convert(record, TabularRecord)["settings"])


def resume(folder: str | Path, **common: Any) -> TrainedTabular:
    """Continue the run of a folder, with its own tables and settings."""
    recipe = read_recipe(Path(folder), "tabular", check=check_record)
    if recipe["target"] is None:
        raise OptionError(f"{folder} was trained on a frame, not on a file. Resume it in Python: fit(…, folder=…, resume=True).")
    tables: dict[str, Any] = {name: recipe[name] for name in ("key", "context", "context_key", "encodings")}
    return train(recipe["target"], folder=folder, resume=True, **tables, **recipe["settings"], **common)


def load_model(folder: str | Path, *, device: str | None = None) -> TrainedTabular:
    """The model of a finished run.

    Args:
        folder: Folder of the run.
        device: Default: a GPU if there is one.

    Raises:
        OptionError: It is not a run of this recipe, or has not finished.
        ConfigError: A file of it is damaged.
    """
    folder = Path(folder)
    read_recipe(folder, "tabular", check=check_record)
    if not (folder / MODEL_NAME).is_file():
        raise OptionError(f"{folder} has no {MODEL_NAME}: its training has not finished. Resume it: stoker train --resume {folder}")
    try:
        spec = msgspec.json.decode((folder / COLUMNS_NAME).read_bytes(), type=ModelSpec)
        model = TabularModel(spec.layout())
        model.load_upstream(load((folder / MODEL_NAME).read_bytes()))
    except (msgspec.DecodeError, SafetensorError, OptionError, FileNotFoundError) as error:
        raise ConfigError(f"{folder} is damaged: {error}") from error
    inner = load_model(folder / CONTEXT_NAME, device=device) if spec.context is not None else None
    model.to(check_device(device or ("cuda" if torch.cuda.is_available() else "cpu")))
    cost = folder / PRIVACY_NAME
    epsilon = float(json.loads(cost.read_bytes())["epsilon"]) if cost.is_file() else None
    return TrainedTabular(spec=spec, model=model, context=inner, result=None, epsilon=epsilon)
