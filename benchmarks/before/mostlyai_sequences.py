"""How mostlyai-engine makes sequences today: a loop over contexts, its later variant, and the collator of its batches.

The loop and the variant are those of a fork, which holds all sequences as padded tensors; the collator is that of the engine
itself, which holds them as lists in Parquet files and pads each batch. Columns are codes already.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

Array = npt.NDArray[Any]
Tensors = dict[str, torch.Tensor]

TARGET, FLAT_CONTEXT = "tgt:", "ctxflt:"
DIGITS_FROM = 100


def pad_by_group(events: pd.DataFrame, key: str, columns: list[str], max_length: int) -> Tensors:
    """The loop: for each column and context, `get_group`, and a copy of its values."""
    contexts = events[key].unique()
    groups = events.groupby(key, sort=False)
    tensors: Tensors = {}
    for column in columns:
        padded = torch.zeros((len(contexts), max_length + 1, 1), dtype=torch.int64)
        for i, context in enumerate(contexts):
            try:
                values = groups.get_group(context)[column].to_numpy()
            except KeyError:  # a missing key has no group
                continue
            length = min(len(values), max_length)
            padded[i, :length, 0] = torch.tensor(values[:length], dtype=torch.int64)
        tensors[column] = padded
    return tensors | positions(contexts, events.groupby(key).size(), max_length)


def pad_by_indices(events: pd.DataFrame, key: str, columns: list[str], max_length: int) -> Tensors:
    """The variant: the rows of all groups are looked up once, and values are taken from plain arrays."""
    contexts = events[key].unique()
    rows = events.groupby(key, sort=False).indices
    tensors: Tensors = {}
    for column in columns:
        codes = events[column].to_numpy()
        padded = torch.zeros((len(contexts), max_length + 1, 1), dtype=torch.int64)
        for i, context in enumerate(contexts):
            if context in rows:
                values = codes[rows[context]]
                length = min(len(values), max_length)
                padded[i, :length, 0] = torch.tensor(values[:length], dtype=torch.int64)
        tensors[column] = padded
    return tensors | positions(contexts, events.groupby(key).size().to_dict(), max_length)


def positions(contexts: Any, lengths: Any, max_length: int) -> Tensors:
    """Where each step lies: from the begin, the length, from the end; with the step of zeros behind each sequence."""
    places = [None] if max_length < DIGITS_FROM else [10**e for e in reversed(range(len(str(max_length))))]
    tensors: Tensors = {}
    for place in places:
        forward, length, backward = (torch.zeros((len(contexts), max_length + 1, 1), dtype=torch.int64) for _ in range(3))
        for i, context in enumerate(contexts):
            count = int(min(lengths.get(context, 0), max_length))
            if count > 0:
                up, down = torch.arange(count + 1), torch.arange(count, -1, -1)
                forward[i, : count + 1, 0] = up if place is None else up // place % 10
                length[i, : count + 1, 0] = count if place is None else count // place % 10
                backward[i, : count + 1, 0] = down if place is None else down // place % 10
        suffix = "cat" if place is None else f"E{len(str(place)) - 1}"
        for kind, tensor in (("sidx", forward), ("slen", length), ("ridx", backward)):
            tensors[f"tgt:/__{kind}_{suffix}"] = tensor
    return tensors


class BatchCollator:
    """Lists of a batch become a frame, are cut to a window of each sequence, and then tensors as long as the longest."""

    def __init__(self, max_sequence_window: int | None) -> None:
        self._window = max_sequence_window

    def __call__(self, samples: list[dict[str, Any]]) -> Tensors:
        batch = pd.DataFrame(samples)
        if self._window:
            batch = cut_windows(batch, self._window + 1)  # one for the step of zeros behind each sequence
        tensors: Tensors = {}
        for column in batch.columns:
            if column.startswith(TARGET):
                rows: Array = np.array(list(zip_longest(*batch[column], fillvalue=0))).T
                tensors[column] = torch.tensor(rows, dtype=torch.int64).unsqueeze(-1)
            elif column.startswith(FLAT_CONTEXT):
                tensors[column] = torch.tensor(batch[column].values, dtype=torch.int64).unsqueeze(-1)
        return tensors


def cut_windows(batch: pd.DataFrame, window: int) -> pd.DataFrame:
    """One throw a batch says whether windows are at the begin, at the end, or anywhere; then cells are cut one by one."""
    targets = [column for column in batch.columns if column.startswith(TARGET)]
    lengths = batch[targets[0]].copy().str.len().values
    throw = np.random.random()
    if throw < 0.3:
        chosen = [np.arange(0, min(window, length)) for length in lengths]
    elif throw < 0.4:
        chosen = [np.arange(max(0, length - window), length) for length in lengths]
    else:
        starts = np.random.randint(low=1 - window, high=lengths, size=len(lengths))
        starts[lengths <= window] = 0
        stops = starts + window
        chosen = [
            np.arange(start, min(length, stop)) for start, stop, length in zip(np.maximum(0, starts), stops, lengths, strict=True)
        ]
    numbers = {batch.columns.get_loc(column) for column in targets}
    rows = [
        [[cell[i] for i in chosen[row]] if number in numbers else cell for number, cell in enumerate(cells)]
        for row, cells in enumerate(batch.itertuples(index=False))
    ]
    return pd.DataFrame(rows, columns=batch.columns, index=batch.index)
