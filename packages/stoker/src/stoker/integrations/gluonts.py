"""The series of a store as a dataset of GluonTS."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from stoker.store.store import Series, Store


class StoreEntries:
    """An iterable of entries with `start`, `target` and `item_id`, which every estimator and predictor of GluonTS takes.

    Arrays are views of the memory-mapped columns: nothing is loaded before a transformation asks for it.

    Args:
        store: A store whose series have equal steps of time.
        target: The column to forecast.
        freq: The frequency of the steps, as pandas names it.
        time: The column of times, whose first value is the start of a series. Without one all series start at 1970-01-01.
        dynamic_reals: Columns whose future is known, as rows of `feat_dynamic_real`.

    Raises:
        OptionError: The store has no such column.

    Example:
        >>> import numpy as np, stoker
        >>> store = stoker.Store.from_arrays(load=[np.arange(4.0), np.arange(3.0)])
        >>> [entry["target"].tolist() for entry in StoreEntries(store, target="load", freq="h")]  # doctest: +SKIP
        [[0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0]]
    """

    def __init__(self, store: Store, *, target: str, freq: str, time: str | None = None, dynamic_reals: Sequence[str] = ()) -> None:
        for name in (target, *([time] if time else []), *dynamic_reals):
            store.field(name)
        self.store, self.target, self.freq, self.time, self.dynamic_reals = store, target, freq, time, tuple(dynamic_reals)

    def __len__(self) -> int:
        return len(self.store)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number, series in enumerate(self.store):
            name = number if self.store.key is None else series[self.store.key]
            entry = {"start": self._start(series), "target": np.asarray(series[self.target]), "item_id": str(name)}
            if self.dynamic_reals:
                entry["feat_dynamic_real"] = np.stack([np.asarray(series[name], np.float32) for name in self.dynamic_reals])
            yield entry

    def _start(self, series: Series) -> pd.Period:
        if self.time is None:
            return pd.Period("1970-01-01", freq=self.freq)
        unit = (self.store.schema[self.time].unit or "ns").split(",")[0]  # the rest is a time zone
        return pd.Period(pd.Timestamp(int(series[self.time][0]), unit=unit), freq=self.freq)
