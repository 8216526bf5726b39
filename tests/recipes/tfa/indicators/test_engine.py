"""The engine: batches, streams, features in a store, and the golden table of Sentio's arithmetic."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from benchmarks.tfa.bench_indicators import spec_of_55
from tests.harness import FaultyFiles
from tests.recipes.tfa.indicators.golden import EDGE_BITS, EDGE_WINDOWS, GOLDEN, ROWS
from tests.recipes.tfa.indicators.markets import edge_markets, golden_bars, market
from tests.recipes.tfa.indicators.specs import all_operators

from stoker import _disk
from stoker.errors import BadValueError, DiskError, OptionError, StoreDamagedError
from stoker.store.inspect import verify
from stoker.store.opening import open_store
from stoker.store.pack.api import pack
from stoker.store.store import Store
from stoker_recipes.tfa.indicators import engine, operators
from stoker_recipes.tfa.indicators.engine import FeatureStream, features, write_features
from stoker_recipes.tfa.indicators.operators import OPERATORS, FeatureSettings
from stoker_recipes.tfa.indicators.program import Assembly, Term
from stoker_recipes.tfa.indicators.sentio import FLAT, SentioAssembly


def test_a_frame_has_a_column_per_feature() -> None:
    frame = features(market(300), spec_of_55())
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


@pytest.mark.parametrize("compat", [None, "sentio"])
def test_threads_and_shares_do_not_matter(compat: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    store = bars_in_memory([40, 1, 0, 300, 7, 0, 90])
    spec = {**all_operators(window=3), "alignment_policy": {"emit_from_index": 5, "pad_value": 1.5}}
    whole = features(store, spec, compat=compat, threads=1)
    for rows, piece, threads in ((1, 3, 3), (50, 64, 2), (100, 1000, 1)):
        monkeypatch.setattr(engine, "SHARE", rows)
        monkeypatch.setattr(engine, "PIECE", piece)
        assert features(store, spec, compat=compat, threads=threads).values.tobytes() == whole.values.tobytes()


def test_windows_longer_than_a_block_have_the_same_values(monkeypatch: pytest.MonkeyPatch) -> None:
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


# The stream: one bar at a time, in whatever form a bar comes


Bar = namedtuple("Bar", "open high low close volume")
SPEC = all_operators(window=4)


@pytest.mark.parametrize(
    "form",
    [
        lambda row: row,
        lambda row: tuple(row.values()),
        lambda row: list(row.values()),
        lambda row: np.array(list(row.values())),
        lambda row: Bar(**row),
        lambda row: pd.Series(row),
        lambda row: {**row, "symbol": "IBM"},
        lambda row: np.array([tuple(row.values())], dtype=[(name, "f8") for name in row])[0],
    ],
)
def test_a_bar_in_any_form(form: Any) -> None:
    bars = market(30)
    stream = FeatureStream(SPEC)
    rows = [stream.push(form({name: float(values[i]) for name, values in bars.items()})) for i in range(30)]
    assert np.array(rows).tobytes() == features(bars, SPEC).values.tobytes()
    assert (rows[0].dtype, rows[0].shape) == (np.float32, (32,))


@pytest.mark.parametrize("compat", [None, "sentio"])
def test_ready_is_that_of_the_last_bar(compat: str | None) -> None:
    bars = market(250)
    frame = features(bars, spec_of_55(), compat=compat)
    stream = FeatureStream(spec_of_55(), compat=compat)
    assert (stream.names, stream.emit_from, stream.num_bars) == (frame.names, frame.emit_from, 0)
    assert not stream.ready.any()
    for i in range(250):
        stream.push({"close": bars["close"][i]})
        assert stream.ready.tolist() == frame.ready[i].tolist()
    assert stream.num_bars == 250


@pytest.mark.parametrize("missing", [None, np.nan, float("inf")])
def test_a_missing_value_is_not_ready_and_forgotten(missing: Any) -> None:
    stream = FeatureStream({"features": [{"name": "e", "op": "EMA", "window": 2}]})
    rows = [stream.push({"close": close})[0] for close in (1.0, 2.0, missing, 4.0)]
    assert np.isnan(rows).tolist() == [True, False, True, False]
    assert not stream.ready.any() or stream.num_bars == 4
    whole = FeatureStream({"features": [{"name": "e", "op": "EMA", "window": 2}]})
    assert [whole.push([0, 0, 0, close, 0])[0] for close in (1.0, 2.0, 4.0)][-1] == rows[-1]


@pytest.mark.parametrize(
    ("bar", "message"),
    [
        ({"open": 1.0}, "bar 0 has no 'close', which the spec needs"),
        ({"close": "1.5x"}, "'close' of bar 0 is '1.5x', which is not numeric"),
        ({"close": [1, 2]}, r"'close' of bar 0 is '\[1, 2\]', which is not numeric"),
        ([1.0, 2.0], r"a bar is a mapping or 5 numbers \(open, high, low, close, volume\); found 2"),
        (7.0, "a bar is a mapping or 5 numbers, not float"),
    ],
)
def test_an_invalid_bar_is_an_error_and_changes_nothing(bar: Any, message: str) -> None:
    stream = FeatureStream({"features": [{"name": "c", "op": "IDENT"}]})
    with pytest.raises((OptionError, BadValueError), match=message):
        stream.push(bar)
    assert stream.num_bars == 0
    assert stream.push({"close": 3.0}).tolist() == [3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sums": np.zeros((1, 1))}, "the state belongs to another spec: sums is float64 of shape"),
        ({"lanes": np.zeros(3, dtype=np.int8)}, "lanes is int8 of shape"),
        ({"registers": None}, "registers is object of shape"),
        ({"last": None}, r"the state is damaged: last is object of shape \(\), expected float32 of \(1, 32\)"),
    ],
)
def test_a_state_that_is_damaged_is_refused(change: Any, message: str) -> None:
    stream = FeatureStream(SPEC)
    with pytest.raises(OptionError, match=message):
        stream.restore({**stream.state(), **change})


# Features in a store: beside the bars they belong to, whole or not at all


SAVING_SPEC = all_operators(window=5)
LENGTHS = [40, 3, 300, 0, 57]


def bars_in_memory(lengths: list[int] = LENGTHS) -> Store:
    parts = [market(length, seed) for seed, length in enumerate(lengths)]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return Store.from_arrays(lengths=lengths, label=np.arange(len(lengths)), **columns)


@pytest.fixture
def bars(tmp_path: Path) -> Store:
    return pack(bars_in_memory(), tmp_path / "bars")


@pytest.mark.parametrize("compat", [None, "sentio"])
def test_the_store_holds_the_bars_and_their_features(bars: Store, tmp_path: Path, compat: str | None) -> None:
    store = write_features(bars, {**SAVING_SPEC, "compat": compat}, tmp_path / "out")
    frame = features(bars, {**SAVING_SPEC, "compat": compat})
    assert store.column("features").tobytes() == frame.values.tobytes()
    assert store.schema["features"].label == "float32[32]"
    assert list(store.schema) == [*bars.schema, "features"]
    for name in bars.schema:
        assert store.column(name).tobytes() == bars.column(name).tobytes()
    assert store.lengths.tolist() == LENGTHS
    assert store.schema["features"].nonfinite.nan == int(np.isnan(frame.values).sum())
    verify(tmp_path / "out")
    with pytest.raises(OptionError, match=r"out has a column 'features' already"):
        write_features(store, SAVING_SPEC, tmp_path / "again")
    note = store.manifest.notes[-1] if store.manifest else ""
    assert note.startswith("features: IDENT, LOGRET, MOMENTUM, ")
    arithmetic = ", compat sentio" if compat else ""
    assert note.endswith(f"(spec {frame.spec.content_hash}{arithmetic}, emit_from {frame.emit_from})")


def test_long_series_go_to_the_disk_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bars = pack(bars_in_memory([5, 500, 3, 4, 90]), tmp_path / "bars")
    whole = write_features(bars, SAVING_SPEC, tmp_path / "whole")
    monkeypatch.setattr(engine, "SHARE", 8)
    monkeypatch.setattr(engine, "_LONG", 50)
    monkeypatch.setattr(engine, "PIECE", 32)
    for threads in (1, 3):
        store = write_features(bars, SAVING_SPEC, tmp_path / f"pieces {threads}", threads=threads)
        assert store.digest == whole.digest


def test_a_write_that_would_lose_something_is_refused(bars: Store, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="bars is both the source and the store"):
        write_features(bars, SAVING_SPEC, tmp_path / "bars")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(OptionError, match=r"is not a store and not empty \(it holds 'thesis.txt'\)"):
        write_features(bars, SAVING_SPEC, tmp_path / "mine")
    with pytest.raises(OptionError, match="<memory> is in memory: pack it first"):
        write_features(bars_in_memory(), SAVING_SPEC, tmp_path / "out")
    with pytest.raises(OptionError, match=r"at \$\.features\[0\]\.op"):
        write_features(bars, {"features": [{"op": "?"}]}, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bars", "mine"]


def test_damaged_bars_are_not_carried_on(bars: Store, tmp_path: Path) -> None:
    shard = next(column.values for column in bars.manifest.columns if column.name == "low")  # type: ignore[union-attr]
    path = tmp_path / "bars" / shard.file  # type: ignore[union-attr]
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(500)
        file.write(b"\x07")
    with pytest.raises(StoreDamagedError, match="has changed since it was written"):
        write_features(open_store(tmp_path / "bars"), SAVING_SPEC, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def content(folder: Path) -> Any:
    if not folder.exists():
        return None
    verify(folder)
    return open_store(folder).digest


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_an_error_at_any_operation_leaves_the_old_store_or_the_new_one(tmp_path: Path, code: int) -> None:
    spec, out = {"features": [{"name": "m", "op": "MOMENTUM", "window": 1}]}, tmp_path / "deep" / "out"
    bars = pack({"close": np.arange(5.0)}, tmp_path / "bars")
    with FaultyFiles() as disk:
        new = write_features(bars, spec, out).digest
    _disk.remove_folder(out.parent)
    for k in range(disk.operations):
        with FaultyFiles(error_at=(k, code)), pytest.raises(DiskError):
            write_features(bars, spec, out)
        assert content(out) in (None, new)
        assert content(out) is not None or not out.parent.exists()
        _disk.remove_folder(out.parent)
    old = pack({"x": [1.0]}, out).digest
    for k in range(disk.operations):
        with FaultyFiles(error_at=(k, code)), contextlib.suppress(DiskError):
            write_features(bars, spec, out, replace=True)
        assert content(out) in (old, new)
        pack({"x": [1.0]}, out, replace=True)


def test_bars_that_cannot_be_read_leave_nothing(tmp_path: Path) -> None:
    bars = pack({"close": ["a", "b"], "x": [1.0, 2.0]}, tmp_path / "bars")
    with pytest.raises(BadValueError, match=r"column 'close' of the bars holds strings: 'a' in bar 1; expected numbers\."):
        write_features(bars, {"features": [{"name": "c", "op": "IDENT"}]}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Sentio's arithmetic gives the golden table, and its known faults; the exact one has none of them


# Between builds of the original these differ more: its sums drift.
LOOSE = {"VOLATILITY": 2e-4, "BOLLINGER_UPPER": 2e-4, "BOLLINGER_LOWER": 2e-4, "AD_LINE": 2e-3}


def golden_spec() -> dict[str, Any]:
    return {"features": [{"name": op, "op": op, **fields} for op, (fields, _) in GOLDEN.items()]}


def test_every_operator_is_in_the_table() -> None:
    assert set(GOLDEN) == set(OPERATORS)


@pytest.mark.parametrize("op", GOLDEN)
def test_the_golden_table(op: str) -> None:
    fields, expected = GOLDEN[op]
    frame = features(golden_bars(), {"features": [{"name": op, "op": op, **fields}]}, compat="sentio")
    found = frame[op][list(ROWS)]
    assert np.array_equal(found == 0, np.array(expected) == 0)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=LOOSE.get(op, 0))


def edge_bits() -> dict[str, str]:
    """As golden.EDGE_BITS says."""
    hashes = {name: hashlib.sha256() for name in OPERATORS}
    for bars in edge_markets().values():
        for window in EDGE_WINDOWS:
            spec = all_operators(window=window, fast=3, slow=8, signal=4, d_period=window)
            frame = features(bars, spec, compat="sentio", threads=1)
            for name, found in hashes.items():
                found.update(np.where(np.isnan(frame[name]), np.float32("nan"), frame[name]).astype("<f4").tobytes())
    return {name: found.hexdigest()[:16] for name, found in hashes.items()}


@pytest.mark.promise("P11")
def test_odd_bars_have_the_bits_of_the_original() -> None:
    """Without movement, volume or range, with prices of 0 and below, NaN, and infinite ones."""
    found = edge_bits()
    assert [name for name in EDGE_BITS if found[name] != EDGE_BITS[name]] == []
    assert list(found) == list(EDGE_BITS)


@pytest.mark.promise("P11", control=True)
@pytest.mark.parametrize(
    ("word", "other", "seen"),
    [
        ("repeated_mean", lambda self, a, window: a, {"ADX"}),  # the value itself, though it is the same but for rounding
        ("where", lambda self, a, b, first=0: self.multiply(a, b, first=first), {"PARKINSON", "CCI", "MFI", "VPT", "AD_LINE"}),
        ("larger", Assembly.larger, {"ATR", "GARMAN_KLASS"}),
        ("highest", Assembly.highest, {"STOCHASTIC_K", "STOCHASTIC_D", "WILLIAMS_R"}),
    ],
)
def test_negative_control_words_of_the_exact_arithmetic_are_found(
    monkeypatch: pytest.MonkeyPatch, word: str, other: Any, seen: set[str]
) -> None:
    monkeypatch.setattr(SentioAssembly, word, other)
    found = edge_bits()
    assert seen <= {name for name in EDGE_BITS if found[name] != EDGE_BITS[name]}


def _flow_in_one_division(make: SentioAssembly, on: FeatureSettings) -> Term:
    high, low, close = (make.column(name) for name in ("high", "low", "close"))
    apart, span = make.subtract(make.subtract(close, low), make.subtract(high, close)), make.subtract(high, low)
    return make.where(make.above(span, FLAT), make.multiply(make.divide(apart, span), make.column("volume")))


def _klass_of_squares(make: SentioAssembly, on: FeatureSettings) -> Term:
    logs = [make.logarithm(make.divide(make.column(a), make.column(b))) for a, b in (("high", "low"), ("close", "open"))]
    wide, far = (make.multiply(make.multiply(x, x), k) for x, k in zip(logs, (0.5, 2 * math.log(2) - 1), strict=True))
    term = make.subtract(wide, far, first=1)
    return make.root(make.larger(0.0, make.mean(term, on.window)))


@pytest.mark.promise("P11", control=True)
@pytest.mark.parametrize(("op", "wrong"), [("ORDER_FLOW", _flow_in_one_division), ("GARMAN_KLASS", _klass_of_squares)])
def test_negative_control_another_grouping_of_the_same_formula_is_found(
    monkeypatch: pytest.MonkeyPatch, op: str, wrong: Any
) -> None:
    monkeypatch.setattr(operators._Sentio, op.lower(), wrong)
    found = edge_bits()
    assert [name for name in EDGE_BITS if found[name] != EDGE_BITS[name]] == [op]


def test_one_missing_close_ruins_sentio_for_ever_and_the_exact_arithmetic_for_a_window() -> None:
    bars = golden_bars()
    bars["close"][100] = np.nan
    names = ("SMA", "EMA", "RSI", "ZWIN", "VOLATILITY")
    spec = {"features": [{"name": name, "op": name, "window": 20} for name in names]}
    theirs = features(bars, spec, compat="sentio").values[100:]
    assert np.isnan(theirs[:, :2]).all()
    assert (theirs[1:, 2:] == 0).all()
    ours = features(bars, spec)
    assert not ours.ready[100].any()
    assert ours.ready[121:].all()
    assert ours.ready[102:, names.index("EMA")].all()
    whole = features(golden_bars(), spec)
    for name in ("SMA", "ZWIN", "VOLATILITY"):  # a window that the gap has left is as if it had never been
        np.testing.assert_allclose(ours[name][121:], whole[name][121:], rtol=1e-5)


def test_rows_before_emit_from_are_padded_by_sentio_only() -> None:
    spec = {**golden_spec(), "alignment_policy": {"emit_from_index": 64, "pad_value": -7.0}}
    theirs = features(golden_bars(), spec, compat="sentio")
    assert (theirs.values[:64] == -7).all()
    assert theirs.emit_from == 64
    assert not theirs.ready[:64].any()
    bare = features(golden_bars(), golden_spec(), compat="sentio")
    assert theirs.values[64:].tobytes() == bare.values[64:].tobytes()
    ours = features(golden_bars(), spec)
    assert ours.emit_from == 64
    assert ours["IDENT"][0] == 100
