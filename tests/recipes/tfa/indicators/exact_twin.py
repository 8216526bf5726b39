"""The operators as a textbook says them, one bar at a time in Python's floats: a window is summed anew at each bar.

NaN stands for what is missing and for what is not ready. The twin has no state and no blocks; means and deviations are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker_recipes.tfa.indicators.operators import FeatureSettings

Array = npt.NDArray[Any]
Column = list[float]

NAN = math.nan


def known(*values: float) -> bool:
    return all(math.isfinite(value) for value in values)


def lag(x: Column, bars: int) -> Column:
    return [x[i - bars] if i >= bars else NAN for i in range(len(x))]


def each(function: Callable[..., float], *columns: Column) -> Column:
    """A value from those of each bar; missing if one of them is."""
    return [function(*values) if known(*values) else NAN for values in zip(*columns, strict=True)]


def windows(function: Callable[[Column], float], x: Column, w: int) -> Column:
    """A value from the last w values; missing if one of them is."""
    return [function(x[i - w + 1 : i + 1]) if i >= w - 1 and known(*x[i - w + 1 : i + 1]) else NAN for i in range(len(x))]


def center(values: Column) -> Fraction:
    return sum(map(Fraction, values), Fraction(0)) / len(values)


def mean(values: Column) -> float:
    return float(center(values))


def deviation(values: Column) -> float:
    middle = center(values)
    return math.sqrt(sum((Fraction(value) - middle) ** 2 for value in values) / len(values))


def score(values: Column) -> float:
    return over(float(Fraction(values[-1]) - center(values)), deviation(values), 0.0)


def smooth(x: Column, w: int, weight: float) -> Column:
    """The mean of the first w values that are there, and from then on weight * new + (1 - weight) * old."""
    y, seen, average = [], [], NAN
    for value in x:
        if not known(value):
            y.append(NAN)
            continue
        if len(seen) < w:
            seen.append(value)
            average = mean(seen)
        else:
            average = weight * value + (1 - weight) * average
        y.append(average if len(seen) == w else NAN)
    return y


def total(x: Column) -> Column:
    y, so_far = [], 0.0
    for value in x:
        so_far += value if known(value) else 0.0
        y.append(so_far if known(value) else NAN)
    return y


def log(x: float) -> float:
    return math.log(x) if x > 0 else NAN


def over(a: float, b: float, otherwise: float) -> float:
    return a / b if b > 0 else otherwise


class ExactTwin:
    """All operators over one series of bars."""

    def __init__(self, bars: dict[str, Array]) -> None:
        largest = float(np.finfo(np.float32).max)
        columns = {name: [float(v) if abs(v) <= largest else NAN for v in values] for name, values in bars.items()}
        self.o, self.h, self.l, self.c, self.v = (columns[name] for name in ("open", "high", "low", "close", "volume"))
        self.sources = {**columns, "logret": self.logret(self.c, 0, FeatureSettings())}

    def compute(self, op: str, on: FeatureSettings) -> Column:
        column: Column = getattr(self, op.lower())(self.sources[on.source], on.window, on)
        return column

    def ident(self, x: Column, w: int, on: FeatureSettings) -> Column:
        return x

    def logret(self, x: Column, w: int, on: FeatureSettings) -> Column:
        logs = each(log, x)
        return each(lambda a, b: a - b, logs, lag(logs, 1))

    def momentum(self, x: Column, w: int, on: FeatureSettings) -> Column:
        return each(lambda a, b: a - b, x, lag(x, w))

    def roc(self, x: Column, w: int, on: FeatureSettings) -> Column:
        return each(lambda a, b: (a - b) / b * 100 if b else NAN, x, lag(x, w))

    def sma(self, x: Column, w: int, on: FeatureSettings) -> Column:
        return windows(mean, x, w)

    def ema(self, x: Column, w: int, on: FeatureSettings) -> Column:
        return smooth(x, w, 2 / (w + 1))

    def volatility(self, x: Column, w: int, on: FeatureSettings) -> Column:
        return windows(deviation, x, w)

    def zwin(self, x: Column, w: int, on: FeatureSettings) -> Column:
        return windows(score, x, w)

    def parkinson(self, x: Column, w: int, on: FeatureSettings) -> Column:
        terms = each(lambda h, low: log(h / low) ** 2 / (4 * math.log(2)) if low else NAN, self.h, self.l)
        return each(math.sqrt, windows(mean, terms, w))

    def garman_klass(self, x: Column, w: int, on: FeatureSettings) -> Column:
        def term(o: float, h: float, low: float, c: float) -> float:
            if not (low and o):
                return NAN
            return 0.5 * log(h / low) ** 2 - (2 * math.log(2) - 1) * log(c / o) ** 2

        terms = each(term, self.o, self.h, self.l, self.c)
        return [math.sqrt(max(one, 0.0)) if known(one) else NAN for one in windows(mean, terms, w)]

    def rsi(self, x: Column, w: int, on: FeatureSettings) -> Column:
        change = self.momentum(x, 1, on)
        up, down = (smooth(each(lambda d, s=sign: max(s * d, 0.0), change), w, 1 / w) for sign in (1, -1))
        return each(lambda u, d: over(100 * u, u + d, 50.0), up, down)

    def true_range(self) -> Column:
        return each(lambda h, low, c: max(h - low, abs(h - c), abs(low - c)), self.h, self.l, lag(self.c, 1))

    def atr(self, x: Column, w: int, on: FeatureSettings) -> Column:
        return smooth(self.true_range(), w, 1 / w)

    def adx(self, x: Column, w: int, on: FeatureSettings) -> Column:
        rise = each(lambda a, b: a - b, self.h, lag(self.h, 1))
        fall = each(lambda a, b: b - a, self.l, lag(self.l, 1))
        plus = smooth(each(lambda a, b: max(a, 0.0) if a > b else 0.0, rise, fall), w, 1 / w)
        minus = smooth(each(lambda a, b: max(b, 0.0) if b > a else 0.0, rise, fall), w, 1 / w)
        return smooth(each(lambda p, m: over(100 * abs(p - m), p + m, 0.0), plus, minus), w, 1 / w)

    def _bollinger(self, x: Column, w: int, k: float) -> Column:
        return windows(lambda values: mean(values) + k * deviation(values), x, w)

    def bollinger_upper(self, x: Column, w: int, on: FeatureSettings) -> Column:
        return self._bollinger(x, w, on.k)

    def bollinger_middle(self, x: Column, w: int, on: FeatureSettings) -> Column:
        return self._bollinger(x, w, 0.0)

    def bollinger_lower(self, x: Column, w: int, on: FeatureSettings) -> Column:
        return self._bollinger(x, w, -on.k)

    def macd_line(self, x: Column, w: int, on: FeatureSettings) -> Column:
        return each(lambda a, b: a - b, self.ema(x, on.fast, on), self.ema(x, on.slow, on))

    def macd_signal(self, x: Column, w: int, on: FeatureSettings) -> Column:
        return self.ema(self.macd_line(x, w, on), on.signal, on)

    def macd_histogram(self, x: Column, w: int, on: FeatureSettings) -> Column:
        return each(lambda a, b: a - b, self.macd_line(x, w, on), self.macd_signal(x, w, on))

    def stochastic_k(self, x: Column, w: int, on: FeatureSettings) -> Column:
        high, low = windows(max, self.h, w), windows(min, self.l, w)
        return each(lambda c, h, low: over(100 * (c - low), h - low, 50.0), self.c, high, low)

    def stochastic_d(self, x: Column, w: int, on: FeatureSettings) -> Column:
        return windows(mean, self.stochastic_k(x, w, on), on.d_period)

    def williams_r(self, x: Column, w: int, on: FeatureSettings) -> Column:
        high, low = windows(max, self.h, w), windows(min, self.l, w)
        return each(lambda c, h, low: over(-100 * (h - c), h - low, -50.0), self.c, high, low)

    def typical(self) -> Column:
        return each(lambda h, low, c: (h + low + c) / 3, self.h, self.l, self.c)

    def cci(self, x: Column, w: int, on: FeatureSettings) -> Column:
        def value(values: Column) -> float:
            middle = mean(values)
            away = mean([abs(one - middle) for one in values])
            return (values[-1] - middle) / (0.015 * away) if away > 1e-12 * abs(middle) else 0.0

        return windows(value, self.typical(), w)

    def mfi(self, x: Column, w: int, on: FeatureSettings) -> Column:
        price = self.typical()
        before = lag(price, 1)
        rising = each(lambda p, b, v: p * v if p - b > 1e-12 * abs(p) else 0.0, price, before, self.v)
        falling = each(lambda p, b, v: p * v if b - p > 1e-12 * abs(p) else 0.0, price, before, self.v)
        up, down = windows(mean, rising, w), windows(mean, falling, w)
        return each(lambda u, d: over(100 * u, u + d, 50.0), up, down)

    def obv(self, x: Column, w: int, on: FeatureSettings) -> Column:
        return total(each(lambda c, b, v: v * ((c > b) - (c < b)), self.c, lag(self.c, 1), self.v))

    def vpt(self, x: Column, w: int, on: FeatureSettings) -> Column:
        return total(each(lambda c, b, v: (c - b) / b * v if b else NAN, self.c, lag(self.c, 1), self.v))

    def ad_line(self, x: Column, w: int, on: FeatureSettings) -> Column:
        return total(self.order_flow(x, w, on))

    def order_flow(self, x: Column, w: int, on: FeatureSettings) -> Column:
        return each(lambda h, low, c, v: over((c - low) - (h - c), h - low, 0.0) * v, self.h, self.l, self.c, self.v)

    def spread_bp(self, x: Column, w: int, on: FeatureSettings) -> Column:
        return each(lambda h, low: over(h - low, (h + low) / 2, NAN) * 1e4, self.h, self.l)

    def price_impact(self, x: Column, w: int, on: FeatureSettings) -> Column:
        def impact(c: float, before: float, v: float) -> float:
            return over(over(abs(c - before), before, NAN), math.sqrt(v) if v >= 0 else NAN, NAN) * 1e6

        return each(impact, self.c, lag(self.c, 1), self.v)

    def market_depth(self, x: Column, w: int, on: FeatureSettings) -> Column:
        return each(lambda h, low, v: over(h - low, log(v + 1), NAN), self.h, self.l, self.v)

    def bid_ask_ratio(self, x: Column, w: int, on: FeatureSettings) -> Column:
        def value(h: float, low: float, c: float) -> float:
            p = over(c - low, h - low, 0.5)
            return p / (1 - p + 1e-8)

        return each(value, self.h, self.l, self.c)
