"""Runs written from lists and read back as lists, for the tests of what makes, takes up and merges them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from stoker.store.pack.blocks import RowBlock
from stoker.store.pack.sorted_runs import RunLayout, SortedRun

Segment = tuple[Any, list[tuple[int, float]]]
"""A key, and rows of (time, number)."""
Series = list[tuple[Any, list[tuple[int, float]]]]

KINDS = {"int64": pa.int64(), "uint64": pa.uint64(), "text": pa.large_string()}


def layout(kind: str = "int64", *, series: bool = False, **more: Any) -> RunLayout:
    """A time and a float64 a step; with `series`, an int64 and a text a series."""
    key = None if kind == "text" else np.dtype("<u8" if kind == "uint64" else "<i8")
    per_series: list[np.dtype[Any] | None] = [np.dtype("<i8"), None] if series else []
    return RunLayout(key=key, step=[np.dtype("<i8"), np.dtype("<f8")], series=per_series, **more)


def block(segments: Sequence[Segment], kind: str = "int64", *, series: bool = False) -> RowBlock:
    rows = [row for _, part in segments for row in part]
    keys = [key for key, _ in segments]
    return RowBlock(
        keys=pa.array(keys, KINDS[kind]),
        counts=np.array([len(part) for _, part in segments], dtype=np.int64),
        step=[np.array([row[0] for row in rows], dtype="<i8"), np.array([row[1] for row in rows], dtype="<f8")],
        series=[np.array([len(str(key)) for key in keys]), pa.array([f"<{key}>" for key in keys], pa.large_string())]
        if series
        else [],
    )


def read(run: SortedRun) -> Series:
    """All series of a finished run."""
    counts = run.counts.read(0, run.num_series).tolist()
    keys = run.read_keys(0, run.num_series).to_pylist() if run.num_series else []
    times, numbers = (file.read(0, run.num_steps).tolist() for file in run.step)
    rows = list(zip(times, numbers, strict=True))
    ends = np.cumsum(counts).tolist()
    assert (ends[-1] if ends else 0) == run.num_steps
    return [(key, rows[end - count : end]) for key, count, end in zip(keys, counts, ends, strict=True)]
