"""From the names of a configuration to the model, the loss, the optimizer and the schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import torch
from torch import nn

from stoker.errors import OptionError
from stoker.train.config import model as named
from stoker.train.config.update import AnyOptimizer, AnySchedule
from stoker.train.models import losses
from stoker.train.models.connected import Mlp
from stoker.train.models.own import bind_function, call_function
from stoker.train.models.predictor import Predictor
from stoker.train.models.recurrent import Gru
from stoker.train.models.task import Task
from stoker.train.models.transformer import Transformer

MODELS: dict[type, Callable[..., nn.Module]] = {
    named.Transformer: Transformer,
    named.Gru: Gru,
    named.Mlp: Mlp,
    named.Linear: lambda task: Mlp(task, layers=0),
}
LOSSES: dict[type, Callable[..., losses.TaskLoss]] = {
    named.Mse: losses.mse,
    named.Mae: losses.mae,
    named.Huber: losses.huber,
    named.Bce: losses.bce,
    named.CrossEntropy: losses.cross_entropy,
    named.Quantile: losses.quantile,
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
}


def make_model(
    config: named.AnyModel, task: Task, *, scaler: nn.Module | None = None, target_scaler: nn.Module | None = None
) -> nn.Module:
    """The model of a configuration, from a batch to a prediction; its weights come from torch's generator."""
    if isinstance(config, named.Own):
        model = call_function(config.function, config.options, task=task, scaler=scaler, target_scaler=target_scaler)
        if not isinstance(model, nn.Module):
            raise OptionError(f"{config.function} returned a {type(model).__name__}; expected a model (torch.nn.Module).")
        return model
    network = MODELS[type(config)](task, **_options(config))
    return Predictor(task, network, scaler=scaler, target_scaler=target_scaler)


def make_loss(config: named.AnyLoss, task: Task) -> Callable[..., Any]:
    """The loss of a configuration: `loss(model, batch)`."""
    if isinstance(config, named.Own):
        return bind_function(config.function, config.options, task=task)
    options = _options(config)
    options.pop("classes", None)  # the task has it
    return LOSSES[type(config)](task, **options)


def make_optimizer(config: AnyOptimizer, parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    """The optimizer of a configuration."""
    return OPTIMIZERS[_name(config)](list(parameters), **_options(config))


def make_schedule(config: AnySchedule) -> Any:
    """The schedule of a configuration."""
    from stoker.train import schedule

    makers = {
        "constant": schedule.Constant,
        "linear": schedule.Linear,
        "cosine": schedule.Cosine,
        "one_cycle": schedule.OneCycle,
        "steps": schedule.Steps,
        "inverse": schedule.Inverse,
    }
    return makers[_name(config)](**_options(config))


def outputs_each(config: named.AnyLoss, num_categories: int | None) -> int:
    """Numbers that a model gives for one number of a target."""
    if isinstance(config, named.Quantile):
        return len(config.quantiles)
    if isinstance(config, named.CrossEntropy):
        return config.classes or num_categories or 1
    return 1


def _options(config: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__struct_fields__}


def _name(config: msgspec.Struct) -> str:
    return str(config.__struct_config__.tag)
