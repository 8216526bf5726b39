"""Sentio's operators as their C++ computes them, one bar at a time in float32 scalars: slow and obvious.

Order and grouping of operations are theirs; so are comparisons, from which it follows what a NaN does. golden.py holds what the
original gave, so that this twin and the kernel cannot be wrong together."""

from __future__ import annotations

import ctypes
import ctypes.util
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker_recipes.tfa.indicators.operators import FeatureSettings

Array = npt.NDArray[Any]
F = np.float32

_libm = ctypes.CDLL(ctypes.util.find_library("m") or "libm.so.6")
_libm.logf.restype, _libm.logf.argtypes = ctypes.c_float, [ctypes.c_float]


def log(x: np.float32) -> np.float32:
    """The C library's, as NumPy has its own."""
    return F(_libm.logf(x))


def larger(a: np.float32, b: np.float32) -> np.float32:
    """std::max."""
    return b if a < b else a


def zeros(x: Array) -> Array:
    return np.zeros(len(x), dtype=F)


def logret(x: Array) -> Array:
    y = zeros(x)
    for i in range(1, len(x)):
        y[i] = log(larger(x[i], F(1e-12))) - log(larger(x[i - 1], F(1e-12)))
    return y


def sma(x: Array, w: int) -> Array:
    if w <= 1:
        return x
    y, s = zeros(x), np.float64(0)
    for i in range(len(x)):
        s += np.float64(x[i])
        if i >= w:
            s -= np.float64(x[i - w])
        if i >= w - 1:
            y[i] = F(s / w)
    return y


def ema(x: Array, w: int) -> Array:
    y, k = zeros(x), F(2) / F(w + 1)
    for i in range(len(x)):
        y[i] = k * x[i] + (F(1) - k) * y[i - 1] if i else x[i]
    return y


def volatility(x: Array, w: int) -> Array:
    y, s, s2 = zeros(x), np.float64(0), np.float64(0)
    for i in range(len(x)):
        if i < w:
            s += np.float64(x[i])
            s2 += np.float64(x[i] * x[i])
            continue
        mean = s / w
        var = s2 / w - mean * mean
        y[i] = F(np.sqrt(var)) if var > 0 else F(0)
        s += np.float64(x[i] - x[i - w])
        s2 += np.float64(x[i] * x[i] - x[i - w] * x[i - w])
    return y


def wilder(x: Array, w: int) -> Array:
    """The mean of bars 1 to w, at bar w; Wilder's average from then on."""
    y, a = zeros(x), F(0)
    for i in range(1, len(x)):
        a = (a if i <= w else a * F(w - 1)) + x[i]
        a = a / F(w) if i >= w else a
        y[i] = a if i >= w else F(0)
    return y


def decay(x: Array, w: int) -> Array:
    y, s = zeros(x), F(0)
    for i in range(1, len(x)):
        s = (s if i <= w else s - s / F(w)) + x[i]
        y[i] = s
    return y


def rsi(x: Array, w: int) -> Array:
    gains, losses, y = zeros(x), zeros(x), zeros(x)
    for i in range(1, len(x)):
        d = x[i] - x[i - 1]
        gains[i], losses[i] = F(0) if d < 0 else d, F(0) if -d < 0 else -d
    up, down = wilder(gains, w), wilder(losses, w)
    for i in range(w + 1, len(x)):
        strength = up[i] / down[i] if down[i] > F(1e-12) else F(0)
        y[i] = F(100) - F(100) / (F(1) + strength)
    return y


def zwin(x: Array, w: int) -> Array:
    y, s, s2 = zeros(x), [np.float64(0)], [np.float64(0)]
    for value in x:
        s.append(s[-1] + np.float64(value))
        s2.append(s2[-1] + np.float64(value * value))
    for i in range(w, len(x)):
        mean = (s[i + 1] - s[i + 1 - w]) / w
        var = (s2[i + 1] - s2[i + 1 - w]) / w - mean * mean
        sd = F(np.sqrt(var)) if var > 0 else F(0)
        y[i] = F((np.float64(x[i]) - mean) / np.float64(sd)) if sd > F(1e-8) else F(0)
    return y


class SentioTwin:
    """All operators over one series of bars."""

    def __init__(self, bars: dict[str, Array]) -> None:
        with np.errstate(all="ignore"):
            prices = {name: values.astype(F) for name, values in bars.items() if name != "volume"}
            self.o, self.h, self.l, self.c = (prices[name] for name in ("open", "high", "low", "close"))
            self.v = np.trunc(bars["volume"]).astype(F)
            self.sources = {**prices, "volume": self.v, "logret": logret(self.c)}

    def compute(self, op: str, on: FeatureSettings) -> Array:
        with np.errstate(all="ignore"):
            x, w = self.sources[on.source], on.window
            by_source = {"LOGRET": lambda: logret(x), "SMA": lambda: sma(x, w), "EMA": lambda: ema(x, w), "IDENT": lambda: x}
            by_source |= {"VOLATILITY": lambda: volatility(x, w), "RSI": lambda: rsi(x, w), "ZWIN": lambda: zwin(x, w)}
            found = by_source[op]() if op in by_source else getattr(self, op.lower())(x, w, on)
            return np.asarray(found, dtype=F)

    def each(self, first: int, value: Any) -> Array:
        """A value for each bar, 0 before the first."""
        return np.array([value(i) if i >= first else F(0) for i in range(len(self.c))], dtype=F)

    def momentum(self, x: Array, w: int, on: FeatureSettings) -> Array:
        return self.each(w, lambda i: x[i] - x[i - w])

    def roc(self, x: Array, w: int, on: FeatureSettings) -> Array:
        before = [larger(value, F(1e-12)) for value in x]
        return self.each(w, lambda i: (x[i] - before[i - w]) / before[i - w] * F(100))

    def parkinson(self, x: Array, w: int, on: FeatureSettings) -> Array:
        def term(i: int) -> np.float32:
            if not (self.h[i] > 0 and self.l[i] > 0):
                return F(0)
            ratio = log(self.h[i] / self.l[i])
            return ratio * ratio

        mean = sma(self.each(0, term), w)
        return np.sqrt(mean * F(1 / (4 * math.log(2))))

    def garman_klass(self, x: Array, w: int, on: FeatureSettings) -> Array:
        def term(i: int) -> np.float32:
            if not (self.h[i] > 0 and self.l[i] > 0 and self.o[i] > 0 and self.c[i] > 0):
                return F(0)
            hl, co = log(self.h[i] / self.l[i]), log(self.c[i] / self.o[i])
            return (F(0.5) * hl) * hl - (F(2 * math.log(2) - 1) * co) * co

        mean = sma(self.each(1, term), w)
        return np.sqrt(np.array([larger(F(0), one) for one in mean], dtype=F))

    def true_range(self) -> Array:
        h, low, c = self.h, self.l, self.c
        return self.each(1, lambda i: larger(larger(h[i] - low[i], abs(h[i] - c[i - 1])), abs(low[i] - c[i - 1])))

    def atr(self, x: Array, w: int, on: FeatureSettings) -> Array:
        return wilder(self.true_range(), w)

    def adx(self, x: Array, w: int, on: FeatureSettings) -> Array:
        h, low = self.h, self.l

        def direction(i: int, up: bool) -> np.float32:
            rise, fall = h[i] - h[i - 1], low[i - 1] - low[i]
            one, other = (rise, fall) if up else (fall, rise)
            return one if one > other and one > 0 else F(0)

        span = decay(self.true_range(), w)
        plus, minus = (decay(self.each(1, lambda i, up=up: direction(i, up)), w) for up in (True, False))

        def dx(i: int) -> np.float32:
            p, m = (one[i] / span[i] * F(100) if span[i] > 0 else F(0) for one in (plus, minus))
            return abs(p - m) / (p + m) * F(100) if p + m > 0 else F(0)

        def mean_of_the_same(i: int) -> np.float32:
            now, total = dx(i), F(0)
            for _ in range(w):
                total = total + now
            return total / F(w)

        return self.each(2 * w, mean_of_the_same)

    def bollinger_upper(self, x: Array, w: int, on: FeatureSettings) -> Array:
        mean, sd = sma(x, w), volatility(x, w)
        return self.each(w, lambda i: mean[i] + F(on.k) * sd[i])

    def bollinger_middle(self, x: Array, w: int, on: FeatureSettings) -> Array:
        mean = sma(x, w)
        return self.each(w, lambda i: mean[i])

    def bollinger_lower(self, x: Array, w: int, on: FeatureSettings) -> Array:
        mean, sd = sma(x, w), volatility(x, w)
        return self.each(w, lambda i: mean[i] - F(on.k) * sd[i])

    def macd_line(self, x: Array, w: int, on: FeatureSettings) -> Array:
        return ema(x, on.fast) - ema(x, on.slow)

    def macd_signal(self, x: Array, w: int, on: FeatureSettings) -> Array:
        return ema(self.macd_line(x, w, on), on.signal)

    def macd_histogram(self, x: Array, w: int, on: FeatureSettings) -> Array:
        return self.macd_line(x, w, on) - self.macd_signal(x, w, on)

    def _extremes(self, i: int, w: int) -> tuple[np.float32, np.float32]:
        """Of w + 1 bars; one that is NaN never beats the one before, and is never beaten."""
        high, low = self.h[i - w], self.l[i - w]
        for j in range(i - w + 1, i + 1):
            high = self.h[j] if high < self.h[j] else high
            low = self.l[j] if self.l[j] < low else low
        return high, low

    def stochastic_k(self, x: Array, w: int, on: FeatureSettings) -> Array:
        def k(i: int) -> np.float32:
            high, low = self._extremes(i, w)
            return (self.c[i] - low) / (high - low) * F(100) if high > low else F(0)

        return self.each(w, k)

    def stochastic_d(self, x: Array, w: int, on: FeatureSettings) -> Array:
        return sma(self.stochastic_k(x, w, on), on.d_period)

    def williams_r(self, x: Array, w: int, on: FeatureSettings) -> Array:
        def r(i: int) -> np.float32:
            high, low = self._extremes(i, w)
            return (high - self.c[i]) / (high - low) * F(-100) if high > low else F(0)

        return self.each(w, r)

    def typical(self) -> Array:
        return np.asarray((self.h + self.l + self.c) / F(3), dtype=F)

    def cci(self, x: Array, w: int, on: FeatureSettings) -> Array:
        price = self.typical()
        mean = sma(price, w)

        def value(i: int) -> np.float32:
            away = F(0)
            for j in range(i - w + 1, i + 1):
                away += abs(price[j] - mean[i])
            away = away / F(w)
            return (price[i] - mean[i]) / (F(0.015) * away) if away > F(1e-8) else F(0)

        return self.each(w, value)

    def obv(self, x: Array, w: int, on: FeatureSettings) -> Array:
        c = self.c

        def signed(i: int) -> np.float32:
            return self.v[i] if c[i] > c[i - 1] else -self.v[i] if c[i] < c[i - 1] else F(0)

        return self._total(self.each(1, signed))

    def vpt(self, x: Array, w: int, on: FeatureSettings) -> Array:
        c = self.c
        return self._total(self.each(1, lambda i: (c[i] - c[i - 1]) / c[i - 1] * self.v[i] if c[i - 1] > 0 else F(0)))

    def ad_line(self, x: Array, w: int, on: FeatureSettings) -> Array:
        def flow(i: int) -> np.float32:
            h, low, c = self.h[i], self.l[i], self.c[i]
            return ((c - low) - (h - c)) / (h - low) * self.v[i] if h - low > F(1e-8) else F(0)

        return self._total(self.each(1, flow))

    def _total(self, terms: Array) -> Array:
        y, s = zeros(terms), F(0)
        for i, term in enumerate(terms):
            y[i] = s = s + term
        return y

    def mfi(self, x: Array, w: int, on: FeatureSettings) -> Array:
        price = self.typical()

        def flow(i: int, up: bool) -> np.float32:
            now, before = (price[i], price[i - 1]) if up else (price[i - 1], price[i])
            return price[i] * self.v[i] if now > before else F(0)

        def value(i: int) -> np.float32:
            sums = [F(0), F(0)]
            for j in range(i - w + 1, i + 1):
                sums = [sums[0] + flow(j, True), sums[1] + flow(j, False)]
            return F(100) - F(100) / (F(1) + sums[0] / sums[1]) if sums[1] > F(1e-8) else F(0)

        return self.each(w, value)

    def spread_bp(self, x: Array, w: int, on: FeatureSettings) -> Array:
        def value(i: int) -> np.float32:
            middle = (self.h[i] + self.l[i]) / F(2)
            return (self.h[i] - self.l[i]) / middle * F(1e4) if middle > F(1e-8) else F(0)

        return self.each(0, value)

    def price_impact(self, x: Array, w: int, on: FeatureSettings) -> Array:
        c = self.c

        def value(i: int) -> np.float32:
            root = np.sqrt(self.v[i])
            known = root > F(1e-8) and c[i - 1] > F(1e-8)
            return abs(c[i] - c[i - 1]) / c[i - 1] / root * F(1e6) if known else F(0)

        return self.each(1, value)

    def order_flow(self, x: Array, w: int, on: FeatureSettings) -> Array:
        def value(i: int, span: np.float32) -> np.float32:
            return ((self.c[i] - self.l[i]) / span - (self.h[i] - self.c[i]) / span) * self.v[i]

        return self._where_there_is_a_range(value)

    def market_depth(self, x: Array, w: int, on: FeatureSettings) -> Array:
        return self._where_there_is_a_range(lambda i, span: span / log(self.v[i] + F(1)) if self.v[i] > F(1e-8) else F(0))

    def bid_ask_ratio(self, x: Array, w: int, on: FeatureSettings) -> Array:
        def value(i: int, span: np.float32) -> np.float32:
            p = (self.c[i] - self.l[i]) / span
            return p / (F(1) - p + F(1e-8))

        return self._where_there_is_a_range(value)

    def _where_there_is_a_range(self, value: Any) -> Array:
        spans = self.h - self.l
        return self.each(0, lambda i: value(i, spans[i]) if spans[i] > F(1e-8) else F(0))
