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


def _sentio_directions(make: SentioAssembly) -> tuple[Term, Term]:
    high, low = make.column("high"), make.column("low")
    up, down = make.subtract(high, high.back(1)), make.subtract(low.back(1), low)
    rises = make.where(make.both(make.above(up, down), make.above(up, 0.0)), up, first=1)
    return rises, make.where(make.both(make.above(down, up), make.above(down, 0.0)), down, first=1)


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
    moves = make.above(span, 0.0)
    up, down = (_percent(make, moves, make.decay(one, on.window), span) for one in _sentio_directions(make))
    both = make.add(up, down)
    index = _percent(make, make.above(both, 0.0), make.absolute(make.subtract(up, down)), both)
    return make.multiply(make.repeated_mean(index, on.window), 1.0, first=2 * on.window)


def _percent(make: SentioAssembly, condition: Term, a: Term, b: Term) -> Term:
    return make.where(condition, make.multiply(make.divide(a, b), 100.0))


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
