"""Refinement: heads become better by their own validation loss, or stay; nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stoker_recipes.tabular import refinement
from stoker_recipes.tabular.batches import EncodedSubjects, SubjectBatches, SubjectLoss
from stoker_recipes.tabular.generation import generate_codes
from stoker_recipes.tabular.layout import make_layout
from stoker_recipes.tabular.model import TabularModel, set_frequencies
from stoker_recipes.tabular.refinement import (
    HeadLayers,
    calibrate_lengths,
    inputs_of,
    refine_heads,
    validate_heads,
)

pytestmark = pytest.mark.promise("P30")


def prepared() -> tuple[TabularModel, EncodedSubjects, SubjectBatches, SubjectBatches]:
    """The first column follows from the context, the second is noise."""
    rng = np.random.default_rng(0)
    lengths = np.full(240, 3)
    context = rng.integers(0, 4, (240, 1))
    codes = np.stack([np.repeat(context[:, 0], 3), rng.integers(0, 30, 720)], 1).astype(np.int16)
    layout = make_layout(
        [{"cat": 4}, {"cat": 30}], context=[{"cat": 4}], max_length=3, median_length=3, size="s", predicts_left=False
    )
    data = EncodedSubjects.of(codes, np.arange(0, 720, 3), lengths, context, torch.device("cpu"))
    model = TabularModel(layout, seed=1)
    counts = {number: np.bincount(codes[:, place], minlength=size) for number, place, size in ((3, 0, 4), (4, 1, 30))}
    set_frequencies(model, counts)
    train = SubjectBatches(data, layout, np.arange(200), seed=0, lengths=lengths, batch_size=8)
    valid = SubjectBatches(data, layout, np.arange(200, 240), seed=1, is_fixed=True, lengths=lengths, batch_size=64)
    return model, data, train, valid


def head_order(model: TabularModel) -> list[int]:
    return [number for group in model._head_groups for number in group.members]


def test_heads_get_better_or_stay() -> None:
    model, data, train, valid = prepared()
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    first = validate_heads(model, inputs_of(model.eval(), data, valid, 3.0))
    model.train()
    better, gain = refine_heads(model, data, train, valid, 3.0, epochs=4)
    assert model.training
    after = validate_heads(model, inputs_of(model.eval(), data, valid, 3.0))
    assert (after <= first + 1e-6).all()
    assert better == int((after < first - 1e-6).sum())
    assert abs(float((first - after).sum()) - gain) < 1e-4
    learned = {model.layout.subs[n].name: i for i, n in enumerate(head_order(model))}
    assert float(after[learned["tgt:t0/c0__cat"]]) < float(first[learned["tgt:t0/c0__cat"]]) - 0.03
    changed = {name for name, one in model.named_parameters() if not torch.equal(one, before[name])}
    assert changed <= {name for name in before if name.startswith("out_")}
    for group, members in enumerate(model.out_weights):
        heads = getattr(model, f"heads_{group}").tolist()
        for place, number in enumerate(heads):
            row = head_order(model).index(number)
            if after[row] == first[row]:  # what could not be learned is as it was
                assert torch.equal(members[place], before[f"out_weights.{group}"][place])


def test_the_losses_of_heads_are_those_of_training() -> None:
    model, data, _, valid = prepared()
    whole = SubjectLoss(model.eval(), data, 3.0)
    with torch.no_grad():
        total = sum(float(whole(batch)) for batch in valid)  # one batch
    assert abs(float(validate_heads(model, inputs_of(model, data, valid, 3.0)).sum()) - total) < 1e-4


def test_ordered_classes_change_by_smooth_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second column is noise in 30 classes in order, of which the first two are not part of the order."""
    model, data, train, valid = prepared()
    before = [one.detach().clone() for one in model.parameters()]
    ordered = {"tgt:t1/c1__cat": 2}
    change = HeadLayers(model, ordered, with_first=False)
    some = [torch.randn_like(one) for one in (*model.out_weights, *model.out_biases)]
    given = [one.clone() for one in some]
    change.project(some)
    places = (np.arange(28) + 0.5) / 28
    basis = np.linalg.qr(np.stack([np.cos(np.pi * wave * places) for wave in range(refinement.WAVES + 1)], 1))[0]
    for number, group in enumerate(model._head_groups):
        for member, sub in enumerate(group.members):
            for one, old in (
                (some[number], given[number]),
                (some[number + len(model.out_weights)], given[number + len(model.out_weights)]),
            ):
                if model.layout.subs[sub].name != "tgt:t1/c1__cat":
                    assert torch.equal(one[member], old[member])
                    continue
                assert torch.allclose(one[member][:, :2], old[member][:, :2], atol=1e-6)
                smooth = old[member][:, 2:30].numpy() @ basis @ basis.T  # the slow twin: least squares by another basis
                assert np.allclose(one[member][:, 2:30].numpy(), smooth, atol=1e-5)
    monkeypatch.setattr(refinement, "LEAST_GAIN", -1e9)  # every head changes
    refine_heads(model, data, train, valid, 3.0, ordered=ordered, epochs=2)
    changes = dict(zip([name for name, _ in model.named_parameters()], zip(model.parameters(), before, strict=True), strict=True))
    for number, group in enumerate(model._head_groups):
        for member, sub in enumerate(group.members):
            new, old = changes[f"out_weights.{number}"]
            moved = (new - old).detach()[member]
            assert moved.abs().max() > 1e-4
            if model.layout.subs[sub].name == "tgt:t1/c1__cat":
                left = moved[:, 2:30].numpy() - moved[:, 2:30].numpy() @ basis @ basis.T
                assert np.abs(left).max() < 1e-4 * max(1.0, float(moved.abs().max()))


@pytest.mark.parametrize("max_length", [12, 130])
def test_mean_lengths_by_context_are_those_of_the_subjects(max_length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths of four contexts, as classes and by digits, without any training before; only their heads change."""
    monkeypatch.setattr(refinement, "LENGTH_STEPS", 400)
    rng = np.random.default_rng(0)
    context = rng.integers(0, 4, (600, 1))
    context[:10] = 4  # too few to be compared
    lengths = np.minimum(context[:, 0] * 3 + rng.integers(0, 3, 600), max_length)
    lengths[:5] = max_length
    codes = rng.integers(0, 4, (lengths.sum(), 1)).astype(np.int16)
    layout = make_layout([{"cat": 4}], context=[{"cat": 5}], max_length=max_length, median_length=5, size="s", predicts_left=False)
    data = EncodedSubjects.of(codes, np.cumsum(lengths) - lengths, lengths, context, torch.device("cpu"))
    model = TabularModel(layout, seed=1)
    counts = {}
    for number, sub in enumerate(layout.subs):
        if sub.position == "slen":
            place = sub.name.rpartition("_")[2]
            own = lengths if place == "cat" else lengths // 10 ** int(place[1:]) % 10
            counts[number] = np.bincount(own, minlength=sub.num_classes)
    set_frequencies(model, counts)
    kept = {name: one.detach().clone() for name, one in model.named_parameters()}
    before, after = calibrate_lengths(model, data)
    assert model.training
    assert all(one.requires_grad for one in model.parameters())
    assert before > 0.5
    assert after < 0.15 * before
    drawn = generate_codes(model, 4000, seed=3, context=np.repeat(np.arange(4), 1000)[:, None]).lengths.reshape(4, 1000)
    for group in range(4):
        own = lengths[context[:, 0] == group]
        assert abs(drawn[group].mean() - own.mean()) < 0.12 * lengths.std()
    rows = torch.zeros(model.num_rows, dtype=torch.bool)
    for number, (begin, end) in model.rows.items():
        rows[begin:end] |= layout.subs[number].position == "slen"
    for name, one in model.named_parameters():
        if name in ("first_weight", "first_bias"):
            assert torch.equal(one[~rows], kept[name][~rows])
            assert not torch.equal(one[rows], kept[name][rows])
        elif not name.startswith("out_"):
            assert torch.equal(one, kept[name])
