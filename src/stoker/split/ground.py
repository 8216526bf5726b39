"""Ground: what a split stands on, looked up once. The samples of a view over a store, and where the series lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.errors import OptionError
from stoker.feed.columns import identity_of, lengths_of
from stoker.feed.layout import AnyView
from stoker.order.lengths import Lengths
from stoker.order.samples import Samples
from stoker.order.sequences import Sequences
from stoker.order.windows import Segments, Windows
from stoker.store.store import Store

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Ground:
    """A view over a store."""

    name: str
    data: str
    view: AnyView
    lengths: Lengths
    samples: Samples

    @classmethod
    def of(cls, store: Store, view: AnyView) -> Ground:
        """Checked: a store and a view with samples."""
        if not isinstance(store, Store):
            raise OptionError(f"store is {store!r}; expected what stoker.open(…), pack(…) or Store.from_arrays(…) returns.")
        if not isinstance(view, Windows | Segments | Sequences):
            raise OptionError(f"view is {view!r}; expected Windows(…), Segments(…) or Sequences(…).")
        lengths = lengths_of(store)
        samples = view.over(lengths)
        if not samples.num_samples:
            raise OptionError(f"{store.name} has no sample of {view}: {' '.join(samples.notes()) or 'it has no series.'}")
        return cls(name=store.name, data=identity_of(store), view=view, lengths=lengths, samples=samples)

    def bounds(self, first: int, last: int) -> Array:
        """Where the series `first` to `last` begin in a flat column, and where the last of them ends."""
        if self.lengths.length is not None:
            return np.arange(first, last + 1, dtype=np.int64) * self.lengths.length
        bounds = self.lengths.offsets[first : last + 1]
        bad = np.flatnonzero((np.diff(bounds) < 0) | (bounds[:-1] < 0) | (bounds[1:] > self.lengths.num_steps))
        self.lengths.check(first + int(bad[0]) if len(bad) else -1)
        return bounds

    def first_samples(self) -> Array | None:
        """The number of the first sample of each series; None where each series is one sample."""
        return self.samples.first_samples()
