"""How far predictions of numbers are from what came: MAE, MSE, QuantileLoss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stoker.errors import OptionError
from stoker.train.metrics.average import Average
from stoker.train.metrics.metric import as_float, same_shape


class MAE(Average):
    """The mean absolute error over all values; prediction and target have the same shape."""

    def __init__(self, *, name: str = "mae") -> None:
        super().__init__()
        self.name = name

    def values(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The absolute errors."""
        return (as_float(same_shape(self.name, prediction, target)) - as_float(target)).abs()


class MSE(Average):
    """The mean squared error over all values; prediction and target have the same shape."""

    def __init__(self, *, name: str = "mse") -> None:
        super().__init__()
        self.name = name

    def values(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The squared errors."""
        return (as_float(same_shape(self.name, prediction, target)) - as_float(target)).square()


class QuantileLoss(Average):
    """The pinball loss: q times what a prediction is too low, 1 - q times what it is too high; least at the quantile q.

    With several quantiles the prediction has one more axis than the target, the last, with one entry for each of them.
    """

    def __init__(self, q: float | Sequence[float] = 0.5, *, name: str | None = None) -> None:
        super().__init__()
        self.q = (float(q),) if isinstance(q, int | float) else tuple(float(one) for one in q)
        self._several = not isinstance(q, int | float)
        if not self.q or not all(0.0 < one < 1.0 for one in self.q):
            raise OptionError(f"q is {q!r}; expected a number between 0 and 1, or several.")
        self.name = name or "quantile_loss_" + "_".join(f"{one:g}" for one in self.q)

    def values(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The losses, one for each value and quantile."""
        if not self._several:
            return _pinball(as_float(same_shape(self.name, prediction, target)), as_float(target), self.q[0])
        if prediction.shape != (*target.shape, len(self.q)):
            expected = (*target.shape, len(self.q))
            raise OptionError(
                f"metric {self.name!r}: prediction has the shape {tuple(prediction.shape)}; expected {expected}, "
                f"the shape of the target and one entry for each of {len(self.q)} quantiles."
            )
        columns, target = as_float(prediction).unbind(-1), as_float(target)
        return torch.stack([_pinball(column, target, q) for column, q in zip(columns, self.q, strict=True)], -1)


def _pinball(prediction: Tensor, target: Tensor, q: float) -> Tensor:
    error = target - prediction
    return torch.maximum(q * error, (q - 1.0) * error)
