"""WebDataset: 16 tar shards of .npy members, shuffled by shards and a buffer of 2,000."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.workload import SEED, Case, Epoch, Workload, every_epoch

NEEDS = ("webdataset",)


def prepare(folder: Path, workload: Workload) -> None:
    """Shards of equal size."""
    import webdataset

    values = workload.values(folder)
    pattern = str(folder / "shard-%02d.tar")
    with webdataset.ShardWriter(pattern, maxcount=-(-len(values) // 16), verbose=0) as sink:
        for number, row in enumerate(values):
            sink.write({"__key__": f"{number:08d}", "x.npy": row})


def _open(folder: Path, workload: Workload, workers: int) -> Epoch:
    import webdataset

    shards = [str(path) for path in sorted(folder.glob("shard-*.tar"))]
    stream = webdataset.WebDataset(shards, shardshuffle=16, seed=SEED).shuffle(2000).decode().to_tuple("x.npy")
    stream = stream.batched(workload.batch_size, collation_fn=_stack)
    loader = webdataset.WebLoader(stream, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
    return every_epoch(lambda: iter(loader))


def _stack(samples: Any) -> torch.Tensor:
    return torch.stack([torch.from_numpy(sample[0]) for sample in samples])


CASES = (Case(name="16 shards, shuffle(2000)", workload="segments", open=_open, workers=(0, 2)),)
