"""Microstructure: what a single bar lets one guess of spread, impact and depth."""

from __future__ import annotations

import math

from stoker.encode.indicators.assembly import Assembly, Term
from stoker.encode.indicators.operators.operator import Operator, at
from stoker.encode.indicators.operators.volume import volume_by_position
from stoker.encode.indicators.sentio import FLAT

_ALMOST = 1e-8
_MISSING = math.nan


def _range(make: Assembly) -> Term:
    return make.subtract(make.column("high"), make.column("low"))


def _spread(make: Assembly, otherwise: float) -> Term:
    middle = make.divide(make.add(make.column("high"), make.column("low")), 2.0)
    return make.multiply(make.ratio(_range(make), middle, otherwise=otherwise), 1e4)


def _impact(make: Assembly, otherwise: float) -> Term:
    close = make.column("close")
    change = make.absolute(make.subtract(close, close.back(1)))
    share = make.ratio(change, close.back(1), otherwise=otherwise)
    return make.multiply(make.ratio(share, make.root(make.column("volume")), otherwise=otherwise), 1e6, first=1)


def _depth(make: Assembly, otherwise: float) -> Term:
    return make.ratio(_range(make), make.logarithm(make.add(make.column("volume"), 1.0)), otherwise=otherwise)


def _bid_ask(make: Assembly, limit: float) -> Term:
    position = make.ratio(make.subtract(make.column("close"), make.column("low")), _range(make), limit=limit, otherwise=0.5)
    return make.divide(position, make.add(make.subtract(1.0, position), _ALMOST))


OPERATORS = (
    Operator(
        name="SPREAD_BP",
        reads=("high", "low"),
        exact=lambda make, on: _spread(make, _MISSING),
        sentio=lambda make, on: _spread(make, 0.0),
        first=at(0),
        sentio_first=at(0),
    ),
    Operator(
        name="PRICE_IMPACT",
        reads=("close", "volume"),
        exact=lambda make, on: _impact(make, _MISSING),
        sentio=lambda make, on: _impact(make, 0.0),
        first=at(1),
        sentio_first=at(1),
    ),
    Operator(
        name="ORDER_FLOW",
        reads=("high", "low", "close", "volume"),
        exact=lambda make, on: volume_by_position(make, limit=0.0),
        sentio=lambda make, on: volume_by_position(make, limit=FLAT),
        first=at(0),
        sentio_first=at(0),
    ),
    Operator(
        name="MARKET_DEPTH",
        reads=("high", "low", "volume"),
        exact=lambda make, on: _depth(make, _MISSING),
        sentio=lambda make, on: _depth(make, 0.0),
        first=at(0),
        sentio_first=at(0),
    ),
    Operator(
        name="BID_ASK_RATIO",
        reads=("high", "low", "close"),
        exact=lambda make, on: _bid_ask(make, 0.0),
        sentio=lambda make, on: _bid_ask(make, FLAT),
        first=at(0),
        sentio_first=at(0),
    ),
)
