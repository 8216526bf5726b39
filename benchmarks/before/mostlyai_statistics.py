"""How mostlyai-engine analyses a column today: pandas throughout, each number printed twice, each statistic a pass of its own.

Rewritten after `analyze_numeric`, `analyze_categorical` and `analyze_datetime` of release 2.7.3 (2.5.0 differs in that digits
end at E-8), with the same steps of pandas and the same results. Unless keys are given, each row is its own subject, as it is
for target tables.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmarks.before.mostlyai_digits import split_printed

NUM_EXTREMES = 1000
NUM_QUANTILES = 1001
MAX_DISCRETE = 100
MIN_DECIMAL, MOST_DECIMALS = -8, 20

PARTS = ("year", "month", "day", "hour", "minute", "second", "ms_E2", "ms_E1", "ms_E0")
ESCAPE, RESERVED = "\x01", ("_RARE_", "<<NULL>>")

Json = dict[str, Any]
Values = pd.Series  # of any type


def subjects(values: Values) -> Values:
    """One subject a row, as the engine names them."""
    return pd.Series([str(i) for i in range(len(values))], name="subjects", index=values.index)


def log_histogram(values: Any) -> list[int]:
    """Counts between powers of two."""
    numbers = np.array(values, dtype=np.float64)
    numbers = numbers[~np.isinf(numbers) & ~np.isnan(numbers)]
    upper = [0.0, *(2.0**i for i in range(64))]
    edges = np.array([-edge for edge in reversed(upper[1:])] + upper)
    counts, _ = np.histogram(np.clip(numbers, edges[0], edges[-1]), bins=edges)
    return [int(count) for count in counts]


def count_decimals(value: float) -> int:
    """Digits behind the point of a printed number."""
    return len(np.format_float_positional(value, unique=True, trim="-").partition(".")[2])


def analyze_numeric(values: Values, keys: Values | None = None, encoding: str = "auto") -> Json:
    """Digits, extremes, counts, quantiles and a histogram of numbers."""
    keys = subjects(values) if keys is None else keys
    values = values.astype("Int8") if pd.api.types.is_bool_dtype(values) else values
    values = pd.to_numeric(values, errors="coerce").rename("values")
    present = values.dropna()
    num_distinct = present.nunique()
    histogram = log_histogram(present)
    quantiles = None
    if encoding in ("auto", "binned") and len(present):
        shares = np.linspace(0, 1, NUM_QUANTILES)
        quantiles = np.quantile(values.dropna(), shares, method="closest_observation").tolist()
    table = pd.concat([keys, values], axis=1)
    counts = None
    if encoding == "discrete" or (encoding == "auto" and num_distinct < MAX_DISCRETE):
        counts = table.groupby("values")[keys.name].nunique().to_dict()
    table = pd.concat([keys, values], axis=1)
    low = table.groupby(keys.name)["values"].min().dropna()
    high = table.groupby(keys.name)["values"].max().dropna()
    smallest = low.sort_values(ascending=True).head(NUM_EXTREMES).astype("float").tolist()
    largest = high.sort_values(ascending=False).head(NUM_EXTREMES).astype("float").tolist()
    decimals = max((count_decimals(value) for value in present), default=0)
    digits = split_printed(values, min_decimal=min(MIN_DECIMAL, -min(decimals, MOST_DECIMALS)))
    known = digits["nan"] == 0
    places = [name for name in digits if name.startswith("E")]
    some = any(known)
    return {
        "has_nan": bool(sum(digits["nan"]) > 0),
        "has_neg": bool(sum(digits["neg"]) > 0),
        "min_digits": {place: int(digits[place][known].min()) if some else 0 for place in places},
        "max_digits": {place: int(digits[place][known].max()) if some else 0 for place in places},
        "min_n": smallest,
        "max_n": largest,
        "cnt_values": counts,
        "quantiles": quantiles,
        "log_hist": histogram,
    }


def analyze_categorical(values: Values, keys: Values | None = None) -> Json:
    """Counts of texts, in the order of the texts; by subject where rows have one."""
    texts = values.astype("string")
    escaped = texts.str.startswith(ESCAPE, na=False)
    texts.loc[escaped] = ESCAPE + texts.loc[escaped]
    texts = texts.replace({token: ESCAPE + token for token in RESERVED})
    if keys is None:
        counts = texts.value_counts().sort_index().to_dict()
    else:
        counts = pd.concat([keys, texts.rename("values")], axis=1).groupby("values")[keys.name].nunique().to_dict()
    return {"has_nan": bool(sum(texts.isna()) > 0), "cnt_values": counts}


def analyze_datetime(values: Values, keys: Values | None = None) -> Json:
    """Ranges of the parts of moments, extremes, and a histogram."""
    keys = subjects(values) if keys is None else keys
    moments = pd.to_datetime(values, errors="coerce", utc=True).dt.tz_localize(None).astype("datetime64[us]").rename("values")
    histogram = log_histogram(moments.dropna().astype("int64"))
    table = pd.concat([keys, moments], axis=1)
    low = table.groupby(keys.name)["values"].min().dropna()
    high = table.groupby(keys.name)["values"].max().dropna()
    known = ~moments.isna().to_numpy()
    parts = split_moments(moments.to_numpy()[known])
    nothing = {part: {"year": 2022, "month": 1, "day": 1}.get(part, 0) for part in PARTS}
    return {
        "has_nan": bool(not known.all()),
        "min_values": {part: int(parts[part].min()) for part in PARTS} if known.any() else nothing,
        "max_values": {part: int(parts[part].max()) for part in PARTS} if known.any() else nothing,
        "min_n": low.sort_values(ascending=True).head(NUM_EXTREMES).astype(str).tolist(),
        "max_n": high.sort_values(ascending=False).head(NUM_EXTREMES).astype(str).tolist(),
        "log_hist": histogram,
    }


def split_moments(moments: npt.NDArray[np.datetime64]) -> dict[str, npt.NDArray[np.int64]]:
    """The parts of moments, by NumPy's calendar."""
    year, month, day, hour, minute, second = (moments.astype(f"M8[{unit}]") for unit in "YMDhms")
    micros = (moments - second).astype("m8[us]").astype(np.int64)
    return {
        "year": year.astype(np.int64) + 1970,
        "month": (month - year).astype(np.int64) + 1,
        "day": (day - month).astype(np.int64) + 1,
        "hour": (moments - day).astype("m8[h]").astype(np.int64),
        "minute": (moments - hour).astype("m8[m]").astype(np.int64),
        "second": (moments - minute).astype("m8[s]").astype(np.int64),
        "ms_E2": micros // 100_000 % 10,
        "ms_E1": micros // 10_000 % 10,
        "ms_E0": micros // 1_000 % 10,
    }
