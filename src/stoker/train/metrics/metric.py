"""What a metric can do, and what all metrics ask of the tensors they get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self

import torch
from torch import Tensor

from stoker.errors import OptionError

AllGather = Callable[[Tensor], list[Tensor]]
"""Gets a tensor that has the same shape on each rank; gives those of all ranks, in the order of the ranks."""


class Metric(Protocol):
    """A number about many batches."""

    name: str
    reason: str | None
    """Why `compute` gave nan; None where it gave a number."""

    def update(self, *, prediction: Tensor, target: Tensor, valid: Tensor | None = None) -> None:
        """Take in one batch. Adds on the device and waits for nothing."""

    def compute(self) -> float:
        """The number so far; nan, and a reason, where there is none. The only call that waits for the device."""

    def reset(self) -> None:
        """Begin anew. The sums stay at their addresses."""

    def to(self, device: torch.device | str) -> Self:
        """Keep the sums on a device. Without it they are where the first batch is."""

    def sums(self) -> list[Tensor]:
        """The sums themselves: ranks add them up in place, and then each computes the number of all."""

    def gather(self, all_gather: AllGather) -> None:
        """Take in what all ranks have, this one included: the same as adding up `sums`, and works for every metric."""


def sum_dtype(device: torch.device) -> torch.dtype:
    """What sums are kept in: float64, but float32 where the device has none."""
    return torch.float32 if device.type == "mps" else torch.float64


def as_float(values: Tensor) -> Tensor:
    """Values in which a difference is not rounded to half precision; booleans and integers become float32."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def same_shape(name: str, prediction: Tensor, target: Tensor) -> Tensor:
    """The prediction in the shape of the target. Only a last axis of one may differ: [B, 1] - [B] would become [B, B]."""
    if prediction.shape == target.shape:
        return prediction
    if prediction.shape == (*target.shape, 1) or (*prediction.shape, 1) == target.shape:
        return prediction.reshape(target.shape)
    raise OptionError(
        f"metric {name!r}: prediction has the shape {tuple(prediction.shape)}, target {tuple(target.shape)}. Give both one shape."
    )


def mask_like(name: str, values: Tensor, valid: Tensor) -> Tensor:
    """`valid` with axes of one added, so that it marks whole rows of `values`."""
    if valid.shape != values.shape[: valid.ndim]:
        raise OptionError(
            f"metric {name!r}: valid has the shape {tuple(valid.shape)}, values {tuple(values.shape)}. Give a flag for each row."
        )
    return valid.bool().reshape(*valid.shape, *(1,) * (values.ndim - valid.ndim))
