"""Refinement: after training, the last layers of heads are trained without dropout, each as long as its own validation loss falls.

Training stops when the sum of all validation losses stops falling. By then some heads have learned subjects by heart, and others, such
as that of lengths, are not done: dropout and weight decay hold their predictions near the mean. Here everything but the last layers
stays as it is, so an update is cheap, and heads do not disturb each other. A head keeps the epoch that was best for it, or what it had.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from stoker.recipes.tabular.batches import EncodedSubjects, SubjectBatches, assemble
from stoker.recipes.tabular.model import TabularModel

LR = 0.003
EPOCHS, PATIENCE = 20, 4
"""Epochs at most, and epochs without a better head after which it ends."""
BATCH_FACTOR, MOST_SUBJECTS, MOST_LOGITS = 8, 2048, 2**26
"""Batches are 8 times those of training, up to this number of subjects and of logits (256 MB)."""
EMA = 0.97
LEAST_GAIN = 1e-4
"""What a head must gain for an epoch to be better, in nats."""


def refining_batch_size(model: TabularModel, batch_size: int, per_subject: float) -> int:
    """Subjects per batch, of those per batch of training."""
    room = int(MOST_LOGITS / (max(1.0, per_subject) * int(model.head_table[4].sum())))
    return max(batch_size, min(BATCH_FACTOR * batch_size, MOST_SUBJECTS, room))


def losses_by_head(model: TabularModel, data: EncodedSubjects, batch: dict[str, torch.Tensor], per_subject: float) -> torch.Tensor:
    """The loss of each head, in the order of groups; gradients reach the last layers only."""
    made = assemble(model.layout, data, batch, per_subject)
    codes, weights = made["codes"].long(), made["weights"].flatten(0, -2)
    flat = codes.flatten(0, -2)
    with torch.no_grad():
        hidden = model.hidden(codes, made["rank"], made["context"].long() if "context" in made else None).flatten(0, -2)
    found = []
    for number, many in enumerate(model.heads(hidden)):
        members = getattr(model, f"heads_{number}")
        losses = F.cross_entropy(many.flatten(0, 1), flat[:, members].t().flatten(), reduction="none")
        found.append((losses.view(len(members), -1) * model.weights_of(weights, members)).sum(1))
    return torch.cat(found)


@torch.no_grad()
def validate_heads(model: TabularModel, data: EncodedSubjects, batches: SubjectBatches, per_subject: float) -> torch.Tensor:
    """The mean loss of each head over subjects."""
    found = [(batch["valid"].sum(), losses_by_head(model, data, batch, per_subject)) for batch in batches]
    counts, losses = (torch.stack(one) for one in zip(*found, strict=True))
    return (counts[:, None] * losses).sum(0) / counts.sum()


def refine_heads(
    model: TabularModel, data: EncodedSubjects, batches: SubjectBatches, valid: SubjectBatches, per_subject: float
) -> tuple[int, float]:
    """Train the last layers.

    Args:
        model: A trained model, whose last layers change.
        data: What it is trained on.
        batches: Of training.
        valid: Of validation.
        per_subject: The mean number of events that a subject has in a batch.

    Returns:
        How many heads have become better, and what the validation loss has gained.
    """
    was_training = model.training
    model.eval()
    layers = [*model.out_weights, *model.out_biases]
    kept, mean = ([one.detach().clone() for one in layers] for _ in range(2))
    heads = [len(one) for one in model.out_weights]
    first = best = validate_heads(model, data, valid, per_subject)
    optimizer, waited = torch.optim.Adam(layers, lr=LR), 0
    for epoch in range(EPOCHS):
        batches.set_epoch(epoch)
        for batch in batches:
            optimizer.zero_grad()
            torch.autograd.backward(losses_by_head(model, data, batch, per_subject).sum())
            optimizer.step()
            torch._foreach_lerp_(mean, [one.detach() for one in layers], 1 - EMA)
        current = [one.detach().clone() for one in layers]
        _copy(layers, mean)
        found = validate_heads(model, data, valid, per_subject)
        is_better = found < best - LEAST_GAIN
        best = torch.where(is_better, found, best)
        for one, new, own in zip(kept, mean, [*torch.split(is_better, heads)] * 2, strict=True):
            one.copy_(torch.where(own[:, None, None], new, one))
        _copy(layers, current)
        waited = 0 if bool(is_better.any()) else waited + 1
        if waited == PATIENCE:
            break
    _copy(layers, kept)
    model.train(was_training)
    return int((best < first).sum()), float((first - best).sum())


@torch.no_grad()
def _copy(layers: list[torch.nn.Parameter], values: list[torch.Tensor]) -> None:
    for layer, value in zip(layers, values, strict=True):
        layer.copy_(value)
