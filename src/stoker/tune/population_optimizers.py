"""Optimizers of a population: the weights of K members as one matrix [K, P], each row updated with settings of its own.

Each rule follows `torch.optim` step by step. Settings are float64 tensors [K], and numbers derived from them are rounded once, as
torch does with Python numbers.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stoker.errors import OptionError
from stoker.train.optimizer import orthogonalize

Tensors = dict[str, torch.Tensor]

_ADAM = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}

DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "adamw": {"weight_decay": 1e-2, **_ADAM},
    "sgd": {"weight_decay": 0.0, "momentum": 0.0, "dampening": 0.0, "nesterov": 0.0},
    "rmsprop": {"weight_decay": 0.0, "momentum": 0.0, "alpha": 0.99, "eps": 1e-8},
    "muon": {"weight_decay": 0.1, "momentum": 0.95, "nesterov": 1.0, "adamw_lr": math.nan, **_ADAM},
}
"""The settings of each optimizer besides `lr` and `max_grad_norm`, with torch's defaults. `adamw_lr` is `lr` unless given."""

STATE: Mapping[str, tuple[str, ...]] = {
    "adamw": ("exp_avg", "exp_avg_sq"),
    "sgd": ("momentum_buffer",),
    "rmsprop": ("square_avg", "momentum_buffer"),
    "muon": ("exp_avg", "exp_avg_sq"),  # the momentum of matrices is in the columns of exp_avg that they have
}
"""The state of each optimizer, each a matrix like the weights."""

SETTINGS = frozenset({"lr", "betas", "max_grad_norm"}.union(*DEFAULTS.values()))
"""Keys of a configuration that belong to some optimizer."""


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A parameter that Muon updates: columns `start` to `start + rows * columns` of the weights."""

    start: int
    rows: int
    columns: int
    ratios: torch.Tensor
    """[K]: the factor of the learning rate, from the member's own shape (a padded matrix is larger)."""


def is_setting(key: str) -> bool:
    """Whether a key of a configuration belongs to an optimizer."""
    return key in SETTINGS


def parse_settings(optimizer: str, configs: Sequence[Mapping[str, Any]]) -> Tensors:
    """The settings of all members as float64 tensors [K].

    Raises:
        OptionError: An unknown optimizer, a missing `lr`, a setting of another optimizer, or an invalid value.
    """
    if optimizer not in DEFAULTS:
        near = difflib.get_close_matches(str(optimizer), DEFAULTS, 1)
        raise OptionError(f"optimizer is {optimizer!r}; expected one of {', '.join(DEFAULTS)}{f' ({near[0]}?)' if near else ''}.")
    rows = [_parse(optimizer, number, config) for number, config in enumerate(configs)]
    return {key: torch.tensor([row[key] for row in rows], dtype=torch.float64) for key in rows[0]}


def _parse(optimizer: str, number: int, config: Mapping[str, Any]) -> dict[str, float]:
    given = {key: value for key, value in config.items() if is_setting(key)}
    if "lr" not in given:
        raise OptionError(f"configs[{number}] has no 'lr'; every configuration needs a learning rate.")
    if "betas" in given:
        betas = given.pop("betas")
        if not isinstance(betas, Sequence) or len(betas) != 2:
            raise OptionError(f"betas of configs[{number}] is {betas!r}; expected two numbers.")
        given |= {"beta1": betas[0], "beta2": betas[1]}
    defaults = {"lr": 0.0, "max_grad_norm": math.inf, **DEFAULTS[optimizer]}
    for key, value in given.items():
        if key not in defaults:
            raise OptionError(
                f"configs[{number}] has {key!r}, which {optimizer} does not use; its settings are {', '.join(defaults)}. Remove it."
            )
        _check(number, key, value)
    found = {**defaults, **{key: float(value) for key, value in given.items()}}
    if math.isnan(found.get("adamw_lr", 0.0)):
        found["adamw_lr"] = found["lr"]
    if optimizer == "sgd" and found["nesterov"] and (found["momentum"] <= 0 or found["dampening"]):
        raise OptionError(f"configs[{number}] has nesterov=True; it needs momentum above 0 and no dampening.")
    return found


def _check(number: int, key: str, value: Any) -> None:
    """Refuse what torch.optim refuses; a learning rate may be so large that training diverges."""
    if isinstance(value, str) or not isinstance(value, int | float | bool) or math.isnan(value):
        raise OptionError(f"{key} of configs[{number}] is {value!r}; expected a number.")
    below_one = key in ("beta1", "beta2")
    if value < 0 or (below_one and value >= 1) or (math.isinf(value) and key != "max_grad_norm"):
        expected = "at least 0 and below 1" if below_one else "a finite number of at least 0"
        raise OptionError(f"{key} of configs[{number}] is {value!r}; expected {expected}.")


def new_state(optimizer: str, weights: torch.Tensor) -> Tensors:
    """The state before the first update."""
    state = {name: torch.zeros_like(weights) for name in STATE[optimizer]}
    return {"step": torch.zeros((), dtype=torch.float64, device=weights.device), **state}


def count_step(state: Tensors) -> None:
    """Count an update. Apart from the update itself, because `torch.compile` (2.13) loses an in-place change of a scalar."""
    state["step"].add_(1)


def clip(gradients: torch.Tensor, settings: Tensors) -> None:
    """Scale the gradients of each member whose norm is larger than its `max_grad_norm`, as `clip_grad_norm_` does."""
    norms = torch.linalg.vector_norm(gradients, dim=1)
    limits = settings["max_grad_norm"].to(gradients.dtype)
    # A limit of Inf divided by a norm of Inf is NaN; such a member has diverged already.
    gradients.mul_((limits / (norms + 1e-6)).clamp(max=1.0)[:, None])


def update(
    optimizer: str,
    weights: torch.Tensor,
    gradients: torch.Tensor,
    state: Tensors,
    settings: Tensors,
    *,
    factor: torch.Tensor,
    matrices: Sequence[Matrix] = (),
) -> None:
    """One update of all members, in place. `count_step` comes before it.

    Args:
        optimizer: Its name.
        weights: [K, P].
        gradients: [K, P]. They may be overwritten.
        state: As of `new_state`.
        settings: As of `parse_settings`, on the device of the weights.
        factor: What all learning rates are multiplied by in this update, float64.
        matrices: The parameters that Muon updates; they come first in the columns. Others are updated by AdamW.
    """
    _RULES[optimizer](weights, gradients, state, settings, factor, matrices)


def _column(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return values.to(like.dtype)[:, None]


def _adamw(
    weights: torch.Tensor, gradients: torch.Tensor, state: Tensors, settings: Tensors, factor: torch.Tensor, _: Sequence[Matrix]
) -> None:
    _adamw_columns(weights, gradients, state["exp_avg"], state["exp_avg_sq"], state["step"], settings, settings["lr"] * factor)


def _adamw_columns(
    weights: torch.Tensor,
    gradients: torch.Tensor,
    average: torch.Tensor,
    average_sq: torch.Tensor,
    step: torch.Tensor,
    settings: Tensors,
    rates: torch.Tensor,
) -> None:
    beta1, beta2 = settings["beta1"], settings["beta2"]
    weights.mul_(_column(1 - rates * settings["weight_decay"], weights))
    average.lerp_(gradients, _column(1 - beta1, weights))
    average_sq.mul_(_column(beta2, weights)).addcmul_(gradients * _column(1 - beta2, weights), gradients)
    denominator = average_sq.sqrt().div_(_column((1 - beta2**step).sqrt(), weights)).add_(_column(settings["eps"], weights))
    weights.addcdiv_(average * _column(-rates / (1 - beta1**step), weights), denominator)


def _sgd(
    weights: torch.Tensor, gradients: torch.Tensor, state: Tensors, settings: Tensors, factor: torch.Tensor, _: Sequence[Matrix]
) -> None:
    buffer, momentum = state["momentum_buffer"], _column(settings["momentum"], weights)
    gradients.addcmul_(weights, _column(settings["weight_decay"], weights))
    # In its first step torch copies the gradient without damping it.
    damped = torch.where(state["step"] == 1, 1.0, 1 - settings["dampening"])
    buffer.mul_(momentum).addcmul_(gradients, _column(damped, weights))
    ahead = gradients.addcmul_(buffer, momentum)
    used = torch.where(settings["nesterov"][:, None] > 0, ahead, buffer)
    weights.addcmul_(used, _column(-settings["lr"] * factor, weights))


def _rmsprop(
    weights: torch.Tensor, gradients: torch.Tensor, state: Tensors, settings: Tensors, factor: torch.Tensor, _: Sequence[Matrix]
) -> None:
    alpha, average, buffer = settings["alpha"], state["square_avg"], state["momentum_buffer"]
    gradients.addcmul_(weights, _column(settings["weight_decay"], weights))
    average.mul_(_column(alpha, weights)).addcmul_(gradients * _column(1 - alpha, weights), gradients)
    scaled = gradients.div_(average.sqrt().add_(_column(settings["eps"], weights)))
    buffer.mul_(_column(settings["momentum"], weights)).add_(scaled)
    weights.addcmul_(buffer, _column(-settings["lr"] * factor, weights))


def _muon(
    weights: torch.Tensor,
    gradients: torch.Tensor,
    state: Tensors,
    settings: Tensors,
    factor: torch.Tensor,
    matrices: Sequence[Matrix],
) -> None:
    end = max((one.start + one.rows * one.columns for one in matrices), default=0)
    other = slice(end, None)
    average, average_sq = state["exp_avg"], state["exp_avg_sq"]
    _adamw_columns(
        weights[:, other],
        gradients[:, other],
        average[:, other],
        average_sq[:, other],
        state["step"],
        settings,
        settings["adamw_lr"] * factor,
    )
    if not matrices:
        return
    rates, momentum = settings["lr"] * factor, settings["momentum"]
    gradient, buffer = gradients[:, :end], average[:, :end]
    buffer.lerp_(gradient, _column(1 - momentum, weights))
    ahead = torch.where(settings["nesterov"][:, None] > 0, gradient.lerp(buffer, _column(momentum, weights)), buffer)
    weights[:, :end].mul_(_column(1 - rates * settings["weight_decay"], weights))
    for one in matrices:
        columns = slice(one.start, one.start + one.rows * one.columns)
        direction = orthogonalize(ahead[:, columns].reshape(-1, one.rows, one.columns))
        weights[:, columns].addcmul_(direction.flatten(1).to(weights.dtype), _column(-rates * one.ratios, weights))


_RULES: Mapping[str, Callable[[torch.Tensor, torch.Tensor, Tensors, Tensors, torch.Tensor, Sequence[Matrix]], None]] = {
    "adamw": _adamw,
    "sgd": _sgd,
    "rmsprop": _rmsprop,
    "muon": _muon,
}
