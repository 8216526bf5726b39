"""Loss functions, in the one form `loss(model, batch)`.

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


class Outcome(NamedTuple):
    """What a loss function returned for a batch."""

    loss: torch.Tensor
    scalars: dict[str, torch.Tensor]
    """Other values to log."""
    whole: dict[str, torch.Tensor]
    """What metrics read."""


def supervised(criterion: Callable[..., torch.Tensor], *, x: str = "x", y: str = "y") -> LossFunction:
    """The loss `criterion(model(x), y)`, for batches that are pairs or have entries of these names.

    Where `valid` marks rows that are not samples, the mean is taken over the others; the criterion must then support
    `reduction="none"`, as those of torch do.

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
    each = _without_mean(criterion)

    def loss(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
        given, expected = _pair(batch, x, y)
        prediction = model(given)
        valid = entry_of(batch, "valid")
        if valid is None:
            value = criterion(prediction, expected)
        else:
            rows = each(prediction, expected).reshape(len(valid), -1).mean(1)
            value = torch.where(valid, rows, 0).sum() / valid.sum().clamp(min=1)
        return {"loss": value, "prediction": prediction.detach(), "target": expected}

    return loss


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
            f"the criterion {criterion!r} cannot leave out rows that are not samples. Give a loss(model, batch) of your own "
            f"that uses batch['valid'], or a feed with last_batch='drop' or 'short'."
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


def outcome_of(result: Any) -> Outcome:
    """Check and sort what a loss function returned."""
    if isinstance(result, torch.Tensor):
        return Outcome(_checked(result), {}, {})
    if not isinstance(result, Mapping) or "loss" not in result:
        what = f"a dict with {', '.join(map(repr, result))}" if isinstance(result, Mapping) else f"a {type(result).__name__}"
        raise TrainError(f"the loss function returned {what}; expected a scalar tensor, or a dict with the key 'loss'.")
    whole = {name: result[name] for name in WHOLE if name in result}
    scalars = {name: value.detach() for name, value in result.items() if name != "loss" and name not in whole}
    return Outcome(_checked(result["loss"]), scalars, whole)


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
