"""The sections `model` and `loss`: builtin ones by name with their options, or functions of the user's own."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from stoker.train.config.data import Share, Size

Layers = Annotated[int, Meta(ge=1, le=1000)]


class Transformer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="transformer"):
    """Attention over the steps, with learned positions."""

    width: Size = 128
    """Numbers that stand for a step inside the model."""
    layers: Layers = 3
    """Blocks of attention and feed-forward."""
    heads: Size = 8
    """Heads of attention; they divide the width."""
    hidden: Size | None = None
    """Width inside a feed-forward; by default twice the width."""
    dropout: Share = 0.0
    """Share of numbers that are dropped in training."""
    causal: bool | None = None
    """Whether a step sees only those before it; by default where every step predicts, and there it must."""


class Gru(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="gru"):
    """A recurrent network."""

    width: Size = 128
    """Numbers of its state."""
    layers: Layers = 2
    """Layers on top of each other."""
    dropout: Share = 0.0
    """Share of numbers that are dropped between layers in training."""


class Mlp(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="mlp"):
    """All steps at once through fully connected layers."""

    width: Size = 256
    """Numbers of a hidden layer."""
    layers: Layers = 2
    """Hidden layers."""
    dropout: Share = 0.0
    """Share of numbers that are dropped in training."""


class Linear(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="linear"):
    """One matrix from all steps to the prediction: the baseline to beat."""


class Own(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="own"):
    """A function of the user's own, which is run: name only code that you trust."""

    function: str
    """Where it is, as `file.py:function`, from the folder in which the command runs."""
    options: dict[str, Any] = {}
    """Keyword arguments that it gets; and `task`, if it has a parameter of that name."""


class Mse(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="mse"):
    """Mean of squared errors."""


class Mae(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="mae"):
    """Mean of absolute errors."""


class Huber(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="huber"):
    """Squared for small errors, absolute for large ones."""

    delta: Annotated[float, Meta(gt=0)] = 1.0
    """Where the one becomes the other."""


class Bce(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="bce"):
    """Binary cross-entropy; predictions are logits, targets between 0 and 1."""

    positive_weight: Annotated[float, Meta(gt=0)] = 1.0
    """How much more a positive sample counts."""


class CrossEntropy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="cross_entropy"):
    """For one target of classes from 0; negative ones are missing and do not count."""

    classes: Annotated[int, Meta(ge=2, lt=2**31)] | None = None
    """How many there are; for a column of categories the store knows it."""
    smoothing: Share = 0.0
    """Share of the target that is spread over all classes."""


class Quantile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="quantile"):
    """Pinball loss; each target is predicted once a quantile."""

    quantiles: Annotated[tuple[Annotated[float, Meta(gt=0, lt=1)], ...], Meta(min_length=1)] = (0.1, 0.5, 0.9)
    """Which ones."""


AnyModel = Transformer | Gru | Mlp | Linear | Own
AnyLoss = Mse | Mae | Huber | Bce | CrossEntropy | Quantile | Own
