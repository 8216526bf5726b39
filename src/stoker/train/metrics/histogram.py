"""Scores counted in bins, for the area under the ROC curve of more samples than one wants to keep.

A bin is a range of float32 numbers that share their first bits, sign and exponent included. So bins need no range to be
guessed, keep the order of scores whatever their size, and are `2 ** (bits - 9)` to each power of two.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stoker.train.metrics.scores import NEGATIVE, POSITIVE


class Histogram:
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
        """Keep the counts on a device."""
        self._counts = self.on(device).to(device)

    def add(self, scores: Tensor, kinds: Tensor) -> None:
        """Take in a batch, both flat."""
        counts, num_bins = self.on(scores.device), 2**self.bits
        place = torch.where(kinds == POSITIVE, num_bins, 0) + self._bin(scores)
        place = torch.where(scores.isnan(), 2 * num_bins, place)
        counts.index_add_(0, place, ((kinds == POSITIVE) | (kinds == NEGATIVE)).long())

    def _bin(self, scores: Tensor) -> Tensor:
        pattern = (scores.float() + 0.0).view(torch.int32)  # -0.0 becomes 0.0, its equal
        ordered = pattern ^ ((pattern >> 31) & 0x7FFFFFFF)  # integers in the order of the floats
        number: Tensor = (ordered >> (32 - self.bits)).long()
        return number.add(2 ** (self.bits - 1))

    def clear(self) -> None:
        """Forget all samples."""
        if self._counts is not None:
            self._counts.zero_()

    def counts(self) -> tuple[int, int, int, int, int]:
        """As `Scores.counts` with pairs in one bin as ties, and the number of those pairs."""
        if self._counts is None:
            return 0, 0, 0, 0, 0
        negatives, positives = self._counts[:-2].view(2, -1)
        doubled = (positives * (2 * (negatives.cumsum(0) - negatives) + negatives)).sum()
        ties = (positives * negatives).sum()
        read = torch.stack([doubled, positives.sum(), negatives.sum(), self._counts[-2], ties]).tolist()
        return int(read[0]), int(read[1]), int(read[2]), int(read[3]), int(read[4])
