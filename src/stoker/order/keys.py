"""Keys: the one place where randomness is made. A key is a function of its words, the same on every machine and version.

No global generator is read or changed, so neither the user's random numbers nor ours depend on each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.errors import OptionError
from stoker.kernel import kernel

Array = npt.NDArray[Any]

MAX_SEED = 2**63 - 1

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


@kernel
def mix(word: Any) -> Any:
    """Turn 64 bits into 64 others that look unrelated: the finalizer of splitmix64."""
    word = (word ^ (word >> np.uint64(30))) * _FIRST
    word = (word ^ (word >> np.uint64(27))) * _SECOND
    return word ^ (word >> np.uint64(31))


@kernel
def derive(key: Any, word: Any) -> Any:
    """The key of one thing (an epoch, a window) under another key."""
    return mix(key + _GOLDEN * (word + np.uint64(1)))


@kernel
def fill_round_keys(key: Any, keys: Array) -> None:
    """One key for each round of a permutation."""
    for i in range(len(keys)):
        keys[i] = derive(key, np.uint64(i))


@kernel
def _epoch_key(seed: int, epoch: int, purpose: int) -> Any:
    return derive(derive(derive(np.uint64(0), np.uint64(seed)), np.uint64(epoch)), np.uint64(purpose))


def epoch_key(seed: int, epoch: int, purpose: int = 0) -> np.uint64:
    """The key of an epoch. Things that must not go along with each other within it take different purposes."""
    return np.uint64(_epoch_key(seed, epoch, purpose))


def checked_seed(seed: int) -> int:
    """A seed that fits the key."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed <= MAX_SEED:
        raise OptionError(f"seed is {seed!r}; expected a whole number from 0 to 2**63 - 1.")
    return int(seed)
