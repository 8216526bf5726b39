"""The scaler of a model: from raw features to numbers around zero, baked into the model so that nobody can forget it.

Where prices drift, features in units of price leave the range that a model was trained on. With `levels` they become ratios to the
close first; mean and std are then those of the ratios (`stationary.ratios`).
"""

from __future__ import annotations

import torch
from torch import nn

from stoker.errors import OptionError
from stoker.recipes.tfa.stationary import Levels


class Scaler(nn.Module):
    """A module that begins with `(x - mean) * inv_std`."""

    mean: torch.Tensor
    inv_std: torch.Tensor
    _lifted: torch.Tensor
    _divided: torch.Tensor

    def __init__(self, *, mean: torch.Tensor, std: torch.Tensor, levels: Levels | None = None) -> None:
        super().__init__()
        if mean.dim() != 1 or mean.shape != std.shape or not len(mean):
            raise OptionError(
                f"mean and std have the shapes {list(mean.shape)} and {list(std.shape)}; expected one number a feature."
            )
        if not bool((std > 0).all()) or not bool(torch.isfinite(mean).all()):
            raise OptionError("std is not above 0 for each feature, or a mean is no number; clip std at a small number.")
        self.register_buffer("mean", mean.detach().clone())
        self.register_buffer("inv_std", 1 / std.detach())
        self.levels = levels
        # From which columns the close is taken, and which it divides. They follow from the spec, so files of weights lack them.
        lifted = torch.zeros_like(mean)
        divided = torch.zeros(len(mean), dtype=torch.bool)
        if levels is not None:
            lifted[list(levels.levels)] = 1
            divided[[*levels.levels, *levels.distances]] = True
        self.register_buffer("_lifted", lifted, persistent=False)
        self.register_buffer("_divided", divided, persistent=False)

    @property
    def num_features(self) -> int:
        """Features of a row."""
        return len(self.mean)

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        """Features [..., f] in units of their spread."""
        if self.levels is not None:
            close = x[..., self.levels.close, None]
            x = torch.where(self._divided, (x - close * self._lifted) / close, x)
        return (x - self.mean) * self.inv_std
