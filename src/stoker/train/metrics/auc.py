"""The area under the ROC curve: the chance that a positive sample has a higher score than a negative one."""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor

from stoker.errors import OptionError, TrainError
from stoker.train.metrics.histogram import Histogram
from stoker.train.metrics.metric import AllGather, as_float, mask_like, same_shape
from stoker.train.metrics.scores import IGNORED, Scores

LEAST_BITS, MOST_BITS = 10, 24


class AUC:
    """The area under the ROC curve of scores (logits or probabilities, of any scale) against targets 0 and 1; ties count half.

    Without `bins` it is exact: all scores stay on the device, 5 bytes each (room for twice as many is kept), and are sorted by
    `compute`. With `bins=2**k` it needs 16 bytes a bin however many samples come, and is off by at most `error`, which `compute`
    sets: half the share of pairs that fell into one bin. Pairs are counted in integers, which hold for 4 billion samples. Of one
    class alone there is no area: nan, with a `reason`.
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
        self._kept: Scores | Histogram = Scores() if bins is None else Histogram(bins.bit_length() - 1)

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
        pairs = positives * negatives
        self.error = 0.0
        self.reason = None
        if num_nan:
            self.reason = f"metric {self.name!r}: {num_nan:,} scores are nan, so they have no order"
        elif positives + negatives == 0:
            self.reason = f"metric {self.name!r} has seen no valid sample"
        elif not pairs:
            kind = int(positives > 0)
            self.reason = f"metric {self.name!r} needs both classes, and all {positives + negatives:,} samples are of class {kind}"
        if self.reason is not None:
            return math.nan
        self.error = ties[0] / (2 * pairs) if ties else 0.0
        return doubled / (2 * pairs)

    def reset(self) -> None:
        """Begin anew."""
        self.reason, self.error = None, 0.0
        self._kept.clear()

    def to(self, device: torch.device | str) -> Self:
        """Keep scores or counts on a device."""
        self._kept.to(torch.device(device))
        return self

    def sums(self) -> list[Tensor]:
        """The counts of the bins. Scores of an exact area are no sums: they go through `gather`."""
        if isinstance(self._kept, Scores):
            raise TrainError(f"metric {self.name!r} is exact, so ranks cannot add it up. Call gather(…), or give it bins=2**20.")
        return [self._kept.on(torch.device("cpu"))]

    def gather(self, all_gather: AllGather) -> None:
        """Take in what all ranks have: their scores, or their counts."""
        if isinstance(self._kept, Scores):
            self._kept.gather(all_gather)
            return
        for own in self.sums():
            own.copy_(torch.stack(all_gather(own)).sum(0))
