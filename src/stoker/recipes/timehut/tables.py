"""Tables: the series and all crops of a training run on its device, and the batch of an update from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


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
    rows, start, bounds, mask = (one.index_select(0, update)[0] for one in (tables.rows, tables.start, tables.bounds, tables.mask))
    steps = torch.arange(low, high, device=rows.device)
    place = (start[..., None] + steps).clamp(0, tables.data.shape[1] - 1)  # (G, B, W); outside the crop any step will do
    keep = mask[..., low:high]
    if tables.given is not None:
        keep = keep & tables.given[rows[..., None], place][:, :, None]
    eleft, left, right, eright = (one[:, None] for one in bounds.unbind(1))
    crop = torch.stack([(steps >= eleft) & (steps < right), (steps >= left) & (steps < eright)], 1)  # (G, 2, W)
    found = {
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
        found["target"] = tables.target.index_select(0, update)[0]
    return found
