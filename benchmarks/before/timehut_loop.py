"""TimeHUT as it is usually written: torch's own layers, views cut out per batch, losses level by level, pairs picked by boolean masks.

The same crops, initial weights and protocol as the recipe, so that accuracies can be compared seed by seed; only dropout differs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from stoker_recipes.timehut.batches import draw_crops
from stoker_recipes.timehut.model import initial_weights, to_tensors
from stoker_recipes.timehut.settings import EncoderSettings, temperatures


class Convolution(nn.Module):
    def __init__(self, inputs: int, outputs: int, dilation: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, 3, padding=dilation, dilation=dilation)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, dilation: int, *, last: bool) -> None:
        super().__init__()
        self.conv1, self.conv2 = Convolution(inputs, outputs, dilation), Convolution(outputs, outputs, dilation)
        self.projector = nn.Conv1d(inputs, outputs, 1) if last else None

    def forward(self, x: Tensor) -> Tensor:
        residual = x if self.projector is None else self.projector(x)
        return self.conv2(F.gelu(self.conv1(F.gelu(x)))) + residual


class Extractor(nn.Module):
    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__()
        hidden, depth, width = settings.hidden, settings.depth, settings.width
        blocks = [Block(hidden, width if i == depth else hidden, 2**i, last=i == depth) for i in range(depth + 1)]
        self.net = nn.Sequential(*blocks)


class Network(nn.Module):
    def __init__(self, channels: int, settings: EncoderSettings) -> None:
        super().__init__()
        self.input_fc = nn.Linear(channels, settings.hidden)
        self.feature_extractor = Extractor(settings)
        self.dropout = nn.Dropout(settings.dropout)
        with torch.device("cpu"):
            self.load_state_dict(to_tensors(initial_weights(settings.size(channels), settings.seed), settings.size(channels)))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = self.input_fc(x)
        if mask is not None:
            h[~mask] = 0
        return self.dropout(self.feature_extractor.net(h.transpose(1, 2))).transpose(1, 2)


def angular(z: Tensor, margin: float) -> Tensor:
    unit = F.normalize(z, dim=-1)
    cosines = unit @ unit.transpose(-1, -2)
    groups, number = cosines.shape[:2]
    labels = torch.arange(number // 2).repeat(2)
    same = (labels[None] == labels[:, None]).expand(groups, -1, -1)
    itself = torch.eye(number, dtype=torch.bool).expand(groups, -1, -1)
    positives, negatives = cosines[same & ~itself], cosines[~same]
    apart = margin - torch.acos(negatives.clamp(-1 + 1e-6, 1 - 1e-6))
    close = torch.acos(positives.clamp(-1 + 1e-6, 1 - 1e-6))
    return (((apart > 0) * apart).square().sum() + close.square().sum()) / 25


def without_diagonal(dots: Tensor) -> Tensor:
    return torch.tril(dots, -1)[:, :, :-1] + torch.triu(dots, 1)[:, :, 1:]


def instance_loss(one: Tensor, two: Tensor, tau: float, amc: float, margin: float) -> Tensor:
    batch = len(one)
    z = torch.cat([one, two]).transpose(0, 1)
    logits = -F.log_softmax(without_diagonal(z @ z.transpose(1, 2)) / tau, -1)
    i = torch.arange(batch)
    loss = (logits[:, i, batch + i - 1].mean() + logits[:, batch + i, i].mean()) / 2
    return loss + amc * angular(z, margin) if amc else loss


def temporal_loss(one: Tensor, two: Tensor, tau: float, amc: float, margin: float) -> Tensor:
    steps = one.shape[1]
    z = torch.cat([one, two], 1)
    logits = -F.log_softmax(without_diagonal(z @ z.transpose(1, 2)), -1) / tau
    t = torch.arange(steps)
    loss = (logits[:, t, steps + t - 1].mean() + logits[:, steps + t, t].mean()) / 2
    return loss + amc * angular(z, margin) if amc else loss


def total_loss(one: Tensor, two: Tensor, tau: float, settings: EncoderSettings) -> Tensor:
    total, levels = one.new_zeros(()), 0
    inst, temp, margin = settings.amc_instance, settings.amc_temporal, settings.amc_margin
    while one.shape[1] > 1:
        total = total + 0.5 * instance_loss(one, two, tau, inst, margin) + 0.5 * temporal_loss(one, two, tau, temp, margin)
        levels += 1
        one, two = (F.max_pool1d(z.transpose(1, 2), 2).transpose(1, 2) for z in (one, two))
    return (total + 0.5 * instance_loss(one, two, tau, temp, margin)) / (levels + 1)


def make_loop(
    data: np.ndarray, settings: EncoderSettings, updates: int, device: str = "cpu"
) -> tuple[AveragedModel, Callable[[int], None]]:
    """The averaged network, and a function that makes one update."""
    torch.manual_seed(settings.seed)
    network = Network(data.shape[2], settings).to(device)
    averaged = AveragedModel(network)
    averaged.update_parameters(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=settings.lr)
    crops = draw_crops(
        num_series=len(data), length=data.shape[1], batch_size=settings.batch_size, updates=updates, seed=settings.seed
    )
    epochs = -(-updates // crops.per_epoch)
    taus = temperatures(settings.schedule, epochs, low=settings.min_tau, high=settings.max_tau, period=settings.t_max)
    series = torch.from_numpy(data).to(device)

    def step(update: int) -> None:
        eleft, left, right, eright = crops.bounds[update]
        x = series[crops.rows[update]]
        start, mask = crops.start[update], torch.from_numpy(crops.mask[update]).to(device)
        first = torch.stack([row[s + eleft : s + right] for row, s in zip(x, start, strict=True)])
        second = torch.stack([row[s + left : s + eright] for row, s in zip(x, start, strict=True)])
        optimizer.zero_grad()
        one = network(first, mask[:, 0, eleft:right])[:, -(right - left) :]
        two = network(second, mask[:, 1, left:eright])[:, : right - left]
        total_loss(one, two, float(taus[update // crops.per_epoch]), settings).backward()
        optimizer.step()
        averaged.update_parameters(network)

    return averaged, step


def embed(averaged: AveragedModel, data: np.ndarray, batch_size: int) -> np.ndarray:
    """Representations, in batches of the training batch size, as the authors' code has them."""
    averaged.eval()
    with torch.no_grad():
        parts = [averaged(torch.from_numpy(data[i : i + batch_size])).amax(1) for i in range(0, len(data), batch_size)]
    return torch.cat(parts).numpy()


def distances(series: np.ndarray) -> np.ndarray:
    """All DTW distances by a double loop over tslearn's function, as SoftCLT's authors have it."""
    from tslearn.metrics import dtw

    found = np.zeros((len(series), len(series)))
    for i in range(len(series)):
        for j in range(i):
            found[i, j] = found[j, i] = dtw(series[i], series[j])
    return found
