"""Trend: the true range of bars, and how much of their movement has one direction."""

from __future__ import annotations

from stoker.encode.indicators.assembly import Assembly, Term
from stoker.encode.indicators.exact import ExactAssembly
from stoker.encode.indicators.operators.operator import Operator, Settings, behind_window
from stoker.encode.indicators.sentio import SentioAssembly

_BARS = ("high", "low", "close")


def _true_range(make: Assembly) -> Term:
    """The range of a bar, from the close before it."""
    high, low, before = make.column("high"), make.column("low"), make.column("close").back(1)
    up, down = make.absolute(make.subtract(high, before)), make.absolute(make.subtract(low, before))
    return make.larger(make.larger(make.subtract(high, low), up), down, first=1)


def _directions(make: Assembly) -> tuple[Term, Term]:
    """How far a bar reaches above the one before it, or below, whichever is more."""
    high, low = make.column("high"), make.column("low")
    up, down = make.subtract(high, high.back(1)), make.subtract(low.back(1), low)
    rises = make.multiply(make.larger(up, 0.0), make.above(up, down), first=1)
    return rises, make.multiply(make.larger(down, 0.0), make.above(down, up), first=1)


def _atr(make: ExactAssembly, on: Settings) -> Term:
    return make.smooth(_true_range(make), on.window, weight=1.0 / on.window)


def _sentio_atr(make: SentioAssembly, on: Settings) -> Term:
    return make.wilder(_true_range(make), on.window)


def _adx(make: ExactAssembly, on: Settings) -> Term:
    # The true range would divide both sides, and is left out.
    up, down = (make.smooth(one, on.window, weight=1.0 / on.window) for one in _directions(make))
    apart = make.multiply(make.absolute(make.subtract(up, down)), 100.0)
    return make.smooth(make.ratio(apart, make.add(up, down), otherwise=0.0), on.window, weight=1.0 / on.window)


def _sentio_adx(make: SentioAssembly, on: Settings) -> Term:
    span = make.decay(_true_range(make), on.window)
    up, down = (make.ratio(make.multiply(make.decay(one, on.window), 100.0), span, otherwise=0.0) for one in _directions(make))
    apart = make.multiply(make.absolute(make.subtract(up, down)), 100.0)
    return make.ratio(apart, make.add(up, down), otherwise=0.0, first=2 * on.window)


OPERATORS = (
    Operator(
        name="ATR",
        defaults={"window": 14},
        reads=_BARS,
        exact=_atr,
        sentio=_sentio_atr,
        first=behind_window(0),
        sentio_first=behind_window(0),
    ),
    Operator(
        name="ADX",
        defaults={"window": 14},
        reads=_BARS,
        exact=_adx,
        sentio=_sentio_adx,
        first=lambda on: 2 * on.window - 1,
        sentio_first=lambda on: 2 * on.window,
    ),
)
