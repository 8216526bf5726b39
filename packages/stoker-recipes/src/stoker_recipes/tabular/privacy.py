"""Differentially private training: the gradient of each subject is clipped, and noise is added to their sum.

    1. Each update takes every subject with the same probability (Poisson sampling), so the size of a batch is random.
    2. Gradients per subject come from `torch.func.vmap`; each is clipped to a norm.
    3. Gaussian noise of `noise` times that norm is added to the sum.

`epsilon_of` says what updates have cost: the Rényi divergence of the sampled Gaussian mechanism at integer orders (Mironov, Talwar, Zhang
2019, arXiv 1908.10530), converted by Balle et al. 2020 (arXiv 1905.09982). It holds for weights alone: the encodings are protected by
counts, not by noise, and losses in the folder of a run are exact.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.func import functional_call, grad_and_value, vmap

from stoker_recipes.tabular.batches import EncodedSubjects, SubjectLoss, assemble
from stoker_recipes.tabular.model import TabularModel

ORDERS = (*range(2, 64), *range(64, 512, 16))
MOST_GRADIENTS = 2**26
"""Numbers in the gradients of subjects that are computed together."""


def epsilon_of(*, updates: int, rate: float, noise: float, delta: float) -> float:
    """The epsilon that updates have cost.

    Args:
        updates: Their number.
        rate: The probability of a subject to be in an update.
        noise: Of the sum of gradients, as a multiple of the norm that they are clipped to.
        delta: The probability that the promise of epsilon does not cover.

    Example:
        >>> round(epsilon_of(updates=1000, rate=0.01, noise=1.5, delta=1e-5), 2)
        1.01
    """
    epsilon = math.inf
    for order in ORDERS:
        terms = [
            _log_choose(order, k)
            + (k * math.log(rate) if k else 0.0)
            + ((order - k) * math.log1p(-rate) if k < order and rate < 1 else 0.0 if k == order else -math.inf)
            + k * (k - 1) / (2 * noise**2)
            for k in range(order + 1)
        ]
        largest = max(terms)
        moment = largest + math.log(sum(math.exp(term - largest) for term in terms))
        divergence = updates * moment / (order - 1)
        epsilon = min(epsilon, divergence + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1))
    return max(0.0, epsilon)


def _log_choose(count: int, of: int) -> float:
    return math.lgamma(count + 1) - math.lgamma(of + 1) - math.lgamma(count - of + 1)


def most_epochs(epochs: int, *, per_epoch: int, max_epsilon: float, **options: Any) -> int:
    """The largest number of epochs up to `epochs` that costs at most `max_epsilon`; 0 where one is too much."""
    low, high = 0, epochs
    while low < high:
        middle = (low + high + 1) // 2
        if epsilon_of(updates=middle * per_epoch, **options) <= max_epsilon:
            low = middle
        else:
            high = middle - 1
    return low


class PrivateLoss(SubjectLoss):
    """A loss whose gradient is private: clipped by subject, summed, with noise.

    Its value is the exact loss of the batch. The gradient is that of a linear term which is zero.

    Args:
        model: The model.
        data: What it is trained on.
        per_subject: The mean number of events that a subject has in a batch.
        batch_size: The mean number of subjects in a batch.
        norm: What the gradient of a subject is clipped to.
        noise: As a multiple of `norm`.
    """

    def __init__(
        self, model: TabularModel, data: EncodedSubjects, per_subject: float, *, batch_size: int, norm: float, noise: float
    ) -> None:
        super().__init__(model, data, per_subject)
        model.is_plain = True
        self._batch_size, self._norm, self._noise = batch_size, norm, noise

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss of a batch."""
        weights = dict(self.model.named_parameters())
        total, loss = self.clipped(batch)
        fixed = torch.zeros((), device=loss.device)
        for name, weight in weights.items():
            noisy = total[name] + self._noise * self._norm * torch.randn_like(weight)
            fixed = fixed + (weight * (noisy / self._batch_size)).sum()
        return loss + fixed - fixed.detach()

    def clipped(self, batch: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """The sum of the clipped gradients of subjects, and the mean loss."""
        made = assemble(self.model.layout, self._data, batch, self._per_subject)
        count = batch["valid"].sum().clamp(min=1)
        made["weights"] = made["weights"] * count  # a subject's loss does not depend on the others
        rank = made.pop("rank")
        fixed = {name: weight.detach() for name, weight in self.model.named_parameters()}

        def loss_of(weights: dict[str, torch.Tensor], subject: dict[str, torch.Tensor]) -> torch.Tensor:
            alone = {name: value[None] for name, value in subject.items()} | {"rank": rank}
            subject_loss: torch.Tensor = functional_call(self.model, weights, (alone,))
            return subject_loss

        together = max(1, MOST_GRADIENTS // sum(weight.numel() for weight in fixed.values()))
        total = {name: torch.zeros_like(weight) for name, weight in fixed.items()}
        losses = torch.zeros((), device=count.device)
        for first in range(0, len(batch["subjects"]), together):
            part = {name: value[first : first + together] for name, value in made.items()}
            gradients, values = vmap(grad_and_value(loss_of), in_dims=(None, 0), randomness="different")(fixed, part)
            norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients.values()]).norm(dim=0)
            factors = (self._norm / norms.clamp(min=1e-12)).clamp(max=1.0)
            for name, alone in gradients.items():
                total[name] += torch.einsum("b,b...->...", factors, alone)
            losses = losses + values.sum()
        return total, losses / count
