"""The seeds of runs that are compared, and random numbers that are as if nothing had been drawn meanwhile."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

SEED = (
    20_261  # Of every run that is compared: a program draws the same numbers in each process. What it seeds itself stays its own.
)
STRIDE = 7919  # between the seeds of two repeats, so that programs that count their seeds up from one have others


def set_seeds(repeat: int = 0) -> None:
    """Seed torch, NumPy and Python, and generators that would be seeded by the machine.

    In a `repeat` above 0 every seed is another one, also those that the program sets itself.
    """
    random.seed(SEED + repeat)
    np.random.seed(SEED + repeat)
    torch.manual_seed(SEED + repeat)
    original = np.random.default_rng
    made = iter(range(1 << 62))

    @functools.wraps(original)
    def seeded(seed: Any = None) -> np.random.Generator:
        return original((SEED + repeat, next(made)) if seed is None else seed)

    np.random.default_rng = seeded
    if repeat:
        _shift_seeds(STRIDE * repeat)


def _shift_seeds(by: int) -> None:
    """Add a number to all seeds that the program sets."""
    torch.manual_seed = torch.random.manual_seed = _shifted(torch.manual_seed, 0, by)
    np.random.seed, np.random.default_rng = _shifted(np.random.seed, 0, by), _shifted(np.random.default_rng, 0, by)
    random.seed = _shifted(random.seed, 0, by)
    for owner, name, method in (
        (torch, "Generator", "manual_seed"),
        (np.random, "RandomState", "__init__"),
        (random, "Random", "seed"),
    ):
        setattr(owner, name, _shifted_class(getattr(owner, name), method, by))


def _shifted(original: Callable[..., Any], place: int, by: int) -> Callable[..., Any]:
    """A function whose argument at this place is a seed, to which `by` is added."""

    @functools.wraps(original)
    def seeded(*args: Any, **kwargs: Any) -> Any:
        words = list(args)
        if len(words) > place and isinstance(words[place], int):
            words[place] = (words[place] + by) % (1 << 32)
        elif isinstance(kwargs.get("seed"), int):
            kwargs["seed"] = (kwargs["seed"] + by) % (1 << 32)
        return original(*words, **kwargs)

    return seeded


def _shifted_class(base: Any, method: str, by: int) -> type:
    """A subclass whose method gets other seeds. Objects of the class itself count as its instances."""

    kind: Any = type(base)

    class Instances(kind):  # type: ignore[misc]
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, base)

    seeded = _shifted(getattr(base, method), 1, by)
    return Instances(base.__name__, (base,), {method: lambda self, *args, **kwargs: seeded(self, *args, **kwargs)})


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
