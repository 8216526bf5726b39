"""Batches: every subject once per epoch, right positions and weights, and the same batches after a resume."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from stoker_recipes.tabular.batches import EncodedSubjects, SubjectBatches, SubjectLoss, assemble, mean_events
from stoker_recipes.tabular.layout import ModelLayout, make_layout
from stoker_recipes.tabular.model import TabularModel

COLUMNS = [{"cat": 50}, {"bin": 9, "fine": 11}]
LENGTHS = np.array([3, 0, 7, 1, 2, 7, 4, 1, 5, 2])


def make_data(lengths: np.ndarray = LENGTHS, *, max_length: int | None = 7) -> tuple[ModelLayout, EncodedSubjects]:
    layout = make_layout(COLUMNS, max_length=max_length, median_length=3, size="s")
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, size, lengths.sum()) for column in COLUMNS for size in column.values()], 1).astype(np.int16)
    return layout, EncodedSubjects.of(codes, np.cumsum(lengths) - lengths, lengths, None, torch.device("cpu"))


def make_batches(layout: ModelLayout, data: EncodedSubjects, **options: Any) -> SubjectBatches:
    settings: dict[str, Any] = {"lengths": data.lengths.numpy(), "batch_size": 4, "seed": 1}
    return SubjectBatches(data, layout, np.arange(len(data.lengths)), **(settings | options))


def test_every_subject_comes_once_per_epoch_in_another_order() -> None:
    batches = make_batches(*make_data())
    epochs = []
    for _ in range(2):
        found = [batch["subjects"][batch["valid"]].tolist() for batch in batches]
        assert sorted(subject for batch in found for subject in batch) == list(range(10))
        epochs.append(found)
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("max_length", [7, 107])
def test_a_batch_is_what_the_slow_way_makes(max_length: int) -> None:
    lengths = LENGTHS + (max_length - 7) * (LENGTHS == 7)
    layout, data = make_data(lengths, max_length=max_length)
    starts = data.starts.numpy()
    for batch in make_batches(layout, data, window=200):
        made = assemble(layout, data, batch, 2.0)
        count = int(batch["valid"].sum())
        for row, subject in enumerate(batch["subjects"].tolist()):
            length = int(lengths[subject])
            for step in range(len(batch["steps"])):
                codes, weights = made["codes"][row, step].tolist(), made["weights"][row, step].tolist()
                is_real = row < count
                if step > length:
                    assert codes == [0] * len(codes)
                    assert weights == [0.0] * 5
                    continue
                values = (step, length, length - step)
                places = (0,) if max_length < 100 else (2, 1, 0)
                expected = [value // 10**place % (10 if len(places) > 1 else 1000) for value in values for place in places]
                expected += data.codes[starts[subject] + step].tolist() if step < length else [0, 0, 0]
                assert codes == expected
                share = is_real / count
                event, first = step < length, step == 0
                assert weights == pytest.approx(
                    [event / 2 * share, first * share, share / 3, (event and first) * share, (event and not first) / 2 * share]
                )


def test_columns_come_in_any_order_after_positions() -> None:
    ranks = [tuple(batch["rank"].tolist()) for batch in make_batches(*make_data(), batch_size=1)]
    assert set(ranks) == {(0, 1, 2), (0, 2, 1)}
    fixed = [tuple(batch["rank"].tolist()) for batch in make_batches(*make_data(), table_order=1.0)]
    assert set(fixed) == {(0, 1, 2)}


def test_long_sequences_are_cut_to_the_window() -> None:
    lengths = np.full(400, 50)
    layout, data = make_data(lengths, max_length=50)
    begins: list[int] = []
    for batch in make_batches(layout, data, window=9, batch_size=2):
        assert len(batch["steps"]) <= 10
        begins += batch["begin"].tolist()
    found = np.array(begins)
    assert found.min() == 0
    assert found.max() == 50
    assert 0.25 < (found == 0).mean() < 0.6  # beginnings, and random parts that reach over them
    assert 0.03 < (found == 41).mean() < 0.25  # ends


def test_a_resumed_pass_continues() -> None:
    batches = make_batches(*make_data())
    batches.set_epoch(3)
    whole = [batch["subjects"].tolist() for batch in batches]
    batches.set_epoch(3)
    iterator = iter(batches)
    next(iterator)
    state = batches.state_dict()
    again = make_batches(*make_data())
    again.load_state_dict(state)
    assert [batch["subjects"].tolist() for batch in again] == whole[1:]
    assert batches.state_after({"epoch": 3, "next": 0}, 1) == state


def test_validation_batches_stay_the_same() -> None:
    batches = make_batches(*make_data(), is_fixed=True)
    passes = []
    for epoch in range(2):
        batches.set_epoch(epoch)
        passes.append([(batch["subjects"].tolist(), batch["rank"].tolist()) for batch in batches])
    assert passes[0] == passes[1]


@pytest.mark.promise("P30")
def test_the_loss_does_not_depend_on_the_batch_size() -> None:
    """Upstream divides the loss of sequences by the batch size once more."""
    layout, data = make_data()
    whole = SubjectLoss(TabularModel(layout, seed=1).eval(), data, mean_events(LENGTHS, 100))
    means = []
    for size in (1, 3, 10):
        batches = list(make_batches(layout, data, batch_size=size, table_order=1.0))
        counts = [int(batch["valid"].sum()) for batch in batches]
        losses = [whole(batch).item() for batch in batches]
        means.append(sum(count * loss for count, loss in zip(counts, losses, strict=True)) / sum(counts))
    assert means == pytest.approx([means[0]] * 3, rel=1e-5)


def test_other_data_has_another_identity() -> None:
    one = make_batches(*make_data()).identity()
    assert one == make_batches(*make_data()).identity()
    assert one != make_batches(*make_data(), window=50).identity()
    layout, data = make_data()
    data.codes[0, 0] += 1
    assert one != make_batches(layout, data).identity()
