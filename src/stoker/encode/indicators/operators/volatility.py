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


def _parkinson(make: ExactAssembly | SentioAssembly, on: Settings) -> Term:
    return make.root(make.multiply(make.mean(_squared_logarithm(make, "high", "low"), on.window), _PARKINSON))


def _garman_klass_term(make: Assembly, *, first: int) -> Term:
    span = make.multiply(_squared_logarithm(make, "high", "low"), 0.5)
    return make.subtract(span, make.multiply(_squared_logarithm(make, "close", "open"), _CLOSE_TO_OPEN), first=first)


def _garman_klass(make: ExactAssembly | SentioAssembly, on: Settings) -> Term:
    # Sentio's first bar counts as a term of 0; for the exact arithmetic it is a bar like others.
    return make.root(make.larger(make.mean(_garman_klass_term(make, first=1), on.window), 0.0))


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
        sentio=_parkinson,
        first=behind_window(-1),
        sentio_first=behind_window(-1),
    ),
    Operator(
        name="GARMAN_KLASS",
        defaults={"window": 14},
        reads=("open", "high", "low", "close"),
        exact=_garman_klass,
        sentio=_garman_klass,
        first=behind_window(-1),
        sentio_first=behind_window(-1),
    ),
)
