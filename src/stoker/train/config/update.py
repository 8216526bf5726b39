"""The sections `optimizer` and `schedule`: how weights are changed, and how the learning rate goes."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from stoker.train.config.data import Count, Share, Whole

Rate = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Updates = Whole | Annotated[float, Meta(ge=0, le=1)]


class AdamW(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="adamw"):
    """Adam with weight decay apart from the gradient."""

    lr: Rate = 1e-3
    """Learning rate."""
    weight_decay: Rate = 0.01
    """How fast weights shrink."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """Memory of the mean and of the square of gradients."""
    eps: Positive = 1e-8
    """Keeps the division by small squares in bounds."""


class Adam(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="adam"):
    """Adam; weight decay is part of the gradient."""

    lr: Rate = 1e-3
    """Learning rate."""
    weight_decay: Rate = 0.0
    """How fast weights shrink."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """Memory of the mean and of the square of gradients."""
    eps: Positive = 1e-8
    """Keeps the division by small squares in bounds."""


class Sgd(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="sgd"):
    """Plain descent, with momentum if wanted."""

    lr: Rate = 1e-2
    """Learning rate."""
    weight_decay: Rate = 0.0
    """How fast weights shrink."""
    momentum: Share = 0.9
    """Share of the last change that stays."""
    nesterov: bool = False
    """Look ahead by the momentum."""


class RmsProp(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="rmsprop"):
    """Gradients divided by their recent size."""

    lr: Rate = 1e-3
    """Learning rate."""
    weight_decay: Rate = 0.0
    """How fast weights shrink."""
    momentum: Share = 0.0
    """Share of the last change that stays."""
    alpha: Share = 0.99
    """Memory of the square of gradients."""


class ConstantRate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="constant"):
    """The learning rate stays, after a warm-up if one is given."""

    warmup: Updates = 0
    """Updates of the warm-up; a fraction is a share of all."""


class LinearRate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="linear"):
    """Up during the warm-up, then down in a straight line."""

    warmup: Updates = 0
    """Updates of the warm-up; a fraction is a share of all."""
    end: Rate = 0.0
    """Factor at the last update."""


class CosineRate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="cosine"):
    """Up during the warm-up, then down along half a cosine."""

    warmup: Updates = 0
    """Updates of the warm-up; a fraction is a share of all."""
    end: Rate = 0.0
    """Factor at the last update."""


class OneCycleRate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="one_cycle"):
    """Up from a low start and down to a lower end, both along half a cosine."""

    warmup: Updates = 0.3
    """Updates of the rise; a fraction is a share of all."""
    start: Rate = 1 / 25
    """Factor at the first update."""
    end: Rate = 1e-4
    """Factor at the last update."""


class StepRate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="steps"):
    """Down by a factor every so many updates."""

    every: Count | Annotated[float, Meta(gt=0, le=1)]
    """How many; a fraction is a share of all."""
    factor: Rate = 0.1
    """By what."""


class InverseRate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="inverse"):
    """Up during the warm-up, then down with the square root of the number of updates."""

    warmup: Updates = 4000
    """Updates of the warm-up; a fraction is a share of all."""


AnyOptimizer = AdamW | Adam | Sgd | RmsProp
AnySchedule = ConstantRate | LinearRate | CosineRate | OneCycleRate | StepRate | InverseRate
