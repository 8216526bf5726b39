"""Metrics: numbers about many batches, added up on the device and read once at the end.

    AUC, Mean    what torchmetrics lacks: an exact area, and a mean, of rows that a mask marks, without a wait for the device
    as_metric    any metric of torchmetrics, as one of ours; rows that a mask leaves out are dropped, for which the host waits

Guarantee: rows that `valid` marks as False count for nothing whatever they hold, and the result of `AUC` and `Mean` does not depend
on how the samples were split into batches or ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, Self

import torch
from torch import Tensor

from stoker.errors import OptionError, TrainError

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
        """Forget all batches."""

    def to(self, device: torch.device | str) -> Self:
        """Keep the sums on a device. Without it they are where the first batch is."""

    def gather(self, all_gather: AllGather) -> None:
        """Take in what all ranks have, this one included."""


class TorchMetric(Protocol):
    """What is asked of a metric of somebody else; every `torchmetrics.Metric` has it."""

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take in one batch."""

    def compute(self) -> Tensor | float:
        """The number so far."""

    def reset(self) -> None:
        """Forget all batches."""


def as_float(values: Tensor) -> Tensor:
    """Values in which a difference is not rounded to half precision; booleans and integers become float32."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


class Adapted:
    """A `TorchMetric` as one of ours. Rows that do not count are dropped, for which the host waits for the device."""

    reason: str | None = None

    def __init__(self, name: str, metric: TorchMetric, *, transform: Callable[[Tensor], Tensor] = as_float) -> None:
        self.name = name
        self.metric = metric
        self._transform = transform

    def update(self, *, prediction: Tensor, target: Tensor, valid: Tensor | None = None) -> None:
        """Take in one batch. Of many classes, scores are along the last axis, and all other axes are samples."""
        prediction = self._transform(prediction)
        if (*target.shape, 1) == prediction.shape:
            prediction = prediction.reshape(target.shape)
        if valid is not None:
            rows = valid.bool()
            prediction, target = prediction[rows], target[rows]
        if prediction.shape[:-1] == target.shape and target.ndim > 1:
            prediction, target = prediction.flatten(0, -2), target.flatten()
        self.to(prediction.device)
        try:
            self.metric.update(prediction, target)
        except (RuntimeError, ValueError) as error:
            line = (str(error).splitlines() or [""])[0]
            shapes = f"prediction {tuple(prediction.shape)}, target {tuple(target.shape)}"
            raise TrainError(f"metric {self.name!r} cannot take these values ({shapes}): {type(error).__name__}: {line}") from error

    def compute(self) -> float:
        """The number so far. A metric of torchmetrics adds up the ranks here."""
        value = torch.as_tensor(self.metric.compute())
        if value.numel() != 1:
            raise OptionError(
                f"metric {self.name!r} has the shape {tuple(value.shape)}; expected one number, such as a mean.",
                parameter="metrics",
            )
        return float(value)

    def reset(self) -> None:
        """Forget all batches."""
        self.metric.reset()

    def to(self, device: torch.device | str) -> Self:
        """Keep the state on a device."""
        if hasattr(self.metric, "to"):
            self.metric.to(device)
        return self

    def gather(self, all_gather: AllGather) -> None:
        """Nothing to do, where `compute` adds up the ranks itself."""
        if not hasattr(self.metric, "sync_on_compute"):
            raise OptionError(
                f"metric {self.name!r} cannot be added up over ranks. Use a torchmetrics.Metric, or one rank.", parameter="metrics"
            )


def as_metric(name: str, given: Metric | TorchMetric) -> Metric:
    """The metric that was given: one of ours as it is, one of torchmetrics as one of ours."""
    if callable(getattr(given, "gather", None)):
        return given  # type: ignore[return-value]
    if isinstance(given, type) or not all(callable(getattr(given, method, None)) for method in ("update", "compute", "reset")):
        raise OptionError(
            f"metric {name!r} is {given!r}; expected one of stoker.train, such as AUC(), or a torchmetrics.Metric.",
            parameter="metrics",
        )
    return Adapted(name, given)  # type: ignore[arg-type]


def sum_dtype(device: torch.device) -> torch.dtype:
    """What sums are kept in: float64, but float32 where the device has none."""
    return torch.float32 if device.type == "mps" else torch.float64


def same_shape(name: str, prediction: Tensor, target: Tensor) -> Tensor:
    """The prediction in the shape of the target. Only a last axis of one may differ: [B, 1] - [B] would become [B, B]."""
    if prediction.shape == target.shape:
        return prediction
    if prediction.shape == (*target.shape, 1) or (*prediction.shape, 1) == target.shape:
        return prediction.reshape(target.shape)
    raise OptionError(
        f"metric {name!r}: prediction has the shape {tuple(prediction.shape)}, target {tuple(target.shape)}. Give both one shape.",
        parameter="metrics",
    )


def mask_like(name: str, values: Tensor, valid: Tensor) -> Tensor:
    """`valid` with axes of one added, so that it marks whole rows of `values`."""
    if valid.shape != values.shape[: valid.ndim]:
        raise OptionError(
            f"metric {name!r}: valid has the shape {tuple(valid.shape)}, values {tuple(values.shape)}. Give a flag for each row.",
            parameter="metrics",
        )
    return valid.bool().reshape(*valid.shape, *(1,) * (values.ndim - valid.ndim))


class Mean:
    """The mean of `value` (or, where a trainer updates it, of the prediction).

    A value is one number, or has one row per sample; then `valid` marks the rows. `weight` is for a number that stands for
    many samples already: the mean loss of a batch has the weight of its valid rows.

    Args:
        name: What messages call it.

    Example:
        >>> mean = Mean()
        >>> mean.update(value=torch.tensor([1.0, 2.0]))
        >>> mean.update(value=torch.tensor([6.0]))
        >>> mean.compute()
        3.0
    """

    def __init__(self, *, name: str = "mean") -> None:
        self.name = name
        self.reason: str | None = None
        self._sums: Tensor | None = None  # total and weight, side by side: one tensor to read, to add up and to clear

    def update(
        self,
        *,
        value: Tensor | None = None,
        weight: Tensor | float = 1.0,
        prediction: Tensor | None = None,
        target: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> None:
        """Take in one value, or one batch of them."""
        given = value if value is not None else prediction
        if given is None:
            raise OptionError(f"metric {self.name!r} got neither value= nor prediction=. Give one of them.", parameter="value")
        is_weighted = not (isinstance(weight, float) and weight == 1.0)
        if is_weighted and given.ndim:
            raise OptionError(
                f"metric {self.name!r}: weight= is for one number; value has the shape {tuple(given.shape)}. Mark rows by valid=.",
                parameter="weight",
            )
        with torch.no_grad():
            values = as_float(given.detach())
            sums = self._on(values.device)
            num_values: Tensor | int = values.numel()
            values = values * weight if is_weighted else values
            if valid is not None and given.ndim:
                mask = mask_like(self.name, values, valid)
                num_values = mask.sum(dtype=sums.dtype) * (values.numel() // max(1, mask.numel()))
                values = torch.where(mask, values, 0)  # chosen, not multiplied: a row that is not valid may hold nan
            sums[0] += values.sum(dtype=sums.dtype)
            sums[1] += num_values * weight

    def compute(self) -> float:
        """The mean; nan where nothing was valid."""
        total, weight = (0.0, 0.0) if self._sums is None else self._sums.tolist()
        self.reason = None
        if not weight > 0:
            self.reason = f"metric {self.name!r} has seen no valid sample"
            return math.nan
        if math.isnan(total):
            self.reason = f"metric {self.name!r}: a valid value is nan"
        return total / weight

    def reset(self) -> None:
        """Forget all batches."""
        self.reason = None
        if self._sums is not None:
            self._sums.zero_()

    def to(self, device: torch.device | str) -> Self:
        """Keep the sums on a device."""
        device = torch.device(device)
        self._sums = self._on(device).to(device, sum_dtype(device))
        return self

    def gather(self, all_gather: AllGather) -> None:
        """Add up what all ranks have."""
        sums = self._on(torch.device("cpu"))
        sums.copy_(torch.stack(all_gather(sums)).sum(0))

    def _on(self, device: torch.device) -> Tensor:
        if self._sums is None:
            with torch.inference_mode(False):  # or what is made in inference mode could not be changed outside of it
                self._sums = torch.zeros(2, dtype=sum_dtype(device), device=device)
        return self._sums


# The area under the ROC curve: the chance that a positive sample has a higher score than a negative one.

NEGATIVE, POSITIVE, IGNORED = 0, 1, 2


class AUC:
    """The area under the ROC curve of scores (logits or probabilities, of any scale) against targets 0 and 1; ties count half.

    It is exact: all scores stay on the device, 5 bytes each, and are sorted by `compute`. Rows that do not count are kept too, marked
    as ignored: to drop them, the host would have to know their number. Pairs are counted in integers, which hold for 4 billion
    samples. Of one class alone there is no area: NaN, with a `reason`.

    Args:
        name: What messages call it.

    Example:
        >>> metric = AUC()
        >>> metric.update(prediction=torch.tensor([0.1, 0.4, 0.3, 0.9]), target=torch.tensor([0, 0, 1, 1]))
        >>> metric.compute()
        0.75
    """

    def __init__(self, *, name: str = "auc") -> None:
        self.name = name
        self.reason: str | None = None
        self._scores: list[Tensor] = []
        self._kinds: list[Tensor] = []

    def update(self, *, prediction: Tensor, target: Tensor, valid: Tensor | None = None) -> None:
        """Take in one batch of scores."""
        with torch.no_grad():
            scores = as_float(same_shape(self.name, prediction.detach(), target))
            kinds = (target > 0.5).to(torch.uint8)
            if valid is not None:
                kinds = torch.where(mask_like(self.name, target, valid), kinds, IGNORED)
            self._scores.append(scores.reshape(-1).clone())  # the memory of a batch may be filled again
            self._kinds.append(kinds.reshape(-1))

    def compute(self) -> float:
        """The area; nan where there is none."""
        doubled, positives, negatives, num_nan = self._counts()
        pairs, samples = positives * negatives, positives + negatives
        self.reason = None
        if num_nan:
            self.reason = f"metric {self.name!r}: {num_nan:,} scores are nan, so they have no order"
        elif not samples:
            self.reason = f"metric {self.name!r} has seen no valid sample"
        elif not pairs:
            self.reason = f"metric {self.name!r} needs both classes, and all {samples:,} samples are of class {int(positives > 0)}"
        return math.nan if self.reason is not None else doubled / (2 * pairs)

    def reset(self) -> None:
        """Forget all batches."""
        self.reason = None
        self._scores, self._kinds = [], []

    def to(self, device: torch.device | str) -> Self:
        """Keep the scores on a device."""
        self._scores, self._kinds = ([part.to(device) for part in parts] for parts in (self._scores, self._kinds))
        return self

    def gather(self, all_gather: AllGather) -> None:
        """Take in the scores of all ranks. Ranks may have different numbers of them: the rest is filled with ignored ones."""
        scores, kinds = self._joined()
        count = scores.numel()
        counted = torch.tensor([count, int(scores.dtype == torch.float64)], device=scores.device)
        most, wide = torch.stack(all_gather(counted)).amax(0).tolist()
        room = scores.new_zeros(most, dtype=torch.float64 if wide else scores.dtype)
        marks = kinds.new_full((most,), IGNORED)
        room[:count], marks[:count] = scores, kinds
        self._scores, self._kinds = all_gather(room), all_gather(marks)

    def _joined(self) -> tuple[Tensor, Tensor]:
        """The scores and the kinds of all samples."""
        if not self._scores:
            return torch.empty(0), torch.empty(0, dtype=torch.uint8)
        return torch.cat(self._scores), torch.cat(self._kinds)

    def _counts(self) -> list[int]:
        """Twice the pairs that are in order (ties count one), positives, negatives, and scores that are nan: one wait."""
        scores, kinds = self._joined()
        if not scores.numel():
            return [0] * 4
        ordered, places = torch.where(kinds == IGNORED, 0, scores).sort()  # what is ignored may be nan
        kinds = kinds[places]
        group = torch.zeros_like(places)
        group[1:] = (ordered[1:] != ordered[:-1]).cumsum(0)
        positives, negatives = (
            torch.zeros_like(group).index_add_(0, group, (kinds == kind).long()) for kind in (POSITIVE, NEGATIVE)
        )
        pairs = (positives * (2 * (negatives.cumsum(0) - negatives) + negatives)).sum()  # integers, so nothing is rounded
        read: list[int] = torch.stack([pairs, positives.sum(), negatives.sum(), ordered.isnan().sum()]).tolist()
        return read
