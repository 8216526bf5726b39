"""JSON Lines: the fast way and the exact way agree, and what the fast way cannot be given never reaches it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import hypothesis
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from tests.store.formats.reading import chunks_of, table_of

from stoker.errors import BadValueError, SourceInvalidError
from stoker.store import InferredTypeError, JsonRows, RowTexts
from stoker.store.formats import jsonl as json_format
from stoker.store.formats.jsonl import JsonLinesSource

NUMBERS = st.none() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=True, width=64)
ROWS = st.lists(
    st.fixed_dictionaries(
        {}, optional={"n": NUMBERS, "t": st.none() | st.text(max_size=4), "l": st.none() | st.lists(NUMBERS, max_size=4)}
    ),
    min_size=1,
    max_size=5,
)


@pytest.fixture
def rows(tmp_path: Path) -> JsonRows:
    path = tmp_path / "a.jsonl"
    path.write_text("{}\n")
    return JsonRows(JsonLinesSource(path, "a.jsonl"))


def texts(*lines: str, column: str | None = None) -> RowTexts:
    return RowTexts("\n".join(lines).encode("utf-8", "surrogatepass"), len(lines), 0, column)


@hypothesis.given(given=ROWS)
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
def test_the_fast_way_equals_the_exact_way(rows: JsonRows, given: list[dict[str, Any]]) -> None:
    lines = texts(*(json.dumps(row) for row in given))
    known = ["n", "t", "l"]
    schema = pa.schema([("n", pa.float64()), ("t", pa.string()), ("l", pa.large_list(pa.float64()))])
    with pytest.MonkeyPatch.context() as patch:
        fast = rows.parse(lines, schema, known)
        fast_types = rows.types(lines)
        patch.setattr(json_format, "_parse", lambda *_, **__: None)
        exact = rows.parse(lines, schema, known)
        assert repr(exact.to_pylist()) == repr(fast.to_pylist())
        assert rows.types(lines).equals(fast_types) or set(rows.types(lines)) == set(fast_types)
    expected = [[row.get(name) for row in given] for name in known]
    assert json.dumps(fast.column("t").to_pylist()) == json.dumps(expected[1])


DEADLY = {
    "a row that is null": "null",
    "deep lists": '{"a":' + "[" * 100_000 + "]" * 100_000 + "}",
    "deep objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
}


@pytest.mark.parametrize("line", DEADLY.values(), ids=DEADLY.keys())
def test_what_kills_the_fast_parser_is_an_error_here(rows: JsonRows, line: str) -> None:
    with pytest.raises(SourceInvalidError, match=r"row 1 of .*a\.jsonl is not valid"):
        rows.types(texts(line))


@pytest.mark.parametrize("line", DEADLY.values(), ids=DEADLY.keys())
def test_without_the_guard_the_process_dies(tmp_path: Path, line: str) -> None:
    path = tmp_path / "deadly.json"
    path.write_text(line)
    script = "import sys, pyarrow.json as j; j.read_json(sys.argv[1], read_options=j.ReadOptions(block_size=1 << 24))"
    child = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, check=False)
    if child.returncode >= 0:
        pytest.skip(f"pyarrow {pa.__version__} survives this")
    assert child.returncode < 0


def test_lists_that_begin_with_null_keep_their_places(rows: JsonRows) -> None:
    lines = texts('{"a": [null, null]}', '{"a": [1, null]}')
    assert rows.parse(lines, None, ["a"]).to_pylist() == [{"a": [None, None]}, {"a": [1, None]}]
    assert rows.types(texts('{"a": [null, null]}')).field("a").type == pa.large_list(pa.null())


@pytest.mark.parametrize(
    "line", ['{"a": 9007199254740993}', '{"a": [0.5, 18446744073709551615]}', '{"a": [1e300, -9007199254740993]}']
)
def test_integers_that_would_lose_digits_are_refused(rows: JsonRows, line: str) -> None:
    kind = pa.large_list(pa.float64()) if "[" in line else pa.float64()
    with pytest.raises(BadValueError, match="in row 1, but is float64, which cannot hold all its digits"):
        rows.parse(texts(line), pa.schema([("a", kind)]), ["a"])


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (pa.int64(), '{"a": 1.5}'),
        (pa.int64(), '{"a": NaN}'),
        (pa.int64(), '{"a": 9223372036854775808}'),
        (pa.null(), '{"a": "x"}'),
        (pa.large_list(pa.null()), '{"a": [1]}'),
        (pa.timestamp("s"), '{"a": "2021-01-01T00:00:00.5"}'),
        (pa.timestamp("s"), '{"a": "2021-01-01T00:00:00Z"}'),
    ],
)
def test_values_that_another_type_could_hold_are_unfit(rows: JsonRows, kind: pa.DataType, line: str) -> None:
    with pytest.raises(InferredTypeError) as unfit:
        rows.parse(texts(line), pa.schema([("a", kind)]), ["a"])
    assert unfit.value.column == "a"


@pytest.mark.parametrize(
    ("kind", "line", "found"),
    [
        (pa.int64(), '{"a": "n/a"}', '"n/a"'),
        (pa.float64(), '{"a": [1]}', "[1]"),
        (pa.bool_(), '{"a": 1}', "1"),
        (pa.large_list(pa.float64()), '{"a": [1, "x"]}', '"x"'),
        (pa.string(), '{"a": {"b": 1}}', '{"b": 1}'),
        (pa.float32(), '{"a": 1e39}', "1e39"),
        (pa.int64(), '{"a": 9223372036854775809}', "9223372036854775809"),
    ],
)
def test_values_of_another_kind_are_named(rows: JsonRows, kind: pa.DataType, line: str, found: str) -> None:
    with pytest.raises(BadValueError) as error:
        rows.parse(texts("{}", line), pa.schema([("a", kind)]), ["a"])
    assert f"holds {found} in row 2" in str(error.value)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"a": 1', "Expecting ',' delimiter"),
        ('{"a": 1} {"a": 2}', "Extra data"),
        ('{"a": 1, "a": 2}', "the key 'a' occurs twice"),
        ('{"a": 1e400}', "1e400 is too large a number"),
        ('{"a": "\\ud800"}', "surrogates not allowed"),
        ('{"a": "\udcff"}', "utf-8"),
        ("[1]", "expected an object, found a list"),
        ('{"b": 1}', "it has the key 'b', which the first rows of the file do not have"),
        ('{"a": ' + "9" * 5000 + "}", "integer"),
        ('{"a": 1}\x00', "Extra data"),
    ],
)
def test_rows_that_are_not_valid_are_named(rows: JsonRows, line: str, reason: str) -> None:
    for schema in (pa.schema([("a", pa.float64())]), pa.schema([("a", pa.string())])):
        with pytest.raises(SourceInvalidError, match="row 3 of") as error:
            rows.parse(texts('{"a": null}', "{}", line), schema, ["a"])
        assert reason in str(error.value)
        assert len(str(error.value)) < 400


def test_plain_values_cannot_break_out_of_their_column(rows: JsonRows) -> None:
    for line in ('[1],"x":[2]', '[1]} {"v":[2]', "[1],[2]", '[1]],"v":[[2]'):
        with pytest.raises(SourceInvalidError, match="row 1"):
            rows.parse(texts(line, column="v"), pa.schema([("v", pa.large_list(pa.int64()))]), ["v"])


@pytest.mark.parametrize(
    ("moments", "kind"),
    [
        (["2021-01-01", "2021-01-02 03:04"], pa.timestamp("s")),
        (["2021-01-01T00:00:00.250"], pa.timestamp("ms")),
        (["2021-01-01T00:00:00", "2021-01-01T00:00:00.123456789"], pa.timestamp("ns")),
        (["2021-01-01T00:00:00Z", "2021-01-01T00:00:00+02:00"], pa.timestamp("s", "UTC")),
        (["2021-01-01T00:00:00Z", "2021-01-01T00:00:00"], pa.string()),
        (["2021-01-01", "soon"], pa.string()),
    ],
)
def test_iso_8601_becomes_timestamps_and_zones_are_not_mixed(rows: JsonRows, moments: list[str], kind: pa.DataType) -> None:
    assert rows.types(texts(*(json.dumps({"t": moment}) for moment in moments))).field("t").type == kind
    assert rows.types(texts(json.dumps({"t": moments}))).field("t").type == pa.large_list(kind)


# JSON Lines


BLOCKS = ('{"a": 1' + " " * 82 + "}\n") * 20_000
"""More than the block of which the types are taken; as few rows as that, because the exact way reads them one by one."""


def source(folder: Path, text: str | bytes, name: str = "a.jsonl") -> JsonLinesSource:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return JsonLinesSource(path, name)


def test_scalars_are_steps_and_missing_keys_are_null(tmp_path: Path) -> None:
    one = source(tmp_path, '{"a": 1, "b": "x"}\n{"b": null}\n\n   \r\n{"b": "é😀", "a": 2.5}')
    assert one.schema() == pa.schema([("a", pa.float64()), ("b", pa.string())])
    assert table_of(one).to_pylist() == [{"a": 1.0, "b": "x"}, {"a": None, "b": None}, {"a": 2.5, "b": "é😀"}]


def test_bare_lists_are_series(tmp_path: Path) -> None:
    one = source(tmp_path, "\n[1, 2.5, NaN]\n\n[]\n[null]\n")
    assert one.schema() == pa.schema([("sequence", pa.large_list(pa.float64()))])
    assert repr(table_of(one).column(0).to_pylist()) == "[[1.0, 2.5, nan], [], [None]]"


def test_a_later_block_that_needs_a_wider_type_is_unfit(tmp_path: Path) -> None:
    one = source(tmp_path, BLOCKS + '{"a": 1.5}\n')
    schema = one.schema()
    assert schema.field("a").type == pa.int64()
    with pytest.raises(InferredTypeError):
        chunks_of(one, schema)
    suggested = {chunk.table.schema.field("a").type for chunk in chunks_of(one, None)}
    assert suggested == {pa.int64(), pa.float64()}
    wider = chunks_of(one, pa.schema([("a", pa.float64())]))
    assert wider[-1].table.column("a")[-1].as_py() == 1.5


def test_a_key_that_comes_up_late_names_the_row(tmp_path: Path) -> None:
    one = source(tmp_path, BLOCKS + '{"a": 1, "late": 2}\n')
    for schema in (one.schema(), None):
        with pytest.raises(SourceInvalidError, match=r"row 20,001 of .* the key 'late'"):
            chunks_of(one, schema)


# Keys and types of rows, found in their text
