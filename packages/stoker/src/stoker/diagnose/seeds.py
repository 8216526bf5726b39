"""The seeds of trials, and random numbers that are as if nothing had been drawn meanwhile."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

SEED = 20_261  # Of every trial: a program draws the same numbers in each process. What it seeds itself stays its own.


def set_seeds() -> None:
    """Seed torch, NumPy and Python, and generators that would be seeded by the machine."""
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    original = np.random.default_rng
    made = iter(range(1 << 62))

    @functools.wraps(original)
    def seeded(seed: Any = None) -> np.random.Generator:
        return original((SEED, next(made)) if seed is None else seed)

    np.random.default_rng = seeded


def draw_each_epoch() -> None:
    """Draw for each epoch of a loader with persistent workers what others draw."""
    # Workers that are kept get their seed once. Without them each epoch draws one, and all that is drawn after that differs.
    original = _MultiProcessingDataLoaderIter._reset

    @functools.wraps(original)
    def reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        original(iterator, loader, first_iter)

    setattr(_MultiProcessingDataLoaderIter, "_reset", reset)  # noqa: B010 - a type checker would compare the names of its arguments


@contextmanager
def kept_seeds() -> Iterator[None]:
    """Restore the states of the random number generators at the end."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
