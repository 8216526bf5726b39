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


def _obv(make: ExactAssembly | SentioAssembly, on: Settings) -> Term:
    return make.total(_signed_volume(make))


def _volume_by_change(make: Assembly) -> Term:
    close = make.column("close")
    change = make.divide(make.subtract(close, close.back(1)), close.back(1))
    return make.multiply(change, make.column("volume"), first=1)


def _vpt(make: ExactAssembly | SentioAssembly, on: Settings) -> Term:
    return make.total(_volume_by_change(make))


def volume_by_position(make: Assembly, *, limit: float, first: int = 0) -> Term:
    """The volume, from -1 times where the close is the low to 1 times where it is the high; 0 for a bar without a range."""
    high, low, close = make.column("high"), make.column("low"), make.column("close")
    apart = make.subtract(make.subtract(close, low), make.subtract(high, close))
    position = make.ratio(apart, make.subtract(high, low), limit=limit, otherwise=0.0)
    return make.multiply(position, make.column("volume"), first=first)


def _ad_line(make: ExactAssembly, on: Settings) -> Term:
    return make.total(volume_by_position(make, limit=0.0))


def _sentio_ad_line(make: SentioAssembly, on: Settings) -> Term:
    return make.total(volume_by_position(make, limit=FLAT, first=1))


OPERATORS = (
    Operator(name="OBV", reads=("close", "volume"), exact=_obv, sentio=_obv, first=at(1), sentio_first=at(1)),
    Operator(name="VPT", reads=("close", "volume"), exact=_vpt, sentio=_vpt, first=at(1), sentio_first=at(1)),
    Operator(
        name="AD_LINE",
        reads=("high", "low", "close", "volume"),
        exact=_ad_line,
        sentio=_sentio_ad_line,
        first=at(0),
        sentio_first=at(1),
    ),
)
