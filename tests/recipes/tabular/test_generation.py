"""Generation draws from the very distribution that training sees, whatever the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from stoker_recipes.tabular import generation
from stoker_recipes.tabular.batches import position_codes
from stoker_recipes.tabular.generation import GivenCodes, draw, generate_codes, spread, uniform
from stoker_recipes.tabular.layout import Size, make_layout
from stoker_recipes.tabular.model import TabularModel

COLUMNS = [{"cat": 5}, {"bin": 9, "fine": 11}, {"start": 2, "gap_bin": 3, "gap_fine": 12}]
MOMENTS = [{}, {}, {"start": "first", "gap_bin": "later", "gap_fine": "later"}]
CONTEXT = [{"cat": 4}, {"bin": 20}]


def make_model(
    size: Size = "s", *, max_length: int | None = 12, copies: int = 1, context: bool = True, feeds: bool = False
) -> TabularModel:  # fmt: skip
    moments: Any = () if max_length is None else MOMENTS * copies
    chosen = CONTEXT if context else ()
    common: Any = {"max_length": max_length, "median_length": 5, "size": size, "feeds_context": feeds}
    layout = make_layout(COLUMNS * copies, moments=moments, context=chosen, **common)
    return TabularModel(layout, seed=3)


def contexts(count: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.stack([rng.integers(0, 4, count), rng.integers(0, 20, count)], 1)


@pytest.mark.promise("P30")
@pytest.mark.parametrize(
    ("size", "max_length", "copies", "feeds"),
    [
        ("s", 12, 1, False),
        ("s", 12, 1, True),
        ("s", 123, 1, True),
        ("s", 12, 9, False),
        ("l", 12, 1, True),
        ("s", None, 1, False),
        ("m", None, 9, False),
    ],
)
def test_generated_codes_are_those_that_the_logits_of_training_give(
    size: Size, max_length: int | None, copies: int, feeds: bool
) -> None:
    """Teacher forcing: the logits of whole sequences, with the same random numbers, draw the same codes."""
    model = make_model(size, max_length=max_length, copies=copies, feeds=feeds).eval()
    layout, count, seed = model.layout, 6, 11
    found = generate_codes(model, count, seed=seed, context=contexts(count))
    rank = torch.arange(layout.num_columns)
    starts = np.cumsum(found.lengths) - found.lengths
    for subject in range(count):
        length = int(found.lengths[subject])
        data = torch.from_numpy(found.codes[starts[subject] : starts[subject] + length].astype(np.int64))
        codes = data
        if max_length is not None:
            data = (
                torch.cat([data, torch.zeros_like(data[:1])]) if length else torch.zeros(1, found.codes.shape[1], dtype=torch.long)
            )
            codes = torch.cat([position_codes(layout, torch.arange(length + 1), torch.tensor(length)), data], 1)
        with torch.no_grad():
            batch = codes[None] if max_length is not None else codes
            logits = model.logits(batch, rank, torch.from_numpy(contexts(count)[subject : subject + 1]))
        for step in range(length):
            numbers = uniform(seed, torch.tensor([subject]), step, len(layout.subs))
            for number, sub in enumerate(layout.subs):
                if sub.position:
                    continue
                if sub.moment == ("first" if step else "later"):
                    assert codes[step, number] == 0
                    continue
                row = logits[sub.name].reshape(-1, sub.num_classes)[step][None]
                expected = draw(row, numbers[:, number - layout.num_positions], temperature=1.0, top_p=1.0)
                assert int(expected) == int(codes[step, number]), (subject, step, sub.name)


def test_random_numbers_are_uniform_and_independent() -> None:
    found = uniform(7, torch.arange(20_000), 3, 8).numpy().astype(np.float64)
    assert found.min() > 0
    assert found.max() <= 1
    assert abs(found.mean() - 0.5) < 0.003
    assert abs(found.std() - 12**-0.5) < 0.003
    assert np.abs(np.corrcoef(found.T) - np.eye(8)).max() < 0.03
    other = uniform(7, torch.arange(20_000), 4, 8).numpy()
    assert abs(np.corrcoef(found[:, 0], other[:, 0])[0, 1]) < 0.03
    neighbours = np.corrcoef(found[:-1, 0], found[1:, 0])[0, 1]
    assert abs(neighbours) < 0.03


@pytest.mark.parametrize("seed", [0, -5, 2**70])
def test_random_numbers_depend_on_nothing_else(seed: int) -> None:
    whole = uniform(seed, torch.arange(100), 2, 5)
    assert torch.equal(uniform(seed, torch.arange(40, 50), 2, 5), whole[40:50])
    assert torch.equal(uniform(seed, torch.arange(100), 2, 9)[:, :5], whole)


def test_draws_follow_the_probabilities() -> None:
    chances = torch.tensor([0.1, 0.6, 0.3])
    numbers = uniform(0, torch.arange(30_000), 0, 1)[:, 0]
    found = draw(chances.log().expand(30_000, -1), numbers, temperature=1.0, top_p=1.0)
    assert np.abs(np.bincount(found.numpy(), minlength=3) / 30_000 - chances.numpy()).max() < 0.01
    sharp = draw(chances.log().expand(30_000, -1), numbers, temperature=0.5, top_p=1.0)
    squared = chances**2 / (chances**2).sum()
    assert np.abs(np.bincount(sharp.numpy(), minlength=3) / 30_000 - squared.numpy()).max() < 0.01
    likely = draw(chances.log().expand(30_000, -1), numbers, temperature=1.0, top_p=0.7)
    assert np.bincount(likely.numpy(), minlength=3)[0] == 0  # 0.6 and the class that crosses 0.7 stay
    assert np.abs(np.bincount(likely.numpy(), minlength=3)[1:] / 30_000 - [2 / 3, 1 / 3]).max() < 0.01


def test_fixed_shares_hold_and_others_stay_in_proportion() -> None:
    chances = torch.tensor([0.1, 0.6, 0.3])
    numbers = uniform(0, torch.arange(30_000), 0, 1)[:, 0]
    shares = (torch.tensor([True, False, False]), torch.tensor([0.7, 0.0, 0.0]))
    found = draw(chances.log().expand(30_000, -1), numbers, shares=shares)
    assert np.abs(np.bincount(found.numpy(), minlength=3) / 30_000 - [0.7, 0.2, 0.1]).max() < 0.01
    whole = (torch.tensor([True, True, False]), torch.tensor([0.5, 0.5, 0.0]))
    assert int(draw(chances.log().expand(30_000, -1), numbers, shares=whole).max()) == 1


@pytest.mark.promise("P30")
@pytest.mark.parametrize("copies", [1, 9])
def test_rows_with_other_given_columns_share_a_batch(copies: int) -> None:
    """Each row sees its own given columns, wherever they are: the logits of training for that order draw the same codes."""
    model = make_model(max_length=None, context=False, copies=copies).eval()
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, size, (8, 1)) for column in COLUMNS * copies for size in column.values()], -1)
    is_given = rng.random((8, 1, 3 * copies)) < 0.5
    found = generate_codes(model, 8, seed=2, given=GivenCodes(codes=codes, is_given=is_given, lengths=np.ones(8, np.int64)))
    column_of = np.array([sub.column for sub in model.layout.subs])
    for row in range(8):
        order = np.argsort(~is_given[row, 0], kind="stable")
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        with torch.no_grad():
            logits = model.logits(torch.from_numpy(found.codes[row : row + 1].astype(np.int64)), torch.from_numpy(rank))
        numbers = uniform(2, torch.tensor([row]), 0, len(column_of))
        for number, sub in enumerate(model.layout.subs):
            drawn = int(draw(logits[sub.name], numbers[:, number]))
            expected = codes[row, 0, number] if is_given[row, 0, column_of[number]] else drawn
            assert found.codes[row, number] == expected


@pytest.mark.promise("P30")
@pytest.mark.parametrize("feeds", [False, True])
def test_a_subject_is_the_same_in_any_batch(feeds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(feeds=feeds)
    whole = generate_codes(model, 50, seed=5, context=contexts(50))
    few = generate_codes(model, 20, seed=5, context=contexts(50)[:20])
    assert (few.lengths == whole.lengths[:20]).all()
    assert (few.codes == whole.codes[: len(few.codes)]).all()
    monkeypatch.setitem(generation.BLOCK, "cpu", 17)
    monkeypatch.setitem(generation.CHUNK, "cpu", 7)
    blocks = generate_codes(model, 50, seed=5, context=contexts(50))
    assert (blocks.lengths == whole.lengths).all()
    assert (blocks.codes == whole.codes).all()
    assert (blocks.uniform == whole.uniform).all()
    other = generate_codes(model, 50, seed=6, context=contexts(50))
    assert other.codes.shape != whole.codes.shape or (other.codes != whole.codes).any()  # negative control


def test_classes_that_are_never_generated_are_not() -> None:
    model = make_model(context=False)
    skipped = model.layout.num_positions
    found = generate_codes(model, 200, seed=1, never={skipped: [0, 3], skipped + 1: list(range(8))})
    assert set(np.unique(found.codes[:, 0])) == {1, 2, 4}
    assert set(np.unique(found.codes[:, 1])) == {8}


def test_lengths_stay_in_their_limits() -> None:
    for max_length in (12, 123):
        found = generate_codes(make_model(max_length=max_length, context=False), 300, seed=1, lengths=(2, max_length))
        assert found.lengths.min() >= 2
        assert found.lengths.max() <= max_length
        assert len(found.codes) == found.lengths.sum()


def test_given_events_and_columns_are_kept() -> None:
    model = make_model(context=False)
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, size, (40, 3)) for column in COLUMNS for size in column.values()], -1)
    codes[:, 0, 4:] = codes[:, 1:, 3] = 0  # what first and later events do not have
    lengths = rng.integers(0, 4, 40)
    is_given = (np.arange(3) < lengths[:, None])[..., None] & np.array([True, False, True])
    given = GivenCodes(codes=codes, is_given=is_given, lengths=lengths)
    found = generate_codes(model, 40, seed=1, given=given)
    starts = np.cumsum(found.lengths) - found.lengths
    assert (found.lengths >= lengths).all()
    for subject, length in enumerate(lengths):
        own = found.codes[starts[subject] : starts[subject] + length]
        assert (own[:, [0, 3, 4, 5]] == codes[subject, :length][:, [0, 3, 4, 5]]).all()


def test_numbers_of_lengths_are_shared_out_evenly() -> None:
    numbers = spread(3, torch.arange(1000))
    assert torch.equal(spread(3, torch.arange(500, 600)), numbers[500:600])  # a function of the subject alone
    assert not torch.equal(spread(4, torch.arange(1000)), numbers)
    assert 0 < numbers.min() <= numbers.max() <= 1
    even = (torch.arange(1000) + 0.5) / 1000
    assert (numbers.sort().values - even).abs().max() < 0.004
    assert (uniform(3, torch.arange(1000), -1, 1)[:, 0].sort().values - even).abs().max() > 0.01  # negative control
