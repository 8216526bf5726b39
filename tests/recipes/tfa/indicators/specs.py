"""Specs to test with."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st

from stoker_recipes.tfa.indicators.operators import OPERATORS

EMAS = (2, 3, 5, 8, 10, 12, 15, 20, 25, 26, 30, 35, 40, 45, 50, 55, 60, 70, 80, 90, 100, 120, 150, 200)
RSIS = (2, 3, 5, 7, 9, 14, 21, 25, 30)
ZWINS = (5, 10, 15, 20, 25, 30, 40, 50, 60, 80, 100)
MORE_EMAS = (4, 6, 7, 9, 11, 13, 14, 16)


def minimal_spec() -> dict[str, Any]:
    """The 55 features that Sentio's model is trained on."""
    features = [{"name": "close", "op": "IDENT", "source": "close"}, {"name": "logret", "op": "LOGRET", "source": "close"}]
    features += [{"name": f"ema_{w}", "op": "EMA", "source": "close", "window": w} for w in EMAS]
    features += [{"name": f"rsi_{w}", "op": "RSI", "source": "close", "window": w} for w in RSIS]
    features += [{"name": f"zwin_{w}", "op": "ZWIN", "source": "logret", "window": w} for w in ZWINS]
    features += [{"name": f"ema_{w}", "op": "EMA", "source": "close", "window": w} for w in MORE_EMAS]
    features += [{"name": "rsi_4", "op": "RSI", "source": "close", "window": 4}]
    return {
        "schema_version": "1.0",
        "features": features,
        "alignment_policy": {"emit_from_index": 64, "pad_value": 0.0},
        "dtype": "float32",
    }


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
