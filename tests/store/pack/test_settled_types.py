"""Types that hold all values of text, where those of its first block are too narrow."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.store.shrink import shrunk

import stoker
from stoker import pack
from stoker.errors import BadValueError, SourceError
from stoker.store import PackOptions, find_sources, settled_schema
from stoker.store.formats import csv as csv_format


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


def test_types_that_differ_between_two_looks(tmp_path: Path) -> None:
    """Text that settles as whole numbers and then holds a word."""
    path = tmp_path / "a.csv"
    path.write_text("x\n" + "1\n" * 100 + "2.5\n" * 100)

    def meddle(phase: str, share: float, rows: int) -> None:
        if phase == "settling types":
            path.write_text("x\n" + "1\n" * 100 + "abc\n" * 100)

    with shrunk(line_bytes=150), pytest.raises(SourceError, match=r"a\.csv") as caught:
        pack(path, tmp_path / "out", progress=meddle)
    assert caught.value.path == str(path)
    assert not (tmp_path / "out").exists()
