"""How Time-MoE reads series today: open the file, read the whole series, normalise it all, cut one window, pad it.

Written again from the behaviour of the original: the same results bit for bit, and the same work for each sample. The progress
bar of the index is left out, because it would only slow it down. It is also what the tests compare `TimeMoeDataset` with.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Scaler = Callable[[Array], Array]


class Sequences(Protocol):
    """What both kinds of files offer."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Any: ...
    def num_points(self, index: int) -> int:
        """Length of one sequence."""
        ...


class BinaryDataset:
    """A folder with `meta.json` and `data-1-of-n.bin`, `data-2-of-n.bin`, ...: each access opens, seeks and reads."""

    def __init__(self, folder: Path) -> None:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        self._num_sequences: int = meta["num_sequences"]
        self._dtype = np.dtype(meta["dtype"])
        self._scales: list[dict[str, Any]] = meta["scales"]
        self._files: list[tuple[str, int, int]] = []
        start = 0
        for name in sorted(meta["files"], key=lambda file: int(file.split("-")[1])):
            self._files.append((str(folder / name), start, start + meta["files"][name]))
            start += meta["files"][name]

    def __len__(self) -> int:
        return self._num_sequences

    def __getitem__(self, index: int) -> Array:
        scale = self._scales[index]
        parts = [self._read(name, start, count) for name, start, count in self._places(scale["offset"], scale["length"])]
        sequence = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return sequence * scale["std"] + scale["mean"] if "mean" in scale and "std" in scale else sequence

    def num_points(self, index: int) -> int:
        """Length of one sequence."""
        return int(self._scales[index]["length"])

    def _places(self, offset: int, length: int) -> list[tuple[str, int, int]]:
        """File, first element in it and number of elements, for each file that holds a part; every file is inspected."""
        places = []
        end = offset + length
        for name, start, stop in self._files:
            if start <= offset < stop:
                count = min(end, stop) - offset
                places.append((name, offset - start, count))
                offset += count
                if offset == end:
                    break
        return places

    def _read(self, name: str, first: int, count: int) -> Array:
        values = np.empty(count, dtype=self._dtype)
        with open(name, "rb", buffering=0) as file:  # noqa: PTH123 (as it is run: `Path.open` would cost more)
            file.seek(first * values.itemsize)
            file.readinto(values)
        return values


class GeneralDataset:
    """A `.json`, `.jsonl` or `.npy` file, wholly in memory: sequences, or objects with a `sequence`."""

    def __init__(self, path: Path) -> None:
        if path.suffix == ".npy":
            self._data: Sequence[Any] | Array = np.load(path)
        elif path.suffix == ".jsonl":
            with path.open(encoding="utf-8") as file:
                self._data = [json.loads(line) for line in file]
        else:
            self._data = json.loads(path.read_text(encoding="utf-8"))

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        sequence = self._data[index]
        return sequence["sequence"] if isinstance(sequence, dict) else sequence

    def num_points(self, index: int) -> int:
        """Length of one sequence."""
        return len(self[index])


def zero_scaler(sequence: Any) -> Array:
    """Centre and divide by the population deviation of the WHOLE sequence, in its own dtype."""
    values = np.asarray(sequence)
    mean, deviation = values.mean(), values.std()
    normed = values - mean if deviation == 0 else (values - mean) / deviation
    return np.asarray(normed.astype(values.dtype))


def max_scaler(sequence: Any) -> Array:
    """Divide by the largest magnitude of the WHOLE sequence, in its own dtype."""
    values = np.asarray(sequence)
    largest = np.abs(values).max()
    normed = values if largest == 0 else values / largest
    return np.asarray(normed.astype(values.dtype))


SCALERS: dict[str | None, Scaler | None] = {None: None, "none": None, "zero": zero_scaler, "max": max_scaler}


def is_binary(folder: Path) -> bool:
    """Whether a folder is a binary data set."""
    return (folder / "meta.json").exists() and any(path.suffix == ".bin" and path.is_file() for path in folder.iterdir())


def find_datasets(path: Path) -> Iterator[Sequences]:
    """What a path names: a binary folder, a general file, or all of both in a tree. Names are sorted; originally they are not."""
    if path.is_dir() and is_binary(path):
        yield BinaryDataset(path)
    elif path.is_file():
        yield GeneralDataset(path)
    else:
        for place, folders, names in os.walk(path):
            folders.sort()
            for name in sorted(names):
                if name != "meta.json" and name.split(".")[-1] in ("json", "jsonl", "npy"):
                    yield GeneralDataset(Path(place, name))
            yield from (BinaryDataset(Path(place, name)) for name in folders if is_binary(Path(place, name)))


class TimeMoEDataset:
    """Sequences of binary folders and general files one after the other, each normalised again at every access."""

    def __init__(self, path: Path, normalization_method: str | None = None) -> None:
        self._datasets = [dataset for dataset in find_datasets(path) if len(dataset)]
        self._firsts = [0, *accumulate(len(dataset) for dataset in self._datasets)]
        self._scale = SCALERS[normalization_method]

    def __len__(self) -> int:
        return self._firsts[-1]

    def _place(self, index: int) -> tuple[Sequences, int]:
        if not 0 <= index < len(self):
            raise ValueError(f"index {index} is outside of the {len(self)} sequences")
        at = bisect_right(self._firsts, index) - 1
        return self._datasets[at], index - self._firsts[at]

    def __getitem__(self, index: int) -> Any:
        dataset, number = self._place(index)
        return dataset[number] if self._scale is None else self._scale(dataset[number])

    def num_points(self, index: int) -> int:
        """Length of one sequence."""
        dataset, number = self._place(index)
        return dataset.num_points(number)


class TimeMoEWindowDataset:
    """Windows of `context_length + prediction_length` points and one more: a list with each window's sequence and offset."""

    def __init__(
        self, dataset: TimeMoEDataset, context_length: int, prediction_length: int = 0, stride: int | None = None, **_: Any
    ) -> None:
        self._dataset = dataset
        self._points = context_length + prediction_length + 1
        step = stride or context_length + prediction_length
        self._places: list[tuple[int, int]] = []
        for index in range(len(dataset)):
            num_points = dataset.num_points(index)
            if num_points < 2:
                continue
            self._places.append((index, 0))
            for offset in range(step, num_points - self._points + 1, step):
                self._places.append((index, offset))

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[dict[str, Array]]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> dict[str, Array]:
        sequence, offset = self._places[index]
        values = np.array(self._dataset[sequence][offset : offset + self._points], dtype=np.float32)
        mask = np.ones(len(values) - 1, dtype=np.int32)
        missing = self._points - len(values)
        if missing > 0:
            values = np.pad(values, (0, missing), "constant", constant_values=0)
            mask = np.pad(mask, (0, missing), "constant", constant_values=0)
        return {"input_ids": values[:-1], "labels": values[1:], "loss_masks": mask}


def collate(samples: list[dict[str, Array]]) -> dict[str, Any]:
    """Stack each key, as the default collator of HF's Trainer does with arrays."""
    import torch

    return {name: torch.from_numpy(np.stack([sample[name] for sample in samples])) for name in samples[0]}
