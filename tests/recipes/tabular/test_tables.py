"""Tables: grouping by subject, chosen encodings, and messages for bad input."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from tests.recipes.tabular.frames import make_events

from stoker.errors import BadValueError, OptionError, SourceNotFoundError
from stoker_recipes.tabular.files import read_table, to_frame
from stoker_recipes.tabular.tables import (
    TableSpec,
    decode_table,
    encode_table,
    fit_table,
    group_rows,
    number_keys,
)


def fitted(table: pa.Table, key: str = "user", **options: Any) -> tuple[TableSpec, Any]:
    grouped = group_rows(table, key=key)
    settings = {"encodings": {}, "protect": False, "seed": 0, "is_sequence": True, "say": lambda *_: None}
    return fit_table(grouped.rows, starts=grouped.starts, **(settings | options)), grouped


def test_rows_are_grouped_in_their_order() -> None:
    table = pa.table({"user": ["b", "a", "b", "c", "a"], "n": [0, 1, 2, 3, 4]})
    grouped = group_rows(table, key="user")
    assert grouped.keys.to_pylist() == ["b", "a", "c"]
    assert grouped.rows["n"].to_pylist() == [0, 2, 1, 4, 3]
    assert grouped.starts.tolist() == [0, 2, 4]
    assert grouped.lengths.tolist() == [2, 2, 1]


@pytest.mark.parametrize("kind", ["arrow", "pandas", "polars"])
def test_a_table_comes_back_as_its_own_kind_of_frame(kind: str) -> None:
    events = make_events(60)
    given = {"arrow": pa.Table.from_pandas, "pandas": lambda one: one, "polars": pl.from_pandas}[kind](events)
    table, frame = read_table(given, "events")
    assert frame == kind
    spec, grouped = fitted(table)
    kinds = {column.name: column.encoding.__struct_config__.tag for column in spec.columns}
    assert kinds == {"state": "categorical", "amount": "numeric", "score": "numeric", "late": "categorical", "time": "relative"}
    codes = encode_table(grouped.rows, spec, starts=grouped.starts)
    uniform = np.full((len(codes), len(spec.columns)), 0.5)
    back = to_frame(decode_table(codes, spec, starts=grouped.starts, uniform=uniform), frame)
    assert type(back) is type(given)
    back = back if kind == "pandas" else back.to_pandas()
    assert back["state"].tolist() == events["state"].tolist()
    assert back["late"].tolist() == events["late"].tolist()
    assert back["late"].dtype == events["late"].dtype
    assert (back["score"].isna() == events["score"].isna()).all()


def test_strings_that_few_share_are_characters() -> None:
    table = pa.table({"user": list(range(100)), "code": [f"K{one:03d}" for one in range(100)], "colour": ["red", "blue"] * 50})
    spec, _ = fitted(table, protect=True)
    assert [column.encoding.__struct_config__.tag for column in spec.columns] == ["character", "categorical"]


def test_dates_that_decrease_are_not_relative() -> None:
    table = pa.table({"user": [1, 1, 2, 2], "t": pd.to_datetime(["2020-01-02", "2020-01-01", "2020-01-01", "2020-01-05"])})
    spec, _ = fitted(table)
    assert spec.columns[0].encoding.__struct_config__.tag == "datetime"


def test_columns_without_any_value_stay_empty() -> None:
    table = pa.table(
        {"user": list(range(40)), "n": pa.nulls(40, pa.int32()), "t": pa.nulls(40, pa.timestamp("s")), "x": pa.nulls(40)}
    )
    spec, grouped = fitted(table, protect=True)
    codes = encode_table(grouped.rows, spec, starts=grouped.starts)
    assert decode_table(codes, spec, starts=grouped.starts, uniform=np.zeros((40, 3))).equals(table.drop_columns(["user"]))


def test_a_column_with_values_of_few_subjects_is_protected_and_reported() -> None:
    said: list[str] = []
    table = pa.table({"user": list(range(100)), "n": [*map(float, range(8)), *[None] * 92]})
    spec, grouped = fitted(table, protect=True, say=lambda word, line: said.append(f"{word}: {line}"))
    assert "protected: column 'n': fewer than" in said[0]
    codes = encode_table(grouped.rows, spec, starts=grouped.starts)
    assert decode_table(codes, spec, starts=grouped.starts, uniform=np.zeros((100, 1)))["n"].null_count == 100


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: read_table(5, "events"), OptionError, "events cannot be read: int is not data. Pass a path"),
        (lambda: read_table("no/such.parquet", "events"), SourceNotFoundError, "no/such.parquet does not exist"),
        (
            lambda: read_table(pd.DataFrame({"x": [1, "a"]}), "events"),
            BadValueError,
            r"events cannot be read: column 'x' holds 'a' \(str\) in row 2, but the values before it are of type number",
        ),
        (lambda: read_table({"a": [1, 2], "b": [1]}, "events"), BadValueError, "events cannot be read: .*the same number of rows"),
        (lambda: group_rows(pa.table([[1], [2]], names=["a", "a"]), key="a"), OptionError, "events has more than one column 'a'"),
        (lambda: group_rows(pa.table({"a": [[1]]}), key="a"), BadValueError, "a of events is of the type list"),
        (lambda: group_rows(pa.table({"a": [1.0, float("nan")]}), key="a"), BadValueError, "events, row 1: the a is missing"),
        (
            lambda: group_rows(pa.table({"a": [1]}), key="a", keys=pa.array(["x"])),
            BadValueError,
            "a is of the type int64 in events, but of the type string in context. Convert one of them",
        ),
        (lambda: group_rows(pa.table({"a": [1]}), key="user"), OptionError, "events has no column 'user'; it has 'a'"),
        (lambda: group_rows(pa.table({"user": [1, None]}), key="user"), BadValueError, "row 1: the user is missing"),
        (lambda: fitted(pa.table({"user": [1], "s": ["a"]}), encodings={"s": "numeric"}), OptionError, r"encodings\['s'\] is 'numeric'"),
    ],
)  # fmt: skip
def test_bad_input_has_one_clear_line(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as found:
        call()
    assert "\n" not in str(found.value)


def test_strings_of_polars_kind_are_read_as_strings() -> None:
    """Arrow cannot select rows of `string_view`, which Polars hands over on request."""
    table = read_table(pa.table({"x": pa.array(["a", None], pa.string_view()), "y": [1, 2]}), "events")[0]
    assert table.schema.field("x").type == pa.string()
    assert table["x"].to_pylist() == ["a", None]


def test_another_type_than_in_training_is_converted_or_refused() -> None:
    table = pa.table({"user": list(range(30)), "n": list(range(30))})
    spec, _ = fitted(table)
    same = encode_table(pa.table({"n": [3.0, 4.0]}), spec, starts=np.arange(2))
    assert same.tolist() == encode_table(pa.table({"n": [3, 4]}), spec, starts=np.arange(2)).tolist()
    with pytest.raises(OptionError, match="column 'n' is of the type string, but was int64 in training"):
        encode_table(pa.table({"n": ["a"]}), spec, starts=np.arange(1))


def two_dates(rng: np.random.Generator, count: int = 300, *, missing: bool = False) -> pa.Table:
    start = rng.integers(0, 700, count)
    end = pa.array((start + rng.geometric(0.1, count) - 1) * 86_400_000, mask=rng.random(count) < 0.2 if missing else None)
    return pa.table({"end": end.cast(pa.timestamp("ms")), "start": pa.array(start * 86_400_000).cast(pa.timestamp("ms"))})


FLAT: dict[str, Any] = {"encodings": {}, "protect": True, "seed": 0, "is_sequence": False, "say": lambda *_: None}


@pytest.mark.parametrize("missing", [False, True])
def test_a_date_that_is_never_before_another_one_is_counted_from_it(rng: np.random.Generator, missing: bool) -> None:
    table = two_dates(rng, missing=missing)
    spec = msgspec.json.decode(msgspec.json.encode(fit_table(table, starts=np.arange(300), **FLAT)), type=TableSpec)
    assert [one.encoding.__struct_config__.tag for one in spec.columns] == ["since", "datetime"]
    codes = encode_table(table, spec, starts=np.arange(300))
    back = decode_table(codes, spec, starts=np.arange(300), uniform=rng.random((300, 2)))
    assert back.schema == table.schema
    assert back["end"].is_valid().equals(table["end"].is_valid())
    there = back["end"].is_valid().to_numpy()
    days = (back["end"].cast(pa.int64()).fill_null(0).to_numpy() - back["start"].cast(pa.int64()).to_numpy())[there] / 86_400_000
    assert days.min() >= 0
    assert (days % 1 == 0).all()  # whole days stay whole


def test_dates_without_a_rule_between_them_are_on_their_own(rng: np.random.Generator) -> None:
    table = two_dates(rng)
    kinds = {}
    births = pa.array(rng.integers(-10_000, -4000, 300) * 86_400_000).cast(pa.timestamp("ms"))  # before everything, in any row
    backwards = pa.chunked_array([table["end"].combine_chunks().take(pa.array(rng.permutation(300)))])
    for name, one, options in (
        ("birth", table.set_column(1, "start", births), {}), ("broken", table.set_column(0, "end", backwards), {}),
        ("asked", table, {"encodings": {"end": "datetime"}}),
    ):  # fmt: skip
        spec = fit_table(one, starts=np.arange(300), **(FLAT | options))
        kinds[name] = {column.encoding.__struct_config__.tag for column in spec.columns}
    assert kinds == {"birth": {"datetime"}, "broken": {"datetime"}, "asked": {"datetime"}}


@pytest.mark.promise("P30")
def test_numbers_of_keys_do_not_depend_on_other_keys() -> None:
    assert number_keys(pa.array([5, -3, 2**62])).tolist() == [5, -3, 2**62]
    assert number_keys(pa.array([2**64 - 1], pa.uint64())).tolist() == [-1]
    words = ["007", "12", "a", "1.5", "\u0661", "9" * 19, ""]
    found = number_keys(pa.array(words)).tolist()
    assert found[:2] == [7, 12]
    assert len(set(found)) == len(words)
    assert number_keys(pa.array(words[::-1])).tolist() == found[::-1]
    assert [number_keys(pa.array([word]))[0] for word in words] == found
    both = number_keys(pa.array(["7", "07", "12"])).tolist()  # the same number twice would be the same events twice
    assert len(set(both)) == 3
    assert number_keys(pa.array([b"x", b"y"])).tolist() == number_keys(pa.array(["b'x'", "b'y'"])).tolist()
