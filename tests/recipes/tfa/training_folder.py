"""Small TFA training runs for tests: bars with a known signal, a short spec, and a YAML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.tfa.markets import Market, Signal, market, write_csv

from stoker_recipes.tfa.data import Prepared
from stoker_recipes.tfa.settings import Settings, read_settings
from stoker_recipes.tfa.training import prepare_run

SPEC: dict[str, Any] = {
    "schema_version": "1.0",
    "features": [
        {"name": "close", "op": "IDENT", "source": "close"},
        {"name": "logret", "op": "LOGRET", "source": "close"},
        {"name": "ema_5", "op": "EMA", "source": "close", "window": 5},
        {"name": "rsi_5", "op": "RSI", "source": "close", "window": 5},
        {"name": "zwin_10", "op": "ZWIN", "source": "logret", "window": 10},
    ],
    "alignment_policy": {"emit_from_index": 4, "pad_value": 0.0},
    "dtype": "float32",
}
WARM_UP = 10

THEIRS = """\
symbol: QQQ
bars_csv: bars.csv
feature_spec: spec.json
feature_cache: cache.csv
out_dir: artifacts/TFA/v1
batch_size: 256
epochs: 2
lr: 2e-3
num_workers: 6
T: 8
d_model: 16
nhead: 4
num_layers: 2
ffn_hidden: 32
label_horizon: 2
label_kind: logret_fwd
min_volume_threshold: 2000
price_change_threshold: 1e-4
"""
"""The keys of Sentio's configuration, with small sizes."""

OURS = """\
symbol: QQQ
bars_csv: bars.csv
feature_spec: spec.json
out_dir: run
model: banded
T: 8
d_model: 16
nhead: 4
num_layers: 1
run: 32
epochs: 2
"""


def make_folder(folder: Path, yaml: str = OURS, *, num_bars: int = 3000, signal: Signal = "lag") -> Path:
    """A folder with bars.csv, spec.json and tfa.yaml; returns the last."""
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(folder / "bars.csv", market(num_bars, signal, 0, follows=True))
    (folder / "spec.json").write_text(json.dumps(SPEC))
    (folder / "tfa.yaml").write_text(yaml)
    return folder / "tfa.yaml"


def change_bars(folder: Path, **columns: Any) -> None:
    """Write the bars anew with some columns changed."""
    bars: Market = market(3000, "lag", 0, follows=True)
    write_csv(folder / "bars.csv", {**bars, **{name: change(bars[name].copy()) for name, change in columns.items()}})


def select_bars(folder: Path, rows: Any) -> None:
    """Write only some rows of the bars."""
    bars = market(3000, "lag", 0, follows=True)
    write_csv(folder / "bars.csv", {name: values[np.asarray(rows)] for name, values in bars.items()})


def settings_of(folder: Path, **changes: Any) -> Settings:
    """The settings of the YAML of a folder, some of them changed."""
    return read_settings(folder / "tfa.yaml", assignments=[f"{name}={json.dumps(value)}" for name, value in changes.items()])


def prepared_of(folder: Path, **changes: Any) -> Prepared:
    """What a training of the folder would be fed."""
    return prepare_run(settings_of(folder, **changes), folder / "run")
