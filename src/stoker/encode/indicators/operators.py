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


@dataclass(frozen=True, kw_only=True)
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
    reads: tuple[str, ...] = ()
    """Columns of the bars, where the operator is not computed from the source of the feature."""


def at(bar: int) -> First:
    """Ready from this bar on."""
    return lambda settings: bar


def behind_window(bars: int) -> First:
    """Ready `bars` bars after bar `window`; -1 where the window includes the bar."""
    return lambda settings: settings.window + bars


# Price: the source itself, and how it changed.


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


PRICE = (
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


# Averages: simple, exponential, the difference of two of them, and bands around one.


def _sma(make: ExactAssembly | SentioAssembly, on: Settings) -> Term:
    return make.mean(make.source(on.source), on.window)


def _ema(make: ExactAssembly | SentioAssembly, on: Settings) -> Lane:
    return Lane("ema", make.source(on.source), on.window)


def _macd(make: ExactAssembly, on: Settings) -> tuple[Term, Term]:
    x = make.source(on.source)
    fast, slow = (make.smooth(x, window, weight=ema_weight(window)) for window in (on.fast, on.slow))
    line = make.subtract(fast, slow)
    return line, make.smooth(line, on.signal, weight=ema_weight(on.signal))


def _sentio_macd(make: SentioAssembly, on: Settings) -> tuple[Term, Term]:
    x = make.source(on.source)
    line = make.subtract(make.smooth(x, on.fast), make.smooth(x, on.slow))
    return line, make.smooth(line, on.signal)


def _macd_operator(name: str, choose: Callable[[ExactAssembly | SentioAssembly, Term, Term], Term], *, signalled: bool) -> Operator:
    """One of the three outputs; those with the signal in them are ready when that is."""

    def first(on: Settings) -> int:
        return max(on.fast, on.slow) - 1 + (on.signal - 1 if signalled else 0)

    return Operator(
        name=name,
        defaults={"fast": 12, "slow": 26, "signal": 9},
        exact=lambda make, on: choose(make, *_macd(make, on)),
        sentio=lambda make, on: choose(make, *_sentio_macd(make, on)),
        first=first,
        sentio_first=at(0),
    )


def _bollinger_operator(name: str, sign: float) -> Operator:
    def exact(make: ExactAssembly, on: Settings) -> Output:
        return make.band(make.source(on.source), on.window, means=1.0, deviations=sign * on.k)

    def sentio(make: SentioAssembly, on: Settings) -> Output:
        x = make.source(on.source)
        width = make.multiply(make.deviation(x, on.window), on.k)
        if sign == 0:
            return make.multiply(make.mean(x, on.window), 1.0, first=on.window)
        return (make.add if sign > 0 else make.subtract)(make.mean(x, on.window), width, first=on.window)

    return Operator(
        name=name,
        defaults={"window": 20, "k": 2.0},
        exact=exact,
        sentio=sentio,
        first=behind_window(-1),
        sentio_first=behind_window(0),
    )


AVERAGES = (
    Operator(
        name="SMA",
        defaults={"window": 20},
        exact=_sma,
        sentio=_sma,
        first=behind_window(-1),
        sentio_first=behind_window(-1),
    ),
    Operator(name="EMA", defaults={"window": 20}, exact=_ema, sentio=_ema, first=behind_window(-1), sentio_first=at(0)),
    _macd_operator("MACD_LINE", lambda make, line, signal: line, signalled=False),
    _macd_operator("MACD_SIGNAL", lambda make, line, signal: signal, signalled=True),
    _macd_operator("MACD_HISTOGRAM", lambda make, line, signal: make.subtract(line, signal), signalled=True),
    _bollinger_operator("BOLLINGER_UPPER", 1.0),
    _bollinger_operator("BOLLINGER_MIDDLE", 0.0),
    _bollinger_operator("BOLLINGER_LOWER", -1.0),
)


# Volume: sums from the first bar on of what was traded, signed or weighted by the price.


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
    """The volume times -1 where the close is the low up to 1 where it is the high; 0 for a bar without a range."""
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


VOLUME = (
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


# Volatility: how much a source or the range of its bars varies.

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


VOLATILITY = (
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


# Trend: the true range of bars, and how much of their movement has one direction.

_BARS = ("high", "low", "close")


def _true_range(make: Assembly) -> Term:
    """The range of a bar, from the close before it."""
    high, low, before = make.column("high"), make.column("low"), make.column("close").back(1)
    up, down = make.absolute(make.subtract(high, before)), make.absolute(make.subtract(low, before))
    return make.larger(make.larger(make.subtract(high, low), up), down, first=1)


def _directions(make: Assembly) -> tuple[Term, Term]:
    """How far a bar extends above the one before it, or below, whichever is more."""
    high, low = make.column("high"), make.column("low")
    up, down = make.subtract(high, high.back(1)), make.subtract(low.back(1), low)
    rises = make.multiply(make.larger(up, 0.0), make.above(up, down), first=1)
    return rises, make.multiply(make.larger(down, 0.0), make.above(down, up), first=1)


def _sentio_directions(make: SentioAssembly) -> tuple[Term, Term]:
    high, low = make.column("high"), make.column("low")
    up, down = make.subtract(high, high.back(1)), make.subtract(low.back(1), low)
    rises = make.where(make.both(make.above(up, down), make.above(up, 0.0)), up, first=1)
    return rises, make.where(make.both(make.above(down, up), make.above(down, 0.0)), down, first=1)


def _atr(make: ExactAssembly, on: Settings) -> Term:
    return make.smooth(_true_range(make), on.window, weight=1.0 / on.window)


def _sentio_atr(make: SentioAssembly, on: Settings) -> Term:
    return make.wilder(_true_range(make), on.window)


def _adx(make: ExactAssembly, on: Settings) -> Term:
    # The true range would divide both sides, and is left out.
    up, down = (make.smooth(one, on.window, weight=1.0 / on.window) for one in _directions(make))
    apart = make.multiply(make.absolute(make.subtract(up, down)), 100.0)
    return make.smooth(make.ratio(apart, make.add(up, down), otherwise=0.0), on.window, weight=1.0 / on.window)


def _sentio_adx(make: SentioAssembly, on: Settings) -> Term:
    span = make.decay(_true_range(make), on.window)
    moves = make.above(span, 0.0)
    up, down = (_percent(make, moves, make.decay(one, on.window), span) for one in _sentio_directions(make))
    both = make.add(up, down)
    index = _percent(make, make.above(both, 0.0), make.absolute(make.subtract(up, down)), both)
    return make.multiply(make.repeated_mean(index, on.window), 1.0, first=2 * on.window)


def _percent(make: SentioAssembly, condition: Term, a: Term, b: Term) -> Term:
    return make.where(condition, make.multiply(make.divide(a, b), 100.0))


TREND = (
    Operator(
        name="ATR",
        defaults={"window": 14},
        reads=_BARS,
        exact=_atr,
        sentio=_sentio_atr,
        first=behind_window(0),
        sentio_first=behind_window(0),
    ),
    Operator(
        name="ADX",
        defaults={"window": 14},
        reads=_BARS,
        exact=_adx,
        sentio=_sentio_adx,
        first=lambda on: 2 * on.window - 1,
        sentio_first=lambda on: 2 * on.window,
    ),
)


# Oscillators: the position of a price within its recent range, independent of its level.

_CCI_SCALE = 0.015
_NOISE = 1e-12  # relative to a price: rounding of its thirds is not a change


def _rsi(make: Assembly, on: Settings) -> Lane:
    return Lane("rsi", make.source(on.source), on.window)


def _stochastic(make: ExactAssembly, on: Settings) -> Term:
    """The position of the close between the lowest and the highest price, in percent; 50 where these are equal."""
    low = make.lowest(make.column("low"), on.window)
    span = make.subtract(make.highest(make.column("high"), on.window), low)
    return make.ratio(make.multiply(make.subtract(make.column("close"), low), 100.0), span, otherwise=50.0)


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


OSCILLATORS = (
    Operator(
        name="RSI",
        defaults={"window": 14},
        exact=_rsi,
        sentio=_rsi,
        first=behind_window(0),
        sentio_first=behind_window(1),
    ),
    Operator(
        name="STOCHASTIC_K",
        defaults={"window": 14},
        reads=_BARS,
        exact=_stochastic,
        sentio=_sentio_stochastic,
        first=behind_window(-1),
        sentio_first=behind_window(0),
    ),
    Operator(
        name="STOCHASTIC_D",
        defaults={"window": 14, "d_period": 3},
        reads=_BARS,
        exact=_stochastic_d,
        sentio=_sentio_stochastic_d,
        first=lambda on: on.window - 1 + on.d_period - 1,
        sentio_first=behind_window(0),
    ),
    Operator(
        name="WILLIAMS_R",
        defaults={"window": 14},
        reads=_BARS,
        exact=_williams,
        sentio=_sentio_williams,
        first=behind_window(-1),
        sentio_first=behind_window(0),
    ),
    Operator(
        name="CCI",
        defaults={"window": 20},
        reads=_BARS,
        exact=_cci,
        sentio=_sentio_cci,
        first=behind_window(-1),
        sentio_first=behind_window(0),
    ),
    Operator(
        name="MFI",
        defaults={"window": 14},
        reads=(*_BARS, "volume"),
        exact=_mfi,
        sentio=_sentio_mfi,
        first=behind_window(0),
        sentio_first=behind_window(0),
    ),
)


# Microstructure: estimates of spread, impact and depth from a single bar.

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


MICROSTRUCTURE = (
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


# The table of operators, by name.

_FAMILIES = (PRICE, AVERAGES, VOLATILITY, OSCILLATORS, TREND, VOLUME, MICROSTRUCTURE)

OPERATORS: dict[str, Operator] = {operator.name: operator for family in _FAMILIES for operator in family}
