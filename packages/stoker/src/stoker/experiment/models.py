"""Builtin models and losses, and those of the user: what the names in a config mean.

    Task            what a model gets, what it has to predict, and where in a batch both are
    Predictor       a network with the columns and scalers of a task: batch in, prediction out
    make_model, make_loss, make_optimizer

A task predicts one of:

    horizon     [rows, length] -> the steps behind:  [rows, horizon, outputs]
    shift       [rows, length] -> each step's future: [rows, length, outputs]
    last        [rows, length] -> a value at the last step of the sample: [rows, 1, outputs]
    series      [rows, length] -> a value of the whole series: [rows, 1, outputs]

Steps that a sample does not have, rows without a sample and missing targets have a weight of zero. So batches of all kinds have
one shape, and a step can be captured.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from msgspec.structs import asdict
from torch import nn
from torch.nn import functional

from stoker.errors import ConfigError, OptionError, StokerError, TrainError
from stoker.experiment import config as named
from stoker.experiment.config import AnyOptimizer

if TYPE_CHECKING:
    from stoker.split.series_scaler import SeriesScaler

Batch = Mapping[str, torch.Tensor]
When = Literal["horizon", "shift", "last", "series"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is predicted from what. Axes: b rows, t steps, s predicted steps, f features, k targets."""

    inputs: Mapping[str, int]
    """Columns that the model sees, and how many numbers each has a step."""
    targets: Mapping[str, int]
    """Columns that are predicted, and how many numbers each has."""
    length: int
    """Steps of a sample; of padded sequences the longest."""
    when: When
    horizon: int = 0
    """Predicted steps, where they lie behind the sample."""
    padded: bool = False
    """Whether samples can be shorter, which `mask` then says."""
    outputs_each: int = 1
    """Numbers that are predicted for one number of a target: one, or a class or quantile each."""
    observed: tuple[str, ...] = ()
    """Columns whose missing values are 0, with a mask `<column>_observed` that the model sees too."""
    categories: Mapping[str, int] = field(default_factory=dict)
    """Columns of `inputs` that hold categories, and how many there are."""
    known: tuple[str, ...] = ()
    """Columns of `inputs` whose values in the predicted steps are known: `<column>_target` of a batch."""

    @property
    def numbers(self) -> dict[str, int]:
        """The inputs that are numbers, which are scaled."""
        return {name: width for name, width in self.inputs.items() if name not in self.categories}

    @property
    def num_features(self) -> int:
        """Numbers of a step that the model sees: those of the columns and of their masks, and embeddings of categories."""
        numbers = sum(width * (1 + (name in self.observed)) for name, width in self.numbers.items())
        return numbers + sum(map(embedding_size, self.categories.values()))

    @property
    def num_known(self) -> int:
        """Numbers of all predicted steps together that are known."""
        widths = [embedding_size(self.categories[name]) if name in self.categories else self.inputs[name] for name in self.known]
        return self.horizon * sum(widths)

    @property
    def num_targets(self) -> int:
        """Numbers of a step that are predicted."""
        return sum(self.targets.values())

    @property
    def outputs(self) -> int:
        """Numbers that the model gives for a predicted step."""
        return self.num_targets * self.outputs_each

    @property
    def every_step(self) -> bool:
        """Whether each step has a prediction of its own."""
        return self.when == "shift"

    @property
    def steps(self) -> int:
        """Predicted steps of a sample."""
        return {"horizon": self.horizon, "shift": self.length, "last": 1, "series": 1}[self.when]

    def features(self, batch: Batch) -> torch.Tensor:
        """The columns of numbers that the model sees, side by side, without masks: [b, t, f]."""
        parts = []
        for name in self.numbers:
            values = self.per_step(batch, name)
            parts.append(values[..., None] if values.dim() == 2 else values)
        dtype = next((part.dtype for part in parts if part.dtype in (torch.float32, torch.float64)), torch.float32)
        return torch.cat([part.to(dtype) for part in parts], dim=-1)

    def per_step(self, batch: Batch, name: str) -> torch.Tensor:
        """The values of a column; those with one value per series are repeated: [b, t] or [b, t, width]."""
        values = batch[name]
        steps = next(batch[column].shape[1] for column in self.inputs if batch[column].dim() > 1)
        return values if values.dim() > 1 else values[:, None].expand(-1, steps)

    def with_masks(self, x_btf: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Features after scaling, with 0 for missing values, and behind them the masks of the columns that have one."""
        if not any(name in self.observed for name in self.numbers):
            return x_btf
        parts = []
        for name, width in self.numbers.items():
            mask = (
                batch[f"{name}_observed"] if name in self.observed else x_btf.new_ones((*x_btf.shape[:2], width), dtype=torch.bool)
            )
            parts.append(mask[..., None] if mask.dim() == 2 else mask)
        seen = torch.cat(parts, dim=-1)
        masks = [part for part, name in zip(parts, self.numbers, strict=True) if name in self.observed]
        return torch.cat([torch.where(seen, x_btf, 0), *(mask.to(x_btf.dtype) for mask in masks)], dim=-1)

    @property
    def needs_mask(self) -> bool:
        """Whether a prediction depends on where a sample ends. A sample with a horizon is full; a shifted one is causal."""
        return self.padded and self.when in ("last", "series")

    @property
    def entries(self) -> tuple[str, ...]:
        """The entries of a batch that a model reads."""
        masks = [f"{name}_observed" for name in self.inputs if name in self.observed]
        return (*self.inputs, *masks, *self.known_entries, *(["mask"] if self.needs_mask else []))

    @property
    def known_entries(self) -> tuple[str, ...]:
        """The entries of a batch that hold what is known about the predicted steps."""
        masks = [f"{name}_target_observed" for name in self.known if name in self.observed]
        return (*(f"{name}_target" for name in self.known), *masks)

    def mask(self, batch: Batch) -> torch.Tensor | None:
        """Which steps each sample has, or None where that does not matter: [b, t]."""
        return batch["mask"] if self.needs_mask else None

    def target(self, batch: Batch) -> torch.Tensor:
        """What should be predicted: [b, s, k]."""
        return self._of_targets(batch, {name: self._target_name(name) for name in self.targets})

    def _target_name(self, name: str) -> str:
        return f"{name}_target" if self.when in ("horizon", "shift") else name

    def _of_targets(self, batch: Batch, names: Mapping[str, str]) -> torch.Tensor:
        """Entries of the targets, at the steps that are predicted; where one has none, ones: [b, s, k]."""
        parts = []
        for name in self.targets:
            values = batch[names[name]] if name in names else torch.ones_like(batch[self._target_name(name)], dtype=torch.bool)
            if self.when == "series":
                values = values[:, None]
            elif self.when == "last":
                values = at_last(values, self.mask(batch))
            parts.append(values[..., None] if values.dim() == 2 else values)
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def weight(self, batch: Batch, target: torch.Tensor) -> torch.Tensor:
        """Which targets count: bool [b, s, k]."""
        counts = torch.ones_like(target, dtype=torch.bool)
        if "target_mask" in batch and self.when in ("horizon", "shift"):
            counts = counts & batch["target_mask"][:, :, None]
        if "valid" in batch:
            counts = counts & batch["valid"][:, None, None]
        masks = {name: f"{self._target_name(name)}_observed" for name in self.targets if name in self.observed}
        return counts & self._of_targets(batch, masks) if masks else counts


def embedding_size(num_categories: int) -> int:
    """Numbers that stand for a category in built-in models."""
    return min(16, 1 + num_categories // 2)


def at_last(values: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The values at the last step of each sample, which a mask marks where samples are padded: [b, 1, ...]."""
    if mask is None:
        return values[:, -1:]
    last = (mask.sum(1, keepdim=True) - 1).clamp(min=0)
    last = last.reshape(-1, *(1,) * (values.dim() - 1))
    return values.gather(1, last.expand(-1, 1, *values.shape[2:]))


class Head(nn.Module):
    """A norm and a matrix: [b, q, width] to [b, s, outputs], where q is 1 or all steps. What is known of the steps is added before."""

    def __init__(self, task: Task, width: int) -> None:
        super().__init__()
        self._task = task
        each = 1 if task.every_step else task.steps
        self.known = nn.Linear(task.num_known, width) if task.known else None
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, each * task.outputs)

    def forward(self, x_bqd: torch.Tensor, known: torch.Tensor | None = None) -> torch.Tensor:
        """The prediction."""
        if self.known is not None and known is not None:
            x_bqd = x_bqd + self.known(known)[:, None]
        given = self.output(self.norm(x_bqd))
        prediction: torch.Tensor = given if self._task.every_step else given.reshape(-1, self._task.steps, self._task.outputs)
        return prediction


# Fully connected models: all steps of a sample at once. With no hidden layer it is the linear baseline.
#
# Padded steps are zero, so they add nothing. Where every step predicts, each step sees itself alone.


class Mlp(nn.Module):
    """Hidden layers of `width`, each with GELU; none for a linear model."""

    def __init__(self, task: Task, *, width: int = 256, layers: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self._task = task
        size = task.num_features * (1 if task.every_step else task.length) + task.num_known
        parts: list[nn.Module] = []
        for _ in range(layers):
            parts += [nn.Linear(size, width), nn.GELU(), nn.Dropout(dropout)]
            size = width
        outputs = task.outputs * (1 if task.every_step else task.steps)
        self.layers = nn.Sequential(*parts, nn.Linear(size, outputs))

    def forward(self, x_btf: torch.Tensor, mask: torch.Tensor | None, known: torch.Tensor | None = None) -> torch.Tensor:
        """The prediction: [b, s, outputs]."""
        if self._task.every_step:
            each: torch.Tensor = self.layers(x_btf)
            return each
        missing = self._task.length - x_btf.shape[1]
        if missing:  # a batch of a narrower bucket
            x_btf = nn.functional.pad(x_btf, (0, 0, 0, missing))
        flat = x_btf.flatten(1) if known is None else torch.cat([x_btf.flatten(1), known], dim=1)
        prediction: torch.Tensor = self.layers(flat)
        return prediction.reshape(-1, self._task.steps, self._task.outputs)


class Gru(nn.Module):
    """Gated recurrent units over the steps; the state at the last step predicts, or that at each."""

    def __init__(self, task: Task, *, width: int = 128, layers: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self._task = task
        # torch warns of dropout that nothing is between.
        self.steps = nn.GRU(task.num_features, width, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
        self.head = Head(task, width)

    def forward(self, x_btf: torch.Tensor, mask: torch.Tensor | None, known: torch.Tensor | None = None) -> torch.Tensor:
        """The prediction: [b, s, outputs]."""
        x_btd, _ = self.steps(x_btf)
        prediction: torch.Tensor = self.head(x_btd if self._task.every_step else at_last(x_btd, mask), known)
        return prediction


# A transformer over the steps of a sample: learned positions, pre-norm blocks, attention by torch's own kernels.
#
# Where only the last step predicts, the last block computes that step alone: the same numbers for about half the work.
# Axes: b rows, t steps, f features, d width.


class Transformer(nn.Module):
    """Attention over the steps of a sample."""

    def __init__(
        self,
        task: Task,
        *,
        width: int = 128,
        layers: int = 3,
        heads: int = 8,
        hidden: int | None = None,
        dropout: float = 0.0,
        causal: bool | None = None,
    ) -> None:
        super().__init__()
        if width % heads:
            raise OptionError(f"transformer: heads is {heads}, which does not divide the width {width}.", parameter="model.heads")
        if task.every_step and causal is False:
            raise OptionError(
                "transformer: causal is false, but every step predicts its future, which the others would show it.",
                parameter="model.causal",
            )
        self._task = task
        self.embed = nn.Linear(task.num_features, width)
        self.positions = nn.Parameter(torch.randn(task.length, width) * 0.02)
        is_causal = task.every_step if causal is None else causal
        hidden = 2 * width if hidden is None else hidden
        self.blocks = nn.ModuleList(Block(width, heads, hidden, dropout, causal=is_causal) for _ in range(layers))
        self.head = Head(task, width)

    def forward(self, x_btf: torch.Tensor, mask: torch.Tensor | None, known: torch.Tensor | None = None) -> torch.Tensor:
        """The prediction: [b, s, outputs]."""
        x_btd = self.embed(x_btf) + self.positions[: x_btf.shape[1]]
        if mask is not None:
            # A sample without any step sees its first one: attention to nothing would be NaN, even with weight zero.
            mask = torch.cat([torch.ones_like(mask[:, :1]), mask[:, 1:]], dim=1)
        for number, block in enumerate(self.blocks):
            is_last = number == len(self.blocks) - 1
            x_btd = block(x_btd, mask, alone=is_last and not self._task.every_step)
        prediction: torch.Tensor = self.head(x_btd, known)
        return prediction


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and added to what came in."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float, *, causal: bool) -> None:
        super().__init__()
        self._heads = heads
        self._causal = causal
        self._dropout = dropout
        self.norm_attention = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)
        self.norm_forward = nn.LayerNorm(width)
        self.forward_in = nn.Linear(width, hidden)
        self.forward_out = nn.Linear(hidden, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x_btd: torch.Tensor, mask: torch.Tensor | None, *, alone: bool) -> torch.Tensor:
        """The steps after they have seen all (or, causally, those before them): [b, t, d]; with `alone` the last one: [b, 1, d]."""
        normed = self.norm_attention(x_btd)
        key, value = (self._split(part) for part in self.key_value(normed).chunk(2, dim=-1))
        if alone:
            x_btd, normed = at_last(x_btd, mask), at_last(normed, mask)
        query = self._split(self.query(normed))
        # The last step sees all steps anyway, and behind it there is only padding.
        causal = self._causal and not alone
        seen = None if mask is None or causal else mask[:, None, None, :]
        dropout = self._dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen, dropout_p=dropout, is_causal=causal)
        x_btd = x_btd + self.drop(self.output(mixed.transpose(1, 2).flatten(2)))
        hidden = functional.gelu(self.forward_in(self.norm_forward(x_btd)))
        seen_all: torch.Tensor = x_btd + self.drop(self.forward_out(hidden))
        return seen_all

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(*x.shape[:2], self._heads, -1).transpose(1, 2)


# The predictor: a batch in, a prediction out. Around a network it knows the columns, and the units of the store.
#
# Scalers are fitted on the training samples alone, and are a part of the model: they are saved and exported with it, so it
# takes raw values and gives raw values.


class Predictor(nn.Module):
    """A network `network(x [b, t, f], mask [b, t] or None, known [b, n] or None) -> [b, s, outputs]`, for batches of a task.

    `scaler` maps the features that are numbers; categories are embedded. What is known of the predicted steps is scaled and embedded like
    the columns that it belongs to. `target_scaler` has an `inverse`, which maps predictions back to units of the targets.
    """

    def __init__(
        self, task: Task, network: nn.Module, *, scaler: nn.Module | None = None, target_scaler: nn.Module | None = None
    ) -> None:
        super().__init__()
        self._task = task
        self.scaler = scaler
        self.target_scaler = target_scaler
        self.network = network
        self.embeddings = nn.ModuleList(nn.Embedding(1 + count, embedding_size(count)) for count in task.categories.values())

    def forward(self, batch: Batch) -> torch.Tensor:
        """The prediction: [b, s, outputs]."""
        task = self._task
        x_btf = task.features(batch)
        mask = task.mask(batch)
        if self.scaler is not None:
            x_btf = self.scaler(x_btf)
        parts = [task.with_masks(x_btf, batch), *(self._embedded(name, task.per_step(batch, name)) for name in task.categories)]
        x_btf = torch.cat([part.to(x_btf.dtype) for part in parts], dim=-1)
        if mask is not None and (self.scaler is not None or task.categories):  # padding stays zero
            x_btf = torch.where(mask[:, :, None], x_btf, 0)
        prediction: torch.Tensor = self.network(x_btf, mask, self._known(batch, x_btf) if task.known else None)
        if self.target_scaler is None:
            return prediction
        each = prediction.reshape(*prediction.shape[:-1], task.num_targets, task.outputs_each).transpose(-1, -2)
        scaled: torch.Tensor = self.target_scaler.inverse(each).transpose(-1, -2).flatten(-2)  # type: ignore[operator]
        return scaled

    def _embedded(self, name: str, codes: torch.Tensor) -> torch.Tensor:
        """Codes as vectors; a missing category (-1) has a vector of its own."""
        number = list(self._task.categories).index(name)
        vectors: torch.Tensor = self.embeddings[number]((codes.long() + 1).clamp(min=0))
        return vectors

    def _known(self, batch: Batch, like: torch.Tensor) -> torch.Tensor:
        """What is known of the predicted steps, scaled and embedded: [b, s * features]."""
        task, first, parts = self._task, 0, []
        for name in task.known:
            if name in task.categories:
                parts.append(self._embedded(name, batch[f"{name}_target"]).flatten(1).to(like.dtype))
        for name, width in task.numbers.items():
            if name in task.known:
                values = batch[f"{name}_target"]
                values = (values[..., None] if values.dim() == 2 else values).to(like.dtype)
                if self.scaler is not None:  # which knows the columns by their places
                    values = nn.functional.pad(values, (first, sum(task.numbers.values()) - first - width))
                    values = self.scaler(values)[..., first : first + width]
                if name in task.observed:
                    seen = batch[f"{name}_target_observed"]
                    values = torch.where(seen[..., None] if seen.dim() == 2 else seen, values, 0)
                parts.append(values.flatten(1))
            first += width
        return torch.cat(parts, dim=1)


# Losses by name: a sample's loss is the mean over its targets that count, a batch's the mean over its samples.
#
# So batches of different fill can be joined by their number of samples, which is how accumulation and ranks weigh them.

Each = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From predictions [b, s, k, outputs_each] and targets [b, s, k] to losses [b, s, k]."""


@dataclass(frozen=True)
class TargetScales:
    """The scales of targets that a feed scales by series, to show metrics in units of the store: [series, k]."""

    centers: torch.Tensor
    divisors: torch.Tensor

    @classmethod
    def of(cls, scaler: SeriesScaler, task: Task, device: torch.device) -> TargetScales | None:
        """Those of a task; None if no target is scaled."""
        if not set(task.targets) & set(scaler.columns):
            return None
        found = []
        for kind, neutral in ((0, 0.0), (1, 1.0)):
            num_series = len(scaler.scales(scaler.columns[0]).centers)
            rows = [
                torch.from_numpy(scaler.scales(name)[kind]).to(device, torch.float32)
                if name in scaler.columns
                else torch.full((num_series, width), neutral, device=device)
                for name, width in task.targets.items()
            ]
            found.append(torch.cat(rows, dim=1))
        return cls(*found)

    def __call__(self, values: torch.Tensor, series: torch.Tensor) -> torch.Tensor:
        """Values [b, s, k] or [b, s, k, outputs_each] in units of the store."""
        series = series.clamp(min=0)  # rows without a sample do not count
        center, divisor = (rows[series][:, None].to(values.dtype) for rows in (self.centers, self.divisors))
        return values * divisor + center if values.dim() == 3 else values * divisor[..., None] + center[..., None]


class TaskLoss:
    """`loss(model, batch)` of a task."""

    def __init__(self, task: Task, each: Each, *, classes: bool = False) -> None:
        self.task = task
        self.unscale: TargetScales | None = None
        """Back to units of the store, for metrics."""
        self._each = each
        self._classes = classes

    def __call__(self, model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
        """The loss, and what metrics need."""
        task = self.task
        prediction = model(batch)
        if prediction.dtype in (torch.bfloat16, torch.float16):
            prediction = prediction.float()
        target = task.target(batch)
        counts = task.weight(batch, target)
        if self._classes:
            target = target.long()
            counts = counts & (target >= 0)
        else:
            target = target.to(prediction.dtype)
        if prediction.numel() != target.numel() * task.outputs_each:
            expected = (len(target), task.steps, task.outputs)
            raise TrainError(f"the model gives {tuple(prediction.shape)}; expected [rows, predicted steps, outputs] = {expected}.")
        shaped = prediction.reshape(*target.shape, task.outputs_each)
        # Not times zero: a target that does not count may be anything, even NaN.
        losses = torch.where(counts, self._each(shaped, torch.where(counts, target, 0)), 0)
        rows = losses.sum((1, 2)) / counts.sum((1, 2)).clamp(min=1)
        samples = batch["valid"].sum().clamp(min=1) if "valid" in batch else len(rows)
        shown = shaped[..., 0] if task.outputs_each == 1 else shaped
        if self.unscale is not None and "series" in batch:
            shown, target = (self.unscale(values.detach(), batch["series"]) for values in (shown, target))
        return {"loss": rows.sum() / samples, "prediction": shown.detach(), "target": target, "valid": counts}


def mse(task: Task) -> TaskLoss:
    """Mean of squared errors."""
    return TaskLoss(task, lambda p, y: functional.mse_loss(p[..., 0], y, reduction="none"))


def mae(task: Task) -> TaskLoss:
    """Mean of absolute errors."""
    return TaskLoss(task, lambda p, y: functional.l1_loss(p[..., 0], y, reduction="none"))


def huber(task: Task, *, delta: float = 1.0) -> TaskLoss:
    """Squared for small errors, absolute for large ones."""
    return TaskLoss(task, lambda p, y: functional.huber_loss(p[..., 0], y, reduction="none", delta=delta))


def bce(task: Task, *, positive_weight: float = 1.0) -> TaskLoss:
    """Binary cross-entropy of logits."""

    def each(p: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        losses = functional.binary_cross_entropy_with_logits(p[..., 0], y, reduction="none")
        return losses if positive_weight == 1.0 else losses * (1 + (positive_weight - 1) * y)

    return TaskLoss(task, each)


def cross_entropy(task: Task, *, smoothing: float = 0.0) -> TaskLoss:
    """Of logits, one per class; negative classes are missing."""
    if task.outputs_each < 2:
        raise OptionError("cross_entropy: the number of classes is not known. Set loss.classes.", parameter="loss.classes")

    def each(p: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        losses = functional.cross_entropy(p.flatten(0, 2), y.flatten(), reduction="none", label_smoothing=smoothing)
        return losses.reshape(y.shape)

    return TaskLoss(task, each, classes=True)


def quantile(task: Task, *, quantiles: tuple[float, ...]) -> TaskLoss:
    """Pinball loss, the mean over the quantiles."""

    def each(p: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        # Filled in on the device: a tensor of the list would be a copy from the host, which a graph cannot hold.
        levels = torch.cat([torch.full((1,), level, dtype=p.dtype, device=p.device) for level in quantiles])
        errors = y[..., None] - p
        return torch.maximum(levels * errors, (levels - 1) * errors).mean(-1)

    return TaskLoss(task, each)


# A function of the user's own, named as `file.py:function`. Its file is run: it is trusted like the command itself.


def load_function(name: str) -> Callable[..., Any]:
    """Run a file and take a function (or class) of it."""
    file, _, function = name.rpartition(":")
    path = Path(file)
    if not file.endswith(".py") or not function.isidentifier():
        raise OptionError(f"{name!r} is not a function; expected file.py:function.", parameter="function")
    if not path.is_file():
        raise OptionError(
            f"{path} is {'a folder' if path.is_dir() else 'not there'}; expected the Python file of {function}.", path=path
        )
    module_name = f"stoker_own_{path.stem}"
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # it stays: the function may import its neighbours when it is called
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise OptionError(f"{path} cannot be run as a Python file.", path=path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    _told(name, lambda: spec.loader.exec_module(module))  # type: ignore[union-attr]
    found = getattr(module, function, None)
    if not callable(found):
        names = [one for one, value in vars(module).items() if inspect.isfunction(value) and not one.startswith("_")]
        raise OptionError(f"{path} has no function {function!r}; it has {', '.join(names) or 'none'}.", path=path)
    return found  # type: ignore[no-any-return]


def _arguments(own: named.Own, function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a function, and what is offered as far as it has such parameters."""
    name, options, parameters = own.function, own.options, inspect.signature(function).parameters
    if "" in options or not all(isinstance(option, str) for option in options):
        raise OptionError(f"{name} has the options {dict(options)!r}; expected names of its parameters.", parameter="options")
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    unknown = [option for option in options if option not in parameters and not takes_all]
    if unknown:
        raise OptionError(f"{name} has no parameter {unknown[0]!r}; it has {', '.join(parameters) or 'none'}.", parameter="options")
    return {**{key: value for key, value in offered.items() if key in parameters}, **options}


@contextlib.contextmanager
def naming_known() -> Iterator[None]:
    """Where a model reads the values of predicted steps that a prediction does not have, say how it gets those that are known."""
    try:
        yield
    except KeyError as error:
        entry = error.args[0] if error.args else None
        if not isinstance(entry, str) or not entry.endswith("_target"):
            raise
        name = entry.removesuffix("_target")
        raise ConfigError(
            f"the model reads batch[{entry!r}], the values of {name!r} in the predicted steps, which a prediction does not have. If they "
            f"are known in advance, set data.known: [{name}] and train again.",
            parameter="data.known",
            column=name,
        ) from error


@contextlib.contextmanager
def blaming(*names: str) -> Iterator[None]:
    """What goes wrong in code of the user's own, named as `file.py:function`, is one line that names the line of it."""
    try:
        yield
    except StokerError:
        raise
    except Exception as error:
        for name in names:
            path = Path(name.rpartition(":")[0])
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).name == path.name]
            if lines or isinstance(error, SyntaxError):
                number = error.lineno if isinstance(error, SyntaxError) else lines[-1]
                raise OptionError(f"{path}:{number} raised {type(error).__name__}: {_first_line(error)}", path=path) from error
        raise


def _told(name: str, call: Callable[[], Any]) -> Any:
    """What a call of a user's function returns; whatever it raises is one line."""
    try:
        with blaming(name):
            return call()
    except StokerError:
        raise
    except Exception as error:
        raise OptionError(f"{name} raised {type(error).__name__}: {_first_line(error)}", parameter="options") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["(no message)"])[0]


# From the names of a configuration to the model, the loss, the optimizer and the schedule.

MODELS: dict[type, Callable[..., nn.Module]] = {
    named.TransformerConfig: Transformer,
    named.GruConfig: Gru,
    named.MlpConfig: Mlp,
    named.LinearConfig: lambda task: Mlp(task, layers=0),
}
LOSSES: dict[type, Callable[..., TaskLoss]] = {
    named.Mse: mse,
    named.Mae: mae,
    named.Huber: huber,
    named.Bce: bce,
    named.CrossEntropy: cross_entropy,
    named.Quantile: quantile,
}
OPTIMIZERS: dict[type, Callable[..., torch.optim.Optimizer]] = {
    named.AdamW: torch.optim.AdamW,
    named.Adam: torch.optim.Adam,
    named.Sgd: torch.optim.SGD,
    named.RmsProp: torch.optim.RMSprop,
}


def make_model(
    config: named.AnyModel, task: Task, *, scaler: nn.Module | None = None, target_scaler: nn.Module | None = None
) -> nn.Module:
    """The model of a configuration, from a batch to a prediction; its weights come from torch's generator."""
    if not isinstance(config, named.Own):
        network = MODELS[type(config)](task, **asdict(config))
        return Predictor(task, network, scaler=scaler, target_scaler=target_scaler)
    function, offered = load_function(config.function), {"task": task, "scaler": scaler, "target_scaler": target_scaler}
    model = _told(config.function, partial(function, **_arguments(config, function, offered)))
    if not isinstance(model, nn.Module):
        raise OptionError(
            f"{config.function} returned a {type(model).__name__}; expected a model (torch.nn.Module).", parameter="function"
        )
    return model


def make_loss(config: named.AnyLoss, task: Task) -> Callable[..., Any]:
    """The loss of a configuration: `loss(model, batch)`."""
    if not isinstance(config, named.Own):
        options = asdict(config)
        options.pop("classes", None)  # the task has it
        return LOSSES[type(config)](task, **options)
    function = load_function(config.function)
    taken = [option for option in [*inspect.signature(function).parameters][:2] if option in config.options]
    if taken:
        raise OptionError(
            f"{config.function} gets {taken[0]!r} from the training, so it cannot be an option.", parameter="function"
        )
    return partial(function, **_arguments(config, function, {"task": task}))


def make_optimizer(config: AnyOptimizer, parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    """The optimizer of a configuration."""
    if isinstance(config, named.Sgd) and config.nesterov and not config.momentum:
        raise OptionError(
            "optimizer.nesterov is true, but optimizer.momentum is 0; expected a momentum above 0 to look ahead by.",
            parameter="optimizer.nesterov",
        )
    return OPTIMIZERS[type(config)](list(parameters), **asdict(config))


def outputs_each(config: named.AnyLoss, num_categories: int | None) -> int:
    """Numbers that a model gives for one number of a target."""
    if isinstance(config, named.Quantile):
        return len(config.quantiles)
    if isinstance(config, named.CrossEntropy):
        return config.classes or num_categories or 1
    return 1
