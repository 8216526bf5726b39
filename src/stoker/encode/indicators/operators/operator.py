"""What an operator is: a name, the fields it takes, the columns it reads, and its definition in both arithmetics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stoker.encode.indicators.assembly import Output
from stoker.encode.indicators.exact import ExactAssembly
from stoker.encode.indicators.sentio import SentioAssembly


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The fields of a feature, with the operator's defaults filled in; those that it does not take are 0."""

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
    """The first bar that is ready, where the source is there from bar 0 on and has no gaps."""
    sentio_first: First
    """The same in Sentio's arithmetic: before it there is 0."""
    defaults: Mapping[str, float] = field(default_factory=dict)
    reads: tuple[str, ...] = ()
    """Columns of the bars, where the operator is not computed from the source of the feature."""


def at(bar: int) -> First:
    """Ready from this bar on."""
    return lambda settings: bar


def behind_window(bars: int) -> First:
    """Ready so many bars behind bar `window`; -1 where the window ends at the bar."""
    return lambda settings: settings.window + bars
