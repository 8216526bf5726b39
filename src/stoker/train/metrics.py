"""Metrics: numbers about many batches, added up on the device and read once at the end.

    Accuracy, AUC, MAE, MSE, QuantileLoss, Mean     exact sums that ranks add up
    as_metric                                       any metric of torchmetrics, as one of ours

Guarantee: `update` never waits for the device (for a metric of torchmetrics it does where rows are masked), rows that `valid` marks
as False count for nothing whatever they hold, and the result does not depend on how the samples were split into batches or ranks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
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
        """Forget all batches. The sums stay at their addresses."""

    def to(self, device: torch.device | str) -> Self:
        """Keep the sums on a device. Without it they are where the first batch is."""

    def sums(self) -> list[Tensor]:
        """The sums themselves: ranks add them up in place, and then each computes the number of all."""

    def gather(self, all_gather: AllGather) -> None:
        """Take in what all ranks have, this one included: the same as adding up `sums`, and works for every metric."""


class TorchMetric(Protocol):
    """What is asked of a metric of somebody else; every `torchmetrics.Metric` has it."""

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take in one batch."""

    def compute(self) -> Tensor | float:
        """The number so far."""

    def reset(self) -> None:
        """Forget all batches."""


class Adapted:
    """A `TorchMetric` as one of ours. Rows that do not count are dropped, for which the host waits for the device."""

    reason: str | None = None

    def __init__(self, name: str, metric: TorchMetric) -> None:
        self.name = name
        self.metric = metric

    def update(self, *, prediction: Tensor, target: Tensor, valid: Tensor | None = None) -> None:
        """Take in one batch."""
        if (*target.shape, 1) == prediction.shape:
            prediction = prediction.reshape(target.shape)
        if valid is not None:
            rows = valid.bool()
            prediction, target = prediction[rows], target[rows]
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
            raise OptionError(f"metric {self.name!r} has the shape {tuple(value.shape)}; expected one number, such as a mean.")
        return float(value)

    def reset(self) -> None:
        """Forget all batches."""
        self.metric.reset()

    def to(self, device: torch.device | str) -> Self:
        """Keep the state on a device."""
        if hasattr(self.metric, "to"):
            self.metric.to(device)
        return self

    def sums(self) -> list[Tensor]:
        """None that ranks could add up."""
        return []

    def gather(self, all_gather: AllGather) -> None:
        """Nothing to do, where `compute` adds up the ranks itself."""
        if not hasattr(self.metric, "sync_on_compute"):
            raise OptionError(f"metric {self.name!r} cannot be added up over ranks. Use a torchmetrics.Metric, or one rank.")


def as_metric(name: str, given: Metric | TorchMetric) -> Metric:
    """The metric that was given: one of ours as it is, one of torchmetrics as one of ours."""
    if callable(getattr(given, "gather", None)):
        return given  # type: ignore[return-value]
    if isinstance(given, type) or not all(callable(getattr(given, method, None)) for method in ("update", "compute", "reset")):
        raise OptionError(f"metric {name!r} is {given!r}; expected one of stoker.train, such as MAE(), or a torchmetrics.Metric.")
    return Adapted(name, given)  # type: ignore[arg-type]


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


def _add_ranks(sums: list[Tensor], all_gather: AllGather) -> None:
    for own in sums:
        own.copy_(torch.stack(all_gather(own)).sum(0))


def _ordered_pairs(positives: Tensor, negatives: Tensor) -> Tensor:
    """Twice the pairs that are in order, of counts per score in rising order; ties count one. Integers, so nothing is rounded."""
    return (positives * (2 * (negatives.cumsum(0) - negatives) + negatives)).sum()


# Scores kept on the device in buffers that grow, and the exact area under the ROC curve from them.

NEGATIVE, POSITIVE, IGNORED = 0, 1, 2
LEAST_ROOM = 1024


class _Scores:
    """Scores and kinds of all samples: one float32 (float64 if such came) and one byte each.

    Rows that do not count are kept too, marked as ignored: to drop them, the host would have to know their number.
    """

    def __init__(self) -> None:
        self.count = 0
        self._buffers: tuple[Tensor, Tensor] | None = None

    def add(self, scores: Tensor, kinds: Tensor) -> None:
        end = self.count + scores.numel()
        kept, marks = self._on(scores.device)
        dtype = torch.promote_types(kept.dtype, scores.dtype)
        if end > kept.numel() or dtype != kept.dtype:
            room = max(kept.numel(), 2 * end)
            with torch.inference_mode(False):
                grown, grown_marks = kept.new_empty(room, dtype=dtype), marks.new_empty(room)
            grown[: self.count], grown_marks[: self.count] = kept[: self.count], marks[: self.count]
            kept, marks = self._buffers = grown, grown_marks
        kept[self.count : end] = scores
        marks[self.count : end] = kinds
        self.count = end

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        if self._buffers is None:
            with torch.inference_mode(False):  # or what is made in inference mode could not be changed outside of it
                empty = torch.empty(LEAST_ROOM, dtype=torch.float32, device=device)
                self._buffers = empty, torch.empty_like(empty, dtype=torch.uint8)
        return self._buffers

    def clear(self) -> None:
        """Forget all samples; the buffers stay."""
        self.count = 0

    def to(self, device: torch.device) -> None:
        kept, marks = self._on(device)
        self._buffers = kept.to(device), marks.to(device)

    def gather(self, all_gather: AllGather) -> None:
        """Take in the samples of all ranks. Ranks may have different numbers of them: the rest is filled with ignored ones."""
        kept, marks = self._on(torch.device("cpu"))
        own = torch.tensor([self.count, int(kept.dtype == torch.float64)], device=kept.device)
        most, wide = torch.stack(all_gather(own)).amax(0).tolist()
        scores = kept.new_zeros(most, dtype=torch.float64 if wide else kept.dtype)
        kinds = marks.new_full((most,), IGNORED)
        scores[: self.count], kinds[: self.count] = kept[: self.count], marks[: self.count]
        self._buffers = torch.cat(all_gather(scores)), torch.cat(all_gather(kinds))
        self.count = self._buffers[0].numel()

    def counts(self) -> list[int]:
        """Twice the pairs that are in order (ties count one), positives, negatives, and scores that are nan: one wait."""
        if self._buffers is None or not self.count:
            return [0] * 4
        kept, kinds = (buffer[: self.count] for buffer in self._buffers)
        ordered, places = torch.where(kinds == IGNORED, 0, kept).sort()  # what is ignored may be nan
        kinds = kinds[places]
        group = torch.zeros_like(places)
        group[1:] = (ordered[1:] != ordered[:-1]).cumsum(0)
        positives, negatives = (torch.zeros_like(group).index_add_(0, group, (kinds == one).long()) for one in (POSITIVE, NEGATIVE))
        pairs = _ordered_pairs(positives, negatives)
        read: list[int] = torch.stack([pairs, positives.sum(), negatives.sum(), ordered.isnan().sum()]).tolist()
        return read


class Average(ABC):
    """An average over all valid values of all batches, each with the same weight however batches were cut.

    A metric that is not here derives from this, and returns from `values` what is averaged.
    """

    name = "average"

    def __init__(self, *, name: str | None = None) -> None:
        self.name = self.name if name is None else name
        self.reason: str | None = None
        self._sums: Tensor | None = None  # total and weight, side by side: one tensor to read, to add up and to clear

    @abstractmethod
    def values(self, prediction: Tensor, target: Tensor) -> Tensor:
        """One value for each thing that counts; its first axis is that of the rows."""

    def update(self, *, prediction: Tensor, target: Tensor, valid: Tensor | None = None) -> None:
        """Take in one batch; `valid` has one flag per row, or one per value."""
        with torch.no_grad():
            self._add(self.values(prediction.detach(), target.detach()), valid)

    def _add(self, values: Tensor, valid: Tensor | None, weight: Tensor | float = 1.0) -> None:
        sums = self._on(values.device)
        num_values: Tensor | int = values.numel()
        values = values if isinstance(weight, float) and weight == 1.0 else values * weight
        if valid is not None:
            mask = mask_like(self.name, values, valid)
            num_values = mask.sum(dtype=sums.dtype) * (values.numel() // max(1, mask.numel()))
            values = torch.where(mask, values, 0)  # chosen, not multiplied: a row that is not valid may hold nan
        sums[0] += values.sum(dtype=sums.dtype)
        sums[1] += num_values * weight

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
        """Forget all batches."""
        self.reason = None
        if self._sums is not None:
            self._sums.zero_()

    def to(self, device: torch.device | str) -> Self:
        """Keep the sums on a device."""
        device = torch.device(device)
        self._sums = self._on(device).to(device, sum_dtype(device))
        return self

    def sums(self) -> list[Tensor]:
        """One tensor: the total and the weight."""
        return [self._on(torch.device("cpu"))]

    def gather(self, all_gather: AllGather) -> None:
        """Add up what all ranks have."""
        _add_ranks(self.sums(), all_gather)

    def _on(self, device: torch.device) -> Tensor:
        if self._sums is None:
            with torch.inference_mode(False):  # or what is made in inference mode could not be changed outside of it
                self._sums = torch.zeros(2, dtype=sum_dtype(device), device=device)
        return self._sums


class Mean(Average):
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

    name = "mean"

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
            self._add(as_float(given.detach()), valid if given.ndim else None, 1.0 if weight is None else weight)


class Accuracy(Average):
    """The share of right classes; a prediction or a target that is NaN is never right.

    Two classes: logits [B] or [B, 1] against targets 0 and 1; class 1 is predicted above `threshold` (0 for logits, 0.5 for
    probabilities). Many classes: scores [B, C] against class numbers [B]; the highest score is the prediction, the first one
    of equals. More axes between B and C are samples too.

    Args:
        threshold: Above it, class 1 is predicted; 0 for logits, 0.5 for probabilities.
        name: What messages call it.

    Example:
        >>> metric = Accuracy()
        >>> metric.update(prediction=torch.tensor([-1.0, 2.0, 3.0, 4.0]), target=torch.tensor([0, 1, 1, 0]))
        >>> metric.compute()
        0.75
    """

    name = "accuracy"

    def __init__(self, *, threshold: float = 0.0, name: str | None = None) -> None:
        super().__init__(name=name)
        self.threshold = threshold

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


class MAE(Average):
    """The mean absolute error over all values; prediction and target have the same shape.

    Args:
        name: What messages call it.

    Example:
        >>> metric = MAE()
        >>> metric.update(prediction=torch.tensor([1.0, 2.0]), target=torch.tensor([1.0, 4.0]))
        >>> metric.compute()
        1.0
    """

    name = "mae"

    def values(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The absolute errors."""
        return (as_float(same_shape(self.name, prediction, target)) - as_float(target)).abs()


class MSE(Average):
    """The mean squared error over all values; prediction and target have the same shape.

    Args:
        name: What messages call it.

    Example:
        >>> metric = MSE()
        >>> metric.update(prediction=torch.tensor([1.0, 2.0]), target=torch.tensor([1.0, 4.0]))
        >>> metric.compute()
        2.0
    """

    name = "mse"

    def values(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The squared errors."""
        return (as_float(same_shape(self.name, prediction, target)) - as_float(target)).square()


class QuantileLoss(Average):
    """The pinball loss: q times what a prediction is too low, 1 - q times what it is too high; least at the quantile q.

    With several quantiles the prediction has one more axis than the target, the last, with one entry for each of them.

    Args:
        q: A quantile between 0 and 1, or several.
        name: What messages call it.

    Example:
        >>> metric = QuantileLoss(0.75)
        >>> metric.update(prediction=torch.tensor([1.0]), target=torch.tensor([3.0]))
        >>> metric.compute()
        1.5
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
            prediction = same_shape(self.name, prediction, target)[..., None]
        elif prediction.shape != (expected := (*target.shape, len(self.q))):
            raise OptionError(
                f"metric {self.name!r}: prediction has the shape {tuple(prediction.shape)}; expected {expected}, "
                f"the shape of the target and one entry for each of {len(self.q)} quantiles."
            )
        errors = [as_float(target) - column for column in as_float(prediction).unbind(-1)]
        losses = [torch.maximum(q * error, (q - 1.0) * error) for q, error in zip(self.q, errors, strict=True)]
        return torch.stack(losses, -1) if self._several else losses[0]


# Scores counted in bins, for the area under the ROC curve of more samples than one wants to keep.
#
# A bin is a range of float32 numbers that share their first bits, sign and exponent included. So bins need no range to be
# guessed, keep the order of scores whatever their size, and are `2 ** (bits - 9)` to each power of two.


class _Histogram:
    """Counts of positives and negatives in each bin, and of scores that are nan."""

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self._counts: Tensor | None = None

    def on(self, device: torch.device) -> Tensor:
        """The counts, made on a device where there are none: negatives, positives, then one bin of nan."""
        if self._counts is None:
            with torch.inference_mode(False):
                self._counts = torch.zeros(2 * 2**self.bits + 2, dtype=torch.int64, device=device)
        return self._counts

    def to(self, device: torch.device) -> None:
        self._counts = self.on(device).to(device)

    def add(self, scores: Tensor, kinds: Tensor) -> None:
        counts, num_bins = self.on(scores.device), 2**self.bits
        pattern = (scores.float() + 0.0).view(torch.int32)  # -0.0 becomes 0.0, its equal
        ordered = pattern ^ ((pattern >> 31) & 0x7FFFFFFF)  # integers in the order of the floats
        number = (ordered >> (32 - self.bits)).long() + num_bins // 2
        place = torch.where(scores.isnan(), 2 * num_bins, torch.where(kinds == POSITIVE, num_bins, 0) + number)
        counts.index_add_(0, place, (kinds != IGNORED).long())

    def clear(self) -> None:
        if self._counts is not None:
            self._counts.zero_()

    def counts(self) -> list[int]:
        """As `_Scores.counts` with pairs in one bin as ties, and the number of those pairs."""
        if self._counts is None:
            return [0] * 5
        negatives, positives = self._counts[:-2].view(2, -1)
        ties = (positives * negatives).sum()
        pairs = _ordered_pairs(positives, negatives)
        read: list[int] = torch.stack([pairs, positives.sum(), negatives.sum(), self._counts[-2], ties]).tolist()
        return read


# The area under the ROC curve: the chance that a positive sample has a higher score than a negative one.

LEAST_BITS, MOST_BITS = 10, 24


class AUC:
    """The area under the ROC curve of scores (logits or probabilities, of any scale) against targets 0 and 1; ties count half.

    Without `bins` it is exact: all scores stay on the device, 5 bytes each (room for twice as many is kept), and are sorted by
    `compute`. With `bins=2**k` it needs 16 bytes per bin however many samples come, and is off by at most `error`, which `compute`
    sets: half the share of pairs that fell into one bin. Pairs are counted in integers, which hold for 4 billion samples. Of one
    class alone there is no area: NaN, with a `reason`.

    Args:
        bins: A power of two; None is exact.
        name: What messages call it.

    Example:
        >>> metric = AUC()
        >>> metric.update(prediction=torch.tensor([0.1, 0.4, 0.3, 0.9]), target=torch.tensor([0, 0, 1, 1]))
        >>> metric.compute()
        0.75
    """

    def __init__(self, *, bins: int | None = None, name: str = "auc") -> None:
        self.name = name
        self.reason: str | None = None
        self.error = 0.0
        """How far the last result may be from the exact one."""
        if bins is not None and bins not in [2**bits for bits in range(LEAST_BITS, MOST_BITS + 1)]:
            raise OptionError(
                f"bins is {bins!r}; expected a power of two from 2**{LEAST_BITS} to 2**{MOST_BITS}, or None to be exact."
            )
        self._kept: _Scores | _Histogram = _Scores() if bins is None else _Histogram(bins.bit_length() - 1)

    def update(self, *, prediction: Tensor, target: Tensor, valid: Tensor | None = None) -> None:
        """Take in one batch of scores."""
        with torch.no_grad():
            scores = as_float(same_shape(self.name, prediction.detach(), target))
            kinds = (target > 0.5).to(torch.uint8)
            if valid is not None:
                kinds = torch.where(mask_like(self.name, target, valid), kinds, IGNORED)
            self._kept.add(scores.reshape(-1), kinds.reshape(-1))

    def compute(self) -> float:
        """The area; nan where there is none."""
        doubled, positives, negatives, num_nan, *ties = self._kept.counts()
        pairs, samples = positives * negatives, positives + negatives
        self.error, self.reason = 0.0, None
        if num_nan:
            self.reason = f"metric {self.name!r}: {num_nan:,} scores are nan, so they have no order"
        elif not samples:
            self.reason = f"metric {self.name!r} has seen no valid sample"
        elif not pairs:
            self.reason = f"metric {self.name!r} needs both classes, and all {samples:,} samples are of class {int(positives > 0)}"
        if self.reason is not None:
            return math.nan
        self.error = ties[0] / (2 * pairs) if ties else 0.0
        return doubled / (2 * pairs)

    def reset(self) -> None:
        """Forget all batches."""
        self.reason, self.error = None, 0.0
        self._kept.clear()

    def to(self, device: torch.device | str) -> Self:
        """Keep scores or counts on a device."""
        self._kept.to(torch.device(device))
        return self

    def sums(self) -> list[Tensor]:
        """The counts of the bins. Scores of an exact area are not sums: they go through `gather`."""
        if isinstance(self._kept, _Scores):
            raise TrainError(f"metric {self.name!r} is exact, so ranks cannot add it up. Call gather(…), or give it bins=2**20.")
        return [self._kept.on(torch.device("cpu"))]

    def gather(self, all_gather: AllGather) -> None:
        """Take in what all ranks have: their scores, or their counts."""
        if isinstance(self._kept, _Scores):
            self._kept.gather(all_gather)
        else:
            _add_ranks(self.sums(), all_gather)
