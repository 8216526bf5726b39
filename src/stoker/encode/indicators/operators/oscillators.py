"""Oscillators: where a price stands within what it did of late, on a scale that does not depend on its level."""

from __future__ import annotations

from stoker.encode.indicators.assembly import Assembly, Lane, Term
from stoker.encode.indicators.exact import ExactAssembly
from stoker.encode.indicators.operators.operator import Operator, Settings, behind_window
from stoker.encode.indicators.sentio import FLAT, SentioAssembly

_BARS = ("high", "low", "close")
_CCI_SCALE = 0.015
_NOISE = 1e-12  # of a price: the rounding of its thirds is no change


def _rsi(make: Assembly, on: Settings) -> Lane:
    return Lane("rsi", make.source(on.source), on.window)


def _stochastic(make: ExactAssembly, on: Settings) -> Term:
    """Where the close lies between the lowest and the highest price, in percent; the middle where these are one."""
    low = make.lowest(make.column("low"), on.window)
    span = make.subtract(make.highest(make.column("high"), on.window), low)
    return make.ratio(make.multiply(make.subtract(make.column("close"), low), 100.0), span, otherwise=50.0)


def _stochastic_d(make: ExactAssembly, on: Settings) -> Term:
    return make.mean(_stochastic(make, on), on.d_period)


def _williams(make: ExactAssembly, on: Settings) -> Term:
    return make.add(_stochastic(make, on), -100.0)


def _sentio_span(make: SentioAssembly, on: Settings) -> tuple[Term, Term]:
    """The highest and the lowest price of window + 1 bars."""
    return make.highest(make.column("high"), on.window + 1), make.lowest(make.column("low"), on.window + 1)


def _sentio_stochastic(make: SentioAssembly, on: Settings) -> Term:
    high, low = _sentio_span(make, on)
    share = make.divide(make.subtract(make.column("close"), low), make.subtract(high, low))
    return make.where(make.above(high, low), make.multiply(share, 100.0), first=on.window)


def _sentio_stochastic_d(make: SentioAssembly, on: Settings) -> Term:
    return make.mean(_sentio_stochastic(make, on), on.d_period)


def _sentio_williams(make: SentioAssembly, on: Settings) -> Term:
    high, low = _sentio_span(make, on)
    share = make.divide(make.subtract(high, make.column("close")), make.subtract(high, low))
    return make.where(make.above(high, low), make.multiply(share, -100.0), first=on.window)


def _typical(make: Assembly) -> Term:
    return make.divide(make.add(make.add(make.column("high"), make.column("low")), make.column("close")), 3.0)


def _cci(make: ExactAssembly, on: Settings) -> Term:
    price = _typical(make)
    mean = make.mean(price, on.window)
    away = make.distance(price, mean, on.window)
    deviates = make.above(away, make.multiply(make.absolute(mean), _NOISE))
    return make.ratio(make.multiply(make.subtract(price, mean), deviates), make.multiply(away, _CCI_SCALE), otherwise=0.0)


def _sentio_cci(make: SentioAssembly, on: Settings) -> Term:
    price = _typical(make)
    mean = make.mean(price, on.window)
    away = make.distance(price, mean, on.window)
    index = make.divide(make.subtract(price, mean), make.multiply(away, _CCI_SCALE))
    return make.where(make.above(away, FLAT), index, first=on.window)


def _mfi(make: ExactAssembly, on: Settings) -> Term:
    price = _typical(make)
    before = price.back(1)
    noise = make.multiply(make.absolute(price), _NOISE)
    flow = make.multiply(price, make.column("volume"))
    rising = make.mean(make.multiply(flow, make.above(make.subtract(price, before), noise)), on.window)
    falling = make.mean(make.multiply(flow, make.above(make.subtract(before, price), noise)), on.window)
    return make.ratio(make.multiply(rising, 100.0), make.add(rising, falling), otherwise=50.0)


def _sentio_mfi(make: SentioAssembly, on: Settings) -> Term:
    price = _typical(make)
    flow = make.multiply(price, make.column("volume"))
    rising = make.window_sum(make.where(make.above(price, price.back(1)), flow), on.window)
    falling = make.window_sum(make.where(make.above(price.back(1), price), flow), on.window)
    rest = make.divide(make.constant(100.0), make.add(make.divide(rising, falling), 1.0))
    return make.where(make.above(falling, FLAT), make.subtract(100.0, rest), first=on.window)


OPERATORS = (
    Operator(
        name="RSI",
        defaults={"window": 14},
        exact=_rsi,
        sentio=_rsi,
        first=behind_window(0),
        sentio_first=behind_window(1),
    ),
    Operator(
        name="STOCHASTIC_K",
        defaults={"window": 14},
        reads=_BARS,
        exact=_stochastic,
        sentio=_sentio_stochastic,
        first=behind_window(-1),
        sentio_first=behind_window(0),
    ),
    Operator(
        name="STOCHASTIC_D",
        defaults={"window": 14, "d_period": 3},
        reads=_BARS,
        exact=_stochastic_d,
        sentio=_sentio_stochastic_d,
        first=lambda on: on.window - 1 + on.d_period - 1,
        sentio_first=behind_window(0),
    ),
    Operator(
        name="WILLIAMS_R",
        defaults={"window": 14},
        reads=_BARS,
        exact=_williams,
        sentio=_sentio_williams,
        first=behind_window(-1),
        sentio_first=behind_window(0),
    ),
    Operator(
        name="CCI",
        defaults={"window": 20},
        reads=_BARS,
        exact=_cci,
        sentio=_sentio_cci,
        first=behind_window(-1),
        sentio_first=behind_window(0),
    ),
    Operator(
        name="MFI",
        defaults={"window": 14},
        reads=(*_BARS, "volume"),
        exact=_mfi,
        sentio=_sentio_mfi,
        first=behind_window(0),
        sentio_first=behind_window(0),
    ),
)
