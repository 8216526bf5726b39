"""A word among numbers or times never makes a category of them: it is an error that names file, row, column and word."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from tests.store.shrink import shrunk

import stoker
from stoker.errors import BadValueError, SourceError
from stoker.store.formats import csv as csv_format

NUMBERS = [f"{i}.5" for i in range(400)]
TIMES = [f"2024-01-{1 + i // 24:02} {i % 24:02}:00" for i in range(400)]


def at(row: int, word: str, values: list[str]) -> list[str]:
    """The values with a word in row `row`, from 1."""
    return [*values[: row - 1], word, *values[row:]]


def write(folder: Path, suffix: str, values: list[str]) -> Path:
    """A text table of one column `x` in some format."""
    path = folder / f"a{suffix}"
    lines = "\n".join(["x,n" if "," not in "".join(values) else "x;n", *(f"{value},1" for value in values)]) + "\n"
    if suffix == ".tsv":
        lines = lines.replace(",", "\t")
    if suffix == ".jsonl":
        lines = "".join('{"x": ' + (value if value in NUMBERS else f'"{value}"') + "}\n" for value in values)
    path.write_bytes(gzip.compress(lines.encode()) if suffix.endswith(".gz") else lines.encode())
    return path


@pytest.mark.promise("P2")
@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".txt", ".csv.gz", ".jsonl"])
@pytest.mark.parametrize("row", [1, 2, 200, 400])
@pytest.mark.parametrize("values", [NUMBERS, TIMES], ids=["numbers", "times"])
def test_a_word_is_named_with_its_row(tmp_path: Path, values: list[str], row: int, suffix: str, small: bool) -> None:
    path = write(tmp_path, suffix, at(row, "off", values))
    with shrunk(**({"line_bytes": 64, "chunk_bytes": 64} if small else {})), pytest.raises(BadValueError) as error:
        stoker.pack(path, tmp_path / "out")
    found = error.value
    is_first = suffix == ".jsonl" and row == 1 and values is NUMBERS  # its column is then one of strings
    assert (found.path, found.column) == (str(path), "x")
    assert is_first or found.row == row
    assert "off" in str(found)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_the_advice_works(tmp_path: Path) -> None:
    path = write(tmp_path, ".csv", at(7, "-", NUMBERS))
    with pytest.raises(BadValueError) as error:
        stoker.pack(path, tmp_path / "out")
    assert error.value.parameter == "null"
    assert "Csv(null='-')" in str(error.value)
    store = stoker.pack(path, tmp_path / "out", csv=stoker.Csv(null="-"))
    assert (store.schema["x"].label, store.schema["x"].missing) == ("float64", 1)
    assert stoker.pack(path, tmp_path / "words", dtype={"x": "category"}).schema["x"].kind == "category"


@pytest.mark.parametrize("word", ["0x1F", "0XAB", "nan(5)", "NaN(0)", "1_000", "1,5e"])
@pytest.mark.parametrize("row", [1, 5, 390])
def test_what_only_arrow_reads_as_a_number_is_a_word(tmp_path: Path, word: str, row: int) -> None:
    values = at(row, f'"{word}"', [str(i) for i in range(400)])
    path = tmp_path / "a.csv"
    path.write_text("x\n" + "\n".join(values) + "\n")
    with pytest.raises(BadValueError) as error:
        stoker.pack(path, tmp_path / "out")
    assert (error.value.row, error.value.column) == (row, "x")
    assert word in str(error.value)


@pytest.mark.promise("P2", control=True)
def test_negative_control_arrow_reads_them_as_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n0x1F\n2\n")
    monkeypatch.setattr(csv_format, "may_be_strange", lambda data: False)
    assert stoker.pack(tmp_path / "a.csv", tmp_path / "out").column("x").tolist() == [1, 31, 2]


@pytest.mark.promise("P2", control=True)
def test_negative_control_without_the_rule_a_word_makes_a_category(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, ".csv", at(7, "-", NUMBERS))
    monkeypatch.setattr(csv_format, "mostly", lambda *given, **options: None)
    with pytest.raises(BadValueError) as error:  # found by the second line of defence, when the store is sealed
        stoker.pack(path, tmp_path / "out")
    assert error.value.row == 7
    monkeypatch.setattr("stoker.store.pack.merge.meanings", lambda *given, **options: {})
    assert len(stoker.pack(path, tmp_path / "out").texts("x")) == 400


@pytest.mark.parametrize("values", [NUMBERS, TIMES], ids=["numbers", "times"])
def test_words_in_the_first_rows_and_values_after_them(tmp_path: Path, values: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_format, "SAMPLE_BYTES", 1 << 10)  # types are inferred from words alone
    path = write(tmp_path, ".csv", ["off"] * 390 + values)
    with pytest.raises(BadValueError) as error:
        stoker.pack(path, tmp_path / "out")
    assert (error.value.row, error.value.column) == (1, "x")


def test_words_that_are_most_of_the_rows_do_not_hide_many_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, ".csv", ["off"] * 900 + NUMBERS)
    with pytest.raises(BadValueError, match=r"Csv.null=.off."):
        stoker.pack(path, tmp_path / "out")
    assert stoker.pack(path, tmp_path / "out", csv=stoker.Csv(null="off")).schema["x"].missing == 900


@pytest.mark.parametrize("values", [["on", "off", "on"], ["a", "b", "1"], ["A1", "B2", "2024"], ["12:30h", "off", "1.2.3"]])
def test_columns_of_words_are_categories(tmp_path: Path, values: list[str]) -> None:
    assert stoker.pack(write(tmp_path, ".csv", values), tmp_path / "out").schema["x"].kind == "category"


@pytest.mark.parametrize(
    ("values", "dtype", "row"),
    [
        (["1.5", "x", "y"], "float32", 2),
        (["a", "b", "c"], "float64", 1),
        (["1", "2.5", "3"], "int64", 2),
        (["1", "2", "x"], "int16", 3),
        (["1", "70000", "3"], "int16", 2),
        (["true", "2", "false"], "bool", 2),
    ],
)
def test_a_type_is_obeyed_or_refused_with_row_and_word(tmp_path: Path, values: list[str], dtype: str, row: int) -> None:
    path = write(tmp_path, ".csv", values)
    with pytest.raises(SourceError) as error:
        stoker.pack(path, tmp_path / "out", dtype={"x": dtype})
    assert f"row {row}" in str(error.value)
    assert values[row - 1] in str(error.value)
    numeric = [value if value != values[row - 1] else "1" for value in values]
    if all(word.replace(".", "").isdecimal() for word in numeric) and dtype != "bool":
        assert stoker.pack(write(tmp_path, ".csv", numeric), tmp_path / "out", dtype={"x": dtype}).schema["x"].label == dtype


@pytest.mark.parametrize(
    ("text", "options", "fields"),
    [
        ("k,x\na,1\n,2\n", {"series": "k"}, ("series", 2, "k")),
        ("t,x\n2,1\n1,2\n", {"time": "t"}, ("sort", 2, "t")),
        ("t,x\n1,1\n1,2\n", {"time": "t"}, ("duplicates", 2, "t")),
        ("t,x\n1,1\n,2\n", {"time": "t", "dtype": {"t": "float64"}}, ("time", 2, "t")),
        ("x\n1\n300\n", {"dtype": {"x": "int8"}}, ("dtype", 2, "x")),
        ("x,y\n1,1\n,2\n", {"missing": "error"}, ("missing", 2, "x")),
        ("x,y\n1,1\n,2\n", {"dtype": {"x": "int8"}}, ("dtype", 2, "x")),
        ("x,y\n1,1\n1,2,3\n", {}, ("delimiter", 2, None)),
        (
            "t,x\n2024-03-31 01:00,1\n2024-03-31 02:30,2\n",
            {"time": stoker.Time("t", timezone="Europe/Berlin")},
            ("nonexistent", 2, "t"),
        ),
        (
            "t,x\n2024-10-27 02:30,1\n",
            {"time": stoker.Time("t", timezone="Europe/Berlin", ambiguous="error")},
            ("ambiguous", 1, "t"),
        ),
    ],
)
@pytest.mark.parametrize("wide", [False, True])
def test_errors_of_values_carry_file_row_and_column(
    tmp_path: Path, text: str, options: dict[str, Any], fields: tuple[str, int, str | None], wide: bool
) -> None:
    if wide and ("series" in options or "dtype" in options):
        pytest.skip("not for wide tables")
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(SourceError) as error:
        stoker.pack(path, tmp_path / "out", wide=wide, **options)
    parameter, row, column = fields
    assert (error.value.parameter, error.value.path, error.value.row, error.value.column) == (parameter, str(path), row, column)
