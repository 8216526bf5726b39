"""The three methods as their papers write them: one series, one level, one pair at a time. Slow, obvious, float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(kw_only=True)
class PlainLoss:
    tau: float = 1.0
    amc_instance: float = 0.0
    amc_temporal: float = 0.0
    margin: float = 0.5
    tau_temporal: float = 0.0
    target: np.ndarray | None = None
    compat: bool = True

    def __call__(self, z1: Tensor, z2: Tensor) -> Tensor:
        total, levels = z1.new_zeros(()), 0
        while z1.shape[1] >= 1:
            length = z1.shape[1]
            amc = self.amc_temporal if length == 1 and self.compat else self.amc_instance
            total = total + 0.5 * self.instance(z1, z2, amc)
            if length >= 2:
                total = total + 0.5 * self.temporal(z1, z2, 2**levels)
            levels += 1
            if length == 1:
                break
            z1, z2 = (F.max_pool1d(z.transpose(1, 2), 2).transpose(1, 2) for z in (z1, z2))
        return total / levels

    def instance(self, z1: Tensor, z2: Tensor, amc: float) -> Tensor:
        batch, length = z1.shape[:2]
        if batch == 1:
            return z1.new_zeros(())
        target = np.eye(batch) if self.target is None else self.target
        total = z1.new_zeros(())
        for t in range(length):
            z = torch.cat([z1[:, t], z2[:, t]])
            total = total + self.pairs(z, np.tile(target, (2, 2)), before=self.tau) / (2 * batch * length) + amc * self.angles(z)
        return total

    def temporal(self, z1: Tensor, z2: Tensor, scale: int) -> Tensor:
        batch, length = z1.shape[:2]
        lag = np.abs(np.arange(length)[:, None] - np.arange(length))
        target = np.eye(length)
        if self.tau_temporal > 0:
            target = 2 / (1 + np.exp(lag * self.tau_temporal * scale))
            target[target < 1e-6] = 0
        total = z1.new_zeros(())
        before, after = (1.0, self.tau) if self.compat else (self.tau, 1.0)
        for b in range(batch):
            z = torch.cat([z1[b], z2[b]])
            ce = self.pairs(z, np.tile(target, (2, 2)), before=before) / after
            total = total + ce / (2 * batch * length) + self.amc_temporal * self.angles(z)
        return total

    @staticmethod
    def pairs(z: Tensor, target: np.ndarray, *, before: float) -> Tensor:
        total, number = z.new_zeros(()), len(z)
        for i in range(number):
            others = [j for j in range(number) if j != i]
            log_softmax = torch.log_softmax((z[others] @ z[i]) / before, 0)
            total = total - (log_softmax * torch.tensor(target[i, others])).sum()
        return total

    def angles(self, z: Tensor) -> Tensor:
        total, half = z.new_zeros(()), len(z) // 2
        unit = F.normalize(z, dim=-1)
        for i in range(len(z)):
            for j in range(len(z)):
                if i == j:
                    continue
                angle = torch.acos(torch.clamp(unit[i] @ unit[j], -1 + 1e-6, 1 - 1e-6))
                total = total + (angle**2 if i % half == j % half else torch.clamp(self.margin - angle, min=0) ** 2)
        return total / 25


class PlainBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, dilation: int, *, last: bool) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Module(), nn.Module()
        self.conv1.conv = nn.Conv1d(inputs, outputs, 3, padding=dilation, dilation=dilation)
        self.conv2.conv = nn.Conv1d(outputs, outputs, 3, padding=dilation, dilation=dilation)
        self.projector = nn.Conv1d(inputs, outputs, 1) if last else None

    def forward(self, x: Tensor) -> Tensor:
        residual = x if self.projector is None else self.projector(x)
        x = self.conv1.conv(F.gelu(x))
        return self.conv2.conv(F.gelu(x)) + residual


class PlainEncoder(nn.Module):
    """TS2Vec's encoder in torch's own layers, with the names of its checkpoints."""

    def __init__(self, channels: int, *, hidden: int, depth: int, width: int) -> None:
        super().__init__()
        self.input_fc = nn.Linear(channels, hidden)
        self.feature_extractor = nn.Module()
        blocks = [PlainBlock(hidden, width if i == depth else hidden, 2**i, last=i == depth) for i in range(depth + 1)]
        self.feature_extractor.net = nn.Sequential(*blocks)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        given = ~torch.isnan(x).any(-1)
        h = self.input_fc(torch.where(given[..., None], x, 0))
        keep = given if mask is None else given & mask
        h = torch.where(keep[..., None], h, 0)
        return self.feature_extractor.net(h.transpose(1, 2)).transpose(1, 2)


def plain_views(crops, update: int, data: np.ndarray) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """Both views of an update, cut out of the series one by one, with their masks; and the steps of the overlap."""
    eleft, left, right, eright = crops.bounds[update]
    rows, start, mask = crops.rows[update], crops.start[update], crops.mask[update]
    one = np.stack([data[row, begin + eleft : begin + right] for row, begin in zip(rows, start, strict=True)])
    two = np.stack([data[row, begin + left : begin + eright] for row, begin in zip(rows, start, strict=True)])
    masks = torch.from_numpy(mask[:, 0, eleft:right]), torch.from_numpy(mask[:, 1, left:eright])
    return torch.from_numpy(one), torch.from_numpy(two), *masks, int(right - left)
