"""Activation checkpointing: the same weights, and a model that is given back as it was."""

from __future__ import annotations

import pytest
import torch
from tests.train.training import network, pairs, same_weights, trainer_of
from torch import nn

from stoker.errors import OptionError


def test_recomputed_activations_change_nothing() -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3)], nn.Linear(6, 1))

    plain, saving = model(), model()
    trainer_of(plain).fit(pairs())
    trainer_of(saving, activation_checkpointing=True).fit(pairs())
    assert same_weights(plain, saving)
    assert all("forward" not in vars(layer) for layer in saving), "the model is given back as it was"
    with pytest.raises(OptionError, match="activation_checkpointing=True needs layers that repeat"):
        trainer_of(network(), activation_checkpointing=True).fit(pairs())
