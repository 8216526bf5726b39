"""Grouped: whole series, or groups of them, each in one part by a key of its name.

The key of a group depends on its name and the seed alone, so series that are added later move none of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.errors import OptionError
from stoker.feed.layout import AnyView
from stoker.kernel import kernel
from stoker.order.keys import checked_seed, derive, epoch_key
from stoker.order.part import Runs
from stoker.split.by_time import FRACTIONS, checked_fractions
from stoker.split.ground import Ground
from stoker.split.reach import Reach
from stoker.split.split import NAMES, Split, build
from stoker.store.store import Store

Array = npt.NDArray[Any]

_GROUPS = 9  # what keys are for here; orders have the numbers below


def grouped(
    store: Store, view: AnyView, *, by: str | None = None, fractions: Sequence[float] | None = None, seed: int = 0
) -> Split:
    """Parts train, valid and test (or train and valid) of whole series, about as large as `fractions` say.

    Series with the same value of the column `by` stay together; without it each series is a group of its own, known by its key
    or, in a store without keys, by its number. The part of a group is decided by its name and `seed`, not by the others.
    """
    ground = Ground.of(store, view)
    shares = np.cumsum(checked_fractions(FRACTIONS if fractions is None else fractions))
    shares[-1] = 1.0 if shares[-1] > 1 - 1e-9 else shares[-1]
    keys = _group_keys(store, by, epoch_key(checked_seed(seed), 0, _GROUPS))
    # The upper 53 bits are a number from 0 to 1, exactly.
    part = np.searchsorted(shares, (keys >> np.uint64(11)).astype(np.float64) / 2**53, side="right")
    firsts = ground.first_samples()
    if firsts is None:
        firsts = np.arange(len(store) + 1, dtype=np.int64)
    runs = {}
    for number, name in enumerate(NAMES[: len(shares)]):
        mine = part == number
        runs[name] = Runs(firsts[:-1][mine], np.diff(firsts)[mine])
        if not runs[name].size:
            groups = len(np.unique(keys))
            raise OptionError(
                f"the {name} part of this grouped split of {store.name} has no sample: {groups:,} groups fell into the others "
                f"by chance. Give another seed, or larger fractions."
            )
    limits = {name: f"of {int((part == i).sum()):,} series" for i, name in enumerate(runs)}
    return build(ground, "grouped", runs, reach=Reach.of(view, horizon=None, warm_up=0), limits=limits, whole_series=True)


@kernel
def _derive_all(key: Any, words: Array, keys: Array) -> None:
    for i in range(len(words)):
        keys[i] = derive(key, words[i])


@kernel
def _derive_texts(key: Any, utf8: Array, offsets: Array, keys: Array) -> None:
    for i in range(len(offsets) - 1):
        word = key
        for k in range(offsets[i], offsets[i + 1]):
            word = derive(word, np.uint64(utf8[k]))
        keys[i] = derive(word, np.uint64(offsets[i + 1] - offsets[i]))


def _group_keys(store: Store, by: str | None, key: np.uint64) -> Array:
    """A key for each series, equal for equal groups."""
    keys = np.empty(len(store), dtype=np.uint64)
    name = by if by is not None else store.key
    if name is None:
        _derive_all(key, np.arange(len(store), dtype=np.uint64), keys)
        return keys
    column = store.schema.get(name)
    if column is None:
        raise OptionError(f"{store.name} has no column {name!r} to group by; it has {', '.join(store.schema)}.")
    if column.level != "series" or column.width is not None:
        raise OptionError(
            f"column {name!r} of {store.name} holds {column.label} a {column.level}; to group by it, a series must have one value."
        )
    if column.texts is None:
        _derive_all(key, _words(store.column(name)), keys)
        return keys
    of_texts = np.empty(len(column.texts) + 1, dtype=np.uint64)
    _derive_texts(key, column.texts.utf8, column.texts.offsets, of_texts[:-1])
    of_texts[-1] = derive(key, np.uint64(0))  # the group of those without a category, whose code is -1
    return of_texts[:-1] if column.dtype is None else of_texts[store.column(name)]


def _words(values: Array) -> Array:
    """64 bits for each value, equal for equal values."""
    if values.dtype.kind == "f":
        numbers = values.astype(np.float64) + 0.0  # one zero
        numbers[np.isnan(numbers)] = np.nan
        return numbers.view(np.uint64)
    return values.astype(np.int64).view(np.uint64) if values.dtype.kind != "u" else values.astype(np.uint64)
