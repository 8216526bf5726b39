"""Samples of series, in two ways, and `TimeMoeDataset`, a drop-in for the authors' `TimeMoEWindowDataset`.

    Pieces          pieces of at most L positions, end to end: every next point of every series is a target exactly once
    CompatSamples   the authors' windows bit for bit: left-over points are dropped, statistics are those of the storage type

A piece of m positions has m + 1 points: the input is all but the last, the target all but the first. Where the last share of each
series is kept for validation, training pieces end before it, and the scale of a series is computed from its training points alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

import stoker
from stoker.errors import OptionError
from stoker.extend import Array, kernel
from stoker_recipes.time_moe.data import Corpus, open_corpus

if TYPE_CHECKING:
    import torch

Method = Literal["zero", "max", "none"]
Part = Literal["train", "valid"]

LEAST_DEVIATION = 1e-7
"""Relative to the mean: the deviation of a constant series consists of rounding errors, and dividing by it would give noise."""


class LocatedPieces(NamedTuple):
    """The positions of pieces, one number per piece each."""

    series: Array
    starts: Array  # the first point in the flat array
    counts: Array  # positions: one less than points


class Pieces:
    """The pieces of one part of all series. `valid` is the share of each series, at its end, for validation."""

    def __init__(self, corpus: Corpus, length: int, *, valid: float = 0.0, part: Part = "train") -> None:
        self.corpus = corpus
        self.length = length
        cuts = train_ends(corpus, valid)
        self.begins, self.ends = (corpus.begins, cuts) if part == "train" else (cuts, corpus.ends)
        positions = np.maximum(self.ends - self.begins - 1, 0)
        self.num_positions = int(positions.sum())  # targets of all pieces
        self._firsts: Array = np.concatenate([[0], np.cumsum(-(-positions // length))])
        self.num_samples = int(self._firsts[-1])
        if not self.num_samples:
            raise OptionError(
                f"{corpus.name} has no samples for the {part} part: none of its {len(corpus):,} series has 2 points there. "
                f"Change the share of validation, or use longer series.",
                parameter="columns",
            )

    @property
    def filled(self) -> float:
        """The share of positions with a target if each piece had its own row."""
        return self.num_positions / (self.num_samples * self.length)

    def locate(self, numbers: Array) -> LocatedPieces:
        """The positions of these pieces."""
        series = np.searchsorted(self._firsts, numbers, side="right") - 1
        starts = self.begins[series] + (numbers - self._firsts[series]) * self.length
        return LocatedPieces(series, starts, np.minimum(self.ends[series] - 1 - starts, self.length))


def train_ends(corpus: Corpus, valid: float) -> Array:
    """Where the training points of each series end."""
    if not valid:
        return corpus.ends
    return np.asarray(corpus.ends - (corpus.lengths * valid).astype(np.int64))


class CorpusScales:
    """The center and divisor of each series, in float64 over finite points; computed when a series is first used."""

    def __init__(self, corpus: Corpus, method: Method, *, ends: Array | None = None) -> None:
        self.method, self._corpus = method, corpus
        self._ends = corpus.ends if ends is None else ends
        self.centers: Array = np.zeros(len(corpus))
        self.divisors: Array = np.ones(len(corpus))
        self._known: Array = np.full(len(corpus), method == "none")

    def know(self, series: Array) -> None:
        """Compute the scales of these series, if not known yet."""
        unknown = np.unique(series[~self._known[series]])
        if not len(unknown):
            return
        flats = self._corpus.flat_of(unknown)
        for at in np.unique(flats).tolist():
            some = unknown[flats == at]
            values = self._corpus.flats[at].values
            begins, ends = self._corpus.begins[some], self._ends[some]
            centers, divisors = np.empty(len(some)), np.empty(len(some))
            if values.dtype == np.float16:  # numba does not support it
                values, begins, ends = gathered(values, begins, ends)
            measure = _measure_moments if self.method == "zero" else _measure_largest
            measure(values, begins, ends, LEAST_DEVIATION, centers, divisors)
            self.centers[some], self.divisors[some] = centers, divisors
        self._known[unknown] = True


def gathered(values: Array, begins: Array, ends: Array) -> tuple[Array, Array, Array]:
    """Ranges of float16 concatenated as float32, and their bounds there."""
    parts = [values[begin:end].astype(np.float32) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    bounds = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return np.concatenate(parts), bounds[:-1], bounds[1:]


@kernel
def _largest(values: Array, begin: int, end: int) -> float:
    """The largest absolute value that is finite."""
    largest = 0.0
    for t in range(begin, end):
        x = abs(np.float64(values[t]))
        if np.isfinite(x) and x > largest:
            largest = x
    return largest


@kernel
def _measure_moments(values: Array, begins: Array, ends: Array, least: float, centers: Array, divisors: Array) -> None:
    for i in range(len(begins)):
        total, count = 0.0, 0
        for t in range(begins[i], ends[i]):
            x = np.float64(values[t])
            if np.isfinite(x):
                total += x
                count += 1
        mean = total / count if count else 0.0
        squares = 0.0
        for t in range(begins[i], ends[i]):
            x = np.float64(values[t])
            if np.isfinite(x):
                squares += (x - mean) * (x - mean)
        deviation = np.sqrt(squares / count) if count else 0.0
        if not np.isfinite(deviation):  # overflow: again, in units of the largest value
            largest, mean, squares = _largest(values, begins[i], ends[i]), 0.0, 0.0
            for t in range(begins[i], ends[i]):
                x = np.float64(values[t]) / largest
                mean += x / count if np.isfinite(x) else 0.0
            for t in range(begins[i], ends[i]):
                x = np.float64(values[t]) / largest
                squares += (x - mean) * (x - mean) if np.isfinite(x) else 0.0
            mean, deviation = mean * largest, np.sqrt(squares / count) * largest
        centers[i] = mean
        divisors[i] = deviation if deviation > least * abs(mean) and deviation > 0 else 1.0


@kernel
def _measure_largest(values: Array, begins: Array, ends: Array, least: float, centers: Array, divisors: Array) -> None:
    for i in range(len(begins)):
        largest = _largest(values, begins[i], ends[i])
        centers[i] = 0.0
        divisors[i] = largest if largest > 0 else 1.0


def scale_as_theirs(series: Array, method: Method) -> tuple[Any, Any]:
    """Return what the authors subtract from a series, and what they divide it by, as NumPy has them for the type of the series."""
    with np.errstate(all="ignore"):
        divisor = series.std() if method == "zero" else np.abs(series).max()
        # Where it is 0 they do not divide, which is the same as dividing by 1; nothing is subtracted for "max".
        return series.mean() if method == "zero" else type(divisor)(0), divisor if divisor != 0 else type(divisor)(1)


@kernel
def _scale_windows(
    values: Array, starts: Array, counts: Array, centers: Array, divisors: Array, places: Array, rows: Array
) -> None:
    for i in range(len(starts)):
        x, y, center, divisor = values[starts[i] : starts[i] + counts[i]], rows[places[i]], centers[i], divisors[i]
        for t in range(len(x)):
            y[t] = (x[t] - center) / divisor


@kernel
def _finish_windows(counts: Array, rows: Array, masks: Array) -> None:
    """Zero what is behind the points of a window, and mark its targets."""
    for i in range(len(counts)):
        rows[i, counts[i] :] = 0
        masks[i, : counts[i] - 1] = 1
        masks[i, counts[i] - 1 :] = 0


class CompatSamples:
    """The windows of the authors' data set over all series: of `length + 1` points, left-over points dropped.

    A series that is shorter than a window is one window, padded with zeros. Values are computed by NumPy with the authors' arithmetic in
    the type of the series: integers are truncated, and unsigned ones wrap around.
    """

    def __init__(self, corpus: Corpus, length: int, *, stride: int | None = None, method: Method = "none") -> None:
        self.corpus = corpus
        self._length, self._stride, self._method = length, stride or length, method
        counts = np.where(corpus.lengths > length, (corpus.lengths - length - 1) // self._stride + 1, corpus.lengths > 1)
        self._firsts: Array = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._scales: dict[int, tuple[Any, Any]] = {}
        if not self._firsts[-1]:
            raise OptionError(f"{corpus.name} has no window: none of its {len(corpus):,} series has 2 points.", parameter="columns")

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def gather(self, numbers: Sequence[int] | Array) -> dict[str, Any]:
        """These windows together: `input_ids`, `labels` (float32) and `loss_masks` (int32)."""
        import torch

        wanted = np.asarray(numbers, dtype=np.int64)
        series = np.searchsorted(self._firsts, wanted, side="right") - 1
        starts = (wanted - self._firsts[series]) * self._stride
        counts = np.minimum(self.corpus.ends[series] - self.corpus.begins[series] - starts, self._length + 1)
        rows = np.empty((len(wanted), self._length + 1), dtype=np.float32)
        flats = self.corpus.flat_of(series)
        for at in np.unique(flats).tolist():
            flat, places = self.corpus.flats[at], np.flatnonzero(flats == at)
            if flat.own is None:
                self._fill(rows, places, flat.values, self.corpus.begins[series] + starts, series, counts)
                continue
            listed = flat.file in ("json", "jsonl") and self._method == "none"
            for place in places:  # series of a type of their own
                typed = flat.own[int(series[place]) - int(self.corpus.firsts[at])]
                typed = typed.astype(np.float64) if listed else typed  # a list of Python numbers becomes float32 through float64
                self._fill(rows, np.array([place]), typed, starts, series, counts)
        masks = np.empty((len(wanted), self._length), dtype=np.int32)
        _finish_windows(counts, rows, masks)
        batch = {"input_ids": rows[:, :-1], "labels": rows[:, 1:], "loss_masks": masks}
        return {name: torch.from_numpy(values) for name, values in batch.items()}

    def _fill(self, rows: Array, places: Array, values: Array, starts: Array, series: Array, counts: Array) -> None:
        """Write some windows of an array; each point is scaled alone, as the whole series is."""
        starts, counts = starts[places], counts[places]
        scales = [self._scale(number) for number in series[places].tolist()] if self._method != "none" else [(0, 1)] * len(places)
        centers, divisors = (np.array(part) for part in zip(*scales, strict=True))
        if values.dtype in (np.float32, np.float64):
            _scale_windows(values, starts, counts, centers.astype(values.dtype), divisors.astype(values.dtype), places, rows)
            return
        for place, start, count, center, divisor in zip(places, starts, counts, centers, divisors, strict=True):
            points = values[start : start + count]
            with np.errstate(all="ignore"):
                points = points - center if self._method == "zero" else points
                points = points / divisor if self._method != "none" else points
                rows[place, :count] = points.astype(values.dtype).astype(np.float32)

    def _scale(self, number: int) -> tuple[Any, Any]:
        """Return the scale of a series, which is computed once."""
        if number not in self._scales:
            at = int(self.corpus.flat_of(np.array(number)))
            typed = self.corpus.flats[at].own
            series = self.corpus.series(number) if typed is None else typed[number - int(self.corpus.firsts[at])]
            self._scales[number] = scale_as_theirs(series, self._method)
        return self._scales[number]


# ---- the data set for the Trainer of Hugging Face ----


class Together(Sequence[dict[str, Any]]):
    """Samples that were gathered as one batch: a sequence of samples, and the batch."""

    def __init__(self, batch: dict[str, torch.Tensor], size: int) -> None:
        self.batch = batch
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self._size):
            yield {name: rows[number] for name, rows in self.batch.items()}


class TimeMoeDataset:
    """A drop-in for the authors' `TimeMoEWindowDataset`: the same samples bit for bit, gathered a batch at a time.

        dataset = TimeMoeDataset("time300b/", context_length=2048, normalization_method="zero")
        Trainer(..., train_dataset=dataset, data_collator=dataset.collate)

    Samples are windows of `context_length + prediction_length` points: `input_ids` and `labels` (float32), `loss_masks` (int32).
    Length, keys, types and numbering are the authors', so the same sampler with the same seed gives the same order. Folders are
    sorted, where the authors' order is that of the file system.

    Args:
        path: Anything that `open_corpus` takes: a tree of the authors' folders and files, one of them, or a store.
        context_length: Points of a window.
        prediction_length: Further points of a window.
        stride: Steps between two windows. Default: their length.
        normalization_method: "zero", "max", "none" or None.

    Raises:
        OptionError: An option is invalid.
        SourceError: The data cannot be read.

    Example:
        >>> import stoker
        >>> dataset = TimeMoeDataset(stoker.Store.from_arrays(x=[[1.0, 2.0, 3.0, 4.0]]), context_length=3)
        >>> len(dataset), dataset[0]["input_ids"].tolist(), dataset[0]["labels"].tolist()
        (1, [1.0, 2.0, 3.0], [2.0, 3.0, 4.0])
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | stoker.Store,
        context_length: int,
        prediction_length: int = 0,
        stride: int | None = None,
        normalization_method: Method | None = None,
        **ignored: Any,
    ) -> None:
        if normalization_method not in (None, *get_args(Method)):
            advice = "To use your own function, pack series that it has been applied to."
            raise OptionError(
                f"normalization_method is {normalization_method!r}; expected 'zero', 'max', 'none' or None. {advice}",
                parameter="normalization_method",
            )
        if set(ignored) - {"shuffle"}:  # the authors' class takes, and ignores, everything
            raise OptionError(f"TimeMoeDataset has no option {min(set(ignored) - {'shuffle'})!r}.", parameter="columns")
        self._arguments = (path, context_length, prediction_length, stride, normalization_method)
        self._samples = CompatSamples(
            open_corpus(path), context_length + prediction_length, stride=stride, method=normalization_method or "none"
        )

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        sample: dict[str, torch.Tensor] = self.__getitems__([index])[0]
        return sample

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return (self[index] for index in range(len(self)))

    def __getitems__(self, indices: Sequence[int]) -> Together:
        """Many samples at once."""
        numbers = np.asarray(indices, dtype=np.int64)
        bad = numbers[(numbers < 0) | (numbers >= len(self))]
        if len(bad):
            raise IndexError(f"there are {len(self):,} windows; there is no window {bad[0]:,}.")
        return Together(self._samples.gather(numbers), len(numbers))

    @staticmethod
    def collate(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The batch that was gathered, or one stacked from single samples."""
        if isinstance(samples, Together):
            return samples.batch
        import torch

        return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}

    def __reduce__(self) -> tuple[Any, ...]:
        """Only the path is pickled: worker processes open the data themselves."""
        return type(self), self._arguments
