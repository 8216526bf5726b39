"""Loss functions: what a model is trained on, in the one form `loss(model, batch)`.

    supervised    the loss `criterion(model(x), y)` of batches with inputs and targets
    as_loss       a criterion such as `nn.MSELoss()` stands for `supervised(nn.MSELoss())`
    outcome_of    what a loss function returned, checked

A loss function returns a scalar tensor, or a dict of them with the key "loss"; other scalars of the dict are logged. The entries
"prediction" and "target" may be whole tensors: metrics read them in evaluation, or the rows that "valid" marks. A batch is any
container of tensors that `stoker._batch` walks; its entry "valid" marks the rows that are samples.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from stoker import _batch
from stoker._batch import entry_of
from stoker.errors import OptionError, TrainError

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


def supervised(criterion: Callable[..., torch.Tensor], *, x: str | None = None, y: str | None = None) -> LossFunction:
    """Return the loss `criterion(model(x), y)`, for batches that are pairs or have entries of these names.

    Rows that are not samples (`valid` is False) do not count. Neither do targets that a feed marks as padded (`target_mask`, for
    `y="<column>_target"`) or missing (`<y>_observed`). The loss of a sample is the mean over its targets. With such masks the
    criterion must support `reduction="none"`, as those of torch do.

    Args:
        criterion: Such as `nn.MSELoss()`.
        x: The entry that the model gets. By default the first entry of a pair, `x`, or the only `<column>` (of floats)
            with a `<column>_target`.
        y: The entry that the prediction is compared with. By default the second entry of a pair, `y`, or that `<column>_target`.

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
    x: str | None,
    y: str | None,
) -> dict[str, torch.Tensor]:
    inputs, expected, y = _pair(batch, x, y)
    prediction = model(inputs)
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


def _is_float(entry: Any) -> bool:
    """Whether an entry may be an input: times and categories are integers."""
    return isinstance(entry, torch.Tensor) and entry.is_floating_point()


def _pair(batch: Any, x: str | None, y: str | None) -> tuple[Any, Any, str]:
    """Return the input and the target of a batch, and the name of the target."""
    names = [key for key, _ in _batch.entries_of(batch) or () if isinstance(key, str)]
    is_named = x is not None or y is not None
    if is_named:
        x, y = x or "x", y or "y"
    else:
        pairs = (
            [("x", "y")]
            if "x" in names and "y" in names
            else [(name, f"{name}_target") for name in names if f"{name}_target" in names]
        )
        if len(pairs) > 1:
            pairs = [(name, target) for name, target in pairs if _is_float(entry_of(batch, name))]
        if len(pairs) == 1:
            x, y = pairs[0]
    inputs, targets = (None if name is None else entry_of(batch, name) for name in (x, y))
    if inputs is not None and targets is not None:
        return inputs, targets, str(y)
    if isinstance(batch, tuple | list) and len(batch) == 2 and not (names and is_named):
        return batch[0], batch[1], "y"
    expected = "a pair (x, y), or one column with its target" if not is_named else f"{x!r} and {y!r}"
    what = f"has the entries {', '.join(names)}" if names else f"is a {type(batch).__name__}"
    raise TrainError(
        f"a batch {what}; expected {expected}. Name the input and the target of the loss: "
        f"stoker.train.supervised(criterion, x=…, y=…), or give a loss(model, batch) of your own."
    )


def as_loss(loss: Any) -> LossFunction:
    """The loss function: `nn.MSELoss()` stands for `supervised(nn.MSELoss())`."""
    if isinstance(loss, type) or not callable(loss):
        raise OptionError.expected("loss", loss, "a function loss(model, batch), or a criterion such as nn.MSELoss()")
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
        what = f"of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
        raise TrainError(f"the loss is {what}; expected a scalar tensor. Take its mean over the samples.")
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
