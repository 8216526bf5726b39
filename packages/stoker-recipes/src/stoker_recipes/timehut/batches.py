"""Crops: which pieces of which series the two views of each update have, drawn before training, and the batch of an update.

An update draws, for a batch of series of T steps, from one `numpy.random.RandomState(seed)` in this order (TS2Vec's own):

    0. window   U{0..T - max_length}, only where T > max_length: the part of all series that this update sees
    1. L        U{2..T}                          length of the overlap
    2. left     U{0..T - L}, right = left + L
    3. eleft    U{0..left}                       view 1 is [eleft, right)
    4. eright   U{right..T}                      view 2 is [left, eright)
    5. offset   U{-eleft..T - eright}, per row   where the crop lies in the series
    6. mask of view 1, then of view 2: Bernoulli(0.5) per row and step

The order of series comes from `numpy.random.default_rng((seed, epoch))`: one permutation per epoch, its last incomplete batch left out.
So crops are a function of (seed, update), whatever the device, and resuming needs no random state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker.errors import OptionError
from stoker.extend import Array


@dataclass(frozen=True, kw_only=True)
class Crops:
    """The crops of U updates of batches of B series, in coordinates of the crop: step p of row b is step p + start of its series."""

    rows: Array
    """(U, B): numbers of series."""
    start: Array
    """(U, B): where step 0 lies in the series; may be negative, as only [eleft, eright) is used."""
    bounds: Array
    """(U, 4): eleft, left, right, eright."""
    mask: Array
    """(U, B, 2, T): the given steps of both views; False outside the view."""
    per_epoch: int
    """Updates per epoch."""

    @property
    def length(self) -> int:
        """Steps that a view can have at most."""
        return int(self.mask.shape[-1])


def updates_per_epoch(num_series: int, batch_size: int) -> int:
    """Whole batches of an epoch; a batch larger than the data is all of it."""
    return num_series // min(batch_size, num_series)


def draw_crops(*, num_series: int, length: int, batch_size: int, updates: int, seed: int, max_length: int = 3000) -> Crops:
    """Draw the crops of a training run.

    Args:
        num_series: Number of series.
        length: Their steps.
        batch_size: Series per update.
        updates: Number of updates.
        seed: Seed of all draws.
        max_length: Steps that an update sees at most.

    Raises:
        OptionError: Series of one step, or no series.

    Example:
        >>> crops = draw_crops(num_series=20, length=24, batch_size=8, updates=3, seed=1)
        >>> crops.rows.shape, crops.mask.shape, crops.per_epoch
        ((3, 8), (3, 8, 2, 24), 2)
    """
    if num_series < 1 or length < 2:
        raise OptionError(
            f"there are {num_series} series of {length} steps; expected at least one of 2 steps or more.", parameter="values"
        )
    random, batch, steps = np.random.RandomState(seed), min(batch_size, num_series), min(length, max_length)
    per_epoch = updates_per_epoch(num_series, batch_size)
    rows = np.empty((updates, batch), np.int64)
    start, bounds = np.empty((updates, batch), np.int64), np.empty((updates, 4), np.int64)
    mask = np.zeros((updates, batch, 2, steps), bool)
    for update in range(updates):
        epoch, position = divmod(update, per_epoch)
        if position == 0:
            order = np.random.default_rng((seed, epoch)).permutation(num_series)
        rows[update] = order[position * batch : (position + 1) * batch]
        window = random.randint(length - steps + 1) if length > steps else 0
        overlap = random.randint(2, steps + 1)
        left = random.randint(steps - overlap + 1)
        right = left + overlap
        eleft, eright = random.randint(left + 1), random.randint(right, steps + 1)
        start[update] = window + random.randint(-eleft, steps - eright + 1, size=batch)
        bounds[update] = eleft, left, right, eright
        mask[update, :, 0, eleft:right] = random.binomial(1, 0.5, size=(batch, right - eleft))
        mask[update, :, 1, left:eright] = random.binomial(1, 0.5, size=(batch, eright - left))
    return Crops(rows=rows, start=start, bounds=bounds, mask=mask, per_epoch=per_epoch)


# The series and all crops of a training run on its device, and the batch of an update from them.


@dataclass(frozen=True, kw_only=True)
class Tables:
    """What every update needs, on the device: the series, and per update U, group G (1 or K) and row B where they are cut."""

    data: Tensor
    """(N, T, D), without NaN."""
    given: Tensor | None
    """(N, T): steps without NaN; None where there is no NaN."""
    rows: Tensor
    start: Tensor
    bounds: Tensor
    mask: Tensor
    tau: Tensor
    """(U, K)."""
    target: Tensor | None
    """(U, K, B, B): SoftCLT's instance targets; None where no member has any."""
    keys: Tensor
    """(G,): seeds of dropout."""

    @property
    def length(self) -> int:
        """Steps that a view can have."""
        return int(self.mask.shape[-1])

    def take(self, indices: Tensor) -> Tables:
        """The tables of these members."""
        grouped = self.rows.shape[1] > 1
        names = ("rows", "start", "bounds", "mask") if grouped else ()
        changed: dict[str, Any] = {name: getattr(self, name)[:, indices].contiguous() for name in names}
        if self.target is not None:
            changed["target"] = self.target[:, indices].contiguous()
        return replace(self, tau=self.tau[:, indices].contiguous(), keys=self.keys[indices] if grouped else self.keys, **changed)


def gather_batch(tables: Tables, update: Tensor, *, low: int, high: int, width: int) -> dict[str, Tensor]:
    """The batch of an update, with the steps [low, high) of its crops, and an overlap of at most `width` steps. `update` is (1,)."""
    rows, start, bounds, mask = (
        table.index_select(0, update)[0] for table in (tables.rows, tables.start, tables.bounds, tables.mask)
    )
    steps = torch.arange(low, high, device=rows.device)
    place = (start[..., None] + steps).clamp(0, tables.data.shape[1] - 1)  # (G, B, W); outside the crop any step will do
    keep = mask[..., low:high]
    if tables.given is not None:
        keep = keep & tables.given[rows[..., None], place][:, :, None]
    eleft, left, right, eright = (table[:, None] for table in bounds.unbind(1))
    crop = torch.stack([(steps >= eleft) & (steps < right), (steps >= left) & (steps < eright)], 1)  # (G, 2, W)
    batch = {
        "x": tables.data[rows[..., None], place],
        "keep": keep.flatten(1, 2),
        "crop": crop[:, None].expand(-1, rows.shape[1], -1, -1).flatten(1, 2),
        "begin": bounds[:, 1] - low,
        "length": bounds[:, 2] - bounds[:, 1],
        "steps": torch.arange(width, device=rows.device),
        "tau": tables.tau.index_select(0, update)[0],
        "key": tables.keys,
        "update": update,
    }
    if tables.target is not None:
        batch["target"] = tables.target.index_select(0, update)[0]
    return batch
