"""Chronological: train on earlier steps, choose and judge by later ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stoker.errors import OptionError
from stoker.feed.layout import AnyView
from stoker.split.carve import carve
from stoker.split.cuts import Cuts, StepCuts, cuts_at_shares, cuts_at_times
from stoker.split.ground import Ground
from stoker.split.reach import Reach
from stoker.split.split import NAMES, Split, build
from stoker.store.store import Store

FRACTIONS = (0.7, 0.15, 0.15)


def chronological(
    store: Store,
    view: AnyView,
    *,
    fractions: Sequence[float] | None = None,
    boundaries: Sequence[Any] | None = None,
    horizon: int | None = None,
    warm_up: int = 0,
    embargo: int | None = None,
    time: str | None = None,
) -> Split:
    """Parts train, valid and test (or train and valid), one after the other in time.

    Where the store has a time (or `time` names a column of it), all series are cut at the same moments: those that have the
    `fractions` (by default 0.7, 0.15 and 0.15) of all steps before them, or `boundaries`, the times at which the later parts begin.
    Without a time each series is cut by fractions of its own steps. Fractions that sum up to less than 1 leave the last steps out.

    `horizon` is how many steps behind a window its targets or labels were made of, by default the target of the view; `warm_up`
    how many steps before a window its features were made of. Samples that reach over a boundary with either are in no part.
    `embargo` keeps windows further from the boundary before them than the least that is needed, `length - 1 + warm_up` steps.
    """
    if fractions is not None and boundaries is not None:
        raise OptionError("fractions= and boundaries= are two ways to say where to cut; give one of them.")
    ground = Ground.of(store, view)
    reach = Reach.of(view, horizon=horizon, warm_up=warm_up, embargo=embargo)
    cuts: Cuts
    if boundaries is not None:
        num_parts = len(boundaries) + 1 if isinstance(boundaries, Sequence | np.ndarray) and not isinstance(boundaries, str) else 0
        if num_parts not in (2, 3):
            raise OptionError(f"boundaries is {boundaries!r}; expected one time (where valid begins) or two (where test begins).")
        cuts = cuts_at_times(ground, store, boundaries, time=time)
    else:
        shares = [0.0, *np.cumsum(checked_fractions(FRACTIONS if fractions is None else fractions)).tolist()]
        num_parts = len(shares) - 1
        cuts = cuts_at_shares(ground, store, [1.0 if share > 1 - 1e-9 else share for share in shares], time=time)
    if reach.whole_series and isinstance(cuts, StepCuts):
        raise OptionError(f"{view} has whole series as samples, and {store.name} has no time to put them in order. Use grouped(…).")
    wanted = {name: [(i, i + 1)] for i, name in enumerate(NAMES[:num_parts])}
    runs, tally = carve(ground, cuts, reach, wanted)
    limits = {name: f"from {cuts.describe(i)} to {cuts.describe(i + 1)}" for i, name in enumerate(wanted)}
    return build(ground, "chronological", runs, reach=reach, tally=tally, limits=limits)


def checked_fractions(fractions: Sequence[float]) -> list[float]:
    """Two or three shares that fit into 1."""
    try:
        found = [float(one) for one in fractions]
    except (TypeError, ValueError):
        found = []
    if len(found) not in (2, 3) or not all(one > 0 for one in found) or sum(found) > 1 + 1e-9:
        said = f" and sum up to {sum(found):.6g}" if len(found) > 1 and all(one > 0 for one in found) else ""
        raise OptionError(
            f"fractions are {fractions!r}{said}; expected two or three numbers above 0 (train, valid, test), 1 at most together."
        )
    return found
