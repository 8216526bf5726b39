"""Lance: rows taken by index, its own torch data set, and LanceDB's streaming data set. Never forked: it hangs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from benchmarks.peers import indexing
from benchmarks.peers.workload import SEED, Case, Epoch, Workload

NEEDS = ("lance", "lancedb")


def prepare(folder: Path, workload: Workload) -> None:
    """One table with a column of lists of fixed size, written by each of the two."""
    import lance
    import lancedb

    flat = pa.array(workload.values(folder).reshape(-1))
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(flat, workload.width)})
    lance.write_dataset(table, str(folder / "rows.lance"))
    lancedb.connect(str(folder / "db")).create_table("rows", table)


def _tensor(column: Any, width: int) -> torch.Tensor:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return torch.from_numpy(array.flatten().to_numpy(zero_copy_only=True)).view(-1, width)


def _take(folder: Path, workload: Workload, workers: int) -> Epoch:
    import lance

    rows = lance.dataset(str(folder / "rows.lance"))
    return indexing.permuted(workload, lambda index: _tensor(rows.take(index)["x"], workload.width))


def _torch(folder: Path, workload: Workload, workers: int) -> Epoch:
    from lance.sampler import ShardedBatchSampler
    from lance.torch.data import LanceDataset

    def epoch(number: int) -> Iterator[torch.Tensor]:
        sampler = ShardedBatchSampler(0, 1, randomize=True, seed=SEED + number)
        return (_only(batch) for batch in LanceDataset(str(folder / "rows.lance"), batch_size=workload.batch_size, sampler=sampler))

    return epoch


def _only(batch: Any) -> torch.Tensor:
    return torch.as_tensor(batch["x"] if isinstance(batch, dict) else batch)


def _streaming(clump: int | None, folder: Path, workload: Workload, workers: int) -> Epoch:
    import lancedb
    from lancedb.streaming import StreamingDataset
    from torch.utils.data import DataLoader

    table = lancedb.connect(str(folder / "db")).open_table("rows")

    def rows(batch: Any) -> list[torch.Tensor]:
        return list(_tensor(batch["x"], workload.width))

    def epoch(number: int) -> Iterator[torch.Tensor]:
        stream = StreamingDataset(
            table, shuffle_seed=SEED, epoch=number, read_batch_size=workload.batch_size, shuffle_clump_size=clump, transform=rows
        )
        return iter(DataLoader(stream, batch_size=workload.batch_size))

    return epoch


def _single(folder: Path, workload: Workload, workers: int) -> Epoch:
    return _streaming(None, folder, workload, workers)


def _clumps(folder: Path, workload: Workload, workers: int) -> Epoch:
    return _streaming(16, folder, workload, workers)


CASES = (
    Case(name="dataset.take(index)", workload="segments", open=_take),
    Case(
        name="LanceDataset, ShardedBatchSampler(randomize=True)", workload="segments", open=_torch, remark="permutes whole batches"
    ),
    Case(name="LanceDB StreamingDataset", workload="segments", open=_single),
    Case(name="LanceDB StreamingDataset, clumps of 16", workload="segments", open=_clumps),
)
