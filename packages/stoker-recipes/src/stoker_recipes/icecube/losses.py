"""Directions on the sphere: a mixture of von Mises-Fisher distributions, its loss, its point estimate, and angles.

The density of a component with direction mu and concentration kappa at a direction n, in a form that nothing cancels in:

    log p = log kappa - log 2 pi - log(1 - exp(-2 kappa)) - kappa |mu - n|^2 / 2

as kappa (mu n - 1) = -kappa |mu - n|^2 / 2 for unit vectors. All is computed in float32 or wider, outside of autocast.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MAX_KAPPA = 10_000.0
ANGLE_WEIGHT = 0.5
KAPPA_PENALTY = 1e-4
PENALTY_SHARE = 0.3
"""Of the batches of a run, over which the penalty on kappa falls to 0."""
NEAR = 1e-7  # arccos has no slope at 1: it is cut this far from it
DIRECTION_NEAR = 1e-4  # the same for the loss of the directional head


class VmfMixture(NamedTuple):
    """Components of each event: directions [B, K, 3], concentrations [B, K] and log weights [B, K]."""

    mu: Tensor
    kappa: Tensor
    log_weight: Tensor


def to_direction(angles: Tensor) -> Tensor:
    """Azimuth and zenith [B, 2] as unit vectors [B, 3].

    Example:
        >>> to_direction(torch.tensor([[0.0, math.pi / 2]])).round(decimals=3)
        tensor([[1., 0., 0.]])
    """
    azimuth, zenith = angles.unbind(-1)
    return torch.stack([azimuth.cos() * zenith.sin(), azimuth.sin() * zenith.sin(), zenith.cos()], -1)


def to_angles(direction: Tensor) -> Tensor:
    """Vectors [B, 3] of any length as azimuth (0 to 2 pi) and zenith [B, 2].

    Example:
        >>> to_angles(torch.tensor([[0.0, -2.0, 0.0]])).round(decimals=3)
        tensor([[4.7120, 1.5710]])
    """
    x, y, z = direction.unbind(-1)
    return torch.stack([torch.atan2(y, x) % (2 * math.pi), torch.atan2(torch.hypot(x, y), z)], -1)


def angle_between(a: Tensor, b: Tensor) -> Tensor:
    """Angles in radians between vectors, exact near 0 and pi too.

    Example:
        >>> float(angle_between(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([1.0, 1e-6, 0.0])))  # doctest: +ELLIPSIS
        9.99999...e-07
    """
    return torch.atan2(torch.linalg.cross(a, b).norm(dim=-1), (a * b).sum(-1))


def angular_error(predicted: Tensor, target: Tensor) -> Tensor:
    """Great-circle angles in degrees between azimuths and zeniths [B, 2], in float64 and without a clip.

    Example:
        >>> angular_error(torch.tensor([[0.0, 1.0]]), torch.tensor([[math.pi, 1.0]])).round(decimals=4)
        tensor([114.5916], dtype=torch.float64)
    """
    return torch.rad2deg(angle_between(to_direction(predicted.double()), to_direction(target.double())))


def make_mixture(raw: Tensor) -> VmfMixture:
    """The mixture that the numbers [B, 5 K] of a head describe."""
    raw = raw.view(raw.shape[0], -1, 5)
    return VmfMixture(
        F.normalize(raw[..., :3], dim=-1, eps=1e-12),
        (F.softplus(raw[..., 3]) + 1).clamp(max=MAX_KAPPA),
        F.log_softmax(raw[..., 4], -1),
    )


def log_density(mixture: VmfMixture, direction: Tensor) -> Tensor:
    """The log density of directions [B, 3] under the mixtures."""
    mu, kappa, log_weight = mixture
    far = (mu - direction.unsqueeze(-2)).square().sum(-1)
    each = kappa.log() - math.log(2 * math.pi) - torch.log1p(-torch.exp(-2 * kappa)) - kappa * far / 2
    return torch.logsumexp(log_weight + each, -1)


def point_estimate(mixture: VmfMixture) -> tuple[Tensor, Tensor]:
    """The direction of each mixture [B, 3], the mean of its components weighted by kappa; and the length of that mean.

    The length is a concentration: kappa, where the components agree.
    """
    mean = ((mixture.log_weight.exp() * mixture.kappa).unsqueeze(-1) * mixture.mu).sum(-2)
    return F.normalize(mean, dim=-1, eps=1e-12), mean.norm(dim=-1)


def clipped_angle(a: Tensor, b: Tensor, near: float) -> Tensor:
    """Angles between unit vectors as the losses have them: without slope where the vectors nearly agree."""
    return torch.arccos((a * b).sum(-1).clamp(-1 + near, 1 - near))


def kappa_penalty(step: Tensor, num_batches: int, *, first: float = KAPPA_PENALTY) -> Tensor:
    """The factor of the penalty on kappa: it falls from `first` to 0 over the first 30 % of `num_batches` batches.

    Args:
        step: Batches before this one.
        num_batches: Batches of the whole run; with 0 there is none.
        first: The factor of the first batch.

    Example:
        >>> [float(kappa_penalty(torch.tensor(step), 10)) for step in (0, 3)]
        [0.0001, 0.0]
    """
    share = step.double() / (PENALTY_SHARE * num_batches) if num_batches else torch.ones_like(step, dtype=torch.float64)
    return first * (1 - share).clamp(min=0)


def _mean(values: Tensor, valid: Tensor | None) -> Tensor:
    """The mean of the rows that count."""
    if valid is None:
        return values.mean()
    return torch.where(valid, values, 0).sum() / valid.sum().clamp(min=1)


class VmfLoss(nn.Module):
    """Negative log density + penalty on kappa squared + half the angle of the point estimate.

    The penalty follows the number of batches of training that the module has seen, which is a buffer: checkpoints keep it.

    Args:
        num_batches: Batches of the whole run, for the schedule of the penalty; with 0 there is none.
        penalty: Factor of the penalty at the first batch.
        angle_weight: Factor of the angle.
    """

    step: Tensor

    def __init__(self, num_batches: int = 0, *, penalty: float = KAPPA_PENALTY, angle_weight: float = ANGLE_WEIGHT) -> None:
        super().__init__()
        self.num_batches, self.penalty, self.angle_weight = num_batches, penalty, angle_weight
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def forward(self, raw: Tensor, target: Tensor, valid: Tensor | None = None) -> dict[str, Tensor]:
        """The loss, its parts, and predicted directions.

        Args:
            raw: Numbers of a head, [B, 5 K].
            target: Azimuths and zeniths, [B, 2].
            valid: Which rows count; all by default.
        """
        with torch.autocast(raw.device.type, enabled=False):
            mixture = make_mixture(raw)
            direction = _direction(target.to(raw.dtype), valid)
            nll = -_mean(log_density(mixture, direction), valid)
            estimate, _ = point_estimate(mixture)
            loss = nll + self.angle_weight * _mean(clipped_angle(estimate, direction, NEAR), valid)
            if self.training:
                penalty = kappa_penalty(self.step, self.num_batches, first=self.penalty).to(loss.dtype)
                loss = loss + penalty * _mean(mixture.kappa.square().mean(-1), valid)
                self.step += 1
        return {"loss": loss, "nll": nll.detach(), "degrees": _degrees(estimate, direction, valid)}


class DirectionLoss(nn.Module):
    """The mean angle of a directional head."""

    def forward(self, raw: Tensor, target: Tensor, valid: Tensor | None = None) -> dict[str, Tensor]:
        """The loss and the mean angle in degrees, of numbers of a head [B, 3] and azimuths and zeniths [B, 2]."""
        with torch.autocast(raw.device.type, enabled=False):
            estimate = raw / (raw.norm(dim=-1, keepdim=True) + 1e-8)
            direction = _direction(target.to(raw.dtype), valid)
            loss = _mean(clipped_angle(estimate, direction, DIRECTION_NEAR), valid)
        return {"loss": loss, "degrees": _degrees(estimate, direction, valid)}


def _direction(target: Tensor, valid: Tensor | None) -> Tensor:
    """Directions of the targets; of rows that do not count any one, as NaN would reach the gradient."""
    return to_direction(target if valid is None else torch.where(valid.unsqueeze(-1), target, 0.0))


def _degrees(estimate: Tensor, direction: Tensor, valid: Tensor | None) -> Tensor:
    return torch.rad2deg(_mean(angle_between(estimate.detach().double(), direction.double()), valid))
