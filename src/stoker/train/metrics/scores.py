"""Scores kept on the device in buffers that grow, and the exact area under the ROC curve from them."""

from __future__ import annotations

import torch
from torch import Tensor

from stoker.train.metrics.metric import AllGather

NEGATIVE, POSITIVE, IGNORED = 0, 1, 2
LEAST_ROOM = 1024


class Scores:
    """Scores and kinds of all samples: one float32 (float64 if such came) and one byte each.

    Rows that do not count are kept too, marked as ignored: to drop them, the host would have to know their number.
    """

    def __init__(self) -> None:
        self.count = 0
        self._buffers: tuple[Tensor, Tensor] | None = None

    def add(self, scores: Tensor, kinds: Tensor) -> None:
        """Take in a batch, both flat."""
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
        """Keep the buffers on a device."""
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

    def counts(self) -> tuple[int, int, int, int]:
        """Twice the pairs that are in order (ties count one), positives, negatives, and scores that are nan: one wait."""
        if self._buffers is None or not self.count:
            return 0, 0, 0, 0
        kept, kinds = (buffer[: self.count] for buffer in self._buffers)
        scores = torch.where(kinds == IGNORED, 0, kept)  # what is ignored may be nan
        ordered, places = scores.sort()
        kinds = kinds[places]
        positive, negative = (kinds == POSITIVE).long(), (kinds == NEGATIVE).long()
        group = torch.zeros_like(positive)
        group[1:] = (ordered[1:] != ordered[:-1]).cumsum(0)
        # Sums of integers, so that neither the order of additions nor their number can round.
        positives = torch.zeros_like(positive).index_add_(0, group, positive)
        negatives = torch.zeros_like(negative).index_add_(0, group, negative)
        doubled = (positives * (2 * (negatives.cumsum(0) - negatives) + negatives)).sum()
        read = torch.stack([doubled, positives.sum(), negatives.sum(), ordered.isnan().sum()]).tolist()
        return int(read[0]), int(read[1]), int(read[2]), int(read[3])
