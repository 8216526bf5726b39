"""Making batches here and now, in the main process, the way a worker of a DataLoader makes them: workers cannot be looked into."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from stoker.clock import now_ns

MOST_BATCHES = 100
_END = object()

Ask = Callable[..., Any]
"""Calls its first argument with the others: a place to look at what one sample takes."""


def plainly(give: Callable[..., Any], *arguments: Any) -> Any:
    """Ask for a sample, and look at nothing."""
    return give(*arguments)


def maker(loader: DataLoader[Any], ask: Ask = plainly, *, every: int = 1) -> Callable[[], object]:
    """A function that makes one batch as a worker would: each, or where there are several workers every n-th."""
    dataset: Any = loader.dataset
    collate: Any = loader.collate_fn
    if isinstance(dataset, IterableDataset):
        items: Iterator[Any] = iter(())

        def following() -> Any:
            nonlocal items
            sample = next(items, _END)
            if sample is _END:
                items = iter(dataset)
                sample = next(items)
            return sample

        def from_stream() -> object:
            if loader.batch_size is None:
                return collated(collate, ask(following))
            return collated(collate, [ask(following) for _ in range(loader.batch_size)])

        return from_stream
    order: Any = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    indices: Iterator[Any] = iter(())

    def wanted() -> Any:
        nonlocal indices
        number: Any = next(indices, _END)
        if number is _END:
            indices = iter(order)
            number = next(indices)
        return number

    def from_numbers() -> object:
        for _ in range(every - 1):
            wanted()
        numbers = wanted()
        if loader.batch_sampler is None:
            return collated(collate, ask(operator.getitem, dataset, numbers))
        many = getattr(dataset, "__getitems__", None)
        if many is not None:
            return collated(collate, ask(many, numbers))
        return collated(collate, [ask(operator.getitem, dataset, one) for one in numbers])

    return from_numbers


def collated(collate: Callable[[Any], object], samples: Any) -> object:
    """Whatever kind of callable it is, the time within this function is that of collating."""
    return collate(samples)


def make_some(make: Callable[[], object], seconds: float, *, least: int = 2) -> tuple[int, float]:
    """How many batches were made in about so many seconds, and in how many exactly."""
    begin, count = now_ns(), 0
    while count < MOST_BATCHES and (count < least or now_ns() - begin < seconds * 1e9):
        make()
        count += 1
    return count, (now_ns() - begin) / 1e9
