"""The losses of TS2Vec, SoftCLT and TimeHUT, with static shapes and for K members at once.

Two views of B series, cut to their overlap of L steps, are pooled by 2 (max) again and again: level k has L_k = L >> k steps. On each
level, over pairs of representations z (dot products s, a vector never paired with itself):

    instance  per step, 2B vectors: sum of -log softmax(s / tau) * target, mean over the 2B rows and the L_k steps
    temporal  per series, 2 L_k vectors: the same, mean over 2 L_k rows and B series; only where L_k >= 2
    loss      sum over levels of 0.5 instance + 0.5 temporal, divided by the number of levels (those with L_k >= 1)

    TS2Vec    target 1 for the other view of the same series or step, tau 1
    SoftCLT   instance target from distances of series, temporal target 2 / (1 + exp(|t - t'| * tau_temporal * 2^k))
    TimeHUT   TS2Vec with a temperature, and the angular margin ("AMC"): with angles a = acos(cos(z_i, z_j)), the sum over pairs of a^2
              for positives and max(0, margin - a)^2 for others, / 25, summed over steps or series, times amc_instance or amc_temporal

The authors' TimeHUT divides temporal logits by tau after the softmax, so that tau scales the loss there, and takes `amc_temporal` for the
instance term of the last level (L_k = 1). `compat=True` does the same; False puts tau into the softmax and takes `amc_instance`.

Static shapes: z has room for the largest overlap, and lengths are data. All levels are one sequence of about 2L positions, so two batched
matmuls give every dot product; pairs of different levels or beyond L_k are masked. Levels longer than `FUSED` steps have matmuls of their
own, as the masked part would cost more than it saves.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

FUSED = 64
CLAMP = 1e-6
"""Cosines are clamped to +-(1 - CLAMP). The authors' 1e-10 is 0 in float32, where the gradient of acos(1) is infinite."""
AMC_DIVISOR = 25.0
_EXCLUDED = -1e30  # finite: a row without any pair has weight 0, and 0 * inf would be NaN


@dataclass(frozen=True, kw_only=True)
class LossTerms:
    """What the losses of K members depend on. Tensors have one value per member, (K,)."""

    amc_instance: Tensor
    amc_temporal: Tensor
    margin: Tensor
    tau_temporal: Tensor
    """Sharpness of SoftCLT's temporal targets; 0: only the same step is a positive."""
    compat: bool = True
    has_amc: bool = True
    """Whether any member has an angular margin."""
    has_soft_temporal: bool = True
    """Whether any member has soft temporal targets."""

    def take(self, indices: Tensor) -> Self:
        """The terms of these members."""
        tensors = {one.name: getattr(self, one.name) for one in fields(self) if isinstance(getattr(self, one.name), Tensor)}
        return replace(self, **{name: value[indices] for name, value in tensors.items()})


def contrastive_loss(z: Tensor, length: Tensor, tau: Tensor, terms: LossTerms, *, target: Tensor | None = None) -> Tensor:
    """The loss of each member.

    Args:
        z: Representations (K, B, 2, W, C) of both views, of which the first `length` steps count.
        length: Steps of the overlap (G,), G being 1 or K.
        tau: Temperatures (K,).
        terms: The other terms of the loss.
        target: Instance targets (G, B, B); None: each series is the only positive of itself.

    Returns:
        (K,).
    """
    levels = [z]
    while levels[-1].shape[3] > 1:
        steps = levels[-1].shape[3] // 2 * 2
        levels.append(torch.maximum(levels[-1][:, :, :, 0:steps:2], levels[-1][:, :, :, 1:steps:2]))
    alone = sum(one.shape[3] > FUSED for one in levels)
    groups = [[k] for k in range(alone)] + [list(range(alone, len(levels)))] * (alone < len(levels))
    total = z.new_zeros(len(z))
    for group in groups:
        joined = levels[group[0]] if len(group) == 1 else torch.cat([levels[k] for k in group], 3)
        level = torch.cat([torch.full((levels[k].shape[3],), k, device=z.device) for k in group])
        step = torch.cat([torch.arange(levels[k].shape[3], device=z.device) for k in group])
        total = total + _group_loss(joined, level, step, length, tau, terms, target)
    return total


def _group_loss(
    z: Tensor, level: Tensor, step: Tensor, length: Tensor, tau: Tensor, terms: LossTerms, target: Tensor | None
) -> Tensor:
    """The part of the loss on some levels; position s of z is `step[s]` of `level[s]`."""
    members, batch, _, positions, _ = z.shape
    steps = length[:, None] >> level  # L_k of each position, (G, S)
    is_valid = step < steps
    # The number of levels, floor(log2 L) + 1, in integers: counted over the powers of two up to L.
    powers = 2 ** torch.arange(31, device=z.device)
    half = 0.5 / (length[:, None] >= powers).sum(1, keepdim=True).to(z.dtype)
    zero = torch.zeros((), dtype=z.dtype, device=z.device)
    per_step = torch.where(is_valid, half / steps.clamp(min=1), zero)
    is_temporal = is_valid & (steps >= 2)
    tau = tau.to(z.dtype)[:, None, None]

    total = z.new_zeros(members)
    if batch > 1:
        together = z.permute(0, 3, 1, 2, 4).flatten(2, 3)  # (K, S, 2B, C)
        dots = together @ together.transpose(-1, -2)
        itself = torch.eye(2 * batch, dtype=torch.bool, device=z.device)
        if target is None:
            target = torch.eye(batch, dtype=z.dtype, device=z.device)[None]
        weight = target.to(z.dtype).repeat_interleave(2, 1).repeat_interleave(2, 2)[:, None].masked_fill(itself, 0)
        rows = _cross_entropy(dots, weight, itself, tau[..., None])
        total = total + (rows.sum(-1) * per_step).sum(-1) / (2 * batch)
        if terms.has_amc:
            positive = torch.eye(batch, dtype=torch.bool, device=z.device).repeat_interleave(2, 0).repeat_interleave(2, 1)
            angular = _angular(dots, positive, itself, terms.margin).sum((-1, -2))
            usual = terms.amc_instance.to(z.dtype)[:, None]
            factor = torch.where(steps == 1, terms.amc_temporal.to(z.dtype)[:, None], usual) if terms.compat else usual
            total = total + (angular * torch.where(is_valid, half, zero) * factor).sum(-1) / AMC_DIVISOR

    series = z.flatten(2, 3)  # (K, B, 2S, C): both views of a series
    dots = series @ series.transpose(-1, -2)
    both = torch.cat([level, level]), torch.cat([step, step]), torch.cat([is_temporal, is_temporal], 1)
    excluded = (both[0][:, None] != both[0]) | torch.eye(2 * positions, dtype=torch.bool, device=z.device)
    excluded = excluded | ~(both[2][:, :, None] & both[2][:, None, :])  # (G, 2S, 2S)
    lag = (both[1][:, None] - both[1]).abs()
    weight = (lag == 0).to(z.dtype)[None]
    if terms.has_soft_temporal:
        sharpness = terms.tau_temporal.to(z.dtype)[:, None, None]
        soft = 2 / (1 + torch.exp((lag * 2 ** both[0]).to(z.dtype) * sharpness))
        weight = torch.where(sharpness > 0, torch.where(soft < 1e-6, zero, soft), weight)
    weight = torch.where(excluded, zero, weight)
    inside, outside = (z.new_ones(1, 1, 1), tau[:, 0]) if terms.compat else (tau, z.new_ones(1, 1))
    rows = _cross_entropy(dots, weight[:, None], excluded[:, None], inside[..., None])  # (K, B, 2S)
    per_row = torch.where(both[2], torch.cat([per_step, per_step], 1), zero) / outside
    total = total + (rows.sum(1) * per_row).sum(-1) / (2 * batch)
    if terms.has_amc:
        angular = _angular(dots, lag == 0, excluded[:, None], terms.margin).sum((1, -1))
        # A pair of positions of two levels is excluded, so `lag == 0` is the same step of the same level.
        factor = terms.amc_temporal.to(z.dtype)[:, None] * half
        total = total + (angular * torch.where(both[2], factor, zero)).sum(-1) / AMC_DIVISOR
    return total


def _cross_entropy(dots: Tensor, weight: Tensor, excluded: Tensor, tau: Tensor) -> Tensor:
    """For each row the sum of -log softmax * weight over the pairs that are not excluded."""
    logits = dots / tau
    normaliser = logits.masked_fill(excluded, _EXCLUDED).logsumexp(-1)
    return weight.sum(-1) * normaliser - (weight * logits).sum(-1)


def _angular(dots: Tensor, positive: Tensor, excluded: Tensor, margin: Tensor) -> Tensor:
    """For each pair its part of the angular margin; 0 where excluded."""
    inverse = dots.diagonal(dim1=-2, dim2=-1).clamp(min=1e-24).rsqrt()
    cosine = dots * inverse[..., None] * inverse[..., None, :]
    angle = cosine.clamp(-1 + CLAMP, 1 - CLAMP).acos()
    apart = (margin.to(dots.dtype)[:, None, None, None] - angle).clamp(min=0)
    return torch.where(positive, angle, apart).square().masked_fill(excluded, 0)
