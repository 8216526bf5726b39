"""The stream: features one bar at a time, bit for bit those of the batch, as both move the same engine on.

`state` and `restore` carry a stream from one process to another: what is trained on a batch goes live without a new history.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.encode.indicators.bars import Bars, read_bars
from stoker.encode.indicators.batch import PIECE, advance
from stoker.encode.indicators.compiling import compile_spec
from stoker.encode.indicators.engine import Engine
from stoker.encode.indicators.program import BAR
from stoker.encode.indicators.spec import parse_spec
from stoker.errors import BadValue, OptionError

Array = npt.NDArray[Any]


class FeatureStream:
    """The features of one series, as its bars come in. `spec` and `compat` are those of `features`."""

    def __init__(self, spec: Any, *, compat: str | None = None) -> None:
        self.spec = parse_spec(spec, compat=compat)
        self._engine = Engine(compile_spec(self.spec))
        self._columns = self._engine.program.sources
        self._places = [BAR.index(name) for name in self._columns]
        self._bar = np.empty((len(self._columns), 1))
        self._shape = (1, len(self.spec.features))
        self._last = np.full(self._shape, np.nan, dtype=np.float32)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the features."""
        return self.spec.names

    @property
    def emit_from(self) -> int:
        """The first bar at which all features are ready, if no value is missing."""
        return self.spec.emit_from

    @property
    def num_bars(self) -> int:
        """Bars so far."""
        return self._engine.num_bars

    @property
    def bar(self) -> dict[str, float]:
        """The last bar that was pushed, in the columns that the spec needs; NaN is missing."""
        return dict(zip(self._columns, self._bar[:, 0].tolist(), strict=True))

    @property
    def ready(self) -> Array:
        """Which features of the last bar mean something; bool [features]."""
        if self.spec.compat is None:
            return np.asarray(np.isfinite(self._last[0]))
        first = np.array([feature.first for feature in self.spec.features])
        return np.asarray(self.num_bars > np.maximum(first, self.emit_from))

    def push(self, bar: Any) -> Array:
        """The features at a new bar, float32 [features].

        A bar is a mapping (or a record, or a row of a table) with the columns that the spec needs, or the five numbers open,
        high, low, close, volume. None and NaN are missing.
        """
        target = self._bar
        try:
            if type(bar) is dict or hasattr(bar, "keys") or getattr(getattr(bar, "dtype", None), "names", None):
                for i, name in enumerate(self._columns):
                    target[i, 0] = bar[name]
            elif len(bar) == len(BAR):
                for i, place in enumerate(self._places):
                    target[i, 0] = bar[place]
            else:
                raise OptionError(f"a bar is a mapping or {len(BAR)} numbers ({', '.join(BAR)}); found {len(bar)}.")
        except (KeyError, TypeError, ValueError, IndexError) as error:
            self._take(bar, error)
        row = np.empty(self._shape, dtype=np.float32)
        self._engine.advance(target, row)
        self._last = row
        features: Array = row[0]
        return features

    def _take(self, bar: Any, error: Exception) -> None:
        """A bar in which something is None is taken; else say what is wrong with it."""
        if isinstance(error, OptionError):
            raise error
        if not hasattr(bar, "__getitem__"):
            raise OptionError(f"a bar is a mapping or {len(BAR)} numbers, not {type(bar).__name__}.") from None
        by_name = hasattr(bar, "keys") or getattr(getattr(bar, "dtype", None), "names", None)
        for i, name in enumerate(self._columns):
            try:
                value = bar[name] if by_name else bar[self._places[i]]
            except (KeyError, ValueError, IndexError):
                raise OptionError(f"bar {self.num_bars:,} has no {name!r}, which the spec needs.") from None
            try:
                self._bar[i, 0] = np.nan if value is None else value
            except (TypeError, ValueError):
                raise BadValue(f"{name!r} of bar {self.num_bars:,} is {str(value)[:60]!r}, not a number.") from None

    def extend(self, bars: Any) -> Array:
        """The features at many new bars, float32 [bars, features]; `bars` is a table as for `features`."""
        table = self._table(bars)
        out = np.empty((table.num_rows, self._shape[1]), dtype=np.float32)
        later = type(table)(columns=table.columns, offsets=table.offsets[-1:])  # no series begins: this one goes on
        for start in range(0, table.num_rows, PIECE):
            stop = min(start + PIECE, table.num_rows)
            advance(self._engine, later, start, stop, out[start:stop])
        if len(out):
            self._last = out[-1:].copy()
        return out

    def read(self, bars: Any) -> dict[str, Array]:
        """The columns of a table of bars that the spec needs, as arrays of numbers, NaN where missing; `extend` takes them too."""
        return self._table(bars).columns

    def _table(self, bars: Any) -> Bars:
        table = read_bars(bars, self.spec)
        if len(table.offsets) > 2:
            raise OptionError(f"a stream is one series, but these bars are {len(table.offsets) - 1:,}.")
        return table

    def reset(self) -> None:
        """Begin another series."""
        self._engine.reset()
        self._last = np.full(self._shape, np.nan, dtype=np.float32)

    def state(self) -> dict[str, Any]:
        """All that later features depend on: arrays, and the texts that say which spec they belong to.

        `np.savez(path, **stream.state())` keeps it, and `restore(np.load(path))` takes it up.
        """
        return {**self._identity(), "last": self._last.copy(), **self._engine.state()}

    def _identity(self) -> dict[str, str]:
        return {"spec": self.spec.content_hash, "compat": self.spec.compat or "exact"}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, also one of another process; it must be one of the same spec."""
        for name, own in self._identity().items():
            found = str(state.get(name))  # from a file it is an array of one text
            if found != own:
                raise OptionError(f"the state belongs to another spec: its {name} is {found!r}, expected {own!r}.")
        last = np.asarray(state.get("last"))
        if last.shape != self._shape or last.dtype != np.float32:
            raise OptionError(
                f"the state is damaged: last is {last.dtype} of shape {last.shape}, expected float32 of {self._shape}."
            )
        self._engine.restore(state)
        self._last = last.copy()
