"""Order by length: a shuffle whose groups are alike in length, so that little is padded."""

from __future__ import annotations

import numpy as np
import pytest
from tests.sampling import twins
from tests.sampling.plans import Array, in_pieces, times_seen, whole

from stoker.errors import OptionError
from stoker.sampling.orders import ByLength, Order, Shuffle
from stoker.sampling.views import Sequences

GROUP = 16


@pytest.fixture
def lengths(rng: np.random.Generator) -> list[int]:
    """Long-tailed, as events are."""
    return np.minimum(np.exp(rng.normal(4, 1, 3333)), 5000).astype(int).tolist()


def batches(order: Order, lengths: list[int], epoch: int = 0) -> list[Array]:
    """The lengths of the samples of each batch."""
    samples = Sequences(10_000).over(twins.ragged(lengths))
    numbers = whole(order.over(samples, batch_size=GROUP), epoch)
    assert times_seen(numbers, len(lengths)) == [1] * len(lengths)
    return np.split(np.array(lengths)[numbers], np.arange(GROUP, len(lengths), GROUP))


def padding(order: Order, lengths: list[int]) -> float:
    """Padded steps for each true one."""
    found = batches(order, lengths)
    return sum(len(batch) * int(batch.max()) for batch in found) / sum(lengths) - 1


def test_little_is_padded(lengths: list[int]) -> None:
    shuffled, by_length = padding(Shuffle(), lengths), padding(ByLength(), lengths)
    assert shuffled > 1.0
    assert by_length < 0.2 * shuffled


def test_a_group_is_a_range_of_its_sorted_pool(lengths: list[int]) -> None:
    pool = 10
    found = batches(ByLength(pool=pool), lengths)
    for first in range(0, len(found), pool):
        groups = found[first : first + pool]
        in_pool = np.sort(np.concatenate(groups))
        stretches = sorted([sorted(group.tolist()) for group in groups if len(group) == GROUP])
        expected = [in_pool[i : i + GROUP].tolist() for i in range(0, len(in_pool) - GROUP + 1, GROUP)]
        assert stretches == sorted(expected)


def test_lengths_do_not_rise_from_batch_to_batch(lengths: list[int]) -> None:
    means = np.array([batch.mean() for batch in batches(ByLength(), lengths)])
    assert abs(np.corrcoef(np.arange(len(means)), means)[0, 1]) < 0.3
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.3


def test_groups_are_of_other_samples_in_the_next_epoch(lengths: list[int]) -> None:
    plan = ByLength(1).over(Sequences(10_000).over(twins.ragged(lengths)), batch_size=GROUP)
    groups = [{frozenset(numbers.tolist()) for numbers in np.array_split(whole(plan, epoch), 200)} for epoch in (0, 1)]
    assert not groups[0] & groups[1]


def test_a_group_of_its_own_keeps_the_order_for_every_batch_size(lengths: list[int]) -> None:
    samples = Sequences(10_000).over(twins.ragged(lengths))
    one, other = (ByLength(1, group=24).over(samples, batch_size=size) for size in (8, 24))
    assert (whole(one) == whole(other)).all()
    assert one.shape == {"group": 24}
    assert (in_pieces(one, 0, list(range(0, 3333, 8))) == whole(other)).all()


def test_saved_states_bring_their_group() -> None:
    assert ByLength(0).adopt(3, {"group": 32}) == ByLength(3, 32)
    assert ByLength(0, 32, 7).adopt(3, {"group": 32}) == ByLength(3, 32, 7)
    message = r"^the state was saved with ByLength\(group=32\), but this feed has group=16: another order\. Give the same group"
    with pytest.raises(OptionError, match=message):
        ByLength(0, 16).adopt(3, {"group": 32})
