"""Folders as Time-MoE reads them, made here: `meta.json` and raw little-endian files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def write_folder(
    folder: Path,
    sequences: Sequence[Array],
    *,
    dtype: str = "float32",
    num_files: int = 1,
    scales: Sequence[Mapping[str, float]] | None = None,
) -> Path:
    """Write sequences one after another, cut into `num_files` of equal size wherever that falls: a sequence may span files.

    `scales` gives each sequence a `mean` and a `std` that a reader has to multiply back.
    """
    folder.mkdir(parents=True)
    lengths = [len(sequence) for sequence in sequences]
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).tolist()
    values = np.concatenate([np.asarray(sequence, dtype=dtype) for sequence in sequences]) if lengths else np.empty(0, dtype)
    cuts = [len(values) * number // num_files for number in range(num_files + 1)]
    files = {}
    for number in range(num_files):
        name = f"data-{number + 1}-of-{num_files}.bin"
        values[cuts[number] : cuts[number + 1]].astype(values.dtype.newbyteorder("<")).tofile(folder / name)
        files[name] = cuts[number + 1] - cuts[number]
    entries = [{"offset": offset, "length": length} for offset, length in zip(offsets, lengths, strict=False)]
    for entry, scale in zip(entries, scales or (), strict=False):
        entry.update(scale)
    meta = {"num_sequences": len(lengths), "dtype": dtype, "files": files, "scales": entries}
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


def walks(lengths: Sequence[int], seed: int = 0) -> list[Array]:
    """Random walks, float32: every one has its own level and scale, so that normalisation matters."""
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(scale=50) + rng.lognormal() * np.cumsum(rng.standard_normal(length, dtype=np.float32))).astype(np.float32)
        for length in lengths
    ]
