"""Refinement: after training, the last layers of heads are trained without dropout, each as long as its own validation loss falls.

Training stops when the sum of all validation losses stops falling. By then some heads have learned subjects by heart, and others, such
as that of lengths, are not done: dropout and weight decay hold their predictions near the mean. Here everything but the last layers
stays as it is, so an update is cheap, and heads do not disturb each other.

    1. Most batches have the order of columns in which tables are generated.
    2. Where classes are in order, such as lengths or bins of numbers, a last layer changes by smooth functions of the class: by a few
       cosines. So few numbers are learned by heart later than many, and means follow from what they depend on.
    3. A head keeps the epoch that was best for it, or what it had.
    4. The subjects of validation are few, and are needed as much as others where all are few: the same number of epochs is then
       repeated with all subjects.

An update is many small operations, which on a GPU take the time of their launches. So batches are large, and what validation gives to
the last layers is computed once and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from stoker.recipes.tabular.batches import EncodedSubjects, SubjectBatches, assemble
from stoker.recipes.tabular.model import TabularModel

LR = 0.01
EPOCHS, PATIENCE = 40, 8
"""Epochs at most, and epochs without a better head after which it ends."""
TABLE_ORDER = 0.9
"""The share of batches in which columns have the order of the table. With 1 other orders would be worse than before."""
WAVES = 4
"""Cosines by which a last layer changes, where its classes are in order."""
MOST_REPEATED = 10_000
"""Subjects up to which refinement is repeated with all of them. With more, a fifth of them matters less than the time."""
BATCH_FACTOR, MOST_SUBJECTS, MOST_LOGITS = 8, 4096, 2**26
"""Batches are 8 times those of training, up to this number of subjects and of logits (256 MB)."""
MOST_COMPUTED = 2**30
"""Logits of all epochs together, above which there are fewer epochs, or none: some 15 s on one core. With thousands of categories, which
may be as many as rows, refinement would take longer than training."""
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


def refining_epochs(model: TabularModel, num_subjects: int, per_subject: float) -> int:
    """Epochs at most."""
    return min(EPOCHS, int(MOST_COMPUTED / (num_subjects * max(1.0, per_subject) * sum(one.numel() for one in model.out_biases))))


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


class SmoothChange:
    """Projects changes of last layers: where classes are in order, to smooth functions of the class.

    Args:
        model: The model.
        ordered: The sub-columns whose classes are in order, from this class on. Classes before it change freely.
    """

    def __init__(self, model: TabularModel, ordered: Mapping[str, int]) -> None:
        self._groups: list[tuple[torch.Tensor, torch.Tensor] | None] = []
        device = model.first_weight.device
        for group in model._head_groups:
            found = {}
            for place, number in enumerate(group.members):
                sub = model.layout.subs[number]
                first = ordered.get(sub.name, sub.num_classes)
                count = sub.num_classes - first
                if count <= WAVES + 1:  # which as many cosines do not make smoother
                    continue
                places = (torch.arange(count) + 0.5) / count
                cosines = torch.cos(torch.pi * places[:, None] * torch.arange(WAVES + 1))
                cosines = cosines / cosines.norm(dim=0)  # they are orthogonal
                found[place] = torch.zeros(group.classes, group.classes)
                found[place][:first, :first] = torch.eye(first)
                found[place][first : sub.num_classes, first : sub.num_classes] = cosines @ cosines.t()
            where = torch.tensor(list(found), dtype=torch.long, device=device)
            self._groups.append((where, torch.stack(list(found.values())).to(device)) if found else None)

    def project(self, changes: Iterable[torch.Tensor]) -> None:
        """Project changes of the weights of all groups of heads and of their biases, in place."""
        for change, group in zip(changes, self._groups * 2, strict=True):
            if group is not None:
                change[group[0]] = torch.bmm(change[group[0]], group[1])


def refine_heads(
    model: TabularModel,
    data: EncodedSubjects,
    batches: SubjectBatches,
    valid: SubjectBatches,
    per_subject: float,
    *,
    ordered: Mapping[str, int] | None = None,
    all_batches: SubjectBatches | None = None,
    epochs: int = EPOCHS,
) -> tuple[int, float]:
    """Train the last layers.

    Args:
        model: A trained model, whose last layers change.
        data: What it is trained on.
        batches: Of training.
        valid: Of validation.
        per_subject: The mean number of events that a subject has in a batch.
        ordered: The sub-columns whose classes are in order, from this class on.
        all_batches: Of training and validation, to repeat the best number of epochs with.
        epochs: At most.

    Returns:
        How many heads have become better, and what the validation loss has gained.
    """
    was_training = model.training
    model.eval()
    layers = [*model.out_weights, *model.out_biases]
    begin, kept = ([one.detach().clone() for one in layers] for _ in range(2))
    heads = [len(one) for one in model.out_weights]
    values = model.num_rows * sum(len(batch["subjects"]) * len(batch["steps"]) for batch in valid)
    of_valid = list(inputs_of(model, data, valid, per_subject)) if values <= MOST_KEPT else None
    first = best = validate_heads(model, of_valid or inputs_of(model, data, valid, per_subject))
    best_epoch, waited = torch.full(best.shape, -1, device=best.device), 0

    def keep(is_kept: torch.Tensor) -> None:
        """Keep the layers of these heads as they are."""
        for one, layer, own in zip(kept, layers, [*torch.split(is_kept, heads)] * 2, strict=True):
            one.copy_(torch.where(own[:, None, None], layer.detach(), one))

    def select(epoch: int) -> bool:
        nonlocal best, waited
        found = validate_heads(model, of_valid or inputs_of(model, data, valid, per_subject))
        is_better = found < best - LEAST_GAIN
        best = torch.where(is_better, found, best)
        best_epoch[is_better] = epoch
        keep(is_better)
        waited = 0 if bool(is_better.any()) else waited + 1
        return waited < PATIENCE

    def repeat(epoch: int) -> bool:
        keep(best_epoch == epoch)
        return True

    change = SmoothChange(model, ordered or {})
    _train_layers(model, (inputs_of(model, data, one, per_subject) for one in _epochs(batches, epochs)), begin, change, select)
    if all_batches is not None:
        count = int(best_epoch.max()) + 1
        _train_layers(
            model, (inputs_of(model, data, one, per_subject) for one in _epochs(all_batches, count)), begin, change, repeat
        )
    _copy(layers, kept)
    model.train(was_training)
    return int((best < first).sum()), float((first - best).sum())


def _epochs(batches: SubjectBatches, count: int) -> Iterator[SubjectBatches]:
    for epoch in range(count):
        batches.set_epoch(epoch)
        yield batches


def _train_layers(
    model: TabularModel, epochs: Iterable[Iterable[HeadInputs]], begin: list[torch.Tensor], change: SmoothChange,
    after: Callable[[int], bool],
) -> None:  # fmt: skip
    """Train last layers from `begin`, until `after` says False: it is called after each epoch, while they have the EMA."""
    layers = [*model.out_weights, *model.out_biases]
    _copy(layers, begin)
    mean = [one.clone() for one in begin]
    # The fused update is one kernel; on a CPU it rounds differently and is not faster.
    optimizer = torch.optim.Adam(layers, lr=LR, fused=True if layers[0].is_cuda else None)
    for epoch, batches in enumerate(epochs):
        for given in batches:
            optimizer.zero_grad()
            torch.autograd.backward(losses_by_head(model, given).sum())
            change.project([one.grad for one in layers if one.grad is not None])
            optimizer.step()
            with torch.no_grad():
                changes = torch._foreach_sub(layers, begin)
                change.project(changes)
                _copy(layers, torch._foreach_add(begin, changes))
            torch._foreach_lerp_(mean, [one.detach() for one in layers], 1 - EMA)
        current = [one.detach().clone() for one in layers]
        _copy(layers, mean)
        is_on = after(epoch)
        _copy(layers, current)
        if not is_on:
            return


@torch.no_grad()
def _copy(layers: Iterable[torch.Tensor], values: Iterable[torch.Tensor]) -> None:
    torch._foreach_copy_(list(layers), list(values))
