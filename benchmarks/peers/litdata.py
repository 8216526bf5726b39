"""LitData: chunks of 64 MB written by `optimize`, read by its streaming dataset and loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks.peers import indexing
from benchmarks.peers.workload import SEED, Case, Epoch, Workload, every_epoch

NEEDS = ("litdata",)


def _row(values: Any, index: int) -> torch.Tensor:
    return torch.from_numpy(values[index].copy())


def _track(values: Any, index: int) -> dict[str, Any]:
    return {"x": values[:].copy()}


def prepare(folder: Path, workload: Workload) -> None:
    """Rows one by one; for windows one whole track, by the loader that it has for them."""
    from functools import partial

    import litdata

    values = workload.values(folder)
    options: dict[str, Any] = {"output_dir": str(folder / "litdata"), "num_workers": 1, "verbose": False}
    if workload.length == 1:
        litdata.optimize(partial(_row, values), inputs=list(range(len(values))), chunk_bytes="64MB", **options)
    else:
        litdata.optimize(partial(_track, values), inputs=[0], chunk_bytes="1GB", item_loader=_temporal(), **options)


def _temporal() -> Any:
    from litdata.streaming.temporal import TemporalArrayLoader

    return TemporalArrayLoader()


def _stream(folder: Path, workload: Workload, workers: int, **options: Any) -> Epoch:
    import litdata

    stream = litdata.StreamingDataset(str(folder / "litdata"), shuffle=True, seed=SEED, **options)
    loader = litdata.StreamingDataLoader(
        stream, batch_size=workload.batch_size, num_workers=workers, persistent_workers=workers > 0
    )
    return every_epoch(lambda: iter(loader))


def _item_by_item(folder: Path, workload: Workload, workers: int) -> Epoch:
    return _stream(folder, workload, workers, batch_decode=0)


def _whole_chunk(folder: Path, workload: Workload, workers: int) -> Epoch:
    return _stream(folder, workload, workers, batch_decode=0, item_shuffle_window=0)


def _windows(folder: Path, workload: Workload, workers: int) -> Epoch:
    import litdata

    track = litdata.StreamingDataset(str(folder / "litdata"), item_loader=_temporal())

    def take(index: Any) -> torch.Tensor:
        parts = [torch.from_numpy(track.read_window(0, start=int(i), frames=workload.length)["x"]) for i in index]
        return torch.stack(parts)

    return indexing.permuted(workload, take)


CASES = (
    Case(name="StreamingDataset(shuffle=True)", workload="segments", open=_stream, workers=(0, 2), remark="shuffles blocks of 256"),
    Case(name="the same, batch_decode=0", workload="segments", open=_item_by_item, workers=(0, 2)),
    Case(name="the same, whole chunks shuffled", workload="segments", open=_whole_chunk, workers=(0, 2)),
    Case(name="read_window and stack", workload="windows", open=_windows, remark="no order and no batches of its own"),
)
