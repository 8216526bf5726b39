"""Stoker itself, by its public names: a store, a view, a shuffled feed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.peers.workload import SEED, Case, Epoch, Workload

NEEDS = ("stoker",)


def prepare(folder: Path, workload: Workload) -> None:
    """Segments are packed, one series each; the rows of windows are one series of the memory map as it is."""
    import stoker

    if workload.length == 1:
        stoker.pack(stoker.Store.from_arrays(x=workload.values(folder)), folder / "stoker")


def _open(folder: Path, workload: Workload, threads: int) -> Epoch:
    import stoker

    view: stoker.Segments | stoker.Windows
    if workload.length == 1:
        store, view = stoker.open(folder / "stoker"), stoker.Segments(workload.width)
    else:
        store = stoker.Store.from_arrays(x=workload.values(folder), lengths=[workload.rows])
        view = stoker.Windows(workload.length)
    feed = stoker.Feed(
        store,
        view,
        batch_size=workload.batch_size,
        order=stoker.Shuffle(seed=SEED),
        last_batch="short",
        loading=stoker.feed.Loading(threads=threads),
    )

    def epoch(number: int) -> Iterator[torch.Tensor]:
        feed.set_epoch(number)
        return (batch["x"] for batch in feed)

    return epoch


CASES = (
    Case(name="Feed of Segments(2048)", workload="segments", open=_open, workers=(0, 1, 2, 4), kind="threads"),
    Case(name="Feed of Windows(48)", workload="windows", open=_open, workers=(0, 1, 2, 4), kind="threads"),
)
