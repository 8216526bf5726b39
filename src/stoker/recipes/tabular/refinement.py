"""Refinement: after training, the last layers of heads are trained without dropout, each as long as its own validation loss falls.

Training stops when the sum of all validation losses stops falling. By then some heads have learned subjects by heart, and others, such
as that of lengths, are not done: dropout and weight decay hold their predictions near the mean. Here everything but the last layers
stays as it is, so an update is cheap, and heads do not disturb each other.

    1. Most batches have the order of columns in which tables are generated.
    2. Where classes are in order, such as lengths or bins of numbers, a last layer changes by smooth functions of the class: by a few
       cosines. So few numbers are learned by heart later than many, and means follow from what they depend on.
    3. A head keeps the epoch that was best for it, or what it had.
    4. Lengths follow from the context alone, which first layers see through few values: here a first layer is trained, too.
    5. The subjects of validation are few, and are needed as much as others where all are few: the same number of epochs is then
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

LR = 0.03
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
LENGTH_LR, LENGTH_STEPS, LENGTH_CHECK, LENGTH_PATIENCE = 0.01, 400, 5, 16
"""Of lengths: updates at most, updates between validations, and validations without a better loss after which it ends."""
MOST_COMPUTED = 2**28
"""Logits of all epochs together, above which there are fewer epochs, or none: some 4 s on one core. With thousands of categories, which
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


def smooth_projection(num_classes: int, first: int, size: int) -> torch.Tensor | None:
    """The projection (size, size) of changes by class to smooth ones, from the class `first` on; None where there are too few classes."""
    count = num_classes - first
    if count <= WAVES + 1:
        return None
    places = (torch.arange(count) + 0.5) / count
    cosines = torch.cos(torch.pi * places[:, None] * torch.arange(WAVES + 1))
    cosines = cosines / cosines.norm(dim=0)  # they are orthogonal
    found = torch.zeros(size, size)
    found[:first, :first] = torch.eye(first)
    found[first:num_classes, first:num_classes] = cosines @ cosines.t()
    return found


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
            subs = [model.layout.subs[number] for number in group.members]
            several = [smooth_projection(one.num_classes, ordered.get(one.name, one.num_classes), group.classes) for one in subs]
            found = {place: one for place, one in enumerate(several) if one is not None}
            where = torch.tensor(list(found), dtype=torch.long, device=device)
            self._groups.append((where, torch.stack(list(found.values())).to(device)) if found else None)

    def project(self, changes: Iterable[torch.Tensor]) -> None:
        """Project changes of the weights of all groups of heads and of their biases, in place."""
        for change, group in zip(changes, self._groups * 2, strict=True):
            if group is not None:
                change[group[0]] = torch.bmm(change[group[0]], group[1])


@dataclass(frozen=True, kw_only=True)
class _LengthHead:
    """A head of lengths, and what it gets of all subjects."""

    rows: slice
    """Of the first layers."""
    group: int
    member: int
    hidden: torch.Tensor
    """(subjects, width): what the first layer gives."""
    targets: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor
    projection: torch.Tensor


@torch.no_grad()
def _length_heads(model: TabularModel, data: EncodedSubjects, context: torch.Tensor) -> list[_LengthHead]:
    device = context.device
    batch = {
        "subjects": torch.arange(len(data.lengths), device=device),
        "valid": torch.ones(len(data.lengths), dtype=torch.bool, device=device),
        "begin": torch.zeros(len(data.lengths), dtype=torch.long, device=device),
        "steps": torch.zeros(1, dtype=torch.long, device=device),
        "rank": torch.arange(model.layout.num_columns, device=device),
    }
    codes = assemble(model.layout, data, batch, 1.0)["codes"].long()
    hidden = model.hidden(codes, batch["rank"], context)[:, 0]
    found = []
    for group, one in enumerate(model._head_groups):
        for member, number in enumerate(one.members):
            sub = model.layout.subs[number]
            if sub.position != "slen":
                continue
            rows, classes = slice(*model.rows[number]), sub.num_classes
            projection = smooth_projection(classes, 0, classes)
            found.append(
                _LengthHead(
                    rows=rows,
                    group=group,
                    member=member,
                    hidden=hidden[:, rows],
                    targets=codes[:, 0, number],
                    weight=model.out_weights[group][member, : sub.hidden[-1], :classes].detach(),
                    bias=model.out_biases[group][member, 0, :classes].detach(),
                    projection=(torch.eye(classes) if projection is None else projection).to(device),
                )
            )
    return found


def refine_lengths(model: TabularModel, data: EncodedSubjects, known: torch.Tensor, held_out: torch.Tensor) -> float:
    """Train the first and the last layers of the heads of lengths, as long as their validation loss falls, then as long with all subjects.

    Args:
        model: A trained model of sequences with contexts, of size "s" or "m".
        data: What it is trained on.
        known: Subjects of training.
        held_out: Subjects of validation.

    Returns:
        What the validation loss has gained.
    """
    was_training = model.training
    model.eval()
    assert data.context is not None
    with torch.no_grad():
        given = model.encode_context(data.context.long())
    heads = _length_heads(model, data, data.context.long())

    def loss_of(changes: list[torch.Tensor], who: torch.Tensor) -> torch.Tensor:
        found = given.new_zeros(())
        for number, head in enumerate(heads):
            first, first_bias, last, last_bias = changes[4 * number : 4 * number + 4]
            hidden = torch.relu(head.hidden[who] + given[who] @ first + first_bias)
            logits = hidden @ (head.weight + last @ head.projection) + head.bias + last_bias @ head.projection
            found = found + F.cross_entropy(logits, head.targets[who])
        return found

    def trained(who: torch.Tensor, steps: int, after: Callable[[int, list[torch.Tensor]], bool]) -> list[torch.Tensor]:
        changes = []
        for head in heads:
            first = given.new_zeros(given.shape[1], head.hidden.shape[1])
            changes += [first, torch.zeros_like(first[0]), torch.zeros_like(head.weight), torch.zeros_like(head.bias)]
        for one in changes:
            one.requires_grad_(True)
        optimizer = torch.optim.Adam(changes, lr=LENGTH_LR)
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            torch.autograd.backward(loss_of(changes, who))
            optimizer.step()
            if not after(step, changes):
                break
        return [one.detach() for one in changes]

    with torch.no_grad():
        start = best = float(loss_of(trained(known, 0, lambda *_: True), held_out))
    best_step = 0

    def select(step: int, changes: list[torch.Tensor]) -> bool:
        nonlocal best, best_step
        if step % LENGTH_CHECK == 0:
            with torch.no_grad():
                found = float(loss_of(changes, held_out))
            if found < best - LEAST_GAIN:
                best, best_step = found, step
        return step - best_step < LENGTH_CHECK * LENGTH_PATIENCE

    trained(known, LENGTH_STEPS, select)
    changes = trained(torch.cat([known, held_out]), best_step, lambda *_: True)
    with torch.no_grad():
        for number, head in enumerate(heads):
            first, first_bias, last, last_bias = changes[4 * number : 4 * number + 4]
            model.first_weight[head.rows, : given.shape[1]] += first.t()
            model.first_bias[head.rows] += first_bias
            model.out_weights[head.group][head.member, : len(head.weight), : len(head.bias)] += last @ head.projection
            model.out_biases[head.group][head.member, 0, : len(head.bias)] += last_bias @ head.projection
    model.train(was_training)
    return start - best


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
