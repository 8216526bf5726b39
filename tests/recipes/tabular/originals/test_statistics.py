"""The statistics of mostlyai-engine itself, text for text of its JSON, on tables of every kind."""

from __future__ import annotations

import datetime
import json
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from tests.recipes.tabular.digits.digits_twin import mixed_numbers, money
from tests.recipes.tabular.originals.mostlyai import as_written, numbers_of_text, original

from stoker_recipes.tabular import analyze, parse_numbers
from stoker_recipes.tabular.statistics import gather

pytestmark = [pytest.mark.originals, pytest.mark.filterwarnings("ignore")]
MANY = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))

ENCODINGS = st.sampled_from(["auto", "discrete", "binned", "digit"])


def ours(column: Any, kind: str) -> str:
    return as_written(column.analysis(kind) if kind in ("auto", "discrete", "binned", "digit") else column.analysis())


def check(values: pd.Series, kind: str, keys: Any = None, *, source: Any = None) -> None:
    """The same JSON; `source` is the same column as something else than pandas."""
    asked = {"category": "category", "date": "date"}.get(kind, "number")
    table = {"x": values if source is None else source, **({} if keys is None else {"who": keys})}
    found = analyze(table, kinds={"x": asked}, key=None if keys is None else "who", threads=1)  # type: ignore[dict-item]
    expected = original(values.rename("x"), kind, keys)
    assert ours(found["x"], kind) == expected


def one_zero(values: list[float], keep: float) -> list[float]:
    """Where both zeros occur, order is left to chance there: see docs/encoding/statistics.md."""
    return [keep if value == 0 else value for value in values]


FLOATS = st.lists(
    st.sampled_from([None, 0.0, 0.0, 1.5, 19.99, -2.0, 1e-7, 123.456])
    | st.integers(-(10**7), 10**7).map(lambda cents: cents / 100)
    | st.floats(allow_infinity=False, width=64),
    min_size=1,
    max_size=60,
)
SMALL_FLOATS = st.lists(st.none() | st.floats(allow_infinity=False, width=32), min_size=1, max_size=40)
INTS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3), min_size=1, max_size=60)
KEYS = st.sampled_from(["none", "whole", "missing", "texts"])


def keys_like(kind: str, size: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, max(size // 3, 1) + 1, size)
    if kind == "none":
        return None
    if kind == "whole":
        return numbers
    if kind == "missing":
        return np.where(rng.random(size) < 0.3, np.nan, numbers.astype(float))
    return np.array(
        [None if lost else f"k{number}" for number, lost in zip(numbers, rng.random(size) < 0.2, strict=True)], dtype=object
    )


@pytest.mark.promise("P11")
@given(FLOATS, ENCODINGS, KEYS, st.integers(0, 99), st.sampled_from([0.0, -0.0]))
@MANY
def test_any_floats(values: list[Any], kind: str, keys: str, seed: int, zero: float) -> None:
    series = pd.Series(one_zero([np.nan if value is None else value for value in values], zero), dtype=np.float64)
    check(series, kind, keys_like(keys, len(values), seed))
    check(series, kind, keys_like(keys, len(values), seed), source=pa.array(series, from_pandas=True))


@given(SMALL_FLOATS, ENCODINGS, KEYS, st.integers(0, 99))
@MANY
def test_any_float32(values: list[Any], kind: str, keys: str, seed: int) -> None:
    series = pd.Series(one_zero([np.nan if value is None else value for value in values], 0.0), dtype=np.float32)
    check(series, kind, keys_like(keys, len(values), seed), source=series.to_numpy())


@given(INTS, ENCODINGS, KEYS, st.integers(0, 99))
@MANY
def test_any_integers(values: list[int], kind: str, keys: str, seed: int) -> None:
    check(pd.Series(values, dtype=np.int64), kind, keys_like(keys, len(values), seed))


@given(
    st.sampled_from([np.float64, np.float32, np.float16]),
    st.lists(st.sampled_from([0.0, -0.0, 0.1, 1.5, np.nan, 3.0, 1e5, np.inf]) | st.floats(width=16), min_size=1, max_size=40),
    KEYS,
    st.integers(0, 99),
)
@MANY
def test_floats_taken_for_categories(dtype: Any, values: list[float], keys: str, seed: int) -> None:
    """NaN is missing and -0.0 a text of its own, from NumPy and Arrow as from pandas; float32 has its own digits."""
    series = pd.Series(np.array(values, dtype=dtype))
    owners = keys_like(keys, len(values), seed)
    check(series, "category", owners)
    check(series, "category", owners, source=series.to_numpy())
    check(series, "category", owners, source=pa.array(series.to_numpy()))


TEXTS = st.lists(
    st.none()
    | st.sampled_from(["a", "b", "_RARE_", "<<NULL>>", "\x01", "\x01_RARE_", "", "nan", "None", "é"])
    | st.text(max_size=5),
    min_size=1,
    max_size=40,
)


@given(TEXTS, KEYS, st.integers(0, 99))
@MANY
def test_any_strings(values: list[Any], keys: str, seed: int) -> None:
    texts = [None if text is None else text.encode(errors="ignore").decode() for text in values]
    check(pd.Series(texts, dtype=object), "category", keys_like(keys, len(values), seed))


@pytest.mark.parametrize("values", [pd.Series([True, False, True]), pd.Series([True, None, True], dtype="boolean")])
@pytest.mark.parametrize("kind", ["auto", "digit", "category"])
def test_booleans(values: pd.Series, kind: str) -> None:
    check(values, kind)
    check(values, kind, np.array([1, 1, 2]))


NUMBERS_IN_TEXT = (
    st.sampled_from(["1", "2", "x3", "-4.50", "1e3", "", "1,000", "$12", "1.2.3", ".5", "5.", "-", "n/a", "007", "-0", "1e-330"])
    | st.integers(-(2**70), 2**70).map(str)
    | st.floats(allow_nan=False, allow_infinity=False).map(repr)
    | st.text("0123456789.-eE+", max_size=30)
)


@given(st.lists(st.none() | NUMBERS_IN_TEXT, min_size=1, max_size=60))
@MANY
def test_any_numbers_in_strings_have_its_bits(texts: list[Any]) -> None:
    several = [*texts, "0.5"]  # one with decimals, so that all are floats
    numbers = parse_numbers(pa.array(several)).fill_null(np.nan).to_numpy()
    expected = numbers_of_text(several)
    assert numbers.tobytes() == np.where(np.isnan(expected), np.nan, expected).tobytes()


@given(st.lists(st.none() | NUMBERS_IN_TEXT, min_size=1, max_size=40), ENCODINGS, KEYS, st.integers(0, 99))
@MANY
def test_strings_as_numbers(texts: list[Any], kind: str, keys: str, seed: int) -> None:
    numbers = numbers_of_text([*texts, "x"])
    if np.isinf(numbers).any() or (np.signbit(numbers) & (numbers == 0)).any():
        return  # an error in both, and the chance of two zeros
    check(pd.Series(texts, dtype=object), kind, keys_like(keys, len(texts), seed))


@pytest.mark.parametrize(
    "texts",
    [
        ["1", "2"],
        ["1", None],
        ["18446744073709551615", "1"],
        ["-1", "18446744073709551615"],
        ["99999999999999999999", "3"],
        ["1.0"],
    ],
)
def test_the_type_of_numbers_in_strings_is_that_of_all_together(texts: list[Any]) -> None:
    for kind in ("auto", "discrete", "digit"):
        check(pd.Series(texts, dtype=object), kind)


DATES = st.lists(st.none() | st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31)), min_size=1, max_size=40)


@given(DATES, KEYS, st.integers(0, 99))
@MANY
def test_any_dates(values: list[Any], keys: str, seed: int) -> None:
    check(pd.Series(values, dtype="datetime64[us]"), "date", keys_like(keys, len(values), seed))


DATE_TEXTS = st.sampled_from(
    (
        "2020-01-02|2021-05-06 10:11:12|1/3/2020|13/2/2020|3 Mar 2019|20200304|x||2020-01-02T03:04:05.678901Z|Jan 2021|2020"
        "|2020-01-02 03:04:05+02:00|2/13/2020 10:00"
    ).split("|")
)


@given(st.lists(st.none() | DATE_TEXTS, min_size=1, max_size=12), KEYS, st.integers(0, 99))
@MANY
def test_strings_as_dates(texts: list[Any], keys: str, seed: int) -> None:
    check(pd.Series(texts, dtype=object), "date", keys_like(keys, len(texts), seed))


@pytest.mark.parametrize("values", [[None], [None] * 5])
@pytest.mark.parametrize("dtype", [object, "float64", "string"])
@pytest.mark.parametrize("kind", ["auto", "discrete", "binned", "digit", "category", "date"])
@pytest.mark.parametrize("keyed", [False, True])
def test_columns_in_which_everything_is_missing(values: list[Any], dtype: str, kind: str, keyed: bool) -> None:
    if (dtype, kind) == ("float64", "date"):
        return  # numbers are no dates here
    check(pd.Series(values, dtype=dtype), kind, np.arange(len(values)) // 2 if keyed else None)


@pytest.mark.parametrize("num_values", [99, 100, 101, 2500])
@pytest.mark.parametrize("keys", ["whole", "missing", "texts"])
def test_discrete_values_by_key_however_many(num_values: int, keys: str, rng: np.random.Generator) -> None:
    values = pd.Series(rng.integers(0, num_values, 4000) / 4)
    owners = keys_like(keys, len(values), 3)
    check(values, "discrete", owners)
    check(values.map(lambda value: int(value * 4)), "discrete", owners)


def test_large_columns(rng: np.random.Generator) -> None:
    mixed = mixed_numbers(rng, 5000)
    for values in (money(rng, 100_000), rng.normal(size=100_000), one_zero(mixed[np.isfinite(mixed)].tolist(), 0.0)):
        check(pd.Series(values), "auto")
        check(pd.Series(values), "auto", rng.integers(0, 700, len(values)))


@pytest.mark.promise("P11", control=True)
def test_negative_control_the_original_sees_another_value(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    values = pd.Series(np.round(rng.normal(size=300), 2) + 0.0)  # without a -0.0 beside 0.0
    check(values, "auto")
    changed = values.copy()
    changed[7] += 0.01
    with pytest.raises(AssertionError):
        check(changed, "auto", source=values)
    # and keys that are missing would be seen if they were counted
    owners = keys_like("missing", 300, 1)
    check(values, "discrete", owners)
    monkeypatch.setattr(gather, "_of_known", lambda table, name: gather.one_array(table.column(name)))
    with pytest.raises(AssertionError):
        check(values, "discrete", owners)


def test_the_file_of_a_partition(rng: np.random.Generator, tmp_path: Any) -> None:
    """From `split` on, through the file that the engine writes for a part of a table."""
    import mostlyai.engine as engine
    from mostlyai.engine import analysis
    from mostlyai.engine._workspace import Workspace

    size = 500
    frame = pd.DataFrame(
        {
            "price": np.round(rng.gamma(2, 30, size), 2),
            "count": rng.integers(0, 40, size),
            "score": np.where(rng.random(size) < 0.1, np.nan, rng.normal(size=size)),
            "side": rng.choice(["buy", "sell", "_RARE_"], size),
            "when": rng.integers(0, 10**15, size).astype("M8[us]"),
        }
    )
    types = {"price": "NUMERIC_AUTO", "count": "NUMERIC_AUTO", "score": "NUMERIC_AUTO", "side": "CATEGORICAL", "when": "DATETIME"}
    encodings = {name: f"TABULAR_{kind}" for name, kind in types.items()}
    engine.split(frame, tgt_encoding_types=encodings, workspace_dir=tmp_path, trn_val_split=0.8)
    workspace = Workspace(tmp_path)
    workspace.tgt_stats_path.mkdir(parents=True, exist_ok=True)
    for part in workspace.tgt_data.fetch_all():
        analysis._analyze_partition(
            tgt_partition_file=part,
            tgt_stats_path=workspace.tgt_stats_path,
            tgt_encoding_types=workspace.tgt_encoding_types.read(),
        )
        written = json.loads((workspace.tgt_stats_path / f"part.{part.name.split('.')[1]}.json").read_text())
        found: Any = analyze(part)
        for name, expected in written["columns"].items():
            expected.pop("encoding_type")
            assert json.loads(as_written(found[name].analysis())) == expected, name
