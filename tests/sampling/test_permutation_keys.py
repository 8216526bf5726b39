"""Keys: the same 64 bits for the same words, on every machine and version."""

from __future__ import annotations

import numpy as np
import pytest
from tests.sampling import twins

from stoker.sampling.permutation import MAX_SEED, derive, epoch_key, fill_round_keys, mix

WORDS = [0, 1, 2, 12345, 2**31, 2**32 + 1, 2**62, MAX_SEED]


def test_the_mixer_is_splitmix64() -> None:
    # The first outputs of splitmix64 for the state 0, as published with it.
    golden, state, found = 0x9E3779B97F4A7C15, 0, []
    for _ in range(3):
        state = (state + golden) % 2**64
        found.append(int(mix(np.uint64(state))))
    assert found == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@pytest.mark.parametrize("word", WORDS)
def test_keys_equal_their_twin(word: int) -> None:
    assert int(derive(np.uint64(word), np.uint64(7))) == twins.derive(word, 7)
    for epoch in (0, 1, 2**40):
        for purpose in (0, 3, 2**32 + 5):
            assert int(epoch_key(word, epoch, purpose)) == twins.epoch_key(word, epoch, purpose)
    keys = np.empty(16, dtype=np.uint64)
    fill_round_keys(np.uint64(word), keys)
    assert keys.tolist() == [twins.derive(word, i) for i in range(16)]


def test_no_two_keys_of_neighbouring_words_are_equal() -> None:
    keys = {int(epoch_key(seed, epoch, purpose)) for seed in range(20) for epoch in range(20) for purpose in range(20)}
    assert len(keys) == 8000
