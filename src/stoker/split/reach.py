"""Reach: the steps that a sample is made of.

    ·········[ warm_up ][ length of the window ][ horizon ]·········
                        the sample               its target, or what its label was made of

A sample is kept where all of them lie between two boundaries. Before a boundary this purges the samples whose targets reach over
it; after a boundary it embargoes those that reach back over it: the last step of a window is at least `embargo` steps behind the
boundary, and `length - 1 + warm_up` is the least that can be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker.errors import LeakFound, OptionError
from stoker.feed.layout import AnyView
from stoker.order.sequences import Sequences
from stoker.order.windows import Segments


@dataclass(frozen=True, kw_only=True)
class Reach:
    """All in steps. A sample that is a whole series reaches no further."""

    length: int
    stride: int
    horizon: int
    warm_up: int
    embargo: int
    whole_series: bool

    @property
    def span(self) -> int:
        """Steps that a sample is made of."""
        return self.warm_up + self.length + self.horizon

    @classmethod
    def of(cls, view: AnyView, *, horizon: int | None, warm_up: int, embargo: int | None = None) -> Reach:
        """Of the samples of a view. By default the horizon is that of the view, and the embargo the least that can be."""
        given = {"horizon": horizon, "warm_up": warm_up, "embargo": embargo}
        for name, value in given.items():
            if value is not None:
                checked_steps(name, value)
        if isinstance(view, Sequences):
            if any(given.values()):
                raise OptionError(
                    f"{view} has whole series as samples, which reach over no boundary: leave out horizon, warm_up and embargo."
                )
            return cls(length=view.max_length, stride=1, horizon=0, warm_up=0, embargo=0, whole_series=True)
        windows = view.windows if isinstance(view, Segments) else view
        own = windows.span - windows.length
        if horizon is not None and horizon < own:
            raise LeakFound(
                f"horizon is {horizon}, but the targets of {view} reach {own} steps. Give at least {own}, or leave it out."
            )
        least = windows.length - 1 + warm_up
        if embargo is not None and embargo < least:
            raise LeakFound(
                f"embargo is {embargo}, but windows of {windows.length} steps with a warm-up of {warm_up} reach back {least}. "
                f"Give at least {least}, or leave it out."
            )
        return cls(
            length=windows.length,
            stride=windows.stride,
            horizon=own if horizon is None else int(horizon),
            warm_up=int(warm_up),
            embargo=least if embargo is None else int(embargo),
            whole_series=False,
        )


def checked_steps(name: str, value: Any) -> int:
    """A number of steps."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise OptionError(f"{name} is {value!r}; expected a whole number of steps from 0.")
    return int(value)
