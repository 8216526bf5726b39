"""Volatility: how much a source or the range of its bars varies."""

from __future__ import annotations

import math

from stoker.encode.indicators.assembly import Assembly, Term
from stoker.encode.indicators.exact import ExactAssembly
from stoker.encode.indicators.operators.operator import Operator, Settings, behind_window
from stoker.encode.indicators.sentio import SentioAssembly

_PARKINSON = 1.0 / (4.0 * math.log(2.0))
_CLOSE_TO_OPEN = 2.0 * math.log(2.0) - 1.0


def _volatility(make: ExactAssembly | SentioAssembly, on: Settings) -> Term:
    return make.deviation(make.source(on.source), on.window)


def _zwin(make: ExactAssembly | SentioAssembly, on: Settings) -> Term:
    return make.score(make.source(on.source), on.window)


def _squared_logarithm(make: Assembly, above: str, below: str) -> Term:
    ratio = make.logarithm(make.divide(make.column(above), make.column(below)))
    return make.multiply(ratio, ratio)


def _parkinson(make: ExactAssembly, on: Settings) -> Term:
    return make.root(make.multiply(make.mean(_squared_logarithm(make, "high", "low"), on.window), _PARKINSON))


def _garman_klass_term(make: Assembly) -> Term:
    span = make.multiply(_squared_logarithm(make, "high", "low"), 0.5)
    return make.subtract(span, make.multiply(_squared_logarithm(make, "close", "open"), _CLOSE_TO_OPEN))


def _garman_klass(make: ExactAssembly, on: Settings) -> Term:
    return make.root(make.larger(make.mean(_garman_klass_term(make), on.window), 0.0))


def _sentio_logarithm(make: SentioAssembly, above: str, below: str) -> tuple[Term, Term]:
    """The logarithm of a ratio of prices, and where both are above 0: elsewhere a bar counts as 0."""
    one, other = make.column(above), make.column(below)
    return make.logarithm(make.divide(one, other)), make.both(make.above(one, 0.0), make.above(other, 0.0))


def _sentio_parkinson(make: SentioAssembly, on: Settings) -> Term:
    ratio, valid = _sentio_logarithm(make, "high", "low")
    return make.root(make.multiply(make.mean(make.where(valid, make.multiply(ratio, ratio)), on.window), _PARKINSON))


def _sentio_garman_klass(make: SentioAssembly, on: Settings) -> Term:
    (span, valid), (move, also) = (_sentio_logarithm(make, *names) for names in (("high", "low"), ("close", "open")))
    # Squares are formed as (weight * x) * x, which rounds otherwise than weight * (x * x). The first bar counts as 0.
    wide, far = (make.multiply(make.multiply(x, weight), x) for x, weight in ((span, 0.5), (move, _CLOSE_TO_OPEN)))
    term = make.where(make.both(valid, also), make.subtract(wide, far), first=1)
    return make.root(make.larger(0.0, make.mean(term, on.window)))


OPERATORS = (
    Operator(
        name="VOLATILITY",
        defaults={"window": 20},
        exact=_volatility,
        sentio=_volatility,
        first=behind_window(-1),
        sentio_first=behind_window(0),
    ),
    Operator(
        name="ZWIN",
        defaults={"window": 20},
        exact=_zwin,
        sentio=_zwin,
        first=behind_window(-1),
        sentio_first=behind_window(0),
    ),
    Operator(
        name="PARKINSON",
        defaults={"window": 14},
        reads=("high", "low"),
        exact=_parkinson,
        sentio=_sentio_parkinson,
        first=behind_window(-1),
        sentio_first=behind_window(-1),
    ),
    Operator(
        name="GARMAN_KLASS",
        defaults={"window": 14},
        reads=("open", "high", "low", "close"),
        exact=_garman_klass,
        sentio=_sentio_garman_klass,
        first=behind_window(-1),
        sentio_first=behind_window(-1),
    ),
)
