"""The two workloads, and what a peer says of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]
Epoch = Callable[[int], Iterator[torch.Tensor]]
"""The batches of one epoch, given its number."""

SEED = 0


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Samples are whole rows, or windows of `length` rows; the first number of each row is its number."""

    name: str
    rows: int
    width: int
    batch_size: int
    length: int = 1

    @property
    def num_samples(self) -> int:
        """How many there are, with stride 1."""
        return self.rows - self.length + 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return (self.length, self.width) if self.length > 1 else (self.width,)

    def write(self, folder: Path) -> None:
        """Write `data.npy`: noise, but for the row numbers."""
        values = np.random.default_rng(SEED).standard_normal((self.rows, self.width), dtype=np.float32)
        values[:, 0] = np.arange(self.rows)
        np.save(folder / "data.npy", values)

    def values(self, folder: Path) -> Array:
        """The rows, mapped; copy-on-write, since torch warns of arrays that it must not write to."""
        return np.asarray(np.load(folder / "data.npy", mmap_mode="c"))

    def samples(self, folder: Path) -> torch.Tensor:
        """All samples as a view without a copy, (samples, numbers of a sample)."""
        flat = torch.from_numpy(self.values(folder))
        return flat.as_strided((self.num_samples, self.length * self.width), (self.width, 1))


def segments(small: bool) -> Workload:
    """Pre-cut segments of 2048 points."""
    return Workload(name="segments", rows=1_000 if small else 20_000, width=2048, batch_size=256)


def windows(small: bool) -> Workload:
    """Windows of 48 rows of 55 features, one per row."""
    return Workload(name="windows", rows=4_000 if small else 200_000, width=55, batch_size=64 if small else 1024, length=48)


WORKLOADS: dict[str, Callable[[bool], Workload]] = {"segments": segments, "windows": windows}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way to use a library. `workers` are the numbers of processes or threads that `open` is tried with.

    What is not `checked` serves no samples at all: a limit to hold the others against.
    """

    name: str
    workload: str
    open: Callable[[Path, Workload, int], Epoch]
    workers: tuple[int, ...] = (0,)
    kind: str = "processes"
    remark: str = ""
    checked: bool = True


def every_epoch(batches: Callable[[], Iterator[torch.Tensor]]) -> Epoch:
    """A loader that continues by itself from epoch to epoch."""
    return lambda epoch: batches()
