"""The laws of views and orders, for any lengths and options: exactly once, any part alone, and closed form is enumeration."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given
from tests.sampling import twins
from tests.sampling.plans import in_pieces, plan_of, times_seen, whole
from tests.sampling.test_views_windows import check, listed

from stoker.sampling.orders import BlockShuffle, ByLength, Order, Sequential, Shuffle, Weighted
from stoker.sampling.permutation import MAX_SEED, Permutation, epoch_key
from stoker.sampling.views import Segments, Sequences, Windows

SEEDS = st.integers(0, MAX_SEED)
EPOCHS = st.integers(0, 2**40)


@pytest.mark.promise("P9")
@given(size=st.integers(1, 3000), seed=SEEDS, epoch=EPOCHS)
def test_a_permutation_is_one_to_one(size: int, seed: int, epoch: int) -> None:
    numbers = Permutation(size, epoch_key(seed, epoch)).part(0, size)
    assert times_seen(numbers, size) == [1] * size


@st.composite
def orders(draw: st.DrawFn, num_samples: int) -> Order:
    """Any order that gives every sample once."""
    seed = draw(SEEDS)
    block = draw(st.none() | st.integers(1, 60))
    window = draw(st.none() | st.integers(block or 1, 400))
    size = st.integers(1, 50)
    made: list[Order] = [Sequential(), Shuffle(seed), BlockShuffle(seed, block, window), ByLength(seed, draw(size), draw(size))]
    if num_samples:
        made.append(Weighted(np.full(num_samples, draw(st.sampled_from([1.0, 0.1, 3.7]))), seed))
    return draw(st.sampled_from(made))


@pytest.mark.promise("P8")
@given(data=st.data(), num_samples=st.integers(0, 600), batch_size=st.integers(1, 100), epoch=EPOCHS)
def test_every_sample_comes_once_and_any_cuts_give_the_same(
    data: st.DataObject, num_samples: int, batch_size: int, epoch: int
) -> None:
    order = data.draw(orders(num_samples))
    plan = plan_of(order, num_samples, batch_size, sample_bytes=data.draw(st.sampled_from([0.0, 10.0, 1e5])))
    numbers = whole(plan, epoch)
    assert plan.num_positions == num_samples
    assert times_seen(numbers, num_samples) == [1] * num_samples
    cuts = data.draw(st.lists(st.integers(0, num_samples), max_size=8))
    assert (in_pieces(plan, epoch, cuts) == numbers).all()
    other = plan_of(order.adopt(order.seed, plan.shape), num_samples, data.draw(st.integers(1, 100)))
    assert (whole(other, epoch) == numbers).all()  # a state resumes with any batch size


@given(
    weights=st.lists(st.sampled_from([0.0, 1e-9, 0.1, 1.0, 2.5, 1e6]) | st.floats(0, 1e6), min_size=1, max_size=60),
    num_draws=st.integers(1, 500),
    seed=SEEDS,
    epoch=EPOCHS,
)
def test_each_sample_comes_as_often_as_its_weight_says(weights: list[float], num_draws: int, seed: int, epoch: int) -> None:
    total = math.fsum(weights)
    if not total > 1e-300:
        return
    times = times_seen(whole(plan_of(Weighted(weights, seed, num_draws), len(weights)), epoch), len(weights))
    assert sum(times) == num_draws
    for weight, found in zip(weights, times, strict=True):
        share = weight / total * num_draws
        assert math.floor(share - 1e-9) <= found <= math.ceil(share + 1e-9)
        assert weight or not found


@st.composite
def window_views(draw: st.DrawFn) -> Windows | Segments:
    """Any windows or segments."""
    options: dict[str, Any] = {"tail": draw(st.sampled_from(["keep", "drop"]))}
    target = draw(st.sampled_from(["", "horizon", "shift"]))
    if target:
        options[target] = draw(st.integers(1, 12))
    length = draw(st.integers(1, 20))
    return Segments(length, **options) if draw(st.booleans()) else Windows(length, stride=draw(st.integers(1, 30)), **options)


LENGTHS = st.lists(st.sampled_from([0, 0, 1, 2]) | st.integers(0, 80), max_size=40)


@pytest.mark.promise("P9")
@given(view=window_views(), lengths=LENGTHS)
def test_windows_are_those_of_a_walk(view: Windows | Segments, lengths: list[int]) -> None:
    check(view.over(twins.ragged(lengths)), view, lengths)


@pytest.mark.promise("P9")
@given(view=window_views(), lengths=LENGTHS)
def test_kept_tails_lose_no_step(view: Windows | Segments, lengths: list[int]) -> None:
    stride = view.windows.stride if isinstance(view, Segments) else view.stride
    reach = view.horizon or view.length  # as far as targets reach on from window to window
    if view.tail != "keep" or stride > reach:
        return
    first_target = view.length if view.horizon else view.shift
    seen = {step for _, start, count in listed(view.over(twins.ragged(lengths))) for step in range(start, start + count)}
    begin = 0
    for num_steps in lengths:
        expected = set(range(begin, begin + num_steps)) if num_steps > first_target else set()
        assert seen & set(range(begin, begin + num_steps)) == expected
        begin += num_steps


@example(lengths=[9] * 4, max_length=5, keep="last")
@given(
    lengths=LENGTHS | st.integers(0, 60).map(lambda length: [length] * 4),
    max_length=st.integers(1, 50),
    keep=st.sampled_from(["first", "last"]),
)
def test_sequences_are_the_ends_of_their_series(lengths: list[int], max_length: int, keep: Any) -> None:
    is_uniform = len(set(lengths)) == 1
    samples = Sequences(max_length, keep=keep).over(
        twins.uniform(lengths[0], len(lengths)) if is_uniform else twins.ragged(lengths)
    )
    found = listed(samples)
    assert samples.first_samples() is None
    steps = np.arange(sum(lengths))
    parts = np.split(steps, np.cumsum(lengths)[:-1]) if lengths else []
    for number, (series, start, count) in enumerate(found):
        part = parts[series]
        expected = part[:max_length] if keep == "first" else part[max(0, len(part) - max_length) :]
        assert series == number
        assert steps[start : start + count].tolist() == expected.tolist()
    assert len(found) == len(lengths)
