"""Microstructure: what a single bar lets one guess of spread, impact and depth."""

from __future__ import annotations

import math

from stoker.encode.indicators.assembly import Assembly, Term
from stoker.encode.indicators.exact import ExactAssembly
from stoker.encode.indicators.operators.operator import Operator, Settings, at
from stoker.encode.indicators.operators.volume import volume_by_position
from stoker.encode.indicators.sentio import FLAT, SentioAssembly

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


def _spread_exact(make: ExactAssembly, on: Settings) -> Term:
    return _spread(make, _MISSING)


def _spread_sentio(make: SentioAssembly, on: Settings) -> Term:
    return _spread(make, 0.0)


def _impact_exact(make: ExactAssembly, on: Settings) -> Term:
    return _impact(make, _MISSING)


def _impact_sentio(make: SentioAssembly, on: Settings) -> Term:
    return _impact(make, 0.0)


def _flow_exact(make: ExactAssembly, on: Settings) -> Term:
    return volume_by_position(make, limit=0.0)


def _flow_sentio(make: SentioAssembly, on: Settings) -> Term:
    return volume_by_position(make, limit=FLAT)


def _depth_exact(make: ExactAssembly, on: Settings) -> Term:
    return _depth(make, _MISSING)


def _depth_sentio(make: SentioAssembly, on: Settings) -> Term:
    return _depth(make, 0.0)


def _bid_ask_exact(make: ExactAssembly, on: Settings) -> Term:
    return _bid_ask(make, 0.0)


def _bid_ask_sentio(make: SentioAssembly, on: Settings) -> Term:
    return _bid_ask(make, FLAT)


OPERATORS = (
    Operator(name="SPREAD_BP", reads=("high", "low"), exact=_spread_exact, sentio=_spread_sentio, first=at(0), sentio_first=at(0)),
    Operator(
        name="PRICE_IMPACT", reads=("close", "volume"), exact=_impact_exact, sentio=_impact_sentio, first=at(1), sentio_first=at(1)
    ),
    Operator(
        name="ORDER_FLOW",
        reads=("high", "low", "close", "volume"),
        exact=_flow_exact,
        sentio=_flow_sentio,
        first=at(0),
        sentio_first=at(0),
    ),
    Operator(
        name="MARKET_DEPTH",
        reads=("high", "low", "volume"),
        exact=_depth_exact,
        sentio=_depth_sentio,
        first=at(0),
        sentio_first=at(0),
    ),
    Operator(
        name="BID_ASK_RATIO",
        reads=("high", "low", "close"),
        exact=_bid_ask_exact,
        sentio=_bid_ask_sentio,
        first=at(0),
        sentio_first=at(0),
    ),
)
