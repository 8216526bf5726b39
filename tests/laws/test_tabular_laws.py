"""Laws of tabular encodings: columns of any type come back through codes, JSON and frames as they were."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from tests.harness import num_examples

from stoker_recipes.tabular.files import read_table, to_frame
from stoker_recipes.tabular.tables import KINDS, TableSpec, decode_table, encode_table, fit_table
from stoker_recipes.tabular.values import family_of

DATES = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1))
WORDS = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=5)
SECONDS = DATES.map(lambda one: one.replace(microsecond=0))
TYPES: dict[str, tuple[pa.DataType, Any]] = {
    "bool": (pa.bool_(), st.booleans()),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "uint16": (pa.uint16(), st.integers(0, 2**16 - 1)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float32": (pa.float32(), st.floats(width=32, allow_nan=False, allow_infinity=False)),
    "float64": (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    "cents": (pa.float64(), st.integers(-(10**7), 10**7).map(lambda one: one / 100)),
    "decimal": (pa.decimal128(18, 3), st.integers(-(10**15), 10**15).map(lambda one: Decimal(one).scaleb(-3))),
    "wide decimal": (pa.decimal256(50, 2), st.integers(-(10**12), 10**12).map(lambda one: Decimal(one).scaleb(-2))),
    "date32": (pa.date32(), DATES.map(dt.datetime.date)),
    "date64": (pa.date64(), DATES.map(dt.datetime.date)),
    "seconds": (pa.timestamp("s"), SECONDS),
    "zone": (pa.timestamp("us", "Europe/Vienna"), DATES.map(lambda one: one.replace(tzinfo=dt.UTC))),
    "nanoseconds": (pa.timestamp("ns", "UTC"), DATES.map(lambda one: one.replace(tzinfo=dt.UTC))),
    "time32": (
        pa.time32("ms"),
        st.integers(0, 86_399_999).map(lambda one: (dt.datetime.min + dt.timedelta(milliseconds=one)).time()),
    ),
    "duration": (pa.duration("us"), st.timedeltas(dt.timedelta(-999), dt.timedelta(999))),
    "string": (pa.string(), WORDS),
    "large string": (pa.large_string(), WORDS),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), WORDS),
    "null": (pa.null(), st.none()),
}
"""The type of a column, and its values."""
POLARS_HAS = [name for name in TYPES if name not in ("date64", "seconds", "time32", "wide decimal", "null")]


def through_codes(table: pa.Table, starts: Any, kinds: dict[str, str]) -> pa.Table:
    """Encode and decode, where every value is kept and the spec is written and read again."""
    options: dict[str, Any] = {"protect": False, "seed": 0, "is_sequence": True, "say": lambda *_: None}
    spec = fit_table(table, starts=starts, encodings=kinds, **options)
    spec = msgspec.json.decode(msgspec.json.encode(spec), type=TableSpec)
    codes = encode_table(table, spec, starts=starts)
    assert (codes < [size for one in spec.sizes for size in one.values()]).all()
    return decode_table(codes, spec, starts=starts, uniform=np.full((len(table), 1), 0.3))


@pytest.mark.promise("P11")
@pytest.mark.parametrize("name", TYPES)
@given(st.data())
@settings(max_examples=num_examples(48))
def test_few_values_come_back_exactly(name: str, data: st.DataObject) -> None:
    """With at most 60 rows every number has its own interval, so nothing is drawn."""
    kind, values = TYPES[name]
    rows = data.draw(st.lists(st.none() | values, min_size=1, max_size=60))
    size = data.draw(st.integers(1, len(rows)))
    table = pa.table({"x": pa.array(rows, kind)})
    found = through_codes(table, np.arange(0, len(rows), size), {})
    assert found.schema.equals(table.schema)
    assert found["x"].to_pylist() == table["x"].to_pylist()


@pytest.mark.parametrize("name", ["int64", "decimal", "zone", "date32", "cents"])
@given(st.data())
@settings(max_examples=num_examples(48))
def test_any_kind_that_is_possible_keeps_type_and_missing_values(name: str, data: st.DataObject) -> None:
    kind, values = TYPES[name]
    rows = data.draw(st.lists(st.none() | values, min_size=1, max_size=40))
    asked = data.draw(st.sampled_from([one for one in KINDS if one not in ("character", "lat_long")]))
    table = pa.table({"x": pa.array(rows, kind)})
    family = family_of(kind)
    if asked in ("datetime", "relative") and family != "time":
        asked = "auto"
    if asked == "numeric" and family != "number":
        asked = "auto"
    found = through_codes(table, np.arange(0, len(rows), 3), {"x": asked})
    assert found.schema.equals(table.schema)
    assert [one is None for one in found["x"].to_pylist()] == [one is None for one in rows]


@pytest.mark.parametrize("frame", ["pandas", "polars"])
@given(st.data())
@settings(max_examples=num_examples(48))
def test_frames_come_back_with_the_same_types(frame: str, data: st.DataObject) -> None:
    """What a frame of pandas or Polars holds is what a generated one holds."""
    names = data.draw(st.lists(st.sampled_from(POLARS_HAS), min_size=1, max_size=3, unique=True))
    size = data.draw(st.integers(1, 8))
    columns = {name: data.draw(st.lists(st.none() | TYPES[name][1], min_size=size, max_size=size)) for name in names}
    table = pa.table({name: pa.array(rows, TYPES[name][0]) for name, rows in columns.items()})
    given_frame = to_frame(table, frame)
    again, kind = read_table(given_frame, "events")
    assert kind == frame
    back = to_frame(again, frame)
    assert list(back.dtypes) == list(given_frame.dtypes)
    assert again.num_rows == size
