"""Refinement: after training, the last layers of heads are trained without dropout, each as long as its own validation loss falls.

Training stops when the sum of all validation losses stops falling. By then some heads have learned subjects by heart, and others, such
as that of lengths, are not done: dropout and weight decay hold their predictions near the mean. Here everything but the last layers
stays as it is, so an update is cheap, and heads do not disturb each other. A head keeps the epoch that was best for it, or what it had.

An update is many small operations, which on a GPU take the time of their launches. So batches are large, and what validation gives to
the last layers is computed once and kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from stoker.recipes.tabular.batches import EncodedSubjects, SubjectBatches, assemble
from stoker.recipes.tabular.model import TabularModel

LR = 0.003
EPOCHS, PATIENCE = 20, 4
"""Epochs at most, and epochs without a better head after which it ends."""
BATCH_FACTOR, MOST_SUBJECTS, MOST_LOGITS = 8, 4096, 2**26
"""Batches are 8 times those of training, up to this number of subjects and of logits (256 MB)."""
MOST_KEPT = 2**26
"""Numbers that validation keeps at most (256 MB); beyond it they are computed in every epoch."""
EMA = 0.97
LEAST_GAIN = 1e-4
"""What a head must gain for an epoch to be better, in nats."""


@dataclass(frozen=True, kw_only=True)
class HeadInputs:
    """What the last layers get of a batch, one tensor per group of heads."""

    inputs: list[torch.Tensor]
    """(heads, rows, width)"""
    targets: list[torch.Tensor]
    """(heads * rows,)"""
    weights: list[torch.Tensor]
    """(heads, rows)"""
    count: torch.Tensor
    """Subjects of the batch."""


def refining_batch_size(model: TabularModel, batch_size: int, per_subject: float) -> int:
    """Subjects per batch, of those per batch of training."""
    room = int(MOST_LOGITS / (max(1.0, per_subject) * sum(one.numel() for one in model.out_biases)))
    return max(batch_size, min(BATCH_FACTOR * batch_size, MOST_SUBJECTS, room))


@torch.no_grad()
def head_inputs(model: TabularModel, data: EncodedSubjects, batch: dict[str, torch.Tensor], per_subject: float) -> HeadInputs:
    """What the last layers get of a batch."""
    made = assemble(model.layout, data, batch, per_subject)
    codes, weights = made["codes"].long(), made["weights"].flatten(0, -2)
    flat = codes.flatten(0, -2)
    hidden = model.hidden(codes, made["rank"], made["context"].long() if "context" in made else None).flatten(0, -2)
    members = [getattr(model, f"heads_{number}") for number in range(len(model.out_weights))]
    return HeadInputs(
        inputs=model.last_inputs(hidden),
        targets=[flat[:, one].t().flatten() for one in members],
        weights=[model.weights_of(weights, one) for one in members],
        count=batch["valid"].sum(),
    )


def inputs_of(model: TabularModel, data: EncodedSubjects, batches: SubjectBatches, per_subject: float) -> Iterator[HeadInputs]:
    """What the last layers get of each batch."""
    return (head_inputs(model, data, batch, per_subject) for batch in batches)


def losses_by_head(model: TabularModel, given: HeadInputs) -> torch.Tensor:
    """The loss of each head, in the order of groups."""
    found = []
    for many, targets, weights in zip(model.last_layers(given.inputs), given.targets, given.weights, strict=True):
        losses = F.cross_entropy(many.flatten(0, 1), targets, reduction="none")
        found.append((losses.view(len(weights), -1) * weights).sum(1))
    return torch.cat(found)


@torch.no_grad()
def validate_heads(model: TabularModel, batches: Iterable[HeadInputs]) -> torch.Tensor:
    """The mean loss of each head over subjects."""
    found = [(one.count, losses_by_head(model, one)) for one in batches]
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
    values = model.num_rows * sum(len(batch["subjects"]) * len(batch["steps"]) for batch in valid)
    of_valid = list(inputs_of(model, data, valid, per_subject)) if values <= MOST_KEPT else None

    def validate() -> torch.Tensor:
        return validate_heads(model, inputs_of(model, data, valid, per_subject) if of_valid is None else of_valid)

    first = best = validate()
    # The fused update is one kernel; on a CPU it rounds differently and is not faster.
    optimizer, waited = torch.optim.Adam(layers, lr=LR, fused=True if layers[0].is_cuda else None), 0
    for epoch in range(EPOCHS):
        batches.set_epoch(epoch)
        for given in inputs_of(model, data, batches, per_subject):
            optimizer.zero_grad()
            torch.autograd.backward(losses_by_head(model, given).sum())
            optimizer.step()
            torch._foreach_lerp_(mean, [one.detach() for one in layers], 1 - EMA)
        current = [one.detach().clone() for one in layers]
        _copy(layers, mean)
        found = validate()
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
