"""One training step: the loss of a batch, the update of the weights, and their EMA.

    supervised, as_loss     loss functions, in the one form `loss(model, batch)`
    EagerStep               micro-batches forward and backward, then one update, behind the NaN guard of `numerics`
    Ema                     the EMA of the weights: updated by one fused operation, swapped in to evaluate
    Readout                 the numbers of each step, read some steps later, so that the host never waits for them

A loss function returns a scalar tensor, or a dict of them with the key "loss"; other scalars of the dict are logged. The entries
"prediction" and "target" may be whole tensors: metrics read them in evaluation, or the rows that "valid" marks. A batch is any
container of tensors that `stoker._batch` walks; its entry "valid" marks the rows that are samples.

Guarantee of the EMA: `update` waits for nothing and changes no address, so it can be part of a CUDA graph. Whatever happens while
the average is applied, the weights and buffers afterwards are those before it, bit for bit.

The device itself writes the rows of a readout. A full window of them is copied to the host while the steps continue, and is read when
the copy has ended. On a CPU the same rows are simply there.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from stoker import _batch
from stoker._batch import entry_of
from stoker.errors import CheckpointInvalidError, OptionError, TrainError
from stoker.train.distributed import Joint, is_shard, local
from stoker.train.numerics import NanGuard, Precision, Scale, autocast
from stoker.train.optimizer import bare_step
from stoker.train.ordered_sums import OrderedSums

LossFunction = Callable[[nn.Module, Any], Any]

WHOLE = ("prediction", "target", "valid")
"""Entries of a loss's dict that are not scalars."""


class LossOutput(NamedTuple):
    """What a loss function returned for a batch."""

    loss: torch.Tensor
    scalars: dict[str, torch.Tensor]
    """Other values to log."""
    whole: dict[str, torch.Tensor]
    """What metrics read."""


def supervised(criterion: Callable[..., torch.Tensor], *, x: str = "x", y: str = "y") -> LossFunction:
    """The loss `criterion(model(x), y)`, for batches that are pairs or have entries of these names.

    Rows that are not samples (`valid` is False) do not count. Neither do targets that a feed marks as padded (`target_mask`, for
    `y="<column>_target"`) or missing (`<y>_observed`). The loss of a sample is the mean over its targets. With such masks the
    criterion must support `reduction="none"`, as those of torch do.

    Args:
        criterion: Such as `nn.MSELoss()`.
        x: The entry that the model gets.
        y: The entry that the prediction is compared with.

    Returns:
        A function `loss(model, batch)` for `Trainer`.

    Example:
        >>> loss = supervised(nn.MSELoss())
        >>> float(loss(nn.Identity(), (torch.zeros(2), torch.ones(2)))["loss"])
        1.0
    """
    # Not a closure: a fingerprint shows the arguments of a partial.
    return functools.partial(_supervised, criterion=criterion, each=_without_mean(criterion), x=x, y=y)


def _supervised(
    model: nn.Module,
    batch: Any,
    *,
    criterion: Callable[..., torch.Tensor],
    each: Callable[[Any, Any], torch.Tensor],
    x: str,
    y: str,
) -> dict[str, torch.Tensor]:
    given, expected = _pair(batch, x, y)
    prediction = model(given)
    valid, counts = entry_of(batch, "valid"), _counted_targets(batch, y, expected)
    result = {"prediction": prediction.detach(), "target": expected}
    if valid is None and counts is None:
        return {"loss": criterion(prediction, expected), **result}
    errors = each(prediction, expected)
    if counts is None:
        rows = errors.reshape(len(expected), -1).mean(1)
    else:
        if valid is not None:
            counts = counts & valid.reshape(-1, *(1,) * (counts.dim() - 1))
        result["valid"] = counts
        shaped = counts.reshape(*counts.shape, *(1,) * (errors.dim() - counts.dim())).expand_as(errors)
        sums = torch.where(shaped, errors, 0).flatten(1).sum(1)
        rows = sums / shaped.flatten(1).sum(1).clamp(min=1)
    value = rows.mean() if valid is None else torch.where(valid, rows, 0).sum() / valid.sum().clamp(min=1)
    return {"loss": value, **result}


def _counted_targets(batch: Any, y: str, expected: Any) -> torch.Tensor | None:
    """Which targets are neither padded nor missing, as a feed marks them; None where it marks none."""
    names = [f"{y}_observed", *(["target_mask"] if y.endswith("_target") else [])]
    masks = [mask for name in names if isinstance(mask := entry_of(batch, name), torch.Tensor)]
    masks = [mask for mask in masks if mask.dtype == torch.bool and mask.shape == expected.shape[: mask.dim()]]
    if not masks:
        return None
    dims = max(mask.dim() for mask in masks)
    first, *others = (mask.reshape(*mask.shape, *(1,) * (dims - mask.dim())) for mask in masks)
    return functools.reduce(torch.logical_and, others, first)


def _without_mean(criterion: Callable[..., torch.Tensor]) -> Callable[[Any, Any], torch.Tensor]:
    """The criterion for each row or element, for a mean over some of them."""
    if isinstance(criterion, nn.Module) and getattr(criterion, "reduction", None) == "mean" and _weighs_alike(criterion):
        each = copy.copy(criterion)
        vars(each)["reduction"] = "none"
        return each
    if getattr(criterion, "__module__", None) == "torch.nn.functional":
        return functools.partial(criterion, reduction="none")

    def refuse(prediction: Any, expected: Any) -> torch.Tensor:
        raise TrainError(
            f"the criterion {criterion!r} cannot leave out rows that are not samples, or targets that are padded or missing. "
            f"Give a loss(model, batch) of your own that uses the masks of the batch, or a feed with last_batch='drop' or 'short'."
        )

    return refuse


def _weighs_alike(criterion: nn.Module) -> bool:
    return getattr(criterion, "weight", None) is None and getattr(criterion, "ignore_index", -100) == -100


def _pair(batch: Any, x: str, y: str) -> tuple[Any, Any]:
    """The input and the target of a batch: by name, or the two entries of a pair."""
    given, expected = entry_of(batch, x), entry_of(batch, y)
    if given is not None and expected is not None:
        return given, expected
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    names = [key for key, _ in _batch.entries_of(batch) or () if isinstance(key, str)]
    found = f"is a {type(batch).__name__}; expected a pair (x, y), or a dict with {x!r} and {y!r}"
    if names:
        found = f"has {', '.join(names)}; expected {x!r} and {y!r}"
    raise TrainError(f"a batch {found}. Give a loss(model, batch) of your own.")


def as_loss(loss: Any) -> LossFunction:
    """The loss function: `nn.MSELoss()` stands for `supervised(nn.MSELoss())`."""
    if isinstance(loss, type) or not callable(loss):
        raise OptionError(f"loss is {loss!r}; expected a function loss(model, batch), or a criterion such as nn.MSELoss().")
    is_criterion = isinstance(loss, nn.Module) or getattr(loss, "__module__", None) == "torch.nn.functional"
    return supervised(loss) if is_criterion else loss


def outcome_of(result: Any) -> LossOutput:
    """Check and sort what a loss function returned."""
    if isinstance(result, torch.Tensor):
        return LossOutput(_checked(result), {}, {})
    if not isinstance(result, Mapping) or "loss" not in result:
        what = f"a dict with {', '.join(map(repr, result))}" if isinstance(result, Mapping) else f"a {type(result).__name__}"
        raise TrainError(f"the loss function returned {what}; expected a scalar tensor, or a dict with the key 'loss'.")
    whole = {name: result[name] for name in WHOLE if name in result}
    scalars = {name: value.detach() for name, value in result.items() if name != "loss" and name not in whole}
    return LossOutput(_checked(result["loss"]), scalars, whole)


def _checked(loss: Any) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.dim():
        found = f"of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
        raise TrainError(f"the loss is {found}; expected a scalar tensor. Take its mean over the samples.")
    return loss


def num_samples(batch: Any) -> torch.Tensor | int:
    """How many samples a batch has: an integer, or (where `valid` marks the rows) a tensor, which needs no synchronization."""
    valid = entry_of(batch, "valid")
    return valid.sum() if isinstance(valid, torch.Tensor) else num_rows(batch)


def num_rows(batch: Any) -> int:
    """How many rows the first tensor of a batch has."""
    rows = _batch.num_rows(batch)
    if rows is None:
        raise TrainError(
            f"a batch is a {type(batch).__name__} without any tensor; expected a tensor, or a tuple, dict or dataclass of tensors."
        )
    return rows


class Ema:
    """The EMA `decay * average + (1 - decay) * weight` of all weights that are trained, beginning with what they are now.

    Frozen weights equal their average, so they are left alone; buffers are the model's own, never averaged. Weights in half
    precision are averaged in float32, as in half precision an average stands still.

    Args:
        model: Whose weights are averaged.
        decay: From 0 and below 1, such as 0.999.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> ema = Ema(model, 0.9)
        >>> with ema.applied():
        ...     _ = model(torch.ones(1, 1))
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if isinstance(decay, bool) or not isinstance(decay, int | float) or not 0.0 <= decay < 1.0:
            raise OptionError(f"ema is {decay!r}; expected a decay of at least 0.0 and below 1.0, such as 0.999.")
        self.decay = float(decay)
        self._model = model
        # Tied weights are one parameter under the first of their names.
        self._weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self._frozen = {name: weight for name, weight in model.named_parameters() if not weight.requires_grad}
        self._average = {name: _wide(weight.detach()).clone() for name, weight in self._weights.items()}
        self._groups = list(self._group())
        self._applied = False

    def _group(self) -> Iterator[tuple[list[Tensor], list[Tensor], list[Tensor]]]:
        """Averages, weights and (where a weight is narrower than its average) room for the widened weights."""
        kinds: dict[tuple[torch.device, torch.dtype], list[str]] = {}
        for name, weight in self._weights.items():
            kinds.setdefault((weight.device, weight.dtype), []).append(name)
        for names in kinds.values():
            averages, weights = ([local(kept[name]) for name in names] for kept in (self._average, self._weights))
            narrow = averages[0].dtype != weights[0].dtype
            yield averages, weights, [torch.empty_like(one) for one in averages] if narrow else []

    @torch.no_grad()
    def update(self, flag: Tensor | None = None) -> None:
        """Move the average towards the weights of now; where `flag` (a number on the device) is not 0, it stays as it is."""
        if self._applied:
            raise TrainError("the EMA of the weights is applied, so it cannot be updated. Train outside of applied().")
        share = None if flag is None else torch.where(flag == 0, 1.0 - self.decay, 0.0)
        for averages, weights, room in self._groups:
            if room:
                torch._foreach_copy_(room, weights)
            if share is None:
                torch._foreach_lerp_(averages, room or weights, 1.0 - self.decay)
            else:
                # A lerp takes no share that is on the device; these three are as fused as it is.
                moves = torch._foreach_sub(room or weights, averages)
                torch._foreach_mul_(moves, share.to(averages[0].dtype))
                torch._foreach_add_(averages, moves)

    def tensors(self) -> list[Tensor]:
        """The averages themselves: what `update` changes."""
        return list(self._average.values())

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the average as its weights within the block. Needs memory for the weights once more."""
        if self._applied:
            raise TrainError("the EMA of the weights is applied already. Do not nest applied().")
        self._check_frozen()
        weights = list(self._weights.values())
        buffers = list(self._model.buffers())
        with torch.no_grad():
            kept_weights = [weight.detach().clone() for weight in weights]
            kept_buffers = [buffer.detach().clone() for buffer in buffers]
        self._applied = True
        try:
            _copy(weights, list(self._average.values()))
            yield
        finally:
            _copy(weights, kept_weights)
            _copy(buffers, kept_buffers)
            self._applied = False

    def _check_frozen(self) -> None:
        for name, weight in self._frozen.items():
            if weight.requires_grad:
                raise TrainError(f"weight {name!r} was frozen when the average began, and is trained now. Unfreeze it before that.")

    def state_dict(self) -> dict[str, Any]:
        """The decay and the averages by name; the tensors are the average's own, not copies."""
        self._check_frozen()
        return {"decay": self.decay, "average": dict(self._average)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint of the same model; the decay stays that of now."""
        averages: Mapping[str, Tensor] = state.get("average", {})
        odd = sorted(averages.keys() ^ self._average.keys())
        if odd:
            raise CheckpointInvalidError(
                f"the saved average has other weights than the model: {', '.join(odd[:5])}. Resume the same model."
            )
        for name, own in self._average.items():
            if averages[name].shape != own.shape:
                found, expected = tuple(averages[name].shape), tuple(own.shape)
                raise CheckpointInvalidError(
                    f"the saved average of {name!r} has the shape {found}, expected {expected}. Resume the same model."
                )
        _copy(list(self._average.values()), [averages[name] for name in self._average])


def _wide(weight: Tensor) -> Tensor:
    return weight.float() if weight.dtype in (torch.float16, torch.bfloat16) else weight


@torch.no_grad()
def _copy(targets: list[Any], sources: list[Tensor]) -> None:
    if targets:
        torch._foreach_copy_([local(one) for one in targets], [local(one) for one in sources])


# The step: micro-batches forward and backward, then one update of the weights that nothing non-finite can reach (`numerics`).
#
# The gradient of an update is the mean over all samples of its micro-batches (and ranks), however they were dealt out.


@dataclass(eq=False)
class EagerStep:
    """One update, eagerly: `micro` for each micro-batch, then `update`."""

    model: nn.Module
    loss: LossFunction
    optimizer: torch.optim.Optimizer
    readout: Readout
    _: KW_ONLY
    device: torch.device
    precision: Precision
    weighted: bool
    max_grad_norm: float | None = None
    ema: Ema | None = None
    scale: Scale | None = None
    skips: bool = False
    joint: Joint | None = None

    def __post_init__(self) -> None:
        optimizer, device = self.optimizer, self.device
        self._autocast = autocast(self.precision, device)
        self._step_optimizer = bare_step(optimizer)
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        # With a loss scale, or where bad steps are skipped, each step is judged alone.
        self.guard = NanGuard(self.model, optimizer, device, clears=self.skips or self.scale is not None)
        self._is_sharded = any(map(is_shard, self._parameters))
        self._keeps_gradients = False
        self._zero, self._loss_sum, self._weight_sum = (torch.zeros((), device=device) for _ in range(3))
        self._rows = 0
        self._last_loss = self._zero
        self._last_weight: torch.Tensor | float = 0.0
        self._scalars: dict[str, torch.Tensor] = {}
        self.guard.bind()

    def micro(self, batch: Any) -> None:
        """Add the gradient of a micro-batch."""
        self.guard.statistics.keep()
        with self._autocast:
            loss, self._scalars, _ = outcome_of(self.loss(self.model, batch))
        self._last_loss = loss.detach()
        if self.weighted:
            if not self._rows:  # weights are counted in whole batches: sums of samples would overflow the range of fp16
                rows = num_rows(batch) if self.joint is None else self.joint.ranks.most([num_rows(batch)])[0]
                self._rows = 1 << (max(1, rows) - 1).bit_length()  # a power of two: which one it is changes no bit
            weight = num_samples(batch) / self._rows
            loss = loss * weight
            if not isinstance(self.joint, OrderedSums):
                self._loss_sum += loss.detach()
                self._weight_sum += weight
            self._last_weight = weight
        (loss if self.scale is None else loss * self.scale.value).backward()  # type: ignore[no-untyped-call]
        if isinstance(self.joint, OrderedSums):
            self._add_ordered(self.joint, loss.detach())

    def _add_ordered(self, joint: OrderedSums, loss: torch.Tensor) -> None:
        """Add what this batch and those of the other ranks have left: gradients, losses and weights, in the order of the ranks."""
        weight = torch.as_tensor(self._last_weight, dtype=torch.float32, device=self.device)
        own = [torch.where(weight > 0, value * weight, 0.0) for value in self._scalars.values()]
        rows = joint.add(self._parameters, torch.stack([weight, loss, *own]).float())
        for row in rows:
            self._weight_sum += row[0]
            self._loss_sum += row[1]
        if rows and self._scalars:
            weight, _, *sums = torch.stack(rows).sum(0).unbind()
            self._scalars = {name: value / weight for name, value in zip(self._scalars, sums, strict=True)}

    def update(self) -> bool:
        """Update the weights; False where the host knows that it must not."""
        if self.joint is not None:
            self.joint.join(self._parameters)
        gradients = [gradient for parameter in self._parameters if (gradient := parameter.grad) is not None]
        if self._is_sharded:
            gradients = [local(gradient) for gradient in gradients]
        if not gradients:
            raise TrainError("no weight has a gradient: the loss does not depend on any of the optimizer's parameters.")
        guard = self.guard
        loss = self._check(gradients)
        norm = self._zero if self.max_grad_norm is None else self._clip_to(gradients, self.max_grad_norm)
        if guard.decide():
            self._step_optimizer()
            if self.ema is not None:
                self.ema.update(guard.device_flag)
        guard.settle()
        if self.joint is not None:
            guard.statistics.join(self.joint)
        self.readout.record({"loss": loss, "norm": norm, "skipped": guard.flag, **self._scalars})
        self._clear(gradients)
        return guard.is_good

    def _check(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """Undo scale and weights, and raise the flag where the loss, a gradient or a buffer is not finite; returns the loss."""
        inverse: torch.Tensor | None
        if self.weighted:
            loss_sum, weight_sum = self._loss_sum, self._weight_sum
            if self.joint is not None and not isinstance(self.joint, OrderedSums):  # gradients are means over the ranks too
                loss_sum, weight_sum = self._join_numbers(self.joint)
            self._last_loss = loss_sum / weight_sum
            inverse = (weight_sum if self.scale is None else weight_sum * self.scale.value).reciprocal()
        else:
            inverse = None if self.scale is None else self.scale.value.reciprocal()
        loss = self._last_loss.float()
        self.guard.check(gradients, loss, inverse=inverse)
        if self.joint is not None:
            self.joint.raise_flag(self.guard.flag)
        return loss

    def _join_numbers(self, joint: Joint) -> tuple[torch.Tensor, torch.Tensor]:
        """The sums of loss and weight as means over the ranks; further numbers as means over their samples."""
        given, device = self._last_weight, self._loss_sum.device
        weight = given.float() if isinstance(given, torch.Tensor) else torch.full((), given, device=device)  # neither waits
        # A rank without any sample has no such number; its weight is zero, and 0 * nan would not be.
        own = [torch.where(weight > 0, value * weight, 0.0) for value in self._scalars.values()]
        totals = torch.stack([self._loss_sum, self._weight_sum, weight, *own])
        joint.ranks.mean(totals)
        loss_sum, weight_sum, weight, *others = totals.unbind()
        self._scalars = {name: value / weight for name, value in zip(self._scalars, others, strict=True)}
        return loss_sum, weight_sum

    def _clip_to(self, gradients: list[torch.Tensor], most: float) -> torch.Tensor:
        """As `clip_grad_norm_` does it; a norm that overflows raises the flag."""
        norm = nn.utils.get_total_norm(gradients, foreach=True)
        if self.joint is not None:
            norm = self.joint.norm(norm)
        self.guard.check_finite([norm])
        torch._foreach_mul_(gradients, torch.clamp(most / (norm + 1e-6), max=1.0))
        return norm

    def _clear(self, gradients: list[torch.Tensor]) -> None:
        if self.scale is not None:
            self.scale.update(self.guard.flag)
        if self.weighted:
            self._loss_sum.zero_()
            self._weight_sum.zero_()
        if self._keeps_gradients:
            torch._foreach_zero_(gradients)
        else:
            for parameter in self._parameters:
                parameter.grad = None

    def keep_gradients(self) -> None:
        """Let gradients stay where they are from now on, as graphs know them by their address."""
        self._keeps_gradients = True
        self.guard.statistics.ignore_rest()
        self.discard()

    def preserve(self) -> Callable[[], None]:
        """Remember what a step changes beside the model and the optimizer, and return what puts it back.

        That may be in the middle of an update: gradients that stay where they are keep what micro-batches have added.
        """
        scale = [] if self.scale is None else list(self.scale.state_dict().values())
        average = [] if self.ema is None else self.ema.tensors()
        changed = [*scale, *average, self.guard.flag, self._loss_sum, self._weight_sum, *self.readout.tensors()]
        kept = [(tensor, tensor.clone()) for tensor in changed]
        gradients = {parameter: parameter.grad.clone() for parameter in self._parameters if parameter.grad is not None}

        def restore() -> None:
            for tensor, before in kept:
                tensor.copy_(before)
            if not self._keeps_gradients:
                self.optimizer.zero_grad(set_to_none=True)
                return
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad.copy_(gradients[parameter]) if parameter in gradients else parameter.grad.zero_()

        return restore

    def discard(self) -> None:
        """Forget micro-batches that no update has taken in."""
        self._loss_sum.zero_()
        self._weight_sum.zero_()
        self.guard.flag.zero_()
        self.optimizer.zero_grad(set_to_none=not self._keeps_gradients)


class StepWork(Protocol):
    """How steps are done: eagerly or by graphs. The loop knows nothing else of them."""

    def source(self, batches: Iterable[Any]) -> Iterator[Any]:
        """What to iterate over, one entry per micro-batch."""

    def micro(self, entry: Any) -> None:
        """Do a micro-batch."""

    def update(self) -> bool:
        """End the update that the micro-batches since the last one belong to; False where it was skipped."""


class Window(NamedTuple):
    """The numbers of some steps, the first of them `first`."""

    first: int
    names: tuple[str, ...]
    rows: Tensor
    """`[steps, names]`, on the host."""

    def column(self, name: str) -> list[float]:
        """One number of each step."""
        values: list[float] = self.rows[:, self.names.index(name)].tolist()
        return values

    def means(self, kept: list[bool]) -> dict[str, float]:
        """The mean of each number over some of the steps."""
        return dict(zip(self.names, self.rows[torch.tensor(kept)].double().mean(0).tolist(), strict=True))


class _UnderWay(NamedTuple):
    first: int
    device_rows: Tensor
    host_rows: Tensor
    copied: Any


class Readout:
    """A row of numbers per step; the first step says which."""

    def __init__(self, device: torch.device, *, capacity: int) -> None:
        self._names: tuple[str, ...] = ()
        self._known: Collection[str] = ()
        self._capacity = capacity
        self._rows = torch.zeros(capacity, 0, device=device)
        self._place = torch.zeros(1, dtype=torch.int64, device=device)
        self._on_device = device.type == "cuda"
        self._host_rows: list[list[float]] = []  # of a CPU: numbers that need not be waited for
        self._under_way: deque[_UnderWay] = deque()
        self.first = 0
        """The step of the first row of the window."""
        self.count = 0
        """Rows in the window; code that replays a recorded graph counts here."""

    def record(self, values: Mapping[str, Tensor]) -> None:
        """Write the row of a step. Device work only, also within a graph; `count` is the caller's to move."""
        if values.keys() != self._known:
            self._begin_columns(values)
        if self._on_device:
            self._rows.index_copy_(0, self._place, torch.stack([value.float() for value in values.values()])[None])
            self._place.add_(1)
        else:
            self._host_rows[self.count :] = [[value.item() for value in values.values()]]

    def _begin_columns(self, values: Mapping[str, Tensor]) -> None:
        if self._names:
            raise TrainError(
                f"the loss function returns {', '.join(values)} now, but {', '.join(self._names)} before. Return the same."
            )
        self._names, self._known = tuple(values), dict(values).keys()
        self._rows = torch.zeros(self._capacity, len(values), device=self._rows.device)

    def tensors(self) -> list[Tensor]:
        """What steps must find as it was when they are tried out; rows past the place are written over."""
        return [self._place]

    def latest(self) -> Tensor | None:
        """The row of the last step, where it can be had without waiting."""
        if self._on_device:
            return self._under_way[-1].host_rows[-1] if self._under_way and self._under_way[-1].copied.query() else None
        return self._filled()[-1] if self.count else None

    def _filled(self) -> Tensor:
        """The rows of the window so far."""
        if self._on_device:
            return self._rows[: self.count]
        return torch.tensor(self._host_rows, dtype=torch.float32).reshape(self.count, len(self._names))

    def take(self) -> None:
        """End the window, and begin a new one with the next step."""
        if not self.count:
            return
        rows = self._filled().clone()
        host, copied = rows, None
        if self._on_device:
            host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
            host.copy_(rows, non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record()
        self._under_way.append(_UnderWay(self.first, rows, host, copied))
        self.begin(self.first + self.count)

    def drop(self) -> None:
        """Forget windows that have not been read: what came after an update that must not take place."""
        self._under_way.clear()

    def begin(self, first: int) -> None:
        """Begin an empty window with this step."""
        self.first, self.count, self._host_rows = first, 0, []
        self._place.zero_()

    def ready(self, *, wait: bool = False) -> list[Window]:
        """Windows that have arrived since the last call; with `wait` all that were taken."""
        windows = []
        while self._under_way:
            first, _, rows, copied = self._under_way[0]
            if copied is not None and not (wait or copied.query()):
                break
            if copied is not None:
                copied.synchronize()
            self._under_way.popleft()
            windows.append(Window(first, self._names, rows))
        return windows

    def window(self) -> Window:
        """The window that grows, on a device where one need not wait for it."""
        return Window(self.first, self._names, self._filled())

    def state_dict(self) -> dict[str, Any]:
        """What has not been read yet: windows under way and the one that grows, as tensors on the device."""
        under_way = [{"first": one.first, "rows": one.device_rows} for one in self._under_way]
        return {"names": list(self._names), "under_way": under_way, "first": self.first, "rows": self._filled()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with what had not been read when the state was saved."""
        self._under_way.clear()
        if state["names"]:
            self._names = tuple(state["names"])
            self._known = dict.fromkeys(self._names).keys()
            # A window may have been longer before, and continues to the end of one of now.
            self._capacity += len(state["rows"])
            self._rows = torch.zeros(self._capacity, len(self._names), device=self._rows.device)
        for one in state["under_way"]:
            self._under_way.append(_UnderWay(one["first"], one["rows"], one["rows"].cpu(), None))
        rows = state["rows"]
        self.begin(state["first"])
        self.count = len(rows)
        if self._on_device:
            self._rows[: self.count].copy_(rows)
            self._place.fill_(self.count)
        else:
            self._host_rows = rows.tolist()


class Eager:
    """Steps as torch does them."""

    def __init__(self, step: EagerStep, readout: Readout) -> None:
        self._step = step
        self._readout = readout

    def source(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches themselves."""
        return iter(batches)

    def micro(self, entry: Any) -> None:
        """Forward and backward."""
        self._step.micro(entry)

    def update(self) -> bool:
        """Update the weights."""
        is_good = self._step.update()
        self._readout.count += 1
        return is_good
