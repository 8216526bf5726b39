"""Seeds: all that a program may draw from begins the same, in each process anew; what the program sets itself stays its own."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

SEED = 20_261


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


@contextmanager
def kept_seeds() -> Iterator[None]:
    """What is drawn meanwhile does not count."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
