"""Columns as the encodings of mostlyai-engine read them, and codes of missing values."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from stoker.errors import BadValueError, OptionError, SourceInvalidError
from stoker_recipes.tabular.compat.codes import read_column
from stoker_recipes.tabular.compat.workspace import Workspace

TEXT, NUMBER, TIME = "TABULAR_CATEGORICAL", "TABULAR_NUMERIC_AUTO", "TABULAR_DATETIME"


@pytest.mark.parametrize(
    ("column", "kind", "expected"),
    [
        (pa.array([True, None]), TEXT, ["True", None]),
        (pa.array([1.0, float("nan"), 0.1]), TEXT, ["1.0", None, "0.1"]),
        (pa.array([0.1], pa.float32()), TEXT, ["0.1"]),
        (pa.array([dt.datetime(2020, 1, 2), None]), TEXT, ["2020-01-02", None]),
        (pa.array([dt.datetime(2020, 1, 2, 3), dt.datetime(2020, 1, 2)]), TEXT, ["2020-01-02 03:00:00", "2020-01-02 00:00:00"]),
        (pa.array(["a", "b"]).dictionary_encode(), TEXT, ["a", "b"]),
        (pa.array([True, None, False]), NUMBER, [1, None, 0]),
        (pa.array(["$12", "x", "-1.5e1"]), NUMBER, [12.0, None, -15.0]),
        (pa.array([Decimal("1.50"), None]), NUMBER, [1.5, None]),
        (pa.array([2**64 - 1], pa.uint64()), NUMBER, [float(2**64)]),
        (pa.array([dt.date(2020, 1, 2), None]), TIME, [dt.datetime(2020, 1, 2), None]),
        (pa.array([1_500], pa.timestamp("ns", "Europe/Vienna")), TIME, [dt.datetime(1970, 1, 1, microsecond=1)]),
        (pa.array(["2020-01-02", "no"]), TIME, [dt.datetime(2020, 1, 2), None]),
        (pa.nulls(2), TIME, [None, None]),
    ],
)  # fmt: skip
def test_columns_are_read_for_their_encoding(column: pa.Array, kind: str, expected: list[object]) -> None:
    assert read_column("x", column, kind).to_pylist() == expected


def test_what_cannot_be_read_has_one_line(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="column 'x' has the encoding 'LANGUAGE_TEXT'; expected one of TABULAR_"):
        read_column("x", pa.array(["a"]), "LANGUAGE_TEXT")
    with pytest.raises(BadValueError, match="column 'x', row 1: found inf"):
        read_column("x", pa.array([1.0, float("inf")]), NUMBER)
    (tmp_path / "keys.json").write_text("{")
    with pytest.raises(SourceInvalidError, match=r"keys\.json is damaged"):
        Workspace(folder=tmp_path).read(tmp_path / "keys.json", "split")
