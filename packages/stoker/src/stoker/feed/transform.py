"""Transforms: functions of the user from the entries of a batch to those that are delivered.

A transform runs on NumPy arrays, in the background threads; `OnDevice(function)` runs on tensors, on the device, after the gather. With a
second parameter, or one named `rng`, it also gets a generator that is seeded by seed, epoch and position.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from typing import Any

import torch

from stoker.errors import FeedError, OptionError
from stoker.feed.padding import Tensors

Transform = Callable[..., Mapping[str, Any]]
"""f(batch) or f(batch, rng): from the arrays (or tensors) of a batch to those to deliver."""


@dataclass(frozen=True)
class OnDevice:
    """A transform from tensors to tensors on the device, after the gather, in the thread that asks for the batch.

    Its generator is a torch generator of the device. Of two transforms the first runs on the CPU: `transform=[encode, OnDevice(augment)]`.

    Example:
        >>> OnDevice(lambda batch: {"x": batch["x"] * 2}).function({"x": torch.ones(1)})
        {'x': tensor([2.])}
    """

    function: Transform


AnyTransform = Transform | OnDevice


def split_transforms(transform: AnyTransform | Sequence[AnyTransform] | None) -> tuple[Transform | None, Transform | None]:
    """Return the transform on the CPU and the one on the device."""
    steps: list[Any] = [] if transform is None else list(transform) if isinstance(transform, list | tuple) else [transform]
    on_device = [step.function for step in steps if isinstance(step, OnDevice)]
    on_host = [step for step in steps if not isinstance(step, OnDevice)]
    is_ordered = not on_device or isinstance(steps[-1], OnDevice)
    if max(len(on_host), len(on_device)) > 1 or not is_ordered or not all(map(callable, [*on_host, *on_device])):
        raise OptionError(
            f"transform is {transform!r}; expected a function from a dict of arrays to one, OnDevice(function), or the two as a list.",
            parameter="transform",
        )
    return next(iter(on_host), None), next(iter(on_device), None)


def rng_parameter(transform: Transform) -> str | int | None:
    """How a transform takes a generator: as its parameter `rng`, as its second one if that has no default, or not at all."""
    try:
        parameters = inspect.signature(transform).parameters
    except (TypeError, ValueError):  # a function of C
        return None
    is_bound = isinstance(transform, partial) and "rng" in transform.keywords
    if "rng" in parameters and not is_bound and parameters["rng"].kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY):
        return "rng"
    places = [
        parameter
        for parameter in parameters.values()
        if parameter.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    ]
    return 1 if len(places) > 1 and places[1].default is Parameter.empty else None


def with_rng(transform: Transform) -> Callable[[Any, Callable[[], Any]], Any]:
    """The transform as a function of a batch and of what makes its generator."""
    parameter = rng_parameter(transform)
    if parameter is None:
        return lambda batch, _: transform(batch)
    return lambda batch, make: transform(batch, rng=make()) if parameter == "rng" else transform(batch, make())


class DeviceTransform:
    """A function from the tensors of a gathered batch to those to deliver, run where they are, by the thread that asked for them."""

    def __init__(self, transform: Transform, device: torch.device) -> None:
        self._transform = with_rng(transform)
        self._device = device

    def __call__(self, batch: Tensors, seed: int) -> Tensors:
        """The batch to deliver; the generator has this seed."""
        made = self._transform(batch, lambda: torch.Generator(self._device).manual_seed(seed))
        if not isinstance(made, Mapping) or not all(isinstance(value, torch.Tensor) for value in made.values()):
            raise FeedError(f"the transform on the device returned {type(made).__name__}; expected a dict of tensors.")
        delivered = dict(made)
        if "valid" in batch:
            delivered.setdefault("valid", batch["valid"])  # rows without a sample must stay marked
        return delivered


def as_tensors(made: object) -> Tensors:
    """What a transform returned, as tensors on the CPU, whatever the default device of torch is."""
    if not isinstance(made, Mapping):
        raise FeedError(f"transform returned {type(made).__name__}; expected a dict of arrays.")
    return {
        name: entry if isinstance(entry, torch.Tensor) else torch.as_tensor(entry, device="cpu") for name, entry in made.items()
    }
