"""Decoding: a forecast grows by the largest head that still fits, and what was computed of earlier points is kept.

Each layer has a cache of keys and values, as long as the whole forecast will be. New points are looked at once, several at a time
where a head has predicted several.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stoker.errors import OptionError
from stoker.recipes.time_moe.layers import Attention, Experts, Heads, Load, Place, Size, place_of, runs_of


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


# The model: Time-MoE in plain torch - points are embedded, pass layers of attention and experts, and become forecasts.
#
# Given labels it answers with its loss, so that a trainer can compile all of it. Weights may be float32 with products in
# bfloat16:
# the autocast around a call says in which numbers products are made; sums over layers stay in the numbers of the weights.


class Norm(nn.Module):
    """Each position divided by its root mean square."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """In float32 at least."""
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        return self.weight * (exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)


class Layer(nn.Module):
    """Attention, then experts; what each finds is added to what was there."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention_norm = Norm(size.hidden, size.eps)
        self.attention = Attention(size)
        self.experts_norm = Norm(size.hidden, size.eps)
        self.experts = Experts(size)

    def forward(self, x: Tensor, place: Place, cache: Cache | None = None) -> tuple[Tensor, Load]:
        """Hidden states [b, l, hidden] after this layer, and how its experts were used."""
        dtype = products_dtype(x)
        x = x + self.attention(self.attention_norm(x).to(dtype), place, cache)
        fed, load = self.experts(self.experts_norm(x).to(dtype))
        return x + fed, load


class TimeMoe(nn.Module):
    """Time-MoE of a size. Weights are random, and in `dtype` (float32, without one)."""

    def __init__(self, size: Size, *, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.size = size
        self.embed = nn.Parameter(torch.empty(size.hidden, 1))
        self.embed_gate = nn.Parameter(torch.empty(size.hidden, 1))
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm = Norm(size.hidden, size.eps)
        self.heads = Heads(size)
        self.reset()
        if dtype is not None:
            self.to(dtype)

    @torch.no_grad()
    def reset(self) -> None:
        """Draw all weights anew.

        Biases too, which the authors begin with 0: a position that is 0, and sees only such (filler, a constant series), then stays
        0 in every layer, where the norm makes its gradient 170 times as large, and after twelve layers it is no number any more.
        """
        for name, weight in self.named_parameters():
            if name.endswith("norm.weight"):
                weight.fill_(1.0)
            else:
                weight.normal_(0.0, self.size.spread)

    def compile(self, *given: Any, **options: Any) -> None:
        """Compile in place: one layer serves for all, so this takes a twelfth of the time that the whole model would."""
        for part in (*self.layers, self.heads):
            part.compile(*given, **options)

    def forward(self, x: Tensor, y: Tensor | None = None, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Without labels the hidden states [b, l, hidden] of points [b, l]; with labels `y` [b, l] the loss, as `loss` says."""
        self._check_length(x.shape[1])
        runs = None if segments is None else runs_of(segments)
        positions = torch.arange(x.shape[1], device=x.device) if runs is None else runs.positions
        place = place_of(positions, self.size, self.angle_dtype, runs)
        hidden, loads = self.through(x, place)
        if y is None:
            return hidden
        if mask is not None and mask.dim() == 1:
            mask = torch.arange(x.shape[1], device=x.device) < mask.unsqueeze(1)
        if segments is not None:
            inside = segments >= 0
            mask = inside if mask is None else (mask != 0) & inside
        loss: Tensor = self.heads(hidden, y, mask, None if runs is None else runs.begins)
        return loss + self.size.aux_factor * unevenness(loads, positions=x.numel())

    def loss(self, x: Tensor, y: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Huber loss, mean of the heads by their `shares`, plus what uneven use of experts costs (0.04 where it is perfectly even).

        `y` is `x` one step later. `mask` says which labels count: [b, l], or [b] - how many from the left. `segments` [b, l]
        says which series a position is of, in rows that hold several, one after the other; below 0 it is of none.
        """
        found: Tensor = self(x, y, mask, segments)
        return found

    def through(self, x: Tensor, place: Place, caches: list[Cache] | None = None) -> tuple[Tensor, list[Load]]:
        """Points [b, l] through all layers: hidden states, and how the experts of each layer were used."""
        points = x.to(self.embed.dtype).unsqueeze(-1)
        hidden = F.silu(points * self.embed_gate[:, 0]) * (points * self.embed[:, 0])
        loads = []
        for number, layer in enumerate(self.layers):
            hidden, load = layer(hidden, place) if caches is None else layer(hidden, place, caches[number])
            loads.append(load)
        return self.norm(hidden).to(products_dtype(hidden)), loads

    def forecast(self, context: Tensor, horizon: int) -> Tensor:
        """The next `horizon` points of each row of `context` [b, l]; scaling is up to the caller."""
        self._check_length(context.shape[1] + horizon)
        return forecast(self, context, horizon)

    @property
    def angle_dtype(self) -> torch.dtype:
        """In which positions are turned to angles."""
        return torch.promote_types(self.embed.dtype, torch.float32)

    def _check_length(self, length: int) -> None:
        if length > self.size.max_position:
            raise OptionError(f"a row has {length:,} positions, but the model knows {self.size.max_position:,}. Use shorter rows.")


def products_dtype(x: Tensor) -> torch.dtype:
    """The numbers that products are made in: those of autocast, or else of the hidden states."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def unevenness(loads: list[Load], *, positions: int) -> Tensor:
    """How unevenly experts are used over all layers: `top_k` where all are used alike, more otherwise."""
    total = len(loads) * positions
    probabilities = torch.stack([load.probabilities for load in loads]).sum(0)
    counts = torch.stack([load.counts for load in loads]).sum(0).to(probabilities.dtype)
    return len(counts) * (counts / total * (probabilities / total)).sum()


def time_moe_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """The loss of a batch with `x` and `y` [b, l], and, where it has them, `mask` or `length`, `segments`, and `valid` rows."""
    mask = batch.get("mask", batch.get("length"))
    valid = batch.get("valid")
    if valid is not None:
        if mask is None:
            mask = valid.unsqueeze(1).expand(batch["x"].shape)
        else:
            mask = torch.where(valid if mask.dim() == 1 else valid.unsqueeze(1), mask, 0)
    found: Tensor = model(batch["x"], batch["y"], mask, batch.get("segments"))
    return found
