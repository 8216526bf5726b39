"""The operators of indicators: name, fields, columns, and definition. `OPERATORS` is the table of all.

An operator is defined by the method with its name in lower case. Most definitions are those of `_Shared`, which both arithmetics
compute; where Sentio's formula is another one, each arithmetic has its own.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stoker_recipes.tfa.indicators.exact import ExactAssembly
from stoker_recipes.tfa.indicators.program import Arithmetic, Assembly, Lane, Output, Term
from stoker_recipes.tfa.indicators.sentio import FLAT, TINY, SentioAssembly


@dataclass(frozen=True, kw_only=True)
class FeatureSettings:
    """The fields of a feature, with the operator's defaults; fields that it does not have are 0."""

    source: str = "close"
    window: int = 0
    k: float = 0.0
    fast: int = 0
    slow: int = 0
    signal: int = 0
    d_period: int = 0


_PARKINSON = 1.0 / (4.0 * math.log(2.0))
_CLOSE_TO_OPEN = 2.0 * math.log(2.0) - 1.0
_CCI_SCALE = 0.015
_NOISE = 1e-12  # relative to a price: rounding of its thirds is not a change
_ALMOST = 1e-8
_MISSING = math.nan

First = Callable[[FeatureSettings], int]


@dataclass(frozen=True)
class Operator:
    """One entry of the table of operators."""

    name: str
    first: First
    """The first bar that is ready, for a source from bar 0 without missing values."""
    defaults: Mapping[str, float] = field(default_factory=dict)
    sentio_first: First | None = None
    """The same in Sentio's arithmetic, where it differs: before it there is 0."""
    reads: tuple[str, ...] = field(default=(), kw_only=True)
    """Columns of the bars, where the operator is not computed from the source of the feature."""

    def define(self, assembly: Assembly, settings: FeatureSettings) -> Output:
        """Return the result of the operator in the arithmetic of the assembly."""
        definition: Callable[[FeatureSettings], Output] = getattr(assembly, self.name.lower())
        return definition(settings)


def at(bar: int) -> First:
    """Ready from this bar on."""
    return lambda settings: bar


def after(plus: int) -> First:
    """Ready `plus` bars after bar `window`; -1 where the window includes the bar."""
    return lambda settings: settings.window + plus


class _Shared(Assembly):
    """Definitions that are the same in both arithmetics."""

    def source(self, name: str) -> Term:
        """A column of the bars, or the change of the logarithm of the close."""
        return self.change_of_logarithm(self.column("close")) if name == "logret" else self.column(name)

    def ident(self, on: FeatureSettings) -> Term:
        return self.source(on.source)

    def logret(self, on: FeatureSettings) -> Term:
        return self.change_of_logarithm(self.source(on.source))

    def momentum(self, on: FeatureSettings) -> Term:
        x = self.source(on.source)
        return self.subtract(x, x.back(on.window), first=on.window)

    def sma(self, on: FeatureSettings) -> Term:
        return self.mean(self.source(on.source), on.window)

    def ema(self, on: FeatureSettings) -> Lane:
        return Lane("ema", self.source(on.source), on.window)

    def macd(self, on: FeatureSettings) -> tuple[Term, Term]:
        """The difference of two averages, and the average of that."""
        x = self.source(on.source)
        line = self.subtract(self.average(x, on.fast), self.average(x, on.slow))
        return line, self.average(line, on.signal)

    def macd_line(self, on: FeatureSettings) -> Term:
        return self.macd(on)[0]

    def macd_signal(self, on: FeatureSettings) -> Term:
        return self.macd(on)[1]

    def macd_histogram(self, on: FeatureSettings) -> Term:
        return self.subtract(*self.macd(on))

    @abstractmethod
    def bollinger(self, on: FeatureSettings, sign: float) -> Term:
        """The mean plus `sign` times `k` deviations."""

    def bollinger_upper(self, on: FeatureSettings) -> Term:
        return self.bollinger(on, 1.0)

    def bollinger_middle(self, on: FeatureSettings) -> Term:
        return self.bollinger(on, 0.0)

    def bollinger_lower(self, on: FeatureSettings) -> Term:
        return self.bollinger(on, -1.0)

    def obv(self, on: FeatureSettings) -> Term:
        close, volume = self.column("close"), self.column("volume")
        bought = self.where(self.above(close, close.back(1)), volume, first=1)
        return self.total(self.subtract(bought, self.where(self.above(close.back(1), close), volume, first=1)))

    @abstractmethod
    def stochastic_k(self, on: FeatureSettings) -> Term:
        """The position of the close between the lowest and the highest price, in percent."""

    def stochastic_d(self, on: FeatureSettings) -> Term:
        return self.mean(self.stochastic_k(on), on.d_period)

    def _volume_by_change(self) -> Term:
        close = self.column("close")
        change = self.divide(self.subtract(close, close.back(1)), close.back(1))
        return self.multiply(change, self.column("volume"), first=1)

    def volatility(self, on: FeatureSettings) -> Term:
        return self.deviation(self.source(on.source), on.window)

    def zwin(self, on: FeatureSettings) -> Term:
        return self.score(self.source(on.source), on.window)

    def _squared_logarithm(self, above: str, below: str) -> Term:
        ratio = self.logarithm(self.divide(self.column(above), self.column(below)))
        return self.multiply(ratio, ratio)

    def _true_range(self) -> Term:
        """The range of a bar, from the close before it."""
        high, low, before = self.column("high"), self.column("low"), self.column("close").back(1)
        up, down = self.absolute(self.subtract(high, before)), self.absolute(self.subtract(low, before))
        return self.larger(self.larger(self.subtract(high, low), up), down, first=1)

    def _directions(self) -> tuple[Term, Term]:
        """How far a bar extends above the one before it, and how far below."""
        high, low = self.column("high"), self.column("low")
        return self.subtract(high, high.back(1)), self.subtract(low.back(1), low)

    def rsi(self, on: FeatureSettings) -> Lane:
        return Lane("rsi", self.source(on.source), on.window)

    def _typical(self) -> Term:
        return self.divide(self.add(self.add(self.column("high"), self.column("low")), self.column("close")), 3.0)

    def _range(self) -> Term:
        return self.subtract(self.column("high"), self.column("low"))

    def _middle(self) -> Term:
        return self.divide(self.add(self.column("high"), self.column("low")), 2.0)

    def _change(self) -> tuple[Term, Term]:
        """How far the close moved, and from where."""
        close = self.column("close")
        return self.absolute(self.subtract(close, close.back(1))), close.back(1)

    def _logarithm_of_volume(self) -> Term:
        return self.logarithm(self.add(self.column("volume"), 1.0))


class _Exact(_Shared, ExactAssembly):
    """Definitions in the exact arithmetic."""

    def roc(self, on: FeatureSettings) -> Term:
        x = self.source(on.source)
        before = x.back(on.window)
        return self.multiply(self.divide(self.subtract(x, before), before), 100.0)

    def bollinger(self, on: FeatureSettings, sign: float) -> Term:
        return self.band(self.source(on.source), on.window, means=1.0, deviations=sign * on.k)

    def vpt(self, on: FeatureSettings) -> Term:
        return self.total(self._volume_by_change())

    def order_flow(self, on: FeatureSettings) -> Term:
        """The volume times -1 where the close is the low up to 1 where it is the high; 0 for a bar without a range."""
        high, low, close = self.column("high"), self.column("low"), self.column("close")
        apart = self.subtract(self.subtract(close, low), self.subtract(high, close))
        return self.multiply(self.ratio(apart, self.subtract(high, low), otherwise=0.0), self.column("volume"))

    def ad_line(self, on: FeatureSettings) -> Term:
        return self.total(self.order_flow(on))

    def parkinson(self, on: FeatureSettings) -> Term:
        return self.root(self.multiply(self.mean(self._squared_logarithm("high", "low"), on.window), _PARKINSON))

    def garman_klass(self, on: FeatureSettings) -> Term:
        span = self.multiply(self._squared_logarithm("high", "low"), 0.5)
        term = self.subtract(span, self.multiply(self._squared_logarithm("close", "open"), _CLOSE_TO_OPEN))
        return self.root(self.larger(self.mean(term, on.window), 0.0))

    def atr(self, on: FeatureSettings) -> Term:
        return self.smooth(self._true_range(), on.window, weight=1.0 / on.window)

    def adx(self, on: FeatureSettings) -> Term:
        up, down = self._directions()
        rises = self.multiply(self.larger(up, 0.0), self.above(up, down), first=1)
        falls = self.multiply(self.larger(down, 0.0), self.above(down, up), first=1)
        # The true range would divide both sides, and is left out.
        up, down = (self.smooth(side, on.window, weight=1.0 / on.window) for side in (rises, falls))
        apart = self.multiply(self.absolute(self.subtract(up, down)), 100.0)
        return self.smooth(self.ratio(apart, self.add(up, down), otherwise=0.0), on.window, weight=1.0 / on.window)

    def stochastic_k(self, on: FeatureSettings) -> Term:
        """The position of the close between the lowest and the highest price, in percent; 50 where these are equal."""
        low = self.lowest(self.column("low"), on.window)
        span = self.subtract(self.highest(self.column("high"), on.window), low)
        return self.ratio(self.multiply(self.subtract(self.column("close"), low), 100.0), span, otherwise=50.0)

    def williams_r(self, on: FeatureSettings) -> Term:
        return self.add(self.stochastic_k(on), -100.0)

    def cci(self, on: FeatureSettings) -> Term:
        price = self._typical()
        mean = self.mean(price, on.window)
        away = self.distance(price, mean, on.window)
        deviates = self.above(away, self.multiply(self.absolute(mean), _NOISE))
        return self.ratio(self.multiply(self.subtract(price, mean), deviates), self.multiply(away, _CCI_SCALE), otherwise=0.0)

    def mfi(self, on: FeatureSettings) -> Term:
        price = self._typical()
        before = price.back(1)
        noise = self.multiply(self.absolute(price), _NOISE)
        flow = self.multiply(price, self.column("volume"))
        rising = self.mean(self.multiply(flow, self.above(self.subtract(price, before), noise)), on.window)
        falling = self.mean(self.multiply(flow, self.above(self.subtract(before, price), noise)), on.window)
        return self.ratio(self.multiply(rising, 100.0), self.add(rising, falling), otherwise=50.0)

    def spread_bp(self, on: FeatureSettings) -> Term:
        return self.multiply(self.ratio(self._range(), self._middle(), otherwise=_MISSING), 1e4)

    def price_impact(self, on: FeatureSettings) -> Term:
        change, before = self._change()
        share = self.ratio(change, before, otherwise=_MISSING)
        return self.multiply(self.ratio(share, self.root(self.column("volume")), otherwise=_MISSING), 1e6, first=1)

    def market_depth(self, on: FeatureSettings) -> Term:
        return self.ratio(self._range(), self._logarithm_of_volume(), otherwise=_MISSING)

    def bid_ask_ratio(self, on: FeatureSettings) -> Term:
        position = self.ratio(self.subtract(self.column("close"), self.column("low")), self._range(), otherwise=0.5)
        return self.divide(position, self.add(self.subtract(1.0, position), _ALMOST))


class _Sentio(_Shared, SentioAssembly):
    """Definitions in the arithmetic of Sentio's C++ builder."""

    def roc(self, on: FeatureSettings) -> Term:
        x = self.source(on.source)
        before = self.larger(x.back(on.window), TINY)
        return self.multiply(self.divide(self.subtract(x, before), before), 100.0, first=on.window)

    def bollinger(self, on: FeatureSettings, sign: float) -> Term:
        x = self.source(on.source)
        width = self.multiply(self.deviation(x, on.window), on.k)
        if sign == 0:
            return self.multiply(self.mean(x, on.window), 1.0, first=on.window)
        return (self.add if sign > 0 else self.subtract)(self.mean(x, on.window), width, first=on.window)

    def vpt(self, on: FeatureSettings) -> Term:
        return self.total(self.where(self.above(self.column("close").back(1), 0.0), self._volume_by_change(), first=1))

    def ad_line(self, on: FeatureSettings) -> Term:
        high, low, close = self.column("high"), self.column("low"), self.column("close")
        apart, span = self.subtract(self.subtract(close, low), self.subtract(high, close)), self.subtract(high, low)
        flow = self.multiply(self.divide(apart, span), self.column("volume"))
        return self.total(self.where(self.above(span, FLAT), flow, first=1))

    def _logarithm(self, above: str, below: str) -> tuple[Term, Term]:
        """The logarithm of a ratio of prices, and where both are above 0: elsewhere a bar counts as 0."""
        price, other = self.column(above), self.column(below)
        return self.logarithm(self.divide(price, other)), self.both(self.above(price, 0.0), self.above(other, 0.0))

    def parkinson(self, on: FeatureSettings) -> Term:
        ratio, valid = self._logarithm("high", "low")
        return self.root(self.multiply(self.mean(self.where(valid, self.multiply(ratio, ratio)), on.window), _PARKINSON))

    def garman_klass(self, on: FeatureSettings) -> Term:
        (span, valid), (move, also) = (self._logarithm(*names) for names in (("high", "low"), ("close", "open")))
        # Squares are formed as (weight * x) * x, which rounds otherwise than weight * (x * x). The first bar counts as 0.
        wide, far = (self.multiply(self.multiply(x, weight), x) for x, weight in ((span, 0.5), (move, _CLOSE_TO_OPEN)))
        term = self.where(self.both(valid, also), self.subtract(wide, far), first=1)
        return self.root(self.larger(0.0, self.mean(term, on.window)))

    def atr(self, on: FeatureSettings) -> Term:
        return self.wilder(self._true_range(), on.window)

    def adx(self, on: FeatureSettings) -> Term:
        def percent(condition: Term, a: Term, b: Term) -> Term:
            return self.where(condition, self.multiply(self.divide(a, b), 100.0))

        span = self.decay(self._true_range(), on.window)
        moves = self.above(span, 0.0)
        up, down = self._directions()
        rises = self.where(self.both(self.above(up, down), self.above(up, 0.0)), up, first=1)
        falls = self.where(self.both(self.above(down, up), self.above(down, 0.0)), down, first=1)
        up, down = (percent(moves, self.decay(side, on.window), span) for side in (rises, falls))
        both = self.add(up, down)
        index = percent(self.above(both, 0.0), self.absolute(self.subtract(up, down)), both)
        return self.multiply(self.repeated_mean(index, on.window), 1.0, first=2 * on.window)

    def span(self, on: FeatureSettings) -> tuple[Term, Term]:
        """The highest and the lowest price of window + 1 bars."""
        return self.highest(self.column("high"), on.window + 1), self.lowest(self.column("low"), on.window + 1)

    def stochastic_k(self, on: FeatureSettings) -> Term:
        high, low = self.span(on)
        share = self.divide(self.subtract(self.column("close"), low), self.subtract(high, low))
        return self.where(self.above(high, low), self.multiply(share, 100.0), first=on.window)

    def williams_r(self, on: FeatureSettings) -> Term:
        high, low = self.span(on)
        share = self.divide(self.subtract(high, self.column("close")), self.subtract(high, low))
        return self.where(self.above(high, low), self.multiply(share, -100.0), first=on.window)

    def cci(self, on: FeatureSettings) -> Term:
        price = self._typical()
        mean = self.mean(price, on.window)
        away = self.distance(price, mean, on.window)
        index = self.divide(self.subtract(price, mean), self.multiply(away, _CCI_SCALE))
        return self.where(self.above(away, FLAT), index, first=on.window)

    def mfi(self, on: FeatureSettings) -> Term:
        price = self._typical()
        flow = self.multiply(price, self.column("volume"))
        rising = self.window_sum(self.where(self.above(price, price.back(1)), flow), on.window)
        falling = self.window_sum(self.where(self.above(price.back(1), price), flow), on.window)
        rest = self.divide(self.constant(100.0), self.add(self.divide(rising, falling), 1.0))
        return self.where(self.above(falling, FLAT), self.subtract(100.0, rest), first=on.window)

    def spread_bp(self, on: FeatureSettings) -> Term:
        middle = self._middle()
        return self.where(self.above(middle, FLAT), self.multiply(self.divide(self._range(), middle), 1e4))

    def price_impact(self, on: FeatureSettings) -> Term:
        change, before = self._change()
        root = self.root(self.column("volume"))
        impact = self.multiply(self.divide(self.divide(change, before), root), 1e6)
        return self.where(self.both(self.above(root, FLAT), self.above(before, FLAT)), impact, first=1)

    def order_flow(self, on: FeatureSettings) -> Term:
        span, close = self._range(), self.column("close")
        bought = self.divide(self.subtract(close, self.column("low")), span)
        sold = self.divide(self.subtract(self.column("high"), close), span)
        return self.where(self.above(span, FLAT), self.multiply(self.subtract(bought, sold), self.column("volume")))

    def market_depth(self, on: FeatureSettings) -> Term:
        span = self._range()
        known = self.both(self.above(self.column("volume"), FLAT), self.above(span, FLAT))
        return self.where(known, self.divide(span, self._logarithm_of_volume()))

    def bid_ask_ratio(self, on: FeatureSettings) -> Term:
        span = self._range()
        position = self.divide(self.subtract(self.column("close"), self.column("low")), span)
        ratio = self.divide(position, self.add(self.subtract(1.0, position), _ALMOST))
        return self.where(self.above(span, FLAT), ratio)


def new_assembly(arithmetic: Arithmetic) -> Assembly:
    """An assembly with the definitions of an arithmetic."""
    return _Exact() if arithmetic == "exact" else _Sentio()


_HLC = ("high", "low", "close")
_VOLUME = (*_HLC, "volume")
_MACD = {"fast": 12, "slow": 26, "signal": 9}


def _macd(on: FeatureSettings) -> int:
    return max(on.fast, on.slow) - 1


def _window(default: int, **others: float) -> dict[str, float]:
    return {"window": default, **others}


_TABLE = (
    # Price: the source itself, and how it changed.
    Operator("IDENT", at(0)),
    Operator("LOGRET", at(1)),
    Operator("MOMENTUM", after(0), _window(5)),
    Operator("ROC", after(0), _window(10)),
    # Averages: simple, exponential, the difference of two of them, and bands around one.
    Operator("SMA", after(-1), _window(20)),
    Operator("EMA", after(-1), _window(20), at(0)),
    Operator("MACD_LINE", _macd, _MACD, at(0)),
    Operator("MACD_SIGNAL", lambda on: _macd(on) + on.signal - 1, _MACD, at(0)),
    Operator("MACD_HISTOGRAM", lambda on: _macd(on) + on.signal - 1, _MACD, at(0)),
    Operator("BOLLINGER_UPPER", after(-1), _window(20, k=2.0), after(0)),
    Operator("BOLLINGER_MIDDLE", after(-1), _window(20, k=2.0), after(0)),
    Operator("BOLLINGER_LOWER", after(-1), _window(20, k=2.0), after(0)),
    # Volatility: how much a source or the range of its bars varies.
    Operator("VOLATILITY", after(-1), _window(20), after(0)),
    Operator("ZWIN", after(-1), _window(20), after(0)),
    Operator("PARKINSON", after(-1), _window(14), reads=("high", "low")),
    Operator("GARMAN_KLASS", after(-1), _window(14), reads=("open", *_HLC)),
    # Oscillators: the position of a price within its recent range, independent of its level.
    Operator("RSI", after(0), _window(14), after(1)),
    Operator("STOCHASTIC_K", after(-1), _window(14), after(0), reads=_HLC),
    Operator("STOCHASTIC_D", lambda on: on.window + on.d_period - 2, _window(14, d_period=3), after(0), reads=_HLC),
    Operator("WILLIAMS_R", after(-1), _window(14), after(0), reads=_HLC),
    Operator("CCI", after(-1), _window(20), after(0), reads=_HLC),
    Operator("MFI", after(0), _window(14), reads=_VOLUME),
    # Trend: the true range of bars, and how much of their movement has one direction.
    Operator("ATR", after(0), _window(14), reads=_HLC),
    Operator("ADX", lambda on: 2 * on.window - 1, _window(14), lambda on: 2 * on.window, reads=_HLC),
    # Volume: sums from the first bar on of what was traded, signed or weighted by the price.
    Operator("OBV", at(1), reads=("close", "volume")),
    Operator("VPT", at(1), reads=("close", "volume")),
    Operator("AD_LINE", at(0), sentio_first=at(1), reads=_VOLUME),
    # Microstructure: estimates of spread, impact and depth from a single bar.
    Operator("SPREAD_BP", at(0), reads=("high", "low")),
    Operator("PRICE_IMPACT", at(1), reads=("close", "volume")),
    Operator("ORDER_FLOW", at(0), reads=_VOLUME),
    Operator("MARKET_DEPTH", at(0), reads=("high", "low", "volume")),
    Operator("BID_ASK_RATIO", at(0), reads=_HLC),
)

OPERATORS: dict[str, Operator] = {operator.name: operator for operator in _TABLE}
