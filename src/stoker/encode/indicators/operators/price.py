"""Price: the source itself, and how it changed."""

from __future__ import annotations

from stoker.encode.indicators.assembly import Assembly, Term
from stoker.encode.indicators.exact import ExactAssembly
from stoker.encode.indicators.operators.operator import Operator, Settings, at, behind_window
from stoker.encode.indicators.sentio import TINY, SentioAssembly


def _ident(make: Assembly, on: Settings) -> Term:
    return make.source(on.source)


def _logret(make: ExactAssembly, on: Settings) -> Term:
    level = make.logarithm(make.source(on.source))
    return make.subtract(level, level.back(1))


def _sentio_logret(make: SentioAssembly, on: Settings) -> Term:
    return make.change_of_logarithm(make.source(on.source))


def _momentum(make: Assembly, on: Settings) -> Term:
    x = make.source(on.source)
    return make.subtract(x, x.back(on.window), first=on.window)


def _roc(make: ExactAssembly, on: Settings) -> Term:
    x = make.source(on.source)
    before = x.back(on.window)
    return make.multiply(make.divide(make.subtract(x, before), before), 100.0)


def _sentio_roc(make: SentioAssembly, on: Settings) -> Term:
    x = make.source(on.source)
    before = make.larger(x.back(on.window), TINY)
    return make.multiply(make.divide(make.subtract(x, before), before), 100.0, first=on.window)


OPERATORS = (
    Operator(name="IDENT", exact=_ident, sentio=_ident, first=at(0), sentio_first=at(0)),
    Operator(name="LOGRET", exact=_logret, sentio=_sentio_logret, first=at(1), sentio_first=at(1)),
    Operator(
        name="MOMENTUM",
        defaults={"window": 5},
        exact=_momentum,
        sentio=_momentum,
        first=behind_window(0),
        sentio_first=behind_window(0),
    ),
    Operator(
        name="ROC",
        defaults={"window": 10},
        exact=_roc,
        sentio=_sentio_roc,
        first=behind_window(0),
        sentio_first=behind_window(0),
    ),
)
