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
from typing import Any, Self

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
        tensors = {field.name: getattr(self, field.name) for field in fields(self) if isinstance(getattr(self, field.name), Tensor)}
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
        levels.append(_Pool.apply(levels[-1]))  # type: ignore[no-untyped-call]
    alone = sum(level.shape[3] > FUSED for level in levels)
    groups = [[k] for k in range(alone)] + [list(range(alone, len(levels)))] * (alone < len(levels))
    total = z.new_zeros(len(z))
    for group in groups:
        joined = levels[group[0]] if len(group) == 1 else torch.cat([levels[k] for k in group], 3)
        level = torch.cat([torch.full((levels[k].shape[3],), k, device=z.device) for k in group])
        step = torch.cat([torch.arange(levels[k].shape[3], device=z.device) for k in group])
        total = total + _group_loss(joined, level, step, length, tau, terms, target)
    return total


class _Pool(torch.autograd.Function):
    """The larger of two steps each, (..., steps, C); of two equal values each gets half of the gradient."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        end = z.shape[-2] // 2 * 2
        first, second = z[..., 0:end:2, :], z[..., 1:end:2, :]
        ctx.save_for_backward(first, second)
        ctx.steps = z.shape[-2]
        return torch.maximum(first, second)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (first, second), (g,) = ctx.saved_tensors, gradients
        of_z = g.new_zeros(*g.shape[:-2], ctx.steps, g.shape[-1])
        end = 2 * g.shape[-2]
        share = (first - second).sign_().mul_(0.5).add_(0.5)  # 1, 0.5 or 0
        torch.mul(g, share, out=share)
        of_z[..., 0:end:2, :] = share
        torch.sub(g, share, out=of_z[..., 1:end:2, :])
        return of_z


def _group_loss(
    z: Tensor, level: Tensor, step: Tensor, length: Tensor, tau: Tensor, terms: LossTerms, target: Tensor | None
) -> Tensor:
    """The part of the loss on some levels; position s of z is `step[s]` of `level[s]`."""
    batch, positions = z.shape[1], z.shape[3]
    steps = length[:, None] >> level  # L_k of each position, (G, S)
    is_valid = step < steps
    # The number of levels, floor(log2 L) + 1, in integers: counted over the powers of two up to L.
    powers = 2 ** torch.arange(31, device=z.device)
    half = 0.5 / (length[:, None] >= powers).sum(1, keepdim=True).to(z.dtype)
    zero = torch.zeros((), dtype=z.dtype, device=z.device)
    per_step = torch.where(is_valid, half / steps.clamp(min=1), zero) / (2 * batch)
    is_temporal = is_valid & (steps >= 2)
    tau = tau.to(z.dtype)[:, None, None, None]

    total = z.new_zeros(len(z))
    if batch > 1:
        itself = torch.eye(2 * batch, dtype=torch.bool, device=z.device)
        positive = torch.eye(batch, dtype=z.dtype, device=z.device)[None]
        positive, weight = (
            targets.to(z.dtype).repeat_interleave(2, 1).repeat_interleave(2, 2)[:, None]
            for targets in (positive, positive if target is None else target)
        )
        usual = terms.amc_instance.to(z.dtype)[:, None]
        factor = torch.where(steps == 1, terms.amc_temporal.to(z.dtype)[:, None], usual) if terms.compat else usual
        angular = torch.where(is_valid, half, zero) * factor / AMC_DIVISOR
        together = z.permute(0, 3, 1, 2, 4).flatten(2, 3)  # (K, S, 2B, C)
        total = total + _pairs_loss(
            together, weight.masked_fill(itself, 0), itself, tau, per_step[..., None], positive > 0, angular[..., None], terms
        )

    both = torch.cat([level, level]), torch.cat([step, step]), torch.cat([is_temporal, is_temporal], 1)
    excluded = (both[0][:, None] != both[0]) | torch.eye(2 * positions, dtype=torch.bool, device=z.device)
    excluded = (excluded | ~(both[2][:, :, None] & both[2][:, None, :]))[:, None]  # (G, 1, 2S, 2S)
    lag = (both[1][:, None] - both[1]).abs()
    weight = (lag == 0).to(z.dtype)[None]
    if terms.has_soft_temporal:
        sharpness = terms.tau_temporal.to(z.dtype)[:, None, None]
        soft = 2 / (1 + torch.exp((lag * 2 ** both[0]).to(z.dtype) * sharpness))
        weight = torch.where(sharpness > 0, torch.where(soft < 1e-6, zero, soft), weight)
    weight = weight[:, None].masked_fill(excluded, 0)
    inside, outside = (torch.ones_like(tau), tau) if terms.compat else (tau, torch.ones_like(tau))
    per_row = torch.where(both[2], torch.cat([per_step, per_step], 1), zero)[:, None] / outside[..., 0]
    factor = torch.where(both[2], terms.amc_temporal.to(z.dtype)[:, None] * half / AMC_DIVISOR, zero)[:, None]
    # A pair of positions of two levels is excluded, so `lag == 0` is the same step of the same level.
    return total + _pairs_loss(z.flatten(2, 3), weight, excluded, inside, per_row, lag == 0, factor, terms)


def _pairs_loss(
    z: Tensor, weight: Tensor, excluded: Tensor, tau: Tensor, per_row: Tensor, positive: Tensor, angular: Tensor, terms: LossTerms
) -> Tensor:
    """The loss over pairs in groups of n vectors: z is (K, groups, n, C); sizes that are 1 stand for all."""
    margin = terms.margin.to(z.dtype)[:, None, None, None] if terms.has_amc else None
    arguments = z, weight, excluded.to(z.dtype), tau, per_row, positive, angular, margin
    return _PairsLoss.apply(*arguments)  # type: ignore[no-any-return, no-untyped-call]


class _PairsLoss(torch.autograd.Function):
    """For each member: the sum over rows of per_row * sum(-log softmax(dots / tau) * weight), and of angular * the angular margin.

    The derivative by the dot products is known beside the loss: autograd would store and repeat some thirty small operations.
    """

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, weight: Tensor, excluded: Tensor, tau: Tensor, per_row: Tensor, positive: Tensor, angular: Tensor,
        margin: Tensor | None,
    ) -> Tensor:  # fmt: skip
        dots = z @ z.transpose(-1, -2)
        logits = dots / tau
        masked = logits + excluded * _EXCLUDED
        top = masked.amax(-1, keepdim=True)
        grown = masked.sub_(top).exp_()  # 0 where excluded
        sums = grown.sum(-1, keepdim=True)
        all_weights = weight.sum(-1, keepdim=True)
        rows = (all_weights * (sums.log() + top))[..., 0] - (weight * logits).sum(-1)
        total = (rows * per_row).sum((1, 2))
        slope = grown.mul_(all_weights / sums).sub_(weight).mul_((per_row / tau[..., 0])[..., None])
        if margin is not None:
            squares = dots.diagonal(dim1=-2, dim2=-1).clamp(min=1e-24)
            inverse = squares.rsqrt()
            scale = inverse[..., None] * inverse[..., None, :]
            cosine = dots.mul_(scale)
            clamped = cosine.clamp(-1 + CLAMP, 1 - CLAMP)
            angle = clamped.acos()
            term = torch.where(positive, angle, (angle - margin).clamp_(max=0)).mul_(1 - excluded)
            total = total + (term.square().sum(-1) * angular).sum((1, 2))
            by_cosine = term.mul_(-2 * angular[..., None]).mul_((1 - clamped.square()).rsqrt_())
            by_cosine *= clamped == cosine
            of_itself = by_cosine.mul(cosine).sum(-1).div_(squares)
            slope += by_cosine.mul_(scale)
            slope.diagonal(dim1=-2, dim2=-1).sub_(of_itself)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward((slope + slope.transpose(-1, -2)) @ z)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (of_z,) = ctx.saved_tensors
        return gradients[0][:, None, None, None] * of_z, *([None] * 7)
