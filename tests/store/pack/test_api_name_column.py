"""`Files(name_column=)`: the file that each series comes from, as UCR's TRAIN and TEST."""

from __future__ import annotations

from pathlib import Path

import pytest

import stoker
from stoker.errors import OptionError


def write_ucr(folder: Path) -> list[Path]:
    """A set of UCR as two files, which have classes in different orders."""
    train, test = folder / "Walk_TRAIN.tsv", folder / "Walk_TEST.tsv"
    train.write_text("2\t0.5\t1.5\t2.5\n1\t0.1\t0.2\t0.3\n2\t1\t2\t3\n")
    test.write_text("1\t9\t8\t7\n2\t6\t5\t4\n")
    return [train, test]


def test_series_of_files_have_their_source(tmp_path: Path) -> None:
    store = stoker.pack(stoker.Files([str(path) for path in write_ucr(tmp_path)], name_column="source"), tmp_path / "s")
    column = store.schema["source"]
    assert (column.level, column.kind, list(column.texts or ())) == ("series", "category", ["Walk_TRAIN.tsv", "Walk_TEST.tsv"])
    assert store.column("source").tolist() == [0, 0, 0, 1, 1]
    plain = stoker.pack([str(path) for path in write_ucr(tmp_path)], tmp_path / "plain")
    assert {*store.schema} == {*plain.schema, "source"}
    assert store.column("value").tolist() == plain.column("value").tolist()
    split = stoker.split.by_value(store, stoker.Sequences(3), "source", train="*_TRAIN.tsv", valid="*_TEST.tsv")
    assert [len(subset) for subset in split] == [3, 2]


def test_rows_of_series_have_the_file_of_each(tmp_path: Path) -> None:
    for name, rows in (("a", "k,x\n1,1\n2,2\n"), ("b", "k,x\n1,3.5\n3,4\n")):
        (tmp_path / f"{name}.csv").write_text(rows)
    store = stoker.pack(
        stoker.Files(str(tmp_path / "*.csv"), name_column="file"), tmp_path / "s", series="k", columns=["x", "file"]
    )
    assert store.schema["file"].level == "step"
    texts = list(store.schema["file"].texts or ())
    found = [(one["k"], one["x"].tolist(), [texts[code] for code in store.column("file")[a:b]]) for one, a, b in
             zip(store, store.offsets[:-1], store.offsets[1:], strict=True)]  # fmt: skip
    assert found == [(1, [1.0, 3.5], ["a.csv", "b.csv"]), (2, [2.0], ["a.csv"]), (3, [4.0], ["b.csv"])]


def test_a_name_column_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("k,x\n1,1\n")
    path, to = str(tmp_path / "a.csv"), tmp_path / "s"
    with pytest.raises(OptionError, match=r"name_column='x' is a column of .*a.csv already. Give another name"):
        stoker.pack(stoker.Files(path, name_column="x"), to, series="k")
    with pytest.raises(OptionError, match=r"each file is one series here, which has the name of the file"):
        stoker.pack(stoker.Files(path, name_column="source"), to)
    with pytest.raises(OptionError, match=r"name_column= is not for wide=True"):
        stoker.pack(stoker.Files(path, name_column="source"), to, wide=True)
