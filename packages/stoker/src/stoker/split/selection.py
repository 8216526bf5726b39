"""`where`: the samples of some series, chosen by an expression over what the store knows per series."""

from __future__ import annotations

from dataclasses import replace
from typing import overload

import numpy as np

from stoker._types import Array
from stoker.errors import OptionError
from stoker.sampling.subset import Runs, Subset
from stoker.sampling.views import AnyView
from stoker.split.cuts import SampledStore
from stoker.split.split import Split
from stoker.store.store import Store


@overload
def where(store: Store, of: Split, expression: str) -> Split: ...
@overload
def where(store: Store, of: AnyView | Subset, expression: str) -> Subset: ...
def where(store: Store, of: AnyView | Subset | Split, expression: str) -> Subset | Split:
    """Only the samples of series that fulfil a condition, such as "country == 'DE' and num_steps >= 100".

    Args:
        store: The store.
        of: A view, whose samples are filtered; or a subset, or a split, each of whose subsets is filtered.
        expression: A condition over columns with one value per series, and `num_steps`; see `Store.where`.

    Returns:
        A subset for `Feed(subset=…)`, or a split.

    Raises:
        OptionError: The condition is invalid, or no sample is left.

    Example:
        >>> import numpy as np, stoker
        >>> store = stoker.Store.from_arrays(x=[np.arange(6.0)] * 3, country=["DE", "AT", "DE"])
        >>> view = stoker.Windows(4)
        >>> german = stoker.split.where(store, view, "country == 'DE'")
        >>> len(german), stoker.Feed(store, view, subset=german, batch_size=2).num_samples
        (6, 6)
    """
    if isinstance(of, Split):
        return replace(of, subsets={name: where(store, subset, expression) for name, subset in of.subsets.items()})
    view = of.view if isinstance(of, Subset) else of
    sampled = SampledStore.of(store, view)
    if isinstance(of, Subset):
        of.check(view, sampled.data)
    firsts, series = sampled.firsts(), store.where(expression)
    chosen = Runs(firsts[series], firsts[series + 1] - firsts[series])
    runs = chosen if not isinstance(of, Subset) else _common(of.runs, chosen)
    what = of.origin if isinstance(of, Subset) else store.name
    if not runs.size:
        raise OptionError(
            f"where={expression!r} leaves no sample of {what}: {len(series):,} of {len(store):,} series fulfil it.",
            parameter="where",
        )
    return Subset(
        name=of.name if isinstance(of, Subset) else "chosen",
        origin=f"{what} where {expression}",
        view=view,
        data=sampled.data,
        runs=runs,
        num_all=sampled.samples.num_samples,
        whole_series=of.whole_series if isinstance(of, Subset) else True,
        trained_on=of.trained_on if isinstance(of, Subset) else None,
    )


def _common(runs: Runs, other: Runs) -> Runs:
    """The numbers that are in both."""
    bounds: Array = np.unique(np.concatenate([runs.firsts, runs.ends, other.firsts, other.ends]))
    firsts, counts = bounds[:-1], np.diff(bounds)

    def holds(runs: Runs) -> Array:
        place = np.searchsorted(runs.firsts, firsts, side="right") - 1
        inside: Array = (
            (place >= 0) & (firsts < runs.ends[np.maximum(place, 0)]) if len(runs.firsts) else np.zeros(len(firsts), bool)
        )
        return inside

    both = holds(runs) & holds(other)
    return Runs(firsts[both], counts[both])
