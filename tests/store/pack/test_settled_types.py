"""Types that hold all values of text, where those of its first block are too narrow."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import stoker
from stoker.errors import BadValueError
from stoker.store import PackOptions, find_sources, settled_schema
from stoker.store.formats import csv as csv_format


@pytest.mark.parametrize(("late", "kind"), [("7", "int64"), ("2.5", "double"), ("", "double")])
def test_the_type_is_that_of_all_rows(tmp_path: Path, late: str, kind: str) -> None:
    (tmp_path / "a.csv").write_text("x,y\n" + "1,1\n" * 50 + f"{late},1\n")
    sources = find_sources(tmp_path / "a.csv")
    rows: list[int] = []
    found = settled_schema(sources, sources[0].schema(), PackOptions(), rows.append)
    assert [str(field.type) for field in found] == [kind, "int64"]
    assert sum(rows) == 51


def test_negative_control_without_gaps_integers_stay(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,1\n,1\n")
    sources = find_sources(tmp_path / "a.csv")
    assert settled_schema(sources, sources[0].schema(), PackOptions(), gaps=False).field("x").type == pa.int64()


def test_words_in_several_wide_tables_are_in_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_format, "SAMPLE_BYTES", 64)  # the words are after the block that types are inferred from
    for name, word in (("a", "off"), ("b", "n/k")):
        (tmp_path / f"{name}.csv").write_text("t,x\n" + "".join(f"{i},1.5\n" for i in range(90)) + f"90,{word}\n")
    with pytest.raises(BadValueError) as error:
        stoker.pack(tmp_path / "*.csv", tmp_path / "out", wide=True, time="t")
    assert "Csv(null=['off', 'n/k'])" in str(error.value)
    store = stoker.pack(tmp_path / "*.csv", tmp_path / "out", wide=True, time="t", csv=stoker.Csv(null=["off", "n/k"]))
    assert store.schema["value"].missing == 2
