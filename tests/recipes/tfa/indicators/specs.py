"""Specs to test with."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st

from stoker_recipes.tfa.indicators.operators import OPERATORS


def all_operators(**numbers: float) -> dict[str, Any]:
    """Each operator once, with these numbers where it takes them."""
    return {
        "features": [
            {"name": name, "op": name, **{field: value for field, value in numbers.items() if field in operator.defaults}}
            for name, operator in OPERATORS.items()
        ]
    }


@st.composite
def any_specs(draw: st.DrawFn, max_features: int = 12) -> dict[str, Any]:
    """Any operators with any numbers, from any source."""
    features = []
    for i in range(draw(st.integers(1, max_features))):
        name = draw(st.sampled_from(sorted(OPERATORS)))
        feature: dict[str, Any] = {"name": f"{name} {i}", "op": name}
        if not OPERATORS[name].reads:
            feature["source"] = draw(st.sampled_from(["open", "high", "low", "close", "volume", "logret"]))
        for field in OPERATORS[name].defaults:
            feature[field] = draw(st.sampled_from([0.5, 2.0, 3.0])) if field == "k" else draw(st.integers(1, 40))
        features.append(feature)
    return {"features": features}
