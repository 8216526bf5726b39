"""Averages: simple, exponential, the difference of two of them, and bands around one."""

from __future__ import annotations

from collections.abc import Callable

from stoker.encode.indicators.assembly import Lane, Output, Term
from stoker.encode.indicators.exact import ExactAssembly, ema_weight
from stoker.encode.indicators.operators.operator import Operator, Settings, at, behind_window
from stoker.encode.indicators.sentio import SentioAssembly


def _sma(make: ExactAssembly | SentioAssembly, on: Settings) -> Term:
    return make.mean(make.source(on.source), on.window)


def _ema(make: ExactAssembly | SentioAssembly, on: Settings) -> Lane:
    return Lane("ema", make.source(on.source), on.window)


def _macd(make: ExactAssembly, on: Settings) -> tuple[Term, Term]:
    x = make.source(on.source)
    fast, slow = (make.smooth(x, window, weight=ema_weight(window)) for window in (on.fast, on.slow))
    line = make.subtract(fast, slow)
    return line, make.smooth(line, on.signal, weight=ema_weight(on.signal))


def _sentio_macd(make: SentioAssembly, on: Settings) -> tuple[Term, Term]:
    x = make.source(on.source)
    line = make.subtract(make.smooth(x, on.fast), make.smooth(x, on.slow))
    return line, make.smooth(line, on.signal)


def _macd_operator(name: str, choose: Callable[[ExactAssembly | SentioAssembly, Term, Term], Term], *, signalled: bool) -> Operator:
    """One of the three outputs; those with the signal in them are ready when that is."""

    def first(on: Settings) -> int:
        return max(on.fast, on.slow) - 1 + (on.signal - 1 if signalled else 0)

    return Operator(
        name=name,
        defaults={"fast": 12, "slow": 26, "signal": 9},
        exact=lambda make, on: choose(make, *_macd(make, on)),
        sentio=lambda make, on: choose(make, *_sentio_macd(make, on)),
        first=first,
        sentio_first=at(0),
    )


def _bollinger_operator(name: str, sign: float) -> Operator:
    def exact(make: ExactAssembly, on: Settings) -> Output:
        return make.band(make.source(on.source), on.window, means=1.0, deviations=sign * on.k)

    def sentio(make: SentioAssembly, on: Settings) -> Output:
        x = make.source(on.source)
        width = make.multiply(make.deviation(x, on.window), on.k)
        if sign == 0:
            return make.multiply(make.mean(x, on.window), 1.0, first=on.window)
        return (make.add if sign > 0 else make.subtract)(make.mean(x, on.window), width, first=on.window)

    return Operator(
        name=name,
        defaults={"window": 20, "k": 2.0},
        exact=exact,
        sentio=sentio,
        first=behind_window(-1),
        sentio_first=behind_window(0),
    )


OPERATORS = (
    Operator(
        name="SMA",
        defaults={"window": 20},
        exact=_sma,
        sentio=_sma,
        first=behind_window(-1),
        sentio_first=behind_window(-1),
    ),
    Operator(name="EMA", defaults={"window": 20}, exact=_ema, sentio=_ema, first=behind_window(-1), sentio_first=at(0)),
    _macd_operator("MACD_LINE", lambda make, line, signal: line, signalled=False),
    _macd_operator("MACD_SIGNAL", lambda make, line, signal: signal, signalled=True),
    _macd_operator("MACD_HISTOGRAM", lambda make, line, signal: make.subtract(line, signal), signalled=True),
    _bollinger_operator("BOLLINGER_UPPER", 1.0),
    _bollinger_operator("BOLLINGER_MIDDLE", 0.0),
    _bollinger_operator("BOLLINGER_LOWER", -1.0),
)
