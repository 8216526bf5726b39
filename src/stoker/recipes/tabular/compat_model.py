"""The model of a workspace of mostlyai-engine: trained here, or there.

    model-weights.pt         the weights, in its names; what nothing reads is zero
    model-configs.json       size, widths, and whether columns may come in any order
    progress-messages.csv    one line per epoch
    stoker-run/              the run of `stoker.Trainer`, with which RESUME continues exactly

The settings are those of mostlyai-engine. The loss is a mean over events, so it does not depend on the batch size, as it does there.
"""

from __future__ import annotations

import base64
import csv
import io
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import psutil
import pyarrow as pa
import torch

import stoker
from stoker import _clock, _disk
from stoker._text import check_device
from stoker._types import Array
from stoker.errors import ConfigError, OptionError
from stoker.recipes.tabular import training
from stoker.recipes.tabular.batches import EncodedSubjects, SubjectBatches, SubjectLoss, mean_events
from stoker.recipes.tabular.compat_encodings import encoding_of
from stoker.recipes.tabular.compat_workspace import (
    Role,
    Workspace,
    column_names,
    read_parquet,
    value_type,
    values_of,
    write_json,
)
from stoker.recipes.tabular.encodings import Categorical
from stoker.recipes.tabular.layout import ModelLayout, Size, hidden_widths, make_layout
from stoker.recipes.tabular.model import TabularModel, set_frequencies
from stoker.recipes.tabular.subjects import ModelSpec, PreparedSubjects
from stoker.recipes.tabular.tables import ColumnSpec, TableSpec
from stoker.recipes.tabular.training import Plateau, TrainedTabular, count_classes

SIZES: dict[str, Size] = {"MOSTLY_AI/Small": "s", "MOSTLY_AI/Medium": "m", "MOSTLY_AI/Large": "l"}
WEIGHTS_NAME, CONFIG_NAME, PROGRESS_NAME, RUN_NAME = "model-weights.pt", "model-configs.json", "progress-messages.csv", "stoker-run"
PATIENCE = 5
MESSAGE = {"epoch": 2, "is_checkpoint": 0, "steps": 0, "samples": 0, "trn_loss": 4, "val_loss": 4, "total_time": 1, "learn_rate": 6}
"""The fields of a message, and their decimal places."""
Stats = dict[Role, dict[str, Any]]


# ---- statistics -> layout, spec ----


def _known(stats: Mapping[str, Any] | None) -> dict[str, Any]:
    """The columns that have values."""
    return {name: one for name, one in (stats or {"columns": {}})["columns"].items() if "cardinalities" in one}


def layout_of(stats: Stats, size: Size) -> ModelLayout:
    """The layout of the model of these statistics."""
    target, context = _known(stats["tgt"]), _known(stats.get("ctx"))
    lists = [name for name, one in context.items() if one["argn_processor"] != "ctxflt"]
    if lists:
        raise OptionError(f"the context has lists in {', '.join(map(repr, lists))}, which are not supported.")
    is_sequence = stats["tgt"]["is_sequential"]
    return make_layout(
        [one["cardinalities"] for one in target.values()],
        context=[one["cardinalities"] for one in context.values()],
        max_length=stats["tgt"]["seq_len"]["max"] if is_sequence else None,
        median_length=stats["tgt"]["seq_len"]["median"] if is_sequence else 1,
        size=size,
        names=[f"{one['argn_table']}/{one['argn_column']}" for one in target.values()],
        context_names=[f"{one['argn_table']}/{one['argn_column']}" for one in context.values()],
    )


def spec_of(stats: Stats, size: Size, *, rare: bool = True, any_order: bool = True) -> ModelSpec:
    """What the model was made for; without `rare` no rare category is generated."""
    target, lengths = stats["tgt"], stats["tgt"]["seq_len"]
    is_sequence = target["is_sequential"]
    context = _known(stats.get("ctx"))
    return ModelSpec(
        target=_table_spec(_known(target), rare=rare),
        context=_table_spec(context, rare=True) if context else None,
        key=target["keys"].get("context_key"),
        has_number_keys=True,
        frame="arrow",
        size=size,
        max_length=lengths["max"] if is_sequence else None,
        min_length=lengths["min"] if is_sequence else 1,
        median_length=float(lengths["median"]) if is_sequence else 1.0,
        num_subjects=target["no_of_training_records"] + target["no_of_validation_records"],
        any_order=any_order,
    )


def _table_spec(entries: Mapping[str, Any], *, rare: bool) -> TableSpec:
    columns = []
    for name, entry in entries.items():
        found = encoding_of(entry)
        if isinstance(found, Categorical) and not rare:
            found = Categorical(values=found.values, has_null=found.has_null, has_rare=False)
        columns.append(ColumnSpec(name=name, encoding=found))
    schema = pa.schema([pa.field(name, value_type(entry)) for name, entry in entries.items()])
    return TableSpec(columns=columns, types=base64.b64encode(schema.serialize().to_pybytes()).decode())


def decode_types(table: pa.Table, entries: Mapping[str, Any]) -> dict[str, pa.Array]:
    """Columns of a table in the types that their encodings are decoded to."""
    found = {}
    for name, entry in entries.items():
        values = values_of(name, table[name], entry["encoding_type"], min_decimal=entry.get("min_decimal", -1))
        data = pa.array(values.data, mask=~values.valid)
        data = data if values.words is None else values.words.take(data)
        found[name] = data.cast(value_type(entry), safe=False)
    return found


# ---- weights ----


def workspace_weights(model: TabularModel) -> dict[str, torch.Tensor]:
    """The weights of a model as mostlyai-engine has them, with its heads of the index of events, which nothing reads."""
    found, layout = {name: one.cpu() for name, one in model.upstream_weights().items()}, model.layout
    for sub in layout.subs:
        if not sub.hidden:
            inputs = sub.inputs
            for number, width in enumerate(hidden_widths(inputs, sub.num_classes, layout.size)):
                base = f"regressors.regressors.regressor@{sub.name}.{number}"
                found[f"{base}.weight"], found[f"{base}.bias"] = torch.zeros(width, inputs), torch.zeros(width)
                inputs = width
            base = f"predictors.predictors.{sub.name}"
            found[f"{base}.weight"], found[f"{base}.bias"] = torch.zeros(sub.num_classes, inputs), torch.zeros(sub.num_classes)
    return found


def model_units(layout: ModelLayout) -> dict[str, Any]:
    """All widths of a model, by the names of mostlyai-engine."""
    units: dict[str, Any] = {f"embedder@{sub.name}": sub.width for sub in (*layout.context, *layout.subs)}
    for column, width in layout.compressed.items():
        units[f"column_embedder@{layout.subs[layout.of_column(column)[0]].name.rpartition('__')[0]}"] = width
    if layout.context:
        units["flat_context@"] = [layout.context_width]
    if layout.history:
        units["history@"] = list(layout.history)
    return units | {f"regressor@{sub.name}": list(hidden_widths(sub.inputs, sub.num_classes, layout.size)) for sub in layout.subs}


def load_weights(model: TabularModel, path: Path) -> None:
    """Take the weights of a file."""
    try:
        model.load_upstream(torch.load(io.BytesIO(path.read_bytes()), map_location="cpu", weights_only=True))
    except FileNotFoundError:
        raise OptionError(f"there is no {path}: the model is not trained. Call compat.train(...) first.") from None
    except Exception as error:  # the reader of torch raises its own
        raise ConfigError(f"{path} does not fit: {' '.join(str(error).split())}") from error


def load_workspace(workspace: Workspace, *, device: str | None, rare: bool = True) -> tuple[TrainedTabular, Stats]:
    """The model of a workspace, and its statistics.

    Raises:
        OptionError: It has no trained model, or one that is not supported.
    """
    stats = read_stats(workspace)
    config = workspace.read(workspace.model / CONFIG_NAME, "train")
    if config.get("model_id") not in SIZES:
        raise OptionError(f"the model of {workspace.folder} is {config.get('model_id')!r}; expected one of {', '.join(SIZES)}.")
    size = SIZES[config["model_id"]]
    model = TabularModel(layout_of(stats, size))
    load_weights(model, workspace.model / WEIGHTS_NAME)
    model.to(check_device(device or ("cuda" if torch.cuda.is_available() else "cpu")))
    any_order = config.get("enable_flexible_generation", True)
    return TrainedTabular(spec=spec_of(stats, size, rare=rare, any_order=any_order), model=model, context=None, result=None), stats


def read_stats(workspace: Workspace) -> Stats:
    """The statistics of the tables of a workspace."""
    roles = [role for role in get_args(Role) if role == "tgt" or workspace.stats(role).is_file()]
    return {role: workspace.read(workspace.stats(role), "analyze") for role in roles}


# ---- training ----


def read_encoded(workspace: Workspace, stats: Stats, spec: ModelSpec) -> tuple[PreparedSubjects, Array, Array]:
    """The codes of all subjects, the numbers of those to train with, and of those to validate with."""
    own = [name for entry in _known(stats["tgt"]).values() for name in column_names(entry)]
    other = [name for entry in _known(stats.get("ctx")).values() for name in column_names(entry)]
    codes, contexts, lengths, counts = [], [], [], {}
    for kind in ("trn", "val"):
        counts[kind] = 0
        for path in workspace.parts(workspace.encoded, "encode", suffix=f"-{kind}"):
            table = read_parquet(path)
            counts[kind] += len(table)
            if spec.max_length is not None:
                steps = np.diff(table[own[0]].combine_chunks().offsets.to_numpy())
                is_event = np.ones(steps.sum(), bool)
                is_event[np.cumsum(steps) - 1] = False  # the end
                lengths.append(steps - 1)
                codes.append(np.stack([table[name].combine_chunks().flatten().to_numpy()[is_event] for name in own], 1))
            else:
                lengths.append(np.ones(len(table), np.int64))
                codes.append(np.stack([table[name].to_numpy() for name in own], 1))
            contexts.append(np.stack([table[name].to_numpy() for name in other], 1) if other else np.zeros((len(table), 0)))
    length = np.concatenate(lengths).astype(np.int64)
    prepared = PreparedSubjects(
        spec=spec,
        codes=np.concatenate(codes).astype(np.int32),
        starts=np.cumsum(length) - length,
        lengths=length,
        context=np.concatenate(contexts).astype(np.int32) if other else None,
    )
    numbers = np.arange(len(length))
    return prepared, numbers[: counts["trn"]], numbers[counts["trn"] :]


def default_batch_size(stats: Stats, count: int, num_weights: int) -> int:
    """The batch size of mostlyai-engine: it counts sub-columns times the maximum length, and the memory that is free."""
    asked = os.environ.get("MOSTLY_ENGINE_AVAILABLE_RAM_FOR_HEURISTICS", "")
    free = float(asked[:-1]) if asked[-1:].lower() == "g" else psutil.virtual_memory().available / 2**30
    scale = 2.0 if free >= 32 else 1.0 if free >= 8 else 0.5
    longest = stats["tgt"]["seq_len"]["max"]
    points = sum(len(one["cardinalities"]) for one in _known(stats["tgt"]).values()) * longest
    points += sum(len(one["cardinalities"]) for one in _known(stats.get("ctx")).values())
    return training.default_batch_size(count, num_weights, points, scale=scale)


class _Messages:
    """Writes a line per epoch, and passes it on."""

    def __init__(
        self,
        path: Path,
        report: Callable[..., Any],
        total: int,
        batch_size: int,
        on_epoch: Callable[[], Any] | None,
    ) -> None:
        self._path, self._report, self._total, self._batch_size = path, report, total, batch_size
        self._on_epoch, self._best = on_epoch or (lambda: None), math.inf
        self._rows: list[dict[str, Any]] = []
        if path.is_file():  # of the run that is resumed
            self._rows = list(csv.DictReader(io.StringIO(path.read_text())))
            self._best = min((float(row["val_loss"]) for row in self._rows if row.get("val_loss")), default=math.inf)
        self._before = float(self._rows[-1]["total_time"]) if self._rows else 0.0
        self._begin = _clock.now_ns()

    def on_epoch_end(self, report: stoker.train.CallbackReport) -> None:
        """Called by the trainer."""
        loss = report.metrics["val_loss"]
        message = {
            "epoch": float(report.epoch + 1),
            "is_checkpoint": int(loss < self._best),
            "steps": report.step,
            "samples": report.step * self._batch_size,
            "trn_loss": report.metrics["loss"],
            "val_loss": loss,
            "total_time": self._before + (_clock.now_ns() - self._begin) / 1e9,
            "learn_rate": report.lr,
        }
        message = {name: round(value, MESSAGE[name]) if MESSAGE[name] else value for name, value in message.items()}
        self._best = min(self._best, loss)
        self._rows.append(message)
        text = io.StringIO()
        writer = csv.DictWriter(text, list(MESSAGE), lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(self._rows)
        _disk.write_file(self._path, text.getvalue().encode())
        answer = self._report(completed=report.step, total=self._total, message=message)
        self._on_epoch()
        if (answer or {}).get("stopExecution"):
            report.stop()


def fit_workspace(
    workspace: Workspace, *, model_id: str, minutes: float, epochs: int, batch_size: int | None, accumulation: int, any_order: bool,
    window: int, strategy: str, device: str | None, report: Callable[..., Any], on_epoch: Callable[[], Any] | None,
) -> None:  # fmt: skip
    """Train the model of a workspace and write it there; the arguments are those of `compat.train`, with their defaults."""
    settings = {"model": model_id, "minutes": minutes, "epochs": epochs, "batch_size": batch_size, "window": window}
    stats, size = read_stats(workspace), SIZES[model_id]
    layout = layout_of(stats, size)
    prepared, known, held_out = read_encoded(workspace, stats, spec_of(stats, size))
    folder, weights = workspace.model / RUN_NAME, workspace.model / WEIGHTS_NAME
    resume = strategy == "RESUME" and (folder / "run.json").is_file()
    seed = int(np.random.randint(2**31))
    if resume:
        seed = int(workspace.read(folder / "seed.json", "train")["seed"])
    model = TabularModel(layout, seed=seed)
    set_frequencies(model, count_classes(prepared, layout, known), each=1.0)
    if strategy != "RESET" and weights.is_file():
        load_weights(model, weights)
    where = check_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    model.to(where)
    if not resume:
        _disk.remove_folder(folder)
        for name in (WEIGHTS_NAME, PROGRESS_NAME, "optimizer.pt", "lr-scheduler.pt"):
            if (workspace.model / name).exists() and not (name == WEIGHTS_NAME and strategy != "RESET"):
                _disk.remove_file(workspace.model / name)
    config = {"model_id": model_id, "model_units": model_units(layout), "enable_flexible_generation": any_order}
    write_json(workspace.model / CONFIG_NAME, config)
    num_weights = sum(one.numel() for one in model.parameters())
    size_of_batch = min(batch_size or default_batch_size(stats, len(known), num_weights), len(known))
    accumulation = max(1, min(accumulation, len(known) // size_of_batch))
    rate = round(0.001 * math.sqrt(size_of_batch * accumulation / 32), 5)
    data = EncodedSubjects.of(prepared.codes, prepared.starts, prepared.lengths, prepared.context, where)
    per_subject = mean_events(prepared.lengths, window)
    common: dict[str, Any] = {
        "lengths": prepared.lengths, "batch_size": size_of_batch, "window": window, "any_order": any_order,
    }  # fmt: skip
    batches = SubjectBatches(data, layout, known, seed=seed, **common)
    valid = SubjectBatches(data, layout, held_out, seed=seed + 1, is_fixed=True, **common)
    whole, plateau = SubjectLoss(model, data, per_subject), Plateau()
    if resume:
        plateau.read(folder / "metrics.jsonl")
    total = epochs * len(batches)
    messages = _Messages(workspace.model / PROGRESS_NAME, report, total, size_of_batch * accumulation, on_epoch)
    _disk.make_folder(folder)
    trainer = stoker.Trainer(
        whole,
        lambda model, batch: model(batch),
        torch.optim.AdamW(whole.parameters(), lr=rate),
        precision="tf32" if where.type == "cuda" else "fp32",
        fused=True,
        graph=True if where.type == "cuda" and size != "l" else "auto",
        compile=False,
        grad_accum_steps=accumulation,
        schedule=lambda step, total: plateau.factor,
        early_stopping=stoker.EarlyStopping("val_loss", patience=PATIENCE, mode="min"),
        callbacks=[plateau, messages],
        folder=folder,
        keep_checkpoints=1,
        max_seconds=minutes * 60,
        seed=seed,
        config=settings | {"accumulation": accumulation, "any_order": any_order},
        progress=False,
    )
    write_json(folder / "seed.json", {"seed": seed})
    trainer.fit(batches, valid=valid, epochs=epochs, resume=resume)
    stoker.train.load_trained(whole, folder)
    sink = io.BytesIO()
    torch.save(workspace_weights(model), sink)
    _disk.write_file(weights, sink.getvalue())
