"""Given: parts of samples that somebody else chose, or chance. Checked, since neither knows which samples share steps."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.errors import LeakFound, OptionError
from stoker.feed.layout import AnyView
from stoker.order.keys import checked_seed, epoch_key
from stoker.order.part import Runs
from stoker.order.permutation import Permutation
from stoker.split.by_time import FRACTIONS, checked_fractions
from stoker.split.ground import Ground
from stoker.split.reach import Reach
from stoker.split.split import NAMES, Split, build
from stoker.store.store import Store

Array = npt.NDArray[Any]

MAX_LISTED = 2**28
"""Samples that a split by numbers may have: they are listed."""
_CHANCE = 10  # what keys are for here; orders have the numbers below


def given(
    store: Store,
    view: AnyView,
    parts: Mapping[str, Sequence[int] | Array],
    *,
    horizon: int | None = None,
    warm_up: int = 0,
    allow_leak: bool = False,
) -> Split:
    """Parts with the samples of these numbers, as scikit-learn's splitters give them. LeakFound where two of them share a step.

    `allow_leak` makes a warning of it. Within a part the samples are in the order of their numbers.
    """
    ground = Ground.of(store, view)
    reach = Reach.of(view, horizon=horizon, warm_up=warm_up)
    runs = {name: Runs.of(_checked(name, numbers, ground)) for name, numbers in parts.items()}
    if not runs:
        raise OptionError("parts is empty; expected samples by the names of parts, like {'train': […], 'valid': […]}.")
    if not allow_leak:
        return build(ground, "given", runs, reach=reach)
    warnings.warn("allow_leak=True: parts may share steps, and a score on them may be too good.", stacklevel=2)
    return build(ground, "given", runs, reach=reach, allow_leak=True)


def shuffled(
    store: Store,
    view: AnyView,
    *,
    fractions: Sequence[float] | None = None,
    seed: int = 0,
    horizon: int | None = None,
    warm_up: int = 0,
    allow_leak: bool = False,
) -> Split:
    """Parts of samples at random. LeakFound where samples share steps: their neighbours in other parts would tell their labels.

    Windows share none with a stride of at least `warm_up + length + horizon`; whole series never do. `allow_leak` makes a
    warning of it. The samples are listed, so there may be 2**28 at most.
    """
    ground = Ground.of(store, view)
    reach = Reach.of(view, horizon=horizon, warm_up=warm_up)
    shares = np.cumsum(checked_fractions(FRACTIONS if fractions is None else fractions))
    size = ground.samples.num_samples
    if size > MAX_LISTED:
        raise OptionError(
            f"shuffled() lists samples, and {ground.name} has {size:,} of {view}; at most {MAX_LISTED:,} can be. Use grouped(…)."
        )
    overlaps = not reach.whole_series and reach.stride < reach.span and np.diff(_firsts(ground)).max() > 1
    if overlaps:
        found = (
            f"samples of {view} share steps: each is made of {reach.span} steps (warm-up {reach.warm_up}, window {reach.length}, "
            f"horizon {reach.horizon}), and the next begins {reach.stride} on. Shuffled, neighbours are in different parts and "
            f"tell each other's labels"
        )
        if not allow_leak:
            raise LeakFound(f"{found}. Use chronological(…) or purged(…), or a stride of {reach.span}.")
        warnings.warn(f"allow_leak=True: {found}; a score on such parts is too good.", stacklevel=2)
    order = Permutation(size, epoch_key(checked_seed(seed), 0, _CHANCE)).part(0, size)
    cuts = [0, *np.floor(shares * size + 1e-6).astype(np.int64).tolist()]
    runs = {name: Runs.of(np.sort(order[cuts[i] : cuts[i + 1]])) for i, name in enumerate(NAMES[: len(shares)])}
    return build(ground, "shuffled", runs, reach=reach, allow_leak=overlaps)


def _firsts(ground: Ground) -> Array:
    firsts = ground.first_samples()
    return np.arange(ground.lengths.num_series + 1, dtype=np.int64) if firsts is None else firsts


def _checked(name: str, numbers: Any, ground: Ground) -> Array:
    found = np.asarray(numbers)
    size = ground.samples.num_samples
    if found.ndim != 1 or (len(found) and found.dtype.kind not in "iu"):
        raise OptionError(f"part {name!r} has {found.dtype} of shape {list(found.shape)}; expected the numbers of samples.")
    unique = np.unique(found).astype(np.int64)
    if len(unique) < len(found):
        raise OptionError(f"part {name!r} has {len(found) - len(unique):,} samples twice; expected each once.")
    if len(unique) and (unique[0] < 0 or unique[-1] >= size):
        wrong = unique[0] if unique[0] < 0 else unique[-1]
        raise OptionError(f"part {name!r} has sample {wrong:,}; {ground.name} has samples 0 to {size - 1:,} of {ground.view}.")
    return unique
