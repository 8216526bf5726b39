"""The profile of a loader: lines and stages of its time, and what it reads. Each from batches that are made for it alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from torch.utils.data import DataLoader

from stoker.diagnose.making import Ask, make_some, maker, plainly
from stoker.diagnose.measurements import Blame, Reads
from stoker.diagnose.reading import Reading
from stoker.diagnose.sampler import Sampler
from stoker.diagnose.stages import Stages

LONG_SECONDS = 1.0
"""Of making a batch: from there on as few are made as can be."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What making a batch consists of."""

    stages: dict[str, float]
    functions: list[Blame]
    reads: Reads


def profile_loader(loader: DataLoader[Any], *, seconds: float = 0.5) -> Profile:
    """Make some batches of a DataLoader as one of its workers does."""
    workers = max(1, loader.num_workers)
    return _profile(lambda ask, every: maker(loader, ask, every=every), workers, seconds)


def profile_iterable(pull: Callable[[], object], *, seconds: float = 0.5) -> Profile:
    """Take some batches of any other iterable, each of which counts as one sample."""
    return _profile(lambda ask, every: lambda: ask(pull), 1, seconds)


def _profile(making: Callable[[Ask, int], Callable[[], object]], workers: int, seconds: float) -> Profile:
    make = making(plainly, 1)
    with Sampler() as sampler:
        batches, spent = make_some(make, seconds)
    least = 2 if spent < LONG_SECONDS * batches else 1
    stages = Stages()
    with stages:
        make_some(make, seconds, least=least)
    reading = Reading()
    with reading:  # last: by now the data set's own caches are as full as they get
        batches, _ = make_some(making(reading.ask, workers), seconds, least=least)
    return Profile(stages=stages.shares(), functions=sampler.of_phase(), reads=reading.found(batches))
