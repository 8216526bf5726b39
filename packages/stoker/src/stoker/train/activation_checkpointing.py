"""Activation checkpointing: repeated layers are recomputed in the backward pass, which trades time for memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from stoker.errors import OptionError


def repeated_layers(model: nn.Module) -> list[nn.Module]:
    """Layers that a model has several of, side by side in a list: the outermost such."""
    if isinstance(model, nn.ModuleList | nn.Sequential):
        kinds = [type(layer) for layer in model]
        repeated = [layer for layer in model if kinds.count(type(layer)) > 1 and any(True for _ in layer.children())]
        if repeated:
            return repeated
    return [layer for child in model.children() for layer in repeated_layers(child)]


@contextlib.contextmanager
def recomputed(model: nn.Module) -> Iterator[None]:
    """Let repeated layers keep only what goes into them; names of weights stay as they are."""
    layers = repeated_layers(model)
    if not layers:
        raise OptionError(
            "activation_checkpointing=True needs layers that repeat (in an nn.ModuleList or nn.Sequential), but the model has none. "
            "Call torch.utils.checkpoint in its forward instead.",
            parameter="activation_checkpointing",
        )
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
