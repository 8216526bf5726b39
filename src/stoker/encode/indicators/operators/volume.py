"""Volume: sums from the first bar on of what was traded, signed or weighted by the price."""

from __future__ import annotations

from stoker.encode.indicators.assembly import Assembly, Term
from stoker.encode.indicators.exact import ExactAssembly
from stoker.encode.indicators.operators.operator import Operator, Settings, at
from stoker.encode.indicators.sentio import FLAT, SentioAssembly


def _signed_volume(make: Assembly) -> Term:
    close = make.column("close")
    sign = make.subtract(make.above(close, close.back(1)), make.above(close.back(1), close))
    return make.multiply(sign, make.column("volume"), first=1)


def _obv(make: ExactAssembly, on: Settings) -> Term:
    return make.total(_signed_volume(make))


def _sentio_obv(make: SentioAssembly, on: Settings) -> Term:
    close, volume = make.column("close"), make.column("volume")
    bought = make.where(make.above(close, close.back(1)), volume, first=1)
    return make.total(make.subtract(bought, make.where(make.above(close.back(1), close), volume, first=1)))


def _volume_by_change(make: Assembly) -> Term:
    close = make.column("close")
    change = make.divide(make.subtract(close, close.back(1)), close.back(1))
    return make.multiply(change, make.column("volume"), first=1)


def _vpt(make: ExactAssembly, on: Settings) -> Term:
    return make.total(_volume_by_change(make))


def _sentio_vpt(make: SentioAssembly, on: Settings) -> Term:
    return make.total(make.where(make.above(make.column("close").back(1), 0.0), _volume_by_change(make), first=1))


def volume_by_position(make: ExactAssembly) -> Term:
    """The volume, from -1 times where the close is the low to 1 times where it is the high; 0 for a bar without a range."""
    high, low, close = make.column("high"), make.column("low"), make.column("close")
    apart = make.subtract(make.subtract(close, low), make.subtract(high, close))
    return make.multiply(make.ratio(apart, make.subtract(high, low), otherwise=0.0), make.column("volume"))


def _ad_line(make: ExactAssembly, on: Settings) -> Term:
    return make.total(volume_by_position(make))


def _sentio_ad_line(make: SentioAssembly, on: Settings) -> Term:
    high, low, close = make.column("high"), make.column("low"), make.column("close")
    apart, span = make.subtract(make.subtract(close, low), make.subtract(high, close)), make.subtract(high, low)
    flow = make.multiply(make.divide(apart, span), make.column("volume"))
    return make.total(make.where(make.above(span, FLAT), flow, first=1))


OPERATORS = (
    Operator(name="OBV", reads=("close", "volume"), exact=_obv, sentio=_sentio_obv, first=at(1), sentio_first=at(1)),
    Operator(name="VPT", reads=("close", "volume"), exact=_vpt, sentio=_sentio_vpt, first=at(1), sentio_first=at(1)),
    Operator(
        name="AD_LINE",
        reads=("high", "low", "close", "volume"),
        exact=_ad_line,
        sentio=_sentio_ad_line,
        first=at(0),
        sentio_first=at(1),
    ),
)
