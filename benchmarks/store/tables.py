"""Tables to pack: made here, so that every machine can. Seeds are fixed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def noise(num_rows: int, seed: int = 0) -> pa.Table:
    """Random doubles and integers, incompressible: the easiest table to read, so the hardest to keep up with."""
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "id": np.repeat(np.arange(num_rows // 100 + 1), 100)[:num_rows],
            "t": np.arange(num_rows),
            "x": rng.normal(size=num_rows),
            "y": rng.normal(size=num_rows).astype(np.float32),
            "z": rng.integers(0, 5000, num_rows),
        }
    )


def bars(num_rows: int, seed: int = 0) -> pa.Table:
    """Market bars: a symbol, a time, five prices with two decimals, a volume."""
    rng = np.random.default_rng(seed)
    per_symbol = 50_000
    symbols = [f"SYM{i:04d}" for i in range(num_rows // per_symbol + 1)]
    index = np.arange(num_rows)
    close = np.round(100 + np.cumsum(rng.normal(0, 0.05, num_rows)), 2)
    return pa.table(
        {
            "symbol": pa.DictionaryArray.from_arrays(pa.array((index // per_symbol).astype(np.int32)), symbols).dictionary_decode(),
            "ts": pa.array(1_600_000_000_000_000_000 + (index % per_symbol) * 60_000_000_000).cast(pa.timestamp("ns")),
            "open": np.round(close + rng.normal(0, 0.02, num_rows), 2),
            "high": np.round(close + 0.05, 2),
            "low": np.round(close - 0.05, 2),
            "close": close,
            "volume": rng.integers(100, 100_000, num_rows),
        }
    )


def events(num_rows: int, seed: int = 0) -> pa.Table:
    """Neutrino events: ragged, 165 pulses on average, with the schema of the IceCube files."""
    rng = np.random.default_rng(seed)
    lengths = np.exp(rng.normal(4.2, 0.9, num_rows // 50 + 1)).astype(np.int64) + 12
    event = np.repeat(np.arange(len(lengths)), lengths)[:num_rows]
    return pa.table(
        {
            "sensor_id": rng.integers(0, 5160, num_rows).astype(np.int16),
            "time": rng.integers(6_000, 30_000, num_rows),
            "charge": np.round(40 * np.exp(0.05 + 0.55 * rng.normal(size=num_rows))) / 40,
            "auxiliary": rng.random(num_rows) < 0.72,
            "event_id": event,
        }
    )
