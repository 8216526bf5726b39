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


def _middle(make: Assembly) -> Term:
    return make.divide(make.add(make.column("high"), make.column("low")), 2.0)


def _spread(make: ExactAssembly, on: Settings) -> Term:
    return make.multiply(make.ratio(_range(make), _middle(make), otherwise=_MISSING), 1e4)


def _sentio_spread(make: SentioAssembly, on: Settings) -> Term:
    middle = _middle(make)
    return make.where(make.above(middle, FLAT), make.multiply(make.divide(_range(make), middle), 1e4))


def _change(make: Assembly) -> tuple[Term, Term]:
    """How far the close moved, and from where."""
    close = make.column("close")
    return make.absolute(make.subtract(close, close.back(1))), close.back(1)


def _impact(make: ExactAssembly, on: Settings) -> Term:
    change, before = _change(make)
    share = make.ratio(change, before, otherwise=_MISSING)
    return make.multiply(make.ratio(share, make.root(make.column("volume")), otherwise=_MISSING), 1e6, first=1)


def _sentio_impact(make: SentioAssembly, on: Settings) -> Term:
    change, before = _change(make)
    root = make.root(make.column("volume"))
    impact = make.multiply(make.divide(make.divide(change, before), root), 1e6)
    return make.where(make.both(make.above(root, FLAT), make.above(before, FLAT)), impact, first=1)


def _order_flow(make: ExactAssembly, on: Settings) -> Term:
    return volume_by_position(make)


def _sentio_order_flow(make: SentioAssembly, on: Settings) -> Term:
    span, close = _range(make), make.column("close")
    bought = make.divide(make.subtract(close, make.column("low")), span)
    sold = make.divide(make.subtract(make.column("high"), close), span)
    return make.where(make.above(span, FLAT), make.multiply(make.subtract(bought, sold), make.column("volume")))


def _logarithm_of_volume(make: Assembly) -> Term:
    return make.logarithm(make.add(make.column("volume"), 1.0))


def _depth(make: ExactAssembly, on: Settings) -> Term:
    return make.ratio(_range(make), _logarithm_of_volume(make), otherwise=_MISSING)


def _sentio_depth(make: SentioAssembly, on: Settings) -> Term:
    span = _range(make)
    known = make.both(make.above(make.column("volume"), FLAT), make.above(span, FLAT))
    return make.where(known, make.divide(span, _logarithm_of_volume(make)))


def _bid_ask(make: ExactAssembly, on: Settings) -> Term:
    position = make.ratio(make.subtract(make.column("close"), make.column("low")), _range(make), otherwise=0.5)
    return make.divide(position, make.add(make.subtract(1.0, position), _ALMOST))


def _sentio_bid_ask(make: SentioAssembly, on: Settings) -> Term:
    span = _range(make)
    position = make.divide(make.subtract(make.column("close"), make.column("low")), span)
    ratio = make.divide(position, make.add(make.subtract(1.0, position), _ALMOST))
    return make.where(make.above(span, FLAT), ratio)


OPERATORS = (
    Operator(
        name="SPREAD_BP",
        reads=("high", "low"),
        exact=_spread,
        sentio=_sentio_spread,
        first=at(0),
        sentio_first=at(0),
    ),
    Operator(
        name="PRICE_IMPACT",
        reads=("close", "volume"),
        exact=_impact,
        sentio=_sentio_impact,
        first=at(1),
        sentio_first=at(1),
    ),
    Operator(
        name="ORDER_FLOW",
        reads=("high", "low", "close", "volume"),
        exact=_order_flow,
        sentio=_sentio_order_flow,
        first=at(0),
        sentio_first=at(0),
    ),
    Operator(
        name="MARKET_DEPTH",
        reads=("high", "low", "volume"),
        exact=_depth,
        sentio=_sentio_depth,
        first=at(0),
        sentio_first=at(0),
    ),
    Operator(
        name="BID_ASK_RATIO",
        reads=("high", "low", "close"),
        exact=_bid_ask,
        sentio=_sentio_bid_ask,
        first=at(0),
        sentio_first=at(0),
    ),
)
