"""How Sentio builds features today: its operators in plain C, compiled here with -O2 and called from Python."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker_recipes.tfa.indicators.program import BAR
from stoker_recipes.tfa.indicators.spec import SOURCES, Spec

Array = npt.NDArray[Any]

SOURCE = Path(__file__).with_suffix(".c")
OPERATORS = (
    "IDENT LOGRET MOMENTUM ROC SMA EMA VOLATILITY PARKINSON GARMAN_KLASS RSI ZWIN ATR BOLLINGER_UPPER BOLLINGER_MIDDLE "
    "BOLLINGER_LOWER MACD_LINE MACD_SIGNAL MACD_HISTOGRAM STOCHASTIC_K STOCHASTIC_D WILLIAMS_R CCI ADX OBV VPT AD_LINE MFI "
    "SPREAD_BP PRICE_IMPACT ORDER_FLOW MARKET_DEPTH BID_ASK_RATIO"
).split()


class _Feature(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int) for name in ("op", "source", "window", "fast", "slow", "signal", "d_period")),
        ("k", ctypes.c_float),
    ]


def compiler() -> str | None:
    """A C compiler of this machine."""
    return shutil.which("cc") or shutil.which("gcc")


class SentioBuilder:
    """The C definition, compiled into `folder`."""

    def __init__(self, folder: Path, *options: str) -> None:
        library = folder / "sentio_features.so"
        command = [compiler() or "cc", *(options or ("-O2",)), "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-lm"]
        subprocess.run(command, check=True)
        self._build = ctypes.CDLL(str(library)).build

    def build(self, bars: Mapping[str, Array], spec: Spec, *, by_row: bool = True) -> Array:
        """The matrix of a spec, float32 [bars, features]."""
        columns = {name: np.ascontiguousarray(values, dtype=np.float64) for name, values in bars.items()}
        n = len(next(iter(columns.values())))
        pointers = (ctypes.c_void_p * len(BAR))(*(columns[name].ctypes.data if name in columns else None for name in BAR))
        table = (_Feature * len(spec.features))()
        for target, feature in zip(table, spec.features, strict=True):
            on = feature.settings
            target.op, target.source = OPERATORS.index(feature.operator.name), SOURCES.index(on.source)
            for name in ("window", "fast", "slow", "signal", "d_period", "k"):
                setattr(target, name, getattr(on, name))
        out = np.empty((n, len(spec.features)), dtype=np.float32)
        self._build(
            pointers,
            ctypes.c_long(n),
            table,
            ctypes.c_int(len(spec.features)),
            ctypes.c_int(spec.emit_from),
            ctypes.c_float(spec.pad),
            ctypes.c_int(by_row),
            ctypes.c_void_p(out.ctypes.data),
        )
        return out
