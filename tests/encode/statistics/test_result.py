"""Statistics as JSON: what is written is read, and anything else is refused with the field that is wrong."""

from __future__ import annotations

import base64
import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stoker.encode import Statistics, analyze
from stoker.encode.statistics import result
from stoker.errors import OptionError, SchemaError, SourceInvalidError, SourceNotFoundError


def table(size: int = 40) -> pa.Table:
    rng = np.random.default_rng(7)
    return pa.table(
        {
            "x": pa.array(rng.integers(0, 30, size) / 4, mask=rng.random(size) < 0.2),
            "i": rng.integers(-9, 9, size),
            "s": rng.choice(["a", "b"], size),
            "d": pa.array(rng.integers(0, 10**12, size)).cast(pa.timestamp("us")),
            "n": pa.nulls(size),
            "l": pa.array([[1.5]] * size),
        }
    )


SMALL = analyze(table())
SKETCHED = analyze({"x": np.random.default_rng(7).normal(size=500), "s": list("abcdefghij") * 50}, exact=64, categories=3)


@pytest.mark.parametrize("statistics", [SMALL, SKETCHED], ids=["exact", "sketched"])
@pytest.mark.parametrize("partial", [True, False])
def test_what_is_written_is_read(statistics: Statistics, partial: bool, tmp_path: Path) -> None:
    statistics.save(tmp_path / "stats.json", partial=partial)
    again = Statistics.load(tmp_path / "stats.json")
    assert (again == statistics) == partial
    assert again.to_json(partial=partial) == statistics.to_json(partial=partial) == (tmp_path / "stats.json").read_bytes()
    for column, other in zip(again.columns, statistics.columns, strict=True):
        if column.name != "s" or not column.count_error:  # type: ignore[union-attr]
            assert column.analysis() == other.analysis()


def test_statistics_travel_between_processes() -> None:
    for statistics in (SMALL, SKETCHED):
        assert pickle.loads(pickle.dumps(statistics)) == copy.deepcopy(statistics) == statistics


def test_a_report_has_no_state() -> None:
    assert b'"state": null' in SMALL.to_json()
    assert all(getattr(column, "state", None) is None for column in Statistics.from_json(SMALL.to_json()).columns)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match=r"none.json does not exist"):
        Statistics.load(tmp_path / "none.json")


Change = Callable[[Any], Any]


def changed(statistics: Statistics, change: Change) -> bytes:
    document = json.loads(statistics.to_json(partial=True))
    change(document)
    return json.dumps(document).encode()


def put(*path: Any, value: Any) -> Change:
    def change(document: Any) -> None:
        for step in path[:-1]:
            document = document[step]
        document[path[-1]] = value

    return change


def remove(*path: Any) -> Change:
    def change(document: Any) -> None:
        for step in path[:-1]:
            document = document[step]
        del document[path[-1]]

    return change


X, I, S, D, N, L = (("columns", number) for number in range(6))  # noqa: E741
ONE_KEY = base64.b64encode(np.array([1], dtype="<u8").tobytes()).decode()

FAULTS: list[tuple[Change, str]] = [
    (put("version", value=2), r"at \$.version: expected 1, found 2: install a newer stoker"),
    (put("version", value=0), r"at \$.version: expected 1, found 0: which does not exist"),
    (put("version", value="1"), r"Expected `int`, got `str` - at `\$.version`"),
    (put("format", value="stoker"), r"Invalid enum value 'stoker' - at `\$.format`"),
    (put("more", value=1), r"unknown field `more`"),
    (remove("num_rows"), r"missing required field `num_rows`"),
    (put("num_rows", value=-1), r"at \$.num_rows: expected a number from 0"),
    (put("num_rows", value=41), r"at \$.columns\[0\].num_values: expected 41, found 40"),
    (put("limits", "exact", value=1000), r"at \$.limits.exact: expected a multiple of 16"),
    (put("limits", "categories", value=0), r"at \$.limits.categories: expected at least 1"),
    (put(*X, "kind", value="numbre"), r"Invalid value 'numbre' - at `\$.columns\[0\].kind`"),
    (put(*X, "name", value="i"), r"at \$.columns\[1\].name: expected names that differ, found 'i'"),
    (put(*X, "num_null", value="3"), r"Expected `int`, got `str` - at `\$.columns\[0\].num_null`"),
    (put(*X, "num_null", value=41), r"at \$.columns\[0\].num_null: expected at most 40"),
    (put(*X, "extra", value=1), r"unknown field `extra` - at `\$.columns\[0\]`"),
    (put(*X, "form", value="double"), r"Invalid enum value 'double' - at `\$.columns\[0\].form`"),
    (put(*X, "num_infinite", value=50), r"at \$.columns\[0\].num_infinite"),
    (put(*X, "first_infinite", value=3), r"at \$.columns\[0\].first_infinite: expected a row exactly where something is infinite"),
    (put(*X, "min", value=1), r"at \$.columns\[0\].min: expected a finite number with a point"),
    (put(*X, "min", value=None), r"at \$.columns\[0\].min: expected a number exactly where there are values"),
    (put(*I, "max", value=1.5), r"at \$.columns\[1\].max: expected an integer"),
    (put(*I, "quantiles", 3, value=2**64), r"at \$.columns\[1\].quantiles: expected an integer"),
    (put(*X, "quantiles", value=[1.0]), r"at \$.columns\[0\].quantiles: expected 1,001, found 1"),
    (put(*X, "min_n", 0, value=99.0), r"at \$.columns\[0\].min_n: expected sorted values"),
    (put(*X, "max_n", value=[]), r"at \$.columns\[0\].max_n: expected \d+, found 0"),
    (put(*X, "min_digits", "E3", value=7), r"at \$.columns\[0\].max_digits.E3: expected a range of digits, found 7 to 0"),
    (remove(*X, "min_digits", "E-8"), r"at \$.columns\[0\].min_digits: expected E18 down to E-8"),
    (remove(*X, "max_digits", "E18"), r"at \$.columns\[0\].max_digits: expected the places of min_digits"),
    (put(*I, "cnt_values", "1.5", value=1), r"at \$.columns\[1\].cnt_values"),
    (put(*X, "log_hist", 0, value=1), r"at \$.columns\[0\].log_hist"),
    (put(*X, "log_hist", 0, value=-1), r"at \$.columns\[0\].log_hist: expected a number from 0"),
    (put(*X, "state", "keys", value="AAAA"), r"at \$.columns\[0\].state.keys: expected integers of 8 bytes, found 3 bytes"),
    (put(*X, "state", "keys", value="no base64!"), r"Invalid base64 encoded string - at `\$.columns\[0\].state.keys`"),
    (put(*X, "state", "keys", value=ONE_KEY), r"at \$.columns\[0\].state.counts"),
    (put(*X, "state", "counts", value=""), r"at \$.columns\[0\].state.counts: expected \d+ values in all"),
    (put(*X, "state", "levels", value=[""]), r"at \$.columns\[0\].state.levels: expected no empty level at the end"),
    (put(*X, "state", "levels", value=[ONE_KEY]), r"at \$.columns\[0\].state.levels\[0\]: expected 65,536 ascending keys"),
    (put(*S, "cnt_values", "a", value=0), r"at \$.columns\[2\].cnt_values: expected counts of at least 1"),
    (put(*S, "cnt_values", "c", value=1), r"at \$.columns\[2\].cnt_values: expected 40, found 41"),
    (put(*S, "num_distinct", value=3), r"at \$.columns\[2\].num_distinct"),
    (put(*S, "count_error", value=1), r"at \$.columns\[2\].num_distinct"),
    (
        put(*D, "min", value="yesterday"),
        r"at \$.columns\[3\].min: expected timestamps, found 'yesterday' is not a (valid )?timestamp",
    ),
    (put(*D, "max", value=None), r"at \$.columns\[3\].max: expected 1, found 0"),
    (put(*D, "min_n", 0, value="2200-01-01"), r"at \$.columns\[3\].min_n: expected sorted values"),
    (remove(*D, "min_values", "ms_E0"), r"at \$.columns\[3\].min_values: expected year, month"),
    (put(*N, "num_values", value=39), r"at \$.columns\[4\].num_values: expected 40, found 39"),
    (put(*L, "cnt_lengths", value={"1": 41}), r"at \$.columns\[5\].num_values: expected 41, found 40"),
    (put(*L, "cnt_lengths", value={"one": 40}), r"at \$.columns\[5\].cnt_lengths: expected lengths, found 'one'"),
]


@pytest.mark.parametrize(("change", "told"), FAULTS, ids=[told[:60] for _, told in FAULTS])
def test_invalid_json_is_refused_with_its_field(change: Change, told: str) -> None:
    with pytest.raises(SourceInvalidError, match=told) as caught:
        Statistics.from_json(changed(SMALL, change), "stats.json")
    assert str(caught.value).startswith("stats.json ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff", b'{"version": 1}', b"[" * 100_000])
def test_other_json_is_refused(data: bytes) -> None:
    with pytest.raises(SourceInvalidError, match="cannot be read as JSON of analyze"):
        Statistics.from_json(data)


def test_every_cut_and_a_thousand_changed_bytes_are_refused_or_valid(rng: np.random.Generator) -> None:
    data = SKETCHED.to_json(partial=True)
    for _ in range(300):
        with pytest.raises(SourceInvalidError):
            Statistics.from_json(data[: rng.integers(len(data) - 2)])
    for _ in range(1000):
        mutant = bytearray(data)
        mutant[rng.integers(len(data))] = rng.integers(32, 127)
        try:
            valid = Statistics.from_json(bytes(mutant))
        except SourceInvalidError:
            continue
        valid.merge(valid)


def test_negative_control_without_the_rules_a_broken_file_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    data = changed(SMALL, put(*X, "log_hist", 0, value=1))
    monkeypatch.setattr(result, "check_statistics", lambda *arguments, **options: None)
    assert Statistics.from_json(data) != SMALL


def test_parts_that_do_not_fit_are_refused() -> None:
    other = analyze(table(), exact=64)
    with pytest.raises(OptionError, match="one part was analysed with exact=1,048,576"):
        SMALL.merge(other)
    with pytest.raises(SchemaError, match="parts differ in their columns: d, l"):
        SMALL.merge(analyze(table().select(["x", "i", "s", "n"])))
    with pytest.raises(SchemaError, match="parts differ in their columns: the order"):
        SMALL.merge(analyze(table().select(["i", "x", "s", "d", "n", "l"])))
    with pytest.raises(SchemaError, match=r"column 'x' is double \(a number\) in one part and int64 \(a number\) in another"):
        analyze({"x": [1.5]}).merge(analyze({"x": [1]}))
    with pytest.raises(SchemaError, match=r"column 'x' is double \(a number\) in one part and lists of double"):
        analyze({"x": [1.5]}).merge(analyze({"x": [[1.5]]}))
    with pytest.raises(OptionError, match="column 'x' was saved without the state that merging needs"):
        Statistics.from_json(SMALL.to_json()).merge(SMALL)


def test_an_unknown_column_is_named() -> None:
    with pytest.raises(OptionError, match="there is no column 'y'; there are x, i, s, d, n, l"):
        SMALL["y"]
