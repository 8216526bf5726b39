"""The form of most metrics: a sum of one value a sample, divided by the number of samples."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Self

import torch
from torch import Tensor

from stoker.train.metrics.metric import AllGather, mask_like, sum_dtype


class Average(ABC):
    """An average over all valid values of all batches, each with the same weight however batches were cut.

    Whoever needs a metric that is not here derives from this and says in `values` what is averaged.
    """

    name = "average"

    def __init__(self) -> None:
        self.reason: str | None = None
        self._sums: Tensor | None = None  # total and weight, side by side: one tensor to read, to add up and to clear

    @abstractmethod
    def values(self, prediction: Tensor, target: Tensor) -> Tensor:
        """One value for each thing that counts; its first axis is that of the rows."""

    def update(self, *, prediction: Tensor, target: Tensor, valid: Tensor | None = None) -> None:
        """Take in one batch; `valid` has one flag a row, or one a value."""
        with torch.no_grad():
            self._add(self.values(prediction.detach(), target.detach()), valid)

    def _add(self, values: Tensor, valid: Tensor | None, weight: Tensor | float | None = None) -> None:
        sums = self._on(values.device)
        if valid is None:
            sums[0] += _weighted(values, weight).sum(dtype=sums.dtype)
            sums[1] += values.numel() * (1.0 if weight is None else weight)
            return
        mask = mask_like(self.name, values, valid)
        # Chosen, not multiplied: a row that is not valid may hold nan.
        sums[0] += torch.where(mask, _weighted(values, weight), 0).sum(dtype=sums.dtype)
        num_values = mask.sum(dtype=sums.dtype) * (values.numel() // max(1, mask.numel()))
        sums[1] += num_values * (1.0 if weight is None else weight)

    def compute(self) -> float:
        """The average; nan where nothing was valid."""
        total, weight = (0.0, 0.0) if self._sums is None else self._sums.tolist()
        self.reason = None
        if not weight > 0:
            self.reason = f"metric {self.name!r} has seen no valid sample"
            return math.nan
        if math.isnan(total):
            self.reason = f"metric {self.name!r}: a valid prediction or target is nan"
        return total / weight

    def reset(self) -> None:
        """Begin anew."""
        self.reason = None
        if self._sums is not None:
            self._sums.zero_()

    def to(self, device: torch.device | str) -> Self:
        """Keep the sums on a device."""
        device = torch.device(device)
        if self._sums is None:
            self._on(device)
        elif self._sums.device != device:
            self._sums = self._sums.to(device, sum_dtype(device))
        return self

    def sums(self) -> list[Tensor]:
        """One tensor: the total and the weight."""
        return [self._on(torch.device("cpu"))]

    def gather(self, all_gather: AllGather) -> None:
        """Add up what all ranks have."""
        for own in self.sums():
            own.copy_(torch.stack(all_gather(own)).sum(0))

    def _on(self, device: torch.device) -> Tensor:
        if self._sums is None:
            with torch.inference_mode(False):  # or what is made in inference mode could not be changed outside of it
                self._sums = torch.zeros(2, dtype=sum_dtype(device), device=device)
        return self._sums


def _weighted(values: Tensor, weight: Tensor | float | None) -> Tensor:
    return values if weight is None else values * weight
