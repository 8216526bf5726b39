"""MosaicML streaming: MDS shards on the local disk, its default shuffle (py1e)."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peers.workload import SEED, Case, Epoch, Workload, every_epoch

NEEDS = ("streaming",)


def _streaming() -> Any:
    """The library imports torchvision for image data sets alone; an empty stand-in serves where there is none."""
    names = ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional")
    if "torchvision" not in sys.modules and importlib.util.find_spec("torchvision") is None:
        import transformers  # noqa: F401 (looks for torchvision too, and must not find the stand-in)

        for name in names:
            sys.modules[name] = types.ModuleType(name)
        sys.modules["torchvision.datasets"].VisionDataset = object  # type: ignore[attr-defined]
        sys.modules["torchvision.transforms.functional"].to_tensor = None  # type: ignore[attr-defined]
    import streaming

    return streaming


def prepare(folder: Path, workload: Workload) -> None:
    """Shards of 64 MB, its default size."""
    columns = {"x": f"ndarray:float32:{workload.width}"}
    with _streaming().MDSWriter(out=str(folder / "mds"), columns=columns) as writer:
        for row in workload.values(folder):
            writer.write({"x": np.asarray(row)})


def _open(folder: Path, workload: Workload, workers: int) -> Epoch:
    from torch.utils.data import DataLoader

    streaming = _streaming()
    streaming.base.util.clean_stale_shared_memory()
    stream = streaming.StreamingDataset(local=str(folder / "mds"), shuffle=True, shuffle_seed=SEED, batch_size=workload.batch_size)
    loader: Any = DataLoader(
        stream, batch_size=workload.batch_size, num_workers=workers, persistent_workers=workers > 0, collate_fn=_stack
    )
    return every_epoch(lambda: iter(loader))


def _stack(samples: Any) -> torch.Tensor:
    return torch.from_numpy(np.stack([sample["x"] for sample in samples]))


CASES = (Case(name="StreamingDataset(shuffle=True)", workload="segments", open=_open, workers=(0, 2)),)
