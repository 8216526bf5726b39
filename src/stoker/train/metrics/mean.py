"""The mean of any value, such as the loss of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from stoker.errors import OptionError
from stoker.train.metrics.average import Average
from stoker.train.metrics.metric import as_float


class Mean(Average):
    """The mean of `value` (or, where a trainer updates it, of the prediction).

    A value is one number, or has one row a sample; then `valid` marks the rows. `weight` is for a number that stands for
    many samples already: the mean loss of a batch has the weight of its valid rows.
    """

    def __init__(self, *, name: str = "mean") -> None:
        super().__init__()
        self.name = name

    def values(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The prediction itself."""
        return as_float(prediction)

    def update(
        self,
        *,
        value: Tensor | None = None,
        weight: Tensor | float | None = None,
        prediction: Tensor | None = None,
        target: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> None:
        """Take in one value, or one batch of them."""
        given = value if value is not None else prediction
        if given is None:
            raise OptionError(f"metric {self.name!r} got neither value= nor prediction=. Give one of them.")
        if weight is not None and given.ndim:
            raise OptionError(
                f"metric {self.name!r}: weight= is for one number; value has the shape {tuple(given.shape)}. Mark rows by valid=."
            )
        with torch.no_grad():
            self._add(as_float(given.detach()), valid if given.ndim else None, weight)
