"""Tails: numbers beyond the protected range, drawn from a law.

Protection cuts the values of the 5 to 7 subjects with the largest ones. Where a tail is heavy, that lowers the mean of the largest
values: by 20 % for the top 1 % of 2,000 Pareto values. So a generalized Pareto law is fitted to the largest fifth of the values, and what
was cut is drawn from it. The fit sees values after the cut, and how many were cut, not by how much: no extreme value has a
part in it, however large it is. Tails that are not heavy have no law, and generated values stay in the protected range.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stoker.extend import Array

BODY = 0.8
"""The share of values below the tail."""
LEAST_TAIL, LEAST_TAIL_SUBJECTS = 50, 20
"""Values that are not cut, and subjects, that a tail must have."""
MOST_FITTED = 1000
"""Values that the law is fitted to. Of more, this number is taken at equal distances in their order."""
LEAST_SHAPE, MOST_SHAPE = 0.05, 0.7
"""Shapes of heavy tails: 0 is an exponential law, and 1 has no mean."""
BEYOND = 0.1
"""Draws end where a sample of the size of the training data has this number of values beyond."""
MOST_EXACT = 2.0**52


class Tail(Struct, frozen=True, kw_only=True):
    """What lies beyond an end of the protected range: distances from it have a generalized Pareto law."""

    share: float
    """Of the values of the last interval."""
    scale: float
    shape: float
    most: float
    """The longest distance."""

    def distances(self, uniform: Array) -> Array:
        """Distances from the end of the range, of numbers from [0, 1)."""
        last = (1 + self.shape * self.most / self.scale) ** (-1 / self.shape)
        left = 1 - uniform * (1 - last)
        return np.asarray(np.minimum(self.scale * (left**-self.shape - 1) / self.shape, self.most))


def fit_tail(distances: Array, end: float, num_cut: int) -> tuple[float, float]:
    """Scale and shape of a generalized Pareto law, by maximum likelihood.

    Args:
        distances: Of values from the begin of the tail, above 0 and below `end`.
        end: The distance where values are cut.
        num_cut: How many are.

    Returns:
        Scale and shape, at the begin of the tail. The shape is not below 0.
    """
    # With rate = shape / scale, the best shape for a rate is known, which leaves one number to find.
    rates = np.logspace(-3, 2, 101) / distances.mean()
    logs = np.log1p(rates[:, None] * distances).sum(1)
    shapes = (logs + num_cut * np.log1p(rates * end)) / len(distances)
    likelihoods = -len(distances) * (np.log(shapes / rates) + 1) - logs
    best = int(np.argmax(likelihoods))
    return float(shapes[best] / rates[best]), float(shapes[best])


def tail_of(own: Array, num_cut: int, num_last: int, *, limit: float = np.inf) -> Tail | None:
    """The law beyond the upper end of values; None where nothing is cut, the tail is not heavy, or there are too few values.

    Args:
        own: Values, sorted; those beyond the end are cut to it.
        num_cut: How many are.
        num_last: Values in the last interval.
        limit: The largest value that may be generated.
    """
    begin, end = tail_begin(own), float(own[-1])
    first_cut = int(np.searchsorted(own, own[-1]))
    inside = own[np.searchsorted(own, begin, side="right") : first_cut] - begin
    if not num_cut or len(inside) < LEAST_TAIL or max(abs(begin), abs(end)) > MOST_EXACT:
        return None
    every = -(-len(inside) // MOST_FITTED)
    fitted = inside[every // 2 :: every].astype(np.float64)
    scale, shape = fit_tail(fitted, end - begin, round((len(own) - first_cut) / every))
    scale, shape = scale + shape * (end - begin), min(shape, MOST_SHAPE)  # the same law, seen from the end
    most = min(scale * ((num_cut / BEYOND) ** shape - 1) / shape, limit - end)
    return Tail(share=num_cut / num_last, scale=scale, shape=shape, most=most) if shape >= LEAST_SHAPE and most > 0 else None


def tail_begin(own: Array) -> float:
    """Where the tail of sorted values begins."""
    return float(own[int(BODY * len(own))])
