"""The manifest: one hand-made violation for each rule, each refused with the place in the JSON that breaks it."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness import COLUMNS, NOT_JSON, seal_manifest, tiny_store

from stoker.errors import ManifestError, OptionError
from stoker.store import manifest as manifests
from stoker.store.manifest import parse_frequency

Tree = dict[str, Any]
WHERE = "folder/manifest.json"


@pytest.fixture(scope="module")
def ragged(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    tree: Tree = msgspec.to_builtins(tiny_store(tmp_path_factory.mktemp("ragged") / "store").manifest)
    return tree


@pytest.fixture(scope="module")
def uniform(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    built = tiny_store(tmp_path_factory.mktemp("uniform") / "store", lengths=(2, 2), uniform=True)
    tree: Tree = msgspec.to_builtins(built.manifest)
    return tree


def column(tree: Tree, name: str) -> Tree:
    found: Tree = tree["columns"][COLUMNS.index(name)]
    return found


def at(name: str) -> str:
    return rf"\$\.columns\[{COLUMNS.index(name)}\]"


def set_at(*path: str | int, value: Any) -> Callable[[Tree], None]:
    """A change of one place; a path that begins with the name of a column begins at that column."""

    def change(tree: Tree) -> None:
        place: Any = column(tree, str(path[0])) if path[0] in COLUMNS else tree[str(path[0])] if len(path) > 1 else tree
        for step in path[1:-1]:
            place = place[step]
        place[path[-1]] = value

    return change


def remove_at(*path: str | int) -> Callable[[Tree], None]:
    def change(tree: Tree) -> None:
        place: Any = column(tree, str(path[0])) if path[0] in COLUMNS else tree
        for step in path[1:-1] if path[0] in COLUMNS else path[:-1]:
            place = place[step]
        del place[path[-1]]

    return change


def name_twice(tree: Tree) -> None:
    column(tree, "price")["name"] = "caf\u00e9"
    column(tree, "wide")["name"] = "cafe\u0301"


def many_columns(tree: Tree) -> None:
    tree["columns"] = [{**column(tree, "price"), "name": str(i)} for i in range(manifests.MAX_COLUMNS + 1)]


def nonfinite(nan: int, inf: int, first: list[int] | None) -> Callable[[Tree], None]:
    return set_at("price", "nonfinite", value={"nan": nan, "inf": inf, "first": first})


BROKEN: list[tuple[str, Callable[[Tree], None]]] = [
    # what types say
    (r"missing required field `columns`", remove_at("columns")),
    (r"unknown field `extra`", set_at("extra", value=1)),
    (r"Expected `int`, got `bool`.*\$\.num_series", set_at("num_series", value=True)),
    (r"Expected `str`, got `null`.*name", set_at("price", "name", value=None)),
    (r"Invalid enum value 'table'.*\$\.format", set_at("format", value="table")),
    # numbers and lengths
    (r"\$\.num_series: .*from 0 to 2\^63 - 1, found -1", set_at("num_series", value=-1)),
    (r"\$\.num_steps: .*from 0 to 2\^63 - 1", set_at("num_steps", value=10**40)),
    (r"\$\.length: .*exactly one of length and offsets", set_at("length", value=3)),
    # the offsets of the series
    (r"\$\.offsets\.dtype: expected <i8, found '<i4'", set_at("offsets", "dtype", value="<i4")),
    (r"\$\.offsets\.shape: expected 5, found 6", set_at("offsets", "shape", value=[6])),
    # columns
    (r"\$\.columns: expected at most 4096", many_columns),
    (at("wide") + r"\.name: .*differ after Unicode NFC", name_twice),
    (at("price") + r"\.values: expected a shard, found null", set_at("price", "values", value=None)),
    (at("symbol") + r": .*a text column has level series", set_at("symbol", "level", value="step")),
    (at("price") + r".*a text column has level series, texts, and no values", set_at("price", "kind", value="text")),
    (at("brief") + r"\.values\.dtype: .*kind bfloat16, found '<i2'", set_at("brief", "values", "dtype", value="<i2")),
    (at("mood") + r"\.values\.dtype: .*kind category, found '<u4'", set_at("mood", "values", "dtype", value="<u4")),
    (at("mood") + r"\.texts: .*texts for kinds category and text", set_at("mood", "texts", value=None)),
    (at("price") + r"\.unit: .*null for others, found 'ns'", set_at("price", "unit", value="ns")),
    (at("when") + r"\.unit: .*a unit for kinds timestamp", set_at("when", "unit", value=None)),
    (at("when") + r"\.unit: expected s, ms, us or ns", set_at("when", "unit", value="D")),
    (at("span") + r"\.unit: expected s, ms, us or ns", set_at("span", "unit", value="ms, UTC")),
    (at("mood") + r"\.missing: .*from 0", set_at("mood", "missing", value=-1)),
    (at("price") + r"\.nonfinite\.nan: .*from 0", nonfinite(-1, 0, None)),
    (at("price") + r"\.nonfinite\.first: .*a position if and only if", set_at("price", "nonfinite", "nan", value=1)),
    (
        at("price") + r"\.nonfinite\.first: expected \[series",
        nonfinite(1, 0, [0]),
    ),
    (at("price") + r"\.nonfinite\.first: .*from 0", nonfinite(1, 0, [0, -1])),
    # shards
    (at("price") + r"\.values\.file: expected 16 hex digits", set_at("price", "values", "file", value="../../etc/passwd")),
    (at("price") + r"\.values\.shape: expected one or two numbers, found 0", set_at("price", "values", "shape", value=[])),
    (at("price") + r"\.values\.shape: .*from 0", set_at("price", "values", "shape", value=[-9])),
    (at("price") + r"\.values\.shape: .*a width of at least 1", set_at("price", "values", "shape", value=[9, 0])),
    (at("price") + r"\.values\.shape: .*less than 2\^63 bytes", set_at("price", "values", "shape", value=[9, 2**62])),
    (at("price") + r"\.values\.shape: expected 9, found 8", set_at("price", "values", "shape", value=[8])),
    (at("label") + r"\.values\.shape: expected 4, found 9", set_at("label", "values", "shape", value=[9])),
    (at("price") + r"\.values\.blocks: expected 1, found 0", set_at("price", "values", "blocks", value=[])),
    (at("price") + r"\.values\.blocks: expected 16 hex digits", set_at("price", "values", "blocks", value=["0" * 15])),
    (at("symbol") + r"\.texts\.utf8\.dtype: expected \|u1", set_at("symbol", "texts", "utf8", "dtype", value="|i1")),
    (
        at("symbol") + r"\.texts\.utf8\.shape: expected one number, found 2",
        set_at("symbol", "texts", "utf8", "shape", value=[17, 1]),
    ),
    (at("symbol") + r"\.texts\.offsets\.dtype: expected <i8", set_at("symbol", "texts", "offsets", "dtype", value="<u8")),
    (at("symbol") + r"\.texts\.offsets\.shape: expected 5, found 4", set_at("symbol", "texts", "offsets", "shape", value=[4])),
    (
        at("mood") + r"\.texts\.offsets\.shape: expected at least 1",
        set_at("mood", "texts", "offsets", value={"file": "0" * 16 + ".npy", "dtype": "<i8", "shape": [0], "blocks": []}),
    ),
    # names that refer to columns, and the sources
    (r"\$\.key: expected the name of a column of level series that is not a category, found 'none'", set_at("key", value="none")),
    (r"\$\.time: expected the name of a column of level step that is not a category, found 'label'", set_at("time", value="label")),
    (r"\$\.sources\[0\]\.num_bytes: .*from 0", set_at("sources", 0, "num_bytes", value=-1)),
    (r"\$\.sources\[0\]\.xxh3: expected 32 hex digits", set_at("sources", 0, "xxh3", value="f" * 31)),
]


@pytest.mark.parametrize(("message", "change"), BROKEN, ids=[f"{i}" for i in range(len(BROKEN))])
def test_each_broken_rule_is_named_with_its_place(ragged: Tree, message: str, change: Callable[[Tree], None]) -> None:
    tree = copy.deepcopy(ragged)
    change(tree)
    with pytest.raises(ManifestError, match=message) as caught:
        manifests.load(seal_manifest(tree), WHERE)
    assert str(caught.value).startswith(WHERE)
    assert "\n" not in str(caught.value)


def test_sizes_that_overflow_when_multiplied_are_refused(uniform: Tree) -> None:
    with pytest.raises(ManifestError, match=r"\$\.num_steps"):
        manifests.load(seal_manifest({**uniform, "num_series": 2**32, "length": 2**32, "num_steps": 0}), WHERE)


# ---- what the digest and the one serialisation catch ----


def test_what_was_dumped_loads_and_dumps_the_same(ragged: Tree, uniform: Tree) -> None:
    for tree in (ragged, uniform):
        data = seal_manifest(tree)
        manifest = manifests.load(data, WHERE)
        assert manifests.dump(manifest) == data
        assert manifest.digest == tree["digest"]
        assert manifests.load(manifests.dump(manifest), "again").digest == manifest.digest


def changed(data: bytes, old: bytes, new: bytes) -> bytes:
    assert old in data
    return data.replace(old, new, 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: changed(data, b'"price"', b'"Price"'),
        lambda data: changed(data, b"made for a test", b"made for a tesT"),
        lambda data: data + b" ",
        lambda data: data.rstrip(b"\n"),
        lambda data: b" " + data,
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: changed(data, b'"version": 1,', b'"version": 1, "version": 1,'),
        lambda data: changed(data, b'"num_series": 4,', b'"num_series": 3, "num_series": 4,'),
        lambda data: changed(data, b'"num_series": 4', b'"num_series": 4 '),
        lambda data: changed(data, b'"made', b'"\\u006dade'),
    ],
)
def test_a_change_that_breaks_no_rule_is_found_by_the_digest(ragged: Tree, change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(ManifestError, match="does not match its digest: it was changed after it was written"):
        manifests.load(change(seal_manifest(ragged)), WHERE)


@pytest.mark.parametrize("kind", NOT_JSON)
def test_what_is_not_json_of_the_right_form_is_refused(kind: str) -> None:
    with pytest.raises(ManifestError, match=f"^{re.escape(WHERE)} is not a stoker manifest"):
        manifests.load(NOT_JSON[kind], WHERE)


def test_a_manifest_that_is_too_long_is_not_even_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "MAX_BYTES", 10)
    monkeypatch.setattr(msgspec.json, "decode", lambda *_, **__: pytest.fail("parsed"))
    with pytest.raises(ManifestError, match="at most 10"):
        manifests.load(b"{" * 11, WHERE)


# ---- versions ----


def test_a_newer_version_asks_for_a_newer_stoker(ragged: Tree) -> None:
    for extra in ({}, {"a_field_of_the_future": 1}, {"columns": "elsewhere"}):
        with pytest.raises(ManifestError, match="version 3, but this stoker reads versions 1 to 2"):
            manifests.load(seal_manifest({**ragged, **extra, "version": 3}), WHERE)


@pytest.mark.promise("P25")
def test_a_frequency_needs_version_2_and_only_that(ragged: Tree) -> None:
    data = seal_manifest({**ragged, "version": 2, "freq": "1h"})
    assert manifests.load(data, WHERE).freq == "1h"
    assert manifests.dump(manifests.load(data, WHERE)) == data
    assert b"freq" not in manifests.dump(manifests.load(seal_manifest(ragged), WHERE)), "version 1 keeps its bytes"
    for wrong, message in (
        ({"version": 2}, r"at \$.version: expected 1, found 2"),
        ({"version": 1, "freq": "1h"}, r"at \$.version: expected 2, found 1"),
        ({"version": 2, "freq": "1 hour"}, r"at \$.freq: expected a number and a unit like 1h, and a time column, found '1 hour'"),
        ({"version": 2, "freq": "1h", "time": None}, r"at \$.freq: expected a number and a unit like 1h, and a time column"),
        ({"version": 2, "freq": None}, r"at \$.version: expected 1, found 2"),
    ):
        with pytest.raises(ManifestError, match=message):
            manifests.load(seal_manifest({**ragged, **wrong}), WHERE)


def test_negative_control_without_the_digest_a_changed_note_passes(ragged: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    data = changed(seal_manifest(ragged), b"made for a test", b"made for a tesT")
    monkeypatch.setattr(manifests, "dump", lambda _: data)
    assert manifests.load(data, WHERE).notes == ["made for a tesT"]


# Frequencies: grids equal to those of pandas


OFFSETS = {
    "s": lambda n: pd.DateOffset(seconds=n),
    "min": lambda n: pd.DateOffset(minutes=n),
    "h": lambda n: pd.DateOffset(hours=n),
    "d": lambda n: pd.DateOffset(days=n),
    "w": lambda n: pd.DateOffset(weeks=n),
    "mo": lambda n: pd.DateOffset(months=n),
    "q": lambda n: pd.DateOffset(months=3 * n),
    "y": lambda n: pd.DateOffset(years=n),
}


@given(
    st.sampled_from(sorted(OFFSETS)),
    st.integers(1, 5),
    st.datetimes(pd.Timestamp("1960-01-01"), pd.Timestamp("2060-01-01")),
    st.lists(st.integers(0, 40), min_size=1, max_size=20),
)
def test_a_grid_is_that_of_pandas(unit: str, count: int, start: pd.Timestamp, places: list[int]) -> None:
    first = pd.Timestamp(start)
    if first.is_month_end and unit in ("mo", "q", "y"):
        first = first - pd.Timedelta(days=5)  # grids of last days have their own test
    places = [0, *sorted(places)]
    times = np.array([(first + OFFSETS[unit](count * one if one else 0)).as_unit("ns").value for one in places])
    index, on_grid = parse_frequency(f"{count}{unit}", "freq").grid_index(times)
    assert on_grid.all()
    assert index.tolist() == places
    assert parse_frequency(f"{count}{unit}", "freq").times_at(times, index).tolist() == times.tolist()


@pytest.mark.parametrize(("alias", "ours"), [("ME", "1mo"), ("QE", "1q"), ("YE", "1y")])
def test_last_days_of_months_stay_last_days(alias: str, ours: str) -> None:
    times = pd.date_range("2019-01-31", periods=30, freq=alias).as_unit("ns").asi8
    index, on_grid = parse_frequency(ours, "freq").grid_index(times)
    assert on_grid.all()
    assert index.tolist() == list(range(30))


def test_times_between_two_grid_points_are_found() -> None:
    times = pd.to_datetime(["2026-01-15 06:00", "2026-02-15 05:00", "2026-02-15 06:00", "2026-03-20 00:00"]).as_unit("ns").asi8
    index, on_grid = parse_frequency("1mo", "freq").grid_index(times)
    assert index.tolist() == [0, 0, 1, 2]
    assert on_grid.tolist() == [True, False, True, False]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("h", "1h"),
        ("H", "1h"),
        ("2 hours", "2h"),
        ("15T", "15min"),
        ("15m", "15min"),
        ("D", "1d"),
        ("month", "1mo"),
        ("M", "1mo"),
        ("MS", "1mo"),
        ("2ME", "2mo"),
        ("QS", "1q"),
        ("YE", "1y"),
        ("m", "1min"),
        ("ms", "1ms"),
        ("S", "1s"),
    ],
)
def test_frequencies_of_pandas_and_polars_are_understood(text: str, same: str) -> None:
    assert str(parse_frequency(text, "freq")) == same


@pytest.mark.parametrize("text", ["", "0h", "1", "-1h", "1.5h", "1 fortnight", "1h30", None, 3, "999999999w"])
def test_what_is_not_a_frequency_is_refused(text: object) -> None:
    with pytest.raises(OptionError, match=r"freq is .* expected a number and a unit"):
        parse_frequency(text, "freq")  # type: ignore[arg-type]
