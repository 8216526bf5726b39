"""The predictor: one bar in, one logit out, as in the training.

    predictor = Predictor.load("bundle/")
    predictor.warm(history)                 # bars of the last days, so that indicators have their past
    logit = predictor.push(bar)             # None until enough rows are ready

The features are those of the batch, bit for bit, as one engine makes both. A row that is not ready gives None. A missing price ends
the series, as in the training, and its indicators begin anew behind it: nothing is padded, filled or clipped.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

import stoker
from stoker.errors import OptionError
from stoker.recipes.tfa.banded import Banded
from stoker.recipes.tfa.build import TfaModel
from stoker.recipes.tfa.bundle import Bundle, read_bundle

Array = npt.NDArray[Any]

_ROOM = 4
"""Windows that the memory of rows holds; it is moved to the front when full, so rows are copied now and then, not at each bar."""


class Predictor:
    """Logits of one series, as its bars come in. `Predictor.load` makes one from a bundle."""

    def __init__(self, bundle: Bundle, spec: Any, model: TfaModel) -> None:
        self.bundle = bundle
        self._stream = stoker.encode.FeatureStream(spec)
        self._model = model
        self._prices = [name for name in self._stream.bar if name != "volume"]
        self._rows = np.empty((_ROOM * bundle.reach, len(bundle.features)), dtype=np.float32)
        self._end = 0
        """Behind the last row in memory."""
        self._ready = 0
        """Rows in a row that are ready."""
        self._last = np.full(len(bundle.features), np.nan, dtype=np.float32)

    @classmethod
    def load(cls, folder: str | Path, *, spec: Any = None, length: int | None = None) -> Self:
        """Read a bundle. Who has a spec or a window of his own can give it, and is refused if the model knows another."""
        bundle, own, model = read_bundle(Path(folder))
        if spec is not None:
            given = stoker.encode.FeatureStream(spec).spec.content_hash
            if given != bundle.spec_hash:
                raise OptionError(f"the spec here is {given}, but the model of {folder} was trained on {bundle.spec_hash}.")
        if length is not None and length != bundle.length:
            raise OptionError(f"windows here have {length} rows, but the model of {folder} was trained on {bundle.length}.")
        return cls(bundle, own, model)

    @property
    def num_bars(self) -> int:
        """Bars so far."""
        return self._stream.num_bars

    @property
    def features(self) -> Array:
        """The features at the last bar, float32."""
        return self._last

    @property
    def is_ready(self) -> bool:
        """Whether the last bar had a logit."""
        return self._ready >= self.bundle.reach

    @property
    def bars_to_go(self) -> int:
        """Whole bars until there is a logit."""
        return max(self.bundle.warm_up - self.num_bars, 0) + self.bundle.reach - self._ready

    def push(self, bar: Any) -> float | None:
        """The logit at a new bar (a mapping, a record, or open, high, low, close, volume); None as long as there is none."""
        row = self._stream.push(bar)
        if any(not 0 < self._stream.bar[name] < math.inf for name in self._prices):
            self.reset()  # as in a training: a series ends where a price is missing, and what follows is another
            return None
        self._take(row)
        return self._logit() if self.is_ready else None

    def warm(self, bars: Any) -> None:
        """Take in the history of the series, a table of bars, without logits: all is then as if each bar had been pushed."""
        columns = self._stream.read(bars)
        holes = [np.flatnonzero(~((columns[name] > 0) & (columns[name] < math.inf))) for name in self._prices]
        begin = max((int(rows[-1]) + 1 for rows in holes if len(rows)), default=0)
        if begin:
            self.reset()  # as `push` does at each missing price: what is before the last of them is of another series
        before = self.num_bars
        rows = self._stream.extend({name: values[begin:] for name, values in columns.items()})
        # Only the rows that a window can still hold matter, and whether those before them were ready.
        for number, row in enumerate(rows[-self.bundle.reach :], max(before, self.num_bars - self.bundle.reach) + 1):
            self._take(row, num_bars=number)

    def reset(self) -> None:
        """Begin another series."""
        self._stream.reset()
        self._end = self._ready = 0
        self._last = np.full(len(self.bundle.features), np.nan, dtype=np.float32)

    def _take(self, row: Array, *, num_bars: int | None = None) -> None:
        self._last = row
        if (self.num_bars if num_bars is None else num_bars) <= self.bundle.warm_up or not np.isfinite(row).all():
            self._end = self._ready = 0
            return
        if self._end == len(self._rows):
            keep = self.bundle.reach - 1
            self._rows[:keep] = self._rows[self._end - keep : self._end]
            self._end = keep
        self._rows[self._end] = row
        self._end += 1
        self._ready = min(self._ready + 1, self.bundle.reach)

    def _logit(self) -> float:
        window = torch.from_numpy(self._rows[None, self._end - self.bundle.reach : self._end])
        with torch.inference_mode():
            logits = self._model.last(window) if isinstance(self._model, Banded) else self._model(window)[:, -1]
        return float(logits[0])
