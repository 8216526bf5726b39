"""The Time-MoE model in plain torch: points are embedded, pass layers of attention and experts, and become forecasts.

Given labels, the model returns its loss, so that a trainer can compile all of it. Weights may be float32 with matmuls in bfloat16:
the autocast around a call decides the type of matmuls; sums over layers stay in the type of the weights.

`forecast` decodes: a forecast grows by the largest head that still fits, with a cache of keys and values per layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stoker.errors import OptionError
from stoker.recipes.time_moe.layers import Attention, Experts, Heads, Load, Positions, Size, positions_of, runs_of


class TimeMoe(nn.Module):
    """Time-MoE with random weights.

    Args:
        size: Shape of the model, such as `SIZES["50m"]`.
        dtype: Type of the weights. Default: float32.

    Example:
        >>> import torch
        >>> from stoker.recipes.time_moe import SIZES
        >>> model = TimeMoe(SIZES["tiny"])
        >>> model.forecast(torch.zeros(2, 16), horizon=5).shape
        torch.Size([2, 5])
    """

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
        """Draw all weights again.

        Biases too, which the authors initialise with 0: a position that is 0 and sees only zeros (padding, a constant series) would
        stay 0 in every layer, where the norm multiplies its gradient by 170; after twelve layers it would be NaN.
        """
        for name, weight in self.named_parameters():
            if name.endswith("norm.weight"):
                weight.fill_(1.0)
            else:
                weight.normal_(0.0, self.size.spread)

    def compile(self, *given: Any, **options: Any) -> None:
        """Compile in place, layer by layer: all layers share one compilation, a twelfth of the time of the whole model."""
        for part in (*self.layers, self.heads):
            part.compile(*given, **options)

    def forward(self, x: Tensor, y: Tensor | None = None, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """The hidden states [b, l, hidden] of points [b, l]; with labels `y` [b, l], the loss (see `loss`)."""
        self._check_length(x.shape[1])
        runs = None if segments is None else runs_of(segments)
        positions = torch.arange(x.shape[1], device=x.device) if runs is None else runs.positions
        place = positions_of(positions, self.size, self.angle_dtype, runs)
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
        """Huber loss, averaged over the heads by their `shares`, plus the load-balancing loss (0.04 if perfectly even).

        Args:
            x: Points [b, l].
            y: `x` one step later.
            mask: Labels that count: [b, l], or [b] for the number from the left.
            segments: The series of each position [b, l], for rows that hold several one after the other; below 0 for padding.
        """
        found: Tensor = self(x, y, mask, segments)
        return found

    def through(self, x: Tensor, place: Positions, caches: list[Cache] | None = None) -> tuple[Tensor, list[Load]]:
        """Points [b, l] through all layers: hidden states, and the load of the experts of each layer."""
        points = x.to(self.embed.dtype).unsqueeze(-1)
        hidden = F.silu(points * self.embed_gate[:, 0]) * (points * self.embed[:, 0])
        loads = []
        for number, layer in enumerate(self.layers):
            hidden, load = layer(hidden, place) if caches is None else layer(hidden, place, caches[number])
            loads.append(load)
        return self.norm(hidden).to(products_dtype(hidden)), loads

    def forecast(self, context: Tensor, horizon: int) -> Tensor:
        """The next `horizon` points of each row of `context` [b, l], which the caller scales."""
        self._check_length(context.shape[1] + horizon)
        return forecast(self, context, horizon)

    @property
    def angle_dtype(self) -> torch.dtype:
        """The type in which rotary angles are computed."""
        return torch.promote_types(self.embed.dtype, torch.float32)

    def _check_length(self, length: int) -> None:
        if length > self.size.max_position:
            raise OptionError(f"a row has {length:,} positions, but the model has {self.size.max_position:,}. Use shorter rows.")


class Layer(nn.Module):
    """Attention and experts, pre-norm and residual."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention_norm = Norm(size.hidden, size.eps)
        self.attention = Attention(size)
        self.experts_norm = Norm(size.hidden, size.eps)
        self.experts = Experts(size)

    def forward(self, x: Tensor, place: Positions, cache: Cache | None = None) -> tuple[Tensor, Load]:
        """Hidden states [b, l, hidden] after this layer, and the load of its experts."""
        dtype = products_dtype(x)
        x = x + self.attention(self.attention_norm(x).to(dtype), place, cache)
        fed, load = self.experts(self.experts_norm(x).to(dtype))
        return x + fed, load


class Norm(nn.Module):
    """RMS norm."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Computed in float32 at least."""
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        return self.weight * (exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)


def products_dtype(x: Tensor) -> torch.dtype:
    """The type of matmuls: that of autocast, or else of the hidden states."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def unevenness(loads: list[Load], *, positions: int) -> Tensor:
    """The load-balancing loss over all layers: `top_k` if all experts are used alike, more otherwise."""
    total = len(loads) * positions
    probabilities = torch.stack([load.probabilities for load in loads]).sum(0)
    counts = torch.stack([load.counts for load in loads]).sum(0).to(probabilities.dtype)
    return len(counts) * (counts / total * (probabilities / total)).sum()


def time_moe_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """The loss of a batch, for `stoker.Trainer`.

    Args:
        model: A `TimeMoe`.
        batch: `x` and `y` [b, l]; optionally `mask` [b, l] or `length` [b], `segments` [b, l], and `valid` [b] rows.

    Returns:
        The loss.

    Example:
        >>> import torch
        >>> from stoker.recipes.time_moe import SIZES
        >>> x = torch.arange(8.0)[None]
        >>> time_moe_loss(TimeMoe(SIZES["tiny"]), {"x": x, "y": x + 1}).isfinite().item()
        True
    """
    mask = batch.get("mask", batch.get("length"))
    valid = batch.get("valid")
    if valid is not None:
        if mask is None:
            mask = valid.unsqueeze(1).expand(batch["x"].shape)
        else:
            mask = torch.where(valid if mask.dim() == 1 else valid.unsqueeze(1), mask, 0)
    found: Tensor = model(batch["x"], batch["y"], mask, batch.get("segments"))
    return found


# ---- decoding ----


class Cache:
    """Keys and values of the points that one layer has seen."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._kept: tuple[Tensor, Tensor] | None = None
        self._count = 0

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values [b, l, h, d] of new points; returns those of all points so far."""
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
        raise OptionError(f"horizon is {horizon!r}; expected an integer from 1.")
    if context.dim() != 2 or not context.shape[1]:
        raise OptionError(f"context has shape {tuple(context.shape)}; expected [rows, points] with at least one point.")
    begin, end = 0, context.shape[1] + horizon
    caches = [Cache(end) for _ in model.layers]
    found: list[Tensor] = []
    new, remaining = context, horizon
    while remaining:
        positions = torch.arange(begin, begin + new.shape[1], device=context.device)
        within = None if begin == 0 else torch.arange(begin + new.shape[1], device=context.device) <= positions.unsqueeze(1)
        place = positions_of(positions, model.size, model.angle_dtype, within)
        hidden, _ = model.through(new, place, caches)
        head = max(one for one in model.size.horizons if one <= remaining)
        begin += new.shape[1]
        new = model.heads.predict(hidden[:, -1], head).to(context.dtype)
        found.append(new)
        remaining -= head
    return torch.cat(found, 1)
