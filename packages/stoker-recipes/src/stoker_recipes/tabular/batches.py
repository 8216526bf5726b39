"""Batches: the subjects of an update, the part of their events, and the order of columns.

A batch names its subjects; `assemble` gathers their codes where the data lies, on a GPU inside the CUDA graph of the step. All that is
random follows from seed and epoch, so a run resumes at any batch. Subjects of similar lengths share a batch: an epoch is shuffled, runs
of 32 batches are sorted by length, and the batches are shuffled again. Each event has the same weight, whatever its batch.

Sequences longer than the window are cut: 30 % of batches take the beginning, 10 % the end, the others a random part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xxhash
from torch import nn

from stoker.extend import Array
from stoker_recipes.tabular.layout import ModelLayout
from stoker_recipes.tabular.model import TabularModel

SORTED_BATCHES = 32
"""Batches that are sorted by length together."""
BEGINNINGS, ENDS = 0.3, 0.1
GROWTH = 1.25
"""Lengths of batches on a GPU grow by this factor, so that a few CUDA graphs serve all of them."""


@dataclass(frozen=True, kw_only=True)
class EncodedSubjects:
    """The codes of all subjects, on one device."""

    codes: torch.Tensor
    """(events, sub-columns of data)"""
    starts: torch.Tensor
    lengths: torch.Tensor
    context: torch.Tensor | None

    @staticmethod
    def of(codes: Array, starts: Array, lengths: Array, context: Array | None, device: torch.device) -> EncodedSubjects:
        """Copy arrays to a device."""
        placed = torch.from_numpy(codes).to(device)
        # An event after the other; and one more, so that a subject without events has a row to read.
        rows = torch.zeros(len(codes) + 1, codes.shape[1], dtype=placed.dtype, device=device)
        rows[:-1] = placed
        return EncodedSubjects(
            codes=rows,
            starts=torch.from_numpy(starts.astype(np.int64)).to(device),
            lengths=torch.from_numpy(lengths.astype(np.int64)).to(device),
            context=None if context is None else torch.from_numpy(context).to(device),
        )

    def digest(self) -> str:
        """A hash of everything."""
        digest = xxhash.xxh3_128()
        for tensor in (self.codes, self.starts, self.lengths, self.context):
            digest.update(b"-" if tensor is None else tensor.cpu().numpy().tobytes())
        return digest.hexdigest()


def position_codes(layout: ModelLayout, position: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    """The codes of positions (..., sub-columns): index, length, and steps that are left."""
    left = (length - position).clamp(min=0)
    codes = []
    for sub in layout.subs[: layout.num_positions]:
        value = {"sidx": position, "slen": length.expand_as(position), "ridx": left}[sub.position]
        place = sub.name.rpartition("_")[2]
        codes.append(value if place == "cat" else value // 10 ** int(place[1:]) % 10)
    return torch.stack(codes, -1)


def assemble(
    layout: ModelLayout, data: EncodedSubjects, batch: dict[str, torch.Tensor], per_subject: float
) -> dict[str, torch.Tensor]:
    """The codes and weights of a batch.

    Args:
        layout: Of the model.
        data: All subjects.
        batch: `subjects`, whether they are `valid`, the first event of each (`begin`), the `steps`, and the `rank` of columns.
        per_subject: The mean number of events that a subject has in a batch: weights are those of a mean over all events.
    """
    subjects, valid = batch["subjects"], batch["valid"]
    batch_parts = {"rank": batch["rank"]}
    if data.context is not None:
        batch_parts["context"] = data.context[subjects]
    share = valid.to(torch.float32) / valid.sum().clamp(min=1)
    if not layout.is_sequence:
        return {"codes": data.codes[data.starts[subjects]], "weights": share[:, None], **batch_parts}
    length = data.lengths[subjects][:, None]
    position = batch["begin"][:, None] + batch["steps"]
    is_event, is_step = position < length, position <= length
    rows = torch.where(is_event, data.starts[subjects][:, None] + position, len(data.codes) - 1)
    positions = position_codes(layout, position, length) * is_step[..., None]
    data_weight, is_first = is_event / per_subject, position == 0
    kinds = [
        data_weight,
        (batch["steps"] == 0).expand_as(position),
        is_step / (per_subject + 1),
        is_event & is_first,
        data_weight * ~is_first,
    ]
    weights = torch.stack([kind.to(torch.float32) for kind in kinds], -1)  # in the order of WEIGHTS
    codes = torch.cat([positions, data.codes[rows].long()], -1)
    return {"codes": codes, "weights": weights * share[:, None, None], **batch_parts}


class SubjectLoss(nn.Module):
    """A model with the data that it is trained on: the loss of a batch is the mean over events of the sum over sub-columns."""

    def __init__(self, model: TabularModel, data: EncodedSubjects, per_subject: float) -> None:
        super().__init__()
        self.model, self._data, self._per_subject = model, data, per_subject

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss of a batch."""
        loss: torch.Tensor = self.model(assemble(self.model.layout, self._data, batch, self._per_subject))
        return loss


def mean_events(lengths: Array, window: int) -> float:
    """The mean number of events of a subject in a batch."""
    return max(1e-6, float(np.minimum(lengths, window).mean()))


class SubjectBatches:
    """Batches of subjects for `stoker.Trainer`.

    Args:
        data: All subjects.
        layout: Of the model.
        subjects: The numbers of those to take.
        lengths: The lengths of all subjects.
        batch_size: Subjects per batch.
        seed: Of the order, the windows and the ranks of columns.
        window: The longest part of a sequence.
        table_order: The share of batches in which columns have the order of the table, the usual one of generation; others draw it.
        is_fixed: Give the same batches in every epoch, as validation does.
        is_drawn: Draw each batch by chance, every subject with the same probability; `batch_size` is then the mean.
    """

    def __init__(
        self,
        data: EncodedSubjects,
        layout: ModelLayout,
        subjects: Array,
        *,
        lengths: Array,
        batch_size: int,
        seed: int,
        window: int = 100,
        table_order: float = 0.0,
        is_fixed: bool = False,
        is_drawn: bool = False,
    ) -> None:
        self.device = data.codes.device
        self._layout, self._subjects, self._lengths = layout, np.asarray(subjects), np.asarray(lengths)
        self._batch_size, self._seed, self._window = batch_size, seed, window
        self._table_order, self._is_fixed, self._is_drawn = table_order, is_fixed, is_drawn
        self._digest = data.digest()
        self._epoch = self._next = 0
        self._plan: tuple[int, list[tuple[torch.Tensor, ...]]] | None = None

    def __len__(self) -> int:
        return -(-len(self._subjects) // self._batch_size)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        plan = self._planned(0 if self._is_fixed else self._epoch)
        while self._next < len(plan):
            subjects, valid, begin, steps, rank = plan[self._next]
            self._next += 1
            yield {"subjects": subjects, "valid": valid, "begin": begin, "steps": steps, "rank": rank}
        self._epoch, self._next = self._epoch + 1, 0

    def _planned(self, epoch: int) -> list[tuple[torch.Tensor, ...]]:
        """All batches of an epoch, on the device."""
        if self._plan is None or self._plan[0] != epoch:
            self._plan = (epoch, self._make(np.random.default_rng([self._seed, epoch])))
        return self._plan[1]

    def _make(self, rng: np.random.Generator) -> list[tuple[torch.Tensor, ...]]:
        size, count = self._batch_size, len(self)
        order = self._subjects[rng.permutation(len(self._subjects))]
        limit = self._window + 1  # with the end step
        if self._layout.is_sequence:
            run = SORTED_BATCHES * size
            steps_of = np.minimum(self._lengths + 1, limit)
            parts = [order[first : first + run] for first in range(0, len(order), run)]
            order = np.concatenate([part[np.argsort(steps_of[part], kind="stable")] for part in parts])
        turns = rng.permutation(count)
        coins, batches = rng.random(count), []
        for turn in turns.tolist():
            members = order[turn * size : (turn + 1) * size]
            if self._is_drawn:
                members = order[rng.random(len(order)) < size / len(order)]
            is_real = np.arange(max(1, len(members)) if self._is_drawn else size) < len(members)
            members = members if len(members) else order[:1]
            begin, steps = self._windows(members, coins[turn], limit, rng)
            filled = np.minimum(np.arange(len(is_real)), len(members) - 1)  # the last batch repeats a subject, without weight
            batches.append((members[filled], is_real, begin[filled], np.arange(steps), self._rank(rng)))
        return list(zip(*(self._placed(field) for field in zip(*batches, strict=True)), strict=True))

    def _placed(self, arrays: Sequence[Array]) -> tuple[torch.Tensor, ...]:
        """A field of all batches on the device: one copy, which is then split."""
        return torch.split(torch.from_numpy(np.concatenate(arrays)).to(self.device), [len(array) for array in arrays])

    def _windows(self, members: Array, coin: float, limit: int, rng: np.random.Generator) -> tuple[Array, int]:
        """The first event of each subject, and the number of steps of the batch."""
        if not self._layout.is_sequence:
            return np.zeros(len(members), np.int64), 1
        steps = self._lengths[members] + 1
        begin = np.zeros(len(members), np.int64)
        is_long = steps > limit
        if is_long.any() and coin >= BEGINNINGS:
            drawn = rng.integers(1 - limit, steps)
            begin = np.where(is_long, steps - limit if coin < BEGINNINGS + ENDS else np.maximum(0, drawn), 0)
        longest = int(np.minimum(steps - begin, limit).max())
        return begin, longest if self.device.type == "cpu" else min(limit, _bucket(longest))

    def _rank(self, rng: np.random.Generator) -> Array:
        """The rank of each column; positions come first."""
        first = int(self._layout.is_sequence)
        rank = np.arange(self._layout.num_columns)
        if rng.random() >= self._table_order:
            rank[first:] = first + rng.permutation(self._layout.num_columns - first)
        return rank

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be over this epoch."""
        self._epoch, self._next = epoch, 0

    def state_dict(self) -> dict[str, int]:
        """Epoch and number of the next batch."""
        return {"epoch": self._epoch, "next": self._next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue with this batch."""
        self._epoch, self._next = state["epoch"], state["next"]

    def state_after(self, state: dict[str, int], batches: int) -> dict[str, int]:
        """The state after this number of further batches."""
        return {"epoch": state["epoch"], "next": state["next"] + batches}

    def identity(self) -> dict[str, Any]:
        """What the batches depend on."""
        return {
            "seed": self._seed,
            "batch_size": self._batch_size,
            "window": self._window,
            "table_order": self._table_order,
            "is_drawn": self._is_drawn,
            "data": self._digest,
            "subjects": xxhash.xxh3_64_hexdigest(self._subjects.tobytes()),
        }


def _bucket(steps: int) -> int:
    """The smallest length of a geometric series that is not below `steps`."""
    size = 1
    while size < steps:
        size = max(size + 1, int(size * GROWTH))
    return size
