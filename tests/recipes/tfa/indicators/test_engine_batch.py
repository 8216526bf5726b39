"""The batch: its frame, its threads, and its limits."""

from __future__ import annotations

import numpy as np
import pytest
from tests.recipes.tfa.indicators.markets import market
from tests.recipes.tfa.indicators.specs import all_operators, minimal_spec

from stoker.store.store import Store
from stoker_recipes.tfa.indicators import engine
from stoker_recipes.tfa.indicators.engine import features


def test_the_frame() -> None:
    frame = features(market(300), minimal_spec())
    assert (frame.values.dtype, frame.values.shape, frame.values.flags.c_contiguous) == (np.float32, (300, 55), True)
    assert len(frame) == 300
    assert list(frame) == list(frame.names)
    assert frame.emit_from == 199
    assert frame.ready.dtype == np.bool_
    assert frame.ready[199:].all()
    assert frame["ema_20"].tobytes() == frame.values[:, frame.names.index("ema_20")].tobytes()
    assert np.asarray(frame) is frame.values
    assert np.array(frame, dtype=np.float64).dtype == np.float64
    assert repr(frame) == "<55 features of 300 bars in 1 series, emit_from=199>"
    with pytest.raises(KeyError, match="there is no feature 'ema_21'; there are close, logret"):
        frame["ema_21"]


@pytest.mark.parametrize("compat", [None, "sentio"])
def test_no_bars_and_one_bar(compat: str | None) -> None:
    empty = features({name: values[:0] for name, values in market(1).items()}, all_operators(), compat=compat)
    assert empty.values.shape == (0, 32)
    assert empty.ready.shape == (0, 32)
    one = features(market(1), all_operators(), compat=compat)
    assert one["IDENT"].tolist() == market(1)["close"].astype(np.float32).tolist()


def series_of(lengths: list[int]) -> Store:
    parts = [market(length, seed) for seed, length in enumerate(lengths)]
    return Store.from_arrays(lengths=lengths, **{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


@pytest.mark.parametrize("compat", [None, "sentio"])
def test_threads_and_shares_do_not_matter(compat: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    store = series_of([40, 1, 0, 300, 7, 0, 90])
    spec = {**all_operators(window=3), "alignment_policy": {"emit_from_index": 5, "pad_value": 1.5}}
    whole = features(store, spec, compat=compat, threads=1)
    for rows, piece, threads in ((1, 3, 3), (50, 64, 2), (100, 1000, 1)):
        monkeypatch.setattr(engine, "SHARE", rows)
        monkeypatch.setattr(engine, "PIECE", piece)
        assert features(store, spec, compat=compat, threads=threads).values.tobytes() == whole.values.tobytes()


def test_long_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows longer than a block, and than the bars after which sums start anew."""
    close = market(6000)["close"]
    spec = {
        "features": [{"name": f"{op} {w}", "op": op, "window": w} for w in (1023, 1024, 1025, 5000) for op in ("SMA", "MOMENTUM")]
    }
    frame = features({"close": close}, spec)
    for w in (1023, 1024, 1025, 5000):
        np.testing.assert_allclose(frame[f"SMA {w}"][-1], close[-w:].mean(), rtol=1e-6)
        np.testing.assert_allclose(frame[f"MOMENTUM {w}"][-1], close[-1] - close[-1 - w], rtol=1e-5, atol=1e-5)
        assert int(frame.ready[:, frame.names.index(f"SMA {w}")].argmax()) == w - 1
