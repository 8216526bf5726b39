"""Decoding: a forecast grows by the largest head that still fits, and what was computed of earlier points is kept.

Each layer has a cache of keys and values, as long as the whole forecast will be. New points are looked at once, several at a time
where a head has predicted several.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from stoker.errors import OptionError
from stoker.recipes.time_moe.attention import place_of

if TYPE_CHECKING:
    from stoker.recipes.time_moe.model import TimeMoe


class Cache:
    """Keys and values of the points that one layer has seen."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._kept: tuple[Tensor, Tensor] | None = None
        self._count = 0

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keep keys and values [b, l, h, d] of new points; returns those of all points so far."""
        if self._kept is None:
            rows, _, heads, width = keys.shape
            self._kept = keys.new_empty(rows, self._capacity, heads, width), values.new_empty(rows, self._capacity, heads, width)
        begin, self._count = self._count, self._count + keys.shape[1]
        for kept, new in zip(self._kept, (keys, values), strict=True):
            kept[:, begin : self._count] = new
        return self._kept[0][:, : self._count], self._kept[1][:, : self._count]


@torch.no_grad()
def forecast(model: TimeMoe, context: Tensor, horizon: int) -> Tensor:
    """The next `horizon` points of each row of `context` [b, l], one head after the other."""
    if isinstance(horizon, bool) or not isinstance(horizon, int) or horizon < 1:
        raise OptionError(f"horizon is {horizon!r}; expected a whole number above 0.")
    if context.dim() != 2 or not context.shape[1]:
        raise OptionError(f"context has shape {tuple(context.shape)}; expected [rows, points] with at least one point.")
    begin, end = 0, context.shape[1] + horizon
    caches = [Cache(end) for _ in model.layers]
    found: list[Tensor] = []
    new, remaining = context, horizon
    while remaining:
        positions = torch.arange(begin, begin + new.shape[1], device=context.device)
        within = None if begin == 0 else torch.arange(begin + new.shape[1], device=context.device) <= positions.unsqueeze(1)
        place = place_of(positions, model.size, model.angle_dtype, within)
        hidden, _ = model.through(new, place, caches)
        head = max(one for one in model.size.horizons if one <= remaining)
        begin += new.shape[1]
        new = model.heads.predict(hidden[:, -1], head).to(context.dtype)
        found.append(new)
        remaining -= head
    return torch.cat(found, 1)
