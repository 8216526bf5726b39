"""THE table of operators, by name."""

from __future__ import annotations

from stoker.encode.indicators.operators import averages, microstructure, oscillators, price, trend, volatility, volume
from stoker.encode.indicators.operators.operator import Operator

_FAMILIES = (price, averages, volatility, oscillators, trend, volume, microstructure)

OPERATORS: dict[str, Operator] = {operator.name: operator for family in _FAMILIES for operator in family.OPERATORS}
