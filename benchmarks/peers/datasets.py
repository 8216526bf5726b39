"""Hugging Face datasets: saved to disk, mapped, shuffled by the loader or by its own iterable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers import dataloader, indexing
from benchmarks.peers.workload import SEED, Case, Epoch, Workload

NEEDS = ("datasets",)


def prepare(folder: Path, workload: Workload) -> None:
    """One column of lists of fixed length; 16 shards, which its iterable needs to shuffle."""
    import datasets

    datasets.disable_progress_bars()
    features = datasets.Features({"x": datasets.List(datasets.Value("float32"), length=workload.width)})
    datasets.Dataset.from_dict({"x": workload.values(folder)}, features=features).save_to_disk(str(folder / "hf"), num_shards=16)


def _saved(folder: Path) -> Any:
    import datasets

    return datasets.load_from_disk(str(folder / "hf"))


def _torch(folder: Path, workload: Workload, workers: int) -> Epoch:
    return dataloader.load(_saved(folder).with_format("torch"), workload, workers, collate_fn=_stack)


def _stack(samples: Any) -> torch.Tensor:
    return torch.stack([sample["x"] for sample in samples])


def _numpy(folder: Path, workload: Workload, workers: int) -> Epoch:
    table = _saved(folder).with_format("numpy")
    return indexing.permuted(workload, lambda index: torch.from_numpy(table[index]["x"]))


def _arrow(folder: Path, workload: Workload, workers: int) -> Epoch:
    table = _saved(folder).with_format("arrow")

    def take(index: Any) -> torch.Tensor:
        return torch.from_numpy(table[index]["x"].combine_chunks().flatten().to_numpy()).view(len(index), workload.width)

    return indexing.permuted(workload, take)


def _iterable(folder: Path, workload: Workload, workers: int) -> Epoch:
    from torch.utils.data import DataLoader

    stream = _saved(folder).to_iterable_dataset(num_shards=16).shuffle(seed=SEED, buffer_size=1000).with_format("torch")
    loader = DataLoader(
        stream, batch_size=workload.batch_size, num_workers=workers, persistent_workers=workers > 0, collate_fn=_stack
    )

    def epoch(number: int) -> Iterator[torch.Tensor]:
        stream.set_epoch(number)
        return iter(loader)

    return epoch


CASES = (
    Case(name='with_format("torch") and DataLoader', workload="segments", open=_torch, workers=(0, 2)),
    Case(name='with_format("numpy")[index]', workload="segments", open=_numpy),
    Case(name='with_format("arrow")[index], flattened', workload="segments", open=_arrow),
    Case(name="IterableDataset, buffer 1000", workload="segments", open=_iterable, workers=(0, 2)),
)
