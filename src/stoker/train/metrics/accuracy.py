"""The share of right classes."""

from __future__ import annotations

from torch import Tensor

from stoker.errors import OptionError
from stoker.train.metrics.average import Average
from stoker.train.metrics.metric import same_shape


class Accuracy(Average):
    """The share of right classes; a prediction or a target that is nan is never right.

    Two classes: logits [B] or [B, 1] against targets 0 and 1; class 1 is predicted above `threshold` (0 for logits, 0.5 for
    probabilities). Many classes: scores [B, C] against class numbers [B]; the highest score is the prediction, the first one
    of equals. More axes between B and C are samples too.
    """

    def __init__(self, *, threshold: float = 0.0, name: str = "accuracy") -> None:
        super().__init__()
        self.threshold = threshold
        self.name = name

    def values(self, prediction: Tensor, target: Tensor) -> Tensor:
        """True where the class is right."""
        if prediction.ndim == target.ndim + 1 and prediction.shape[:-1] == target.shape and prediction.shape[-1] > 1:
            if target.is_floating_point():
                raise OptionError(f"metric {self.name!r}: targets are {target.dtype}; expected class numbers. Give target.long().")
            best, number = prediction.max(-1)
            return (number == target) & ~best.isnan()
        prediction = same_shape(self.name, prediction, target)
        right = (prediction > self.threshold) == (target > 0.5)
        return right & ~prediction.isnan() & ~target.isnan()
