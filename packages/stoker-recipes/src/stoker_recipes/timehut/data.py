"""Series for an encoder: read from files of UCR or UEA, or given as arrays; padded, scaled and cut to the shape (series, steps, channels).

Shorter series are padded with NaN at their end. For training they are centred, as TS2Vec does, so that crops do not see padding at one
side only; series longer than `max_train_length` are cut into equal sections.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import stoker
from stoker.errors import OptionError, SourceInvalidError
from stoker.extend import Array, disk

SUFFIXES = (".tsv", ".ts", ".arff")


@dataclass(frozen=True, kw_only=True)
class LabelledSeries:
    """A set of series."""

    name: str
    values: Array
    """(N, T, D) float32; NaN is missing."""
    labels: Array | None
    """(N,) strings; None where the file has none."""


@dataclass(frozen=True, kw_only=True)
class GlobalScaler:
    """One mean and standard deviation per channel, of all training series together."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, values: Array) -> Array:
        """The values, scaled."""
        scaled: Array = (values - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return scaled


def read_series(path: str | Path) -> LabelledSeries:
    """Read a set of series: `.tsv` of UCR, `.ts` or `.arff` of UEA, or a store with columns of numbers and, perhaps, `label`.

    Args:
        path: The file.

    Returns:
        The series and their labels.

    Raises:
        SourceError: The file is missing or damaged.
    """
    path = Path(path)
    if (path / "manifest.json").is_file():
        return read_store(stoker.open(path), path.name)
    with disk.temporary_folder() as folder:
        return read_store(stoker.pack(str(path), folder / "set.stoker"), path.stem)


def read_store(store: stoker.Store, name: str) -> LabelledSeries:
    """The series of an open store: every column of numbers is a channel, `label` holds the classes."""
    table = store.to_arrow()
    labels = table["label"].combine_chunks() if "label" in table.column_names else None
    chosen = [
        channel
        for channel, column in store.schema.items()
        if channel not in ("label", "target", "time", store.key, store.time) and column.level == "step" and column.kind == "number"
    ]
    columns = [[np.asarray(row, np.float32) for row in table[channel].to_pylist()] for channel in chosen]
    if not columns:
        raise SourceInvalidError(
            f"{name} has no column of numbers with one value per step; expected a .tsv of UCR, or a .ts or .arff of UEA."
        )
    series = [np.stack(rows, -1) for rows in zip(*columns, strict=True)]
    texts = None if labels is None else np.array([str(label) for label in labels.to_pylist()])
    return LabelledSeries(name=name.removesuffix("_TRAIN").removesuffix("_TEST"), values=pad(series), labels=texts)


def pad(series: Sequence[Array]) -> Array:
    """Series (T_i, D) as one array (N, T, D), padded with NaN at the end."""
    longest = max((len(values) for values in series), default=0)
    padded = np.full((len(series), longest, series[0].shape[1] if len(series) else 1), np.nan, np.float32)
    for i, values in enumerate(series):
        padded[i, : len(values)] = values
    return padded


def as_series(X: Any) -> Array:
    """Series as (N, T, D) from what scikit-learn and aeon users have.

    Args:
        given: (N, T); (N, channels, T), which is aeon's order; or a list of arrays (channels, T_i) or (T_i,).

    Raises:
        OptionError: Another shape, or Inf.
    """
    if isinstance(X, np.ndarray) and X.dtype != object:
        if X.ndim not in (2, 3):
            raise OptionError(f"X has the shape {X.shape}; expected (series, steps) or (series, channels, steps).", parameter="X")
        values = X[:, None] if X.ndim == 2 else X
        series = np.ascontiguousarray(values.transpose(0, 2, 1), np.float32)
    else:
        rows = [np.asarray(row, np.float32) for row in X]
        rows = [row[None] if row.ndim == 1 else row for row in rows]
        if not rows or any(row.ndim != 2 for row in rows) or len({len(row) for row in rows}) > 1:
            raise OptionError("X is a list; expected arrays (channels, steps) with the same number of channels.", parameter="X")
        series = pad([row.T for row in rows])
    if np.isinf(series).any():
        raise OptionError("X has infinity; expected finite values, or NaN where one is missing.", parameter="X")
    return series


def fit_scaler(values: Array, *, normalize: str = "auto") -> GlobalScaler | None:
    """The scaler of training series; None where they stay as they are.

    Args:
        values: (N, T, D).
        normalize: "auto" scales unless every series is z-normalised already, as most of UCR's are; "global" always; "none" never.

    Raises:
        OptionError: Another value of `normalize`.
    """
    if normalize not in ("auto", "global", "none"):
        raise OptionError.expected("normalize", normalize, "'auto', 'global' or 'none'")
    if normalize == "none":
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # channels without any value
        if normalize == "auto":
            mean, std = np.nanmean(values, 1), np.nanstd(values, 1)
            # A constant series has deviation 0 after z-normalisation, too.
            if bool(((np.abs(mean) < 0.01) & ((np.abs(std - 1) < 0.05) | (std < 0.01)) | np.isnan(mean)).mean() > 0.99):
                return None
        mean, std = np.nanmean(values, (0, 1), dtype=np.float64), np.nanstd(values, (0, 1), dtype=np.float64)
    std = np.where(std > 0, std, 1.0)
    return GlobalScaler(mean=tuple(np.nan_to_num(mean).tolist()), std=tuple(np.nan_to_num(std, nan=1.0).tolist()))


def for_training(values: Array, *, max_length: int = 3000) -> Array:
    """Series as the crops want them: without empty ones, cut into sections, padding at both sides.

    Raises:
        OptionError: No series has a value, or all have one step.
    """
    sections = values.shape[1] // max_length
    if sections >= 2:
        values = np.concatenate([_padded_to(part, -(-values.shape[1] // sections)) for part in np.array_split(values, sections, 1)])
    empty: Array = np.asarray(np.isnan(values).all(-1))
    if empty[:, 0].any() or empty[:, -1].any():
        values = _centred(values, empty)
    values = values[~np.isnan(values).all((1, 2))]
    if not len(values) or values.shape[1] < 2:
        raise OptionError("there is no series of at least 2 steps to train on.", parameter="values")
    return values


def _padded_to(values: Array, steps: int) -> Array:
    return np.pad(values, ((0, 0), (0, steps - values.shape[1]), (0, 0)), constant_values=np.nan)


def _centred(values: Array, empty: Array) -> Array:
    """Each series moved so that its padding is half before and half behind it."""
    centred = np.full_like(values, np.nan)
    for i, row in enumerate(values):
        known = np.flatnonzero(~empty[i])
        if known.size:
            piece = row[known[0] : known[-1] + 1]
            begin = (values.shape[1] - len(piece)) // 2
            centred[i, begin : begin + len(piece)] = piece
    return centred
