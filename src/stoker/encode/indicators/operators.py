"""The operators of indicators: name, fields, columns, and definition in both arithmetics. `OPERATORS` is the table of all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stoker.encode.indicators.exact import ExactAssembly, ema_weight
from stoker.encode.indicators.program import Assembly, Lane, Output, Term
from stoker.encode.indicators.sentio import FLAT, TINY, SentioAssembly


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The fields of a feature, with the operator's defaults; fields that it does not have are 0."""

    source: str = "close"
    window: int = 0
    k: float = 0.0
    fast: int = 0
    slow: int = 0
    signal: int = 0
    d_period: int = 0


First = Callable[[Settings], int]


@dataclass(frozen=True)
class Operator:
    """One entry of the table of operators."""

    name: str
    exact: Callable[[ExactAssembly, Settings], Output]
    sentio: Callable[[SentioAssembly, Settings], Output]
    first: First
    """The first bar that is ready, for a source from bar 0 without missing values."""
    sentio_first: First
    """The same in Sentio's arithmetic: before it there is 0."""
    defaults: Mapping[str, float] = field(default_factory=dict)
    reads: tuple[str, ...] = field(default=(), kw_only=True)
    """Columns of the bars, where the operator is not computed from the source of the feature."""


def at(bar: int) -> First:
    """Ready from this bar on."""
    return lambda settings: bar


def after(plus: int) -> First:
    """Ready `plus` bars after bar `window`; -1 where the window includes the bar."""
    return lambda settings: settings.window + plus


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


def _sma(make: ExactAssembly | SentioAssembly, on: Settings) -> Term:
    return make.mean(make.source(on.source), on.window)


def _ema(make: ExactAssembly | SentioAssembly, on: Settings) -> Lane:
    return Lane("ema", make.source(on.source), on.window)


def _macd_operator(name: str, choose: Callable[[ExactAssembly | SentioAssembly, Term, Term], Term], *, signalled: bool) -> Operator:
    """One of the three outputs; those with the signal in them are ready when that is."""

    def exact(make: ExactAssembly, on: Settings) -> Output:
        x = make.source(on.source)
        fast, slow = (make.smooth(x, window, weight=ema_weight(window)) for window in (on.fast, on.slow))
        line = make.subtract(fast, slow)
        return choose(make, line, make.smooth(line, on.signal, weight=ema_weight(on.signal)))

    def sentio(make: SentioAssembly, on: Settings) -> Output:
        x = make.source(on.source)
        line = make.subtract(make.smooth(x, on.fast), make.smooth(x, on.slow))
        return choose(make, line, make.smooth(line, on.signal))

    def first(on: Settings) -> int:
        return max(on.fast, on.slow) - 1 + (on.signal - 1 if signalled else 0)

    return Operator(name, exact, sentio, first, at(0), {"fast": 12, "slow": 26, "signal": 9})


def _bollinger_operator(name: str, sign: float) -> Operator:
    def exact(make: ExactAssembly, on: Settings) -> Output:
        return make.band(make.source(on.source), on.window, means=1.0, deviations=sign * on.k)

    def sentio(make: SentioAssembly, on: Settings) -> Output:
        x = make.source(on.source)
        width = make.multiply(make.deviation(x, on.window), on.k)
        if sign == 0:
            return make.multiply(make.mean(x, on.window), 1.0, first=on.window)
        return (make.add if sign > 0 else make.subtract)(make.mean(x, on.window), width, first=on.window)

    return Operator(name, exact, sentio, after(-1), after(0), {"window": 20, "k": 2.0})


def _obv(make: ExactAssembly, on: Settings) -> Term:
    close = make.column("close")
    sign = make.subtract(make.above(close, close.back(1)), make.above(close.back(1), close))
    return make.total(make.multiply(sign, make.column("volume"), first=1))


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


def _order_flow(make: ExactAssembly, on: Settings) -> Term:
    """The volume times -1 where the close is the low up to 1 where it is the high; 0 for a bar without a range."""
    high, low, close = make.column("high"), make.column("low"), make.column("close")
    apart = make.subtract(make.subtract(close, low), make.subtract(high, close))
    return make.multiply(make.ratio(apart, make.subtract(high, low), otherwise=0.0), make.column("volume"))


def _ad_line(make: ExactAssembly, on: Settings) -> Term:
    return make.total(_order_flow(make, on))


def _sentio_ad_line(make: SentioAssembly, on: Settings) -> Term:
    high, low, close = make.column("high"), make.column("low"), make.column("close")
    apart, span = make.subtract(make.subtract(close, low), make.subtract(high, close)), make.subtract(high, low)
    flow = make.multiply(make.divide(apart, span), make.column("volume"))
    return make.total(make.where(make.above(span, FLAT), flow, first=1))


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


def _garman_klass(make: ExactAssembly, on: Settings) -> Term:
    span = make.multiply(_squared_logarithm(make, "high", "low"), 0.5)
    term = make.subtract(span, make.multiply(_squared_logarithm(make, "close", "open"), _CLOSE_TO_OPEN))
    return make.root(make.larger(make.mean(term, on.window), 0.0))


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


def _true_range(make: Assembly) -> Term:
    """The range of a bar, from the close before it."""
    high, low, before = make.column("high"), make.column("low"), make.column("close").back(1)
    up, down = make.absolute(make.subtract(high, before)), make.absolute(make.subtract(low, before))
    return make.larger(make.larger(make.subtract(high, low), up), down, first=1)


def _directions(make: Assembly) -> tuple[Term, Term]:
    """How far a bar extends above the one before it, and how far below."""
    high, low = make.column("high"), make.column("low")
    return make.subtract(high, high.back(1)), make.subtract(low.back(1), low)


def _atr(make: ExactAssembly, on: Settings) -> Term:
    return make.smooth(_true_range(make), on.window, weight=1.0 / on.window)


def _sentio_atr(make: SentioAssembly, on: Settings) -> Term:
    return make.wilder(_true_range(make), on.window)


def _adx(make: ExactAssembly, on: Settings) -> Term:
    up, down = _directions(make)
    rises = make.multiply(make.larger(up, 0.0), make.above(up, down), first=1)
    falls = make.multiply(make.larger(down, 0.0), make.above(down, up), first=1)
    # The true range would divide both sides, and is left out.
    up, down = (make.smooth(one, on.window, weight=1.0 / on.window) for one in (rises, falls))
    apart = make.multiply(make.absolute(make.subtract(up, down)), 100.0)
    return make.smooth(make.ratio(apart, make.add(up, down), otherwise=0.0), on.window, weight=1.0 / on.window)


def _sentio_adx(make: SentioAssembly, on: Settings) -> Term:
    def percent(condition: Term, a: Term, b: Term) -> Term:
        return make.where(condition, make.multiply(make.divide(a, b), 100.0))

    span = make.decay(_true_range(make), on.window)
    moves = make.above(span, 0.0)
    up, down = _directions(make)
    rises = make.where(make.both(make.above(up, down), make.above(up, 0.0)), up, first=1)
    falls = make.where(make.both(make.above(down, up), make.above(down, 0.0)), down, first=1)
    up, down = (percent(moves, make.decay(one, on.window), span) for one in (rises, falls))
    both = make.add(up, down)
    index = percent(make.above(both, 0.0), make.absolute(make.subtract(up, down)), both)
    return make.multiply(make.repeated_mean(index, on.window), 1.0, first=2 * on.window)


_CCI_SCALE = 0.015
_NOISE = 1e-12  # relative to a price: rounding of its thirds is not a change


def _rsi(make: Assembly, on: Settings) -> Lane:
    return Lane("rsi", make.source(on.source), on.window)


def _stochastic(make: ExactAssembly, on: Settings) -> Term:
    """The position of the close between the lowest and the highest price, in percent; 50 where these are equal."""
    low = make.lowest(make.column("low"), on.window)
    span = make.subtract(make.highest(make.column("high"), on.window), low)
    return make.ratio(make.multiply(make.subtract(make.column("close"), low), 100.0), span, otherwise=50.0)


def _d_first(on: Settings) -> int:
    return on.window - 1 + on.d_period - 1


def _stochastic_d(make: ExactAssembly, on: Settings) -> Term:
    return make.mean(_stochastic(make, on), on.d_period)


def _williams(make: ExactAssembly, on: Settings) -> Term:
    return make.add(_stochastic(make, on), -100.0)


def _sentio_span(make: SentioAssembly, on: Settings) -> tuple[Term, Term]:
    """The highest and the lowest price of window + 1 bars."""
    return make.highest(make.column("high"), on.window + 1), make.lowest(make.column("low"), on.window + 1)


def _sentio_stochastic(make: SentioAssembly, on: Settings) -> Term:
    high, low = _sentio_span(make, on)
    share = make.divide(make.subtract(make.column("close"), low), make.subtract(high, low))
    return make.where(make.above(high, low), make.multiply(share, 100.0), first=on.window)


def _sentio_stochastic_d(make: SentioAssembly, on: Settings) -> Term:
    return make.mean(_sentio_stochastic(make, on), on.d_period)


def _sentio_williams(make: SentioAssembly, on: Settings) -> Term:
    high, low = _sentio_span(make, on)
    share = make.divide(make.subtract(high, make.column("close")), make.subtract(high, low))
    return make.where(make.above(high, low), make.multiply(share, -100.0), first=on.window)


def _typical(make: Assembly) -> Term:
    return make.divide(make.add(make.add(make.column("high"), make.column("low")), make.column("close")), 3.0)


def _cci(make: ExactAssembly, on: Settings) -> Term:
    price = _typical(make)
    mean = make.mean(price, on.window)
    away = make.distance(price, mean, on.window)
    deviates = make.above(away, make.multiply(make.absolute(mean), _NOISE))
    return make.ratio(make.multiply(make.subtract(price, mean), deviates), make.multiply(away, _CCI_SCALE), otherwise=0.0)


def _sentio_cci(make: SentioAssembly, on: Settings) -> Term:
    price = _typical(make)
    mean = make.mean(price, on.window)
    away = make.distance(price, mean, on.window)
    index = make.divide(make.subtract(price, mean), make.multiply(away, _CCI_SCALE))
    return make.where(make.above(away, FLAT), index, first=on.window)


def _mfi(make: ExactAssembly, on: Settings) -> Term:
    price = _typical(make)
    before = price.back(1)
    noise = make.multiply(make.absolute(price), _NOISE)
    flow = make.multiply(price, make.column("volume"))
    rising = make.mean(make.multiply(flow, make.above(make.subtract(price, before), noise)), on.window)
    falling = make.mean(make.multiply(flow, make.above(make.subtract(before, price), noise)), on.window)
    return make.ratio(make.multiply(rising, 100.0), make.add(rising, falling), otherwise=50.0)


def _sentio_mfi(make: SentioAssembly, on: Settings) -> Term:
    price = _typical(make)
    flow = make.multiply(price, make.column("volume"))
    rising = make.window_sum(make.where(make.above(price, price.back(1)), flow), on.window)
    falling = make.window_sum(make.where(make.above(price.back(1), price), flow), on.window)
    rest = make.divide(make.constant(100.0), make.add(make.divide(rising, falling), 1.0))
    return make.where(make.above(falling, FLAT), make.subtract(100.0, rest), first=on.window)


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


_HLC = ("high", "low", "close")
_TABLE = (
    # Price: the source itself, and how it changed.
    Operator("IDENT", _ident, _ident, at(0), at(0)),
    Operator("LOGRET", _logret, _sentio_logret, at(1), at(1)),
    Operator("MOMENTUM", _momentum, _momentum, after(0), after(0), {"window": 5}),
    Operator("ROC", _roc, _sentio_roc, after(0), after(0), {"window": 10}),
    # Averages: simple, exponential, the difference of two of them, and bands around one.
    Operator("SMA", _sma, _sma, after(-1), after(-1), {"window": 20}),
    Operator("EMA", _ema, _ema, after(-1), at(0), {"window": 20}),
    _macd_operator("MACD_LINE", lambda make, line, signal: line, signalled=False),
    _macd_operator("MACD_SIGNAL", lambda make, line, signal: signal, signalled=True),
    _macd_operator("MACD_HISTOGRAM", lambda make, line, signal: make.subtract(line, signal), signalled=True),
    _bollinger_operator("BOLLINGER_UPPER", 1.0),
    _bollinger_operator("BOLLINGER_MIDDLE", 0.0),
    _bollinger_operator("BOLLINGER_LOWER", -1.0),
    # Volatility: how much a source or the range of its bars varies.
    Operator("VOLATILITY", _volatility, _volatility, after(-1), after(0), {"window": 20}),
    Operator("ZWIN", _zwin, _zwin, after(-1), after(0), {"window": 20}),
    Operator("PARKINSON", _parkinson, _sentio_parkinson, after(-1), after(-1), {"window": 14}, reads=("high", "low")),
    Operator("GARMAN_KLASS", _garman_klass, _sentio_garman_klass, after(-1), after(-1), {"window": 14}, reads=("open", *_HLC)),
    # Oscillators: the position of a price within its recent range, independent of its level.
    Operator("RSI", _rsi, _rsi, after(0), after(1), {"window": 14}),
    Operator("STOCHASTIC_K", _stochastic, _sentio_stochastic, after(-1), after(0), {"window": 14}, reads=_HLC),
    Operator("STOCHASTIC_D", _stochastic_d, _sentio_stochastic_d, _d_first, after(0), {"window": 14, "d_period": 3}, reads=_HLC),
    Operator("WILLIAMS_R", _williams, _sentio_williams, after(-1), after(0), {"window": 14}, reads=_HLC),
    Operator("CCI", _cci, _sentio_cci, after(-1), after(0), {"window": 20}, reads=_HLC),
    Operator("MFI", _mfi, _sentio_mfi, after(0), after(0), {"window": 14}, reads=(*_HLC, "volume")),
    # Trend: the true range of bars, and how much of their movement has one direction.
    Operator("ATR", _atr, _sentio_atr, after(0), after(0), {"window": 14}, reads=_HLC),
    Operator("ADX", _adx, _sentio_adx, lambda on: 2 * on.window - 1, lambda on: 2 * on.window, {"window": 14}, reads=_HLC),
    # Volume: sums from the first bar on of what was traded, signed or weighted by the price.
    Operator("OBV", _obv, _sentio_obv, at(1), at(1), reads=("close", "volume")),
    Operator("VPT", _vpt, _sentio_vpt, at(1), at(1), reads=("close", "volume")),
    Operator("AD_LINE", _ad_line, _sentio_ad_line, at(0), at(1), reads=(*_HLC, "volume")),
    # Microstructure: estimates of spread, impact and depth from a single bar.
    Operator("SPREAD_BP", _spread, _sentio_spread, at(0), at(0), reads=("high", "low")),
    Operator("PRICE_IMPACT", _impact, _sentio_impact, at(1), at(1), reads=("close", "volume")),
    Operator("ORDER_FLOW", _order_flow, _sentio_order_flow, at(0), at(0), reads=(*_HLC, "volume")),
    Operator("MARKET_DEPTH", _depth, _sentio_depth, at(0), at(0), reads=("high", "low", "volume")),
    Operator("BID_ASK_RATIO", _bid_ask, _sentio_bid_ask, at(0), at(0), reads=_HLC),
)

OPERATORS: dict[str, Operator] = {operator.name: operator for operator in _TABLE}
