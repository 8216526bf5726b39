"""Refinement: after training, the layers of heads are trained without dropout, each as long as its own validation loss falls.

Training stops when the sum of all validation losses stops falling. By then some heads have learned subjects by heart, and others are
not done: dropout and weight decay hold their predictions near the mean. Here embeddings, context and LSTM stay as they are, so an update
is cheap, and heads do not disturb each other.

    1. Most batches have the order of columns in which tables are generated.
    2. Where classes are in order, such as lengths or bins of numbers, a last layer changes by smooth functions of the class: by a few
       cosines. So few numbers are learned by heart later than many, and means follow from what they depend on.
    3. A head keeps the epoch that was best for it, or what it had.
    4. The subjects of validation are few, and are needed as much as others where all are few: the same number of epochs is then
       repeated with all subjects. Few subjects also leave time to train first layers; of many only last layers are trained.
    5. Lengths are calibrated: their means by class of the context become those of the subjects, see `calibrate_lengths`.

An update is many small operations, which on a GPU take the time of their launches. So batches are large, and what validation gives to
the heads is computed once and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch.nn import functional as F

from stoker_recipes.tabular.batches import EncodedSubjects, SubjectBatches, assemble
from stoker_recipes.tabular.model import TabularModel

LR, FIRST_LR = 0.03, 0.003
"""Of last layers, and of first ones."""
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
LENGTH_LR, LENGTH_STEPS = 0.01, 100
"""Of the calibration of lengths: learning rate, and updates at most."""
LENGTH_PULL, LEAST_CALIBRATED = 10.0, 50
"""The weight of squared differences of means in this calibration, and the subjects that a class of the context must have to count."""
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
    """What the heads get of a batch."""

    inputs: torch.Tensor
    """(rows, width): what first layers may see."""
    rank: torch.Tensor
    """Of columns."""
    targets: list[torch.Tensor]
    """(heads * rows,) of each group of heads."""
    weights: list[torch.Tensor]
    """(heads, rows) of each group."""
    count: torch.Tensor
    """Subjects of the batch."""


def refining_batch_size(model: TabularModel, batch_size: int, per_subject: float) -> int:
    """Subjects per batch, of those per batch of training."""
    room = int(MOST_LOGITS / (max(1.0, per_subject) * sum(bias.numel() for bias in model.out_biases)))
    return max(batch_size, min(BATCH_FACTOR * batch_size, MOST_SUBJECTS, room))


def refining_epochs(model: TabularModel, num_subjects: int, per_subject: float, *, most: int = EPOCHS) -> int:
    """Epochs at most."""
    return min(most, int(MOST_COMPUTED / (num_subjects * max(1.0, per_subject) * sum(bias.numel() for bias in model.out_biases))))


@torch.no_grad()
def head_inputs(model: TabularModel, data: EncodedSubjects, batch: dict[str, torch.Tensor], per_subject: float) -> HeadInputs:
    """What the heads get of a batch."""
    made = assemble(model.layout, data, batch, per_subject)
    codes, weights = made["codes"].long(), made["weights"].flatten(0, -2)
    flat = codes.flatten(0, -2)
    members = [getattr(model, f"heads_{number}") for number in range(len(model.out_weights))]
    return HeadInputs(
        inputs=model.first_inputs(codes, made["context"].long() if "context" in made else None).flatten(0, -2),
        rank=made["rank"],
        targets=[flat[:, member].t().flatten() for member in members],
        weights=[model.weights_of(weights, member) for member in members],
        count=batch["valid"].sum(),
    )


def inputs_of(model: TabularModel, data: EncodedSubjects, batches: SubjectBatches, per_subject: float) -> Iterator[HeadInputs]:
    """What the heads get of each batch."""
    return (head_inputs(model, data, batch, per_subject) for batch in batches)


def logits_of(model: TabularModel, batch: HeadInputs) -> list[torch.Tensor]:
    """Logits (heads, rows, classes) of each group."""
    return model.heads(model.first_layers(batch.inputs, batch.rank))


def losses_by_head(logits: Iterable[torch.Tensor], batch: HeadInputs) -> torch.Tensor:
    """The loss of each head, in the order of groups."""
    by_head = []
    for many, targets, weights in zip(logits, batch.targets, batch.weights, strict=True):
        losses = F.cross_entropy(many.flatten(0, 1), targets, reduction="none")
        by_head.append((losses.view(len(weights), -1) * weights).sum(1))
    return torch.cat(by_head)


@torch.no_grad()
def validate_heads(model: TabularModel, batches: Iterable[HeadInputs]) -> torch.Tensor:
    """The mean loss of each head over subjects."""
    results = [(batch.count, losses_by_head(logits_of(model, batch), batch)) for batch in batches]
    counts, losses = (torch.stack(tensors) for tensors in zip(*results, strict=True))
    return (counts[:, None] * losses).sum(0) / counts.sum()


def smooth_projection(num_classes: int, first: int, size: int) -> torch.Tensor | None:
    """The projection (size, size) of changes by class to smooth ones, from the class `first` on; None where there are too few classes."""
    count = num_classes - first
    if count <= WAVES + 1:
        return None
    places = (torch.arange(count) + 0.5) / count
    cosines = torch.cos(torch.pi * places[:, None] * torch.arange(WAVES + 1))
    cosines = cosines / cosines.norm(dim=0)  # they are orthogonal
    projection = torch.zeros(size, size)
    projection[:first, :first] = torch.eye(first)
    projection[first:num_classes, first:num_classes] = cosines @ cosines.t()
    return projection


class HeadLayers:
    """The layers of heads that are refined, and where each head lies in them.

    Args:
        model: The model.
        ordered: The sub-columns whose classes are in order, from this class on: their last layers change by smooth functions of the class.
        with_first: Whether first layers are refined, too.
    """

    def __init__(self, model: TabularModel, ordered: Mapping[str, int], *, with_first: bool) -> None:
        self.last = [*model.out_weights, *model.out_biases]
        self.first = [model.first_weight, model.first_bias] if with_first else []
        self.all = self.last + self.first
        self._sizes = [len(weight) for weight in model.out_weights]
        device = model.first_weight.device
        place = torch.zeros(len(model.layout.subs), dtype=torch.long, device=device)
        place[[number for group in model._head_groups for number in group.members]] = torch.arange(sum(self._sizes), device=device)
        self._head_of_row = place[model.head_of_row]
        self._projections: list[tuple[torch.Tensor, torch.Tensor] | None] = []
        for group in model._head_groups:
            subs = [model.layout.subs[number] for number in group.members]
            several = [smooth_projection(sub.num_classes, ordered.get(sub.name, sub.num_classes), group.classes) for sub in subs]
            projections = {number: projection for number, projection in enumerate(several) if projection is not None}
            where = torch.tensor(list(projections), dtype=torch.long, device=device)
            self._projections.append((where, torch.stack(list(projections.values())).to(device)) if projections else None)

    def copies(self) -> list[torch.Tensor]:
        """Copies of all layers."""
        return [layer.detach().clone() for layer in self.all]

    def project(self, changes: Iterable[torch.Tensor]) -> None:
        """Project changes of the weights of all last layers and of their biases to smooth ones, in place."""
        for change, group in zip(changes, self._projections * 2, strict=True):
            if group is not None:
                change[group[0]] = torch.bmm(change[group[0]], group[1])

    def optimizer(self, lr: float, first_lr: float) -> torch.optim.Optimizer:
        """Adam for all layers."""
        groups = [{"params": self.last, "lr": lr}] + ([{"params": self.first, "lr": first_lr}] if self.first else [])
        # The fused update is one kernel; on a CPU it rounds differently and is not faster.
        return torch.optim.Adam(groups, fused=True if self.last[0].is_cuda else None)

    def update(self, optimizer: torch.optim.Optimizer, begin: list[torch.Tensor], loss: torch.Tensor) -> None:
        """One update by a loss; last layers differ from those of `begin` by smooth functions."""
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.project([layer.grad for layer in self.last if layer.grad is not None])
        optimizer.step()
        with torch.no_grad():
            changes = torch._foreach_sub(self.last, begin[: len(self.last)])
            self.project(changes)
            _copy(self.last, torch._foreach_add(begin[: len(self.last)], changes))

    @torch.no_grad()
    def keep(self, best: list[torch.Tensor], is_kept: torch.Tensor) -> None:
        """Copy the layers of some heads to `kept`."""
        rows = is_kept[self._head_of_row]
        masks = [word[:, None, None] for word in torch.split(is_kept, self._sizes)] * 2 + [rows[:, None], rows]
        for best_layer, layer, mask in zip(best, self.all, masks[: len(self.all)], strict=True):
            best_layer.copy_(torch.where(mask, layer, best_layer))


@contextmanager
def _only(model: TabularModel, layers: Iterable[torch.Tensor]) -> Iterator[None]:
    """Nothing but these layers has a gradient, and there is no dropout."""
    trained = {id(layer) for layer in layers}
    others = [parameter for parameter in model.parameters() if id(parameter) not in trained]
    was_training = model.training
    model.eval()
    for other in others:
        other.requires_grad_(False)
    try:
        yield
    finally:
        for other in others:
            other.requires_grad_(True)
        model.train(was_training)


def refine_heads(
    model: TabularModel,
    data: EncodedSubjects,
    batches: SubjectBatches,
    valid: SubjectBatches,
    per_subject: float,
    *,
    ordered: Mapping[str, int] | None = None,
    all_batches: SubjectBatches | None = None,
    with_first: bool = False,
    epochs: int = EPOCHS,
) -> tuple[int, float]:
    """Train the layers of heads.

    Args:
        model: A trained model, whose heads change.
        data: What it is trained on.
        batches: Of training.
        valid: Of validation.
        per_subject: The mean number of events that a subject has in a batch.
        ordered: The sub-columns whose classes are in order, from this class on.
        all_batches: Of training and validation, to repeat the best number of epochs with.
        with_first: Whether first layers are trained, too.
        epochs: At most.

    Returns:
        How many heads have become better, and what the validation loss has gained.
    """
    layers = HeadLayers(model, ordered or {}, with_first=with_first)
    with _only(model, layers.all):
        begin, best_layers = layers.copies(), layers.copies()
        values = model.num_inputs * sum(len(batch["subjects"]) * len(batch["steps"]) for batch in valid)
        of_valid = list(inputs_of(model, data, valid, per_subject)) if values <= MOST_KEPT else None
        first = best = validate_heads(model, of_valid or inputs_of(model, data, valid, per_subject))
        best_epoch, waited = torch.full(best.shape, -1, device=best.device), 0

        def select(epoch: int) -> bool:
            nonlocal best, waited
            losses = validate_heads(model, of_valid or inputs_of(model, data, valid, per_subject))
            is_better = losses < best - LEAST_GAIN
            best = torch.where(is_better, losses, best)
            best_epoch[is_better] = epoch
            layers.keep(best_layers, is_better)
            waited = 0 if bool(is_better.any()) else waited + 1
            return waited < PATIENCE

        def repeat(epoch: int) -> bool:
            layers.keep(best_layers, best_epoch == epoch)
            return True

        _train_layers(
            model, (inputs_of(model, data, epoch, per_subject) for epoch in _epochs(batches, epochs)), begin, layers, select
        )
        if all_batches is not None:
            again = (inputs_of(model, data, epoch, per_subject) for epoch in _epochs(all_batches, int(best_epoch.max()) + 1))
            _train_layers(model, again, begin, layers, repeat)
        _copy(layers.all, best_layers)
    return int((best < first).sum()), float((first - best).sum())


def _epochs(batches: SubjectBatches, count: int) -> Iterator[SubjectBatches]:
    for epoch in range(count):
        batches.set_epoch(epoch)
        yield batches


def _train_layers(
    model: TabularModel, epochs: Iterable[Iterable[HeadInputs]], begin: list[torch.Tensor], layers: HeadLayers,
    after: Callable[[int], bool],
) -> None:  # fmt: skip
    """Train layers from `begin`, until `after` says False: it is called after each epoch, while they have the EMA."""
    _copy(layers.all, begin)
    mean, optimizer = [layer.clone() for layer in begin], layers.optimizer(LR, FIRST_LR)
    for epoch, batches in enumerate(epochs):
        for batch in batches:
            layers.update(optimizer, begin, losses_by_head(logits_of(model, batch), batch).sum())
            torch._foreach_lerp_(mean, [layer.detach() for layer in layers.all], 1 - EMA)
        current = layers.copies()
        _copy(layers.all, mean)
        is_on = after(epoch)
        _copy(layers.all, current)
        if not is_on:
            return


@torch.no_grad()
def _copy(layers: Iterable[torch.Tensor], values: Iterable[torch.Tensor]) -> None:
    torch._foreach_copy_(list(layers), list(values))


def calibrate_lengths(
    model: TabularModel, data: EncodedSubjects, *, ordered: Mapping[str, int] | None = None
) -> tuple[float, float]:
    """Train the layers of the heads of lengths until means by class of the context are those of the subjects.

    The likelihood hardly sees a wrong mean: lengths of a third of the subjects that are 7 % too long cost 0.01 nats of some 17, and
    the epoch that validation selects is not the one where all of them are right. So the squared differences of the mean length, and
    of the share without events, are part of the loss here, for each class of the context that enough subjects have.

    Args:
        model: A trained model of sequences with contexts.
        data: All subjects.
        ordered: The sub-columns whose classes are in order, from this class on.

    Returns:
        The largest difference of a mean before and after, in standard deviations of lengths.
    """
    assert data.context is not None
    device, count = data.codes.device, len(data.lengths)
    batch = {
        "subjects": torch.arange(count, device=device),
        "valid": torch.ones(count, dtype=torch.bool, device=device),
        "begin": torch.zeros(count, dtype=torch.long, device=device),
        "steps": torch.zeros(1, dtype=torch.long, device=device),
        "rank": torch.arange(model.layout.num_columns, device=device),
    }
    classes = torch.cat([F.one_hot(codes.long()) for codes in data.context.unbind(1)], 1).float()
    sizes = classes.sum(0)
    is_large = sizes >= LEAST_CALIBRATED
    share, mean_of = sizes[is_large] / count, (classes / sizes.clamp(min=1))[:, is_large].t()
    layers = HeadLayers(model, ordered or {}, with_first=True)
    with _only(model, layers.all):
        heads = head_inputs(model, data, batch, 1.0)
        places = [
            (group, member, model.layout.subs[number].num_classes)
            for group, of_group in enumerate(model._head_groups)
            for member, number in enumerate(of_group.members)
            if model.layout.subs[number].position == "slen"
        ]
        weights = [torch.zeros_like(weight) for weight in heads.weights]
        for group, member, _ in places:
            weights[group][member] = heads.weights[group][member]
        heads = replace(heads, weights=weights)

        def differences(logits: list[torch.Tensor]) -> list[torch.Tensor]:
            """(classes of the context, 2) of each head: of the mean class, and of the share of class 0."""
            apart_by_head = []
            for group, member, num_classes in places:
                values = torch.arange(num_classes, device=device)
                compared = torch.stack([values, values == 0], 1).float()
                actual = compared[heads.targets[group].view(-1, count)[member]]
                predicted = torch.softmax(logits[group][member, :, :num_classes], -1) @ compared
                apart_by_head.append(mean_of @ ((predicted - actual) / actual.std(0).clamp(min=1e-3)))
            return apart_by_head

        @torch.no_grad()
        def largest() -> float:
            return max(
                (float(difference[:, 0].abs().max()) for difference in differences(logits_of(model, heads)) if len(difference)),
                default=0.0,
            )

        begin, optimizer, before = layers.copies(), layers.optimizer(LENGTH_LR, LENGTH_LR), largest()
        for _ in range(refining_epochs(model, count, 1.0, most=LENGTH_STEPS)):
            logits = logits_of(model, heads)
            apart = torch.stack([(share[:, None] * difference**2).sum() for difference in differences(logits)]).sum()
            layers.update(optimizer, begin, losses_by_head(logits, heads).sum() + LENGTH_PULL * apart)
        after = largest()
    return before, after
