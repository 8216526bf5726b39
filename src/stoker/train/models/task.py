"""The task: what a model gets, what it has to predict, and where in a batch both are.

    horizon     [rows, length] -> the steps behind:  [rows, horizon, outputs]
    shift       [rows, length] -> each step's future: [rows, length, outputs]
    last        [rows, length] -> a value at the last step of the sample: [rows, 1, outputs]
    series      [rows, length] -> a value of the whole series: [rows, 1, outputs]

Steps that a sample does not have, rows without a sample and targets that are missing have a weight of zero, and nothing
else: batches of all kinds have one shape, so that a step can be captured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

Batch = Mapping[str, torch.Tensor]
When = Literal["horizon", "shift", "last", "series"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is predicted from what. Axes: b rows, t steps, s predicted steps, f features, k targets."""

    inputs: Mapping[str, int]
    """Columns that the model sees, and how many numbers each has a step."""
    targets: Mapping[str, int]
    """Columns that are predicted, and how many numbers each has."""
    length: int
    """Steps of a sample; of padded sequences the longest."""
    when: When
    horizon: int = 0
    """Predicted steps, where they lie behind the sample."""
    padded: bool = False
    """Whether samples can be shorter, which `mask` then says."""
    outputs_each: int = 1
    """Numbers that are predicted for one number of a target: one, or a class or quantile each."""

    @property
    def num_features(self) -> int:
        """Numbers of a step that the model sees."""
        return sum(self.inputs.values())

    @property
    def num_targets(self) -> int:
        """Numbers of a step that are predicted."""
        return sum(self.targets.values())

    @property
    def outputs(self) -> int:
        """Numbers that the model gives for a predicted step."""
        return self.num_targets * self.outputs_each

    @property
    def every_step(self) -> bool:
        """Whether each step has a prediction of its own."""
        return self.when == "shift"

    @property
    def steps(self) -> int:
        """Predicted steps of a sample."""
        return {"horizon": self.horizon, "shift": self.length, "last": 1, "series": 1}[self.when]

    def features(self, batch: Batch) -> torch.Tensor:
        """The columns that the model sees, side by side: [b, t, f]."""
        steps = next(batch[name].shape[1] for name in self.inputs if batch[name].dim() > 1)
        parts = []
        for name in self.inputs:
            values = batch[name]
            if values.dim() == 1:  # one number a series
                values = values[:, None].expand(-1, steps)
            parts.append(values[..., None] if values.dim() == 2 else values)
        dtype = next((part.dtype for part in parts if part.dtype in (torch.float32, torch.float64)), torch.float32)
        return torch.cat([part.to(dtype) for part in parts], dim=-1)

    @property
    def needs_mask(self) -> bool:
        """Whether a prediction depends on where a sample ends. A sample with a horizon is full; a shifted one is causal."""
        return self.padded and self.when in ("last", "series")

    @property
    def entries(self) -> tuple[str, ...]:
        """The entries of a batch that a model looks at."""
        return (*self.inputs, "mask") if self.needs_mask else tuple(self.inputs)

    def mask(self, batch: Batch) -> torch.Tensor | None:
        """Which steps each sample has, or None where that does not matter: [b, t]."""
        return batch["mask"] if self.needs_mask else None

    def target(self, batch: Batch) -> torch.Tensor:
        """What should be predicted: [b, s, k]."""
        parts = []
        for name in self.targets:
            values = batch[f"{name}_target" if self.when in ("horizon", "shift") else name]
            if self.when == "series":
                values = values[:, None]
            elif self.when == "last":
                values = at_last(values, self.mask(batch))
            parts.append(values[..., None] if values.dim() == 2 else values)
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def weight(self, batch: Batch, target: torch.Tensor) -> torch.Tensor:
        """Which targets count: bool [b, s, k]."""
        counts = torch.ones_like(target, dtype=torch.bool)
        if "target_mask" in batch and self.when in ("horizon", "shift"):
            counts = counts & batch["target_mask"][:, :, None]
        if "valid" in batch:
            counts = counts & batch["valid"][:, None, None]
        return counts


def at_last(values: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The values at the last step of each sample, which a mask tells where samples are padded: [b, 1, ...]."""
    if mask is None:
        return values[:, -1:]
    last = (mask.sum(1, keepdim=True) - 1).clamp(min=0)
    last = last.reshape(-1, *(1,) * (values.dim() - 1))
    return values.gather(1, last.expand(-1, 1, *values.shape[2:]))
