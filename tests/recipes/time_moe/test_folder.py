"""What `--data` may name, and the series that it becomes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from benchmarks.timemoe_folder import walks, write_folder
from tests.recipes.time_moe.waves import NAMES, make_waves, write_csv

import stoker
from stoker.errors import OptionError, SourceInvalid, SourceNotFound
from stoker.recipes.time_moe.folder import open_corpus


def test_a_wide_store_has_a_series_a_column_under_its_name(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_csv(tmp_path / "csv" / name / "ett.csv", 50, seed=len(name))
    stoker.pack(str(tmp_path / "csv/**/*.csv"), tmp_path / "ett.stoker", wide=True)
    corpus = open_corpus(tmp_path / "ett.stoker")
    assert len(corpus) == 2 * len(NAMES)
    assert corpus.series_name(1).endswith(f":{NAMES[1]}")
    assert corpus.series(3).tobytes() == make_waves(50, seed=3)["OT"].tobytes()
    with pytest.raises(OptionError, match=r"has 2 series 'OT': .*Give the whole name"):
        corpus.find("OT")
    assert corpus.find(corpus.series_name(5)) == 5
    assert corpus.find("6") == 6


def test_each_column_of_numbers_of_a_store_is_series_of_its_own() -> None:
    store = stoker.Store.from_arrays(a=[np.arange(4.0), np.arange(3.0)], b=[np.arange(4), np.arange(3)])
    corpus = open_corpus(store)
    assert [corpus.series_name(i) for i in range(4)] == ["a:0", "a:1", "b:2", "b:3"]
    assert [corpus.series(i).dtype.kind for i in range(4)] == ["f", "f", "i", "i"]
    assert len(open_corpus(store, columns=["b"])) == 2
    with pytest.raises(OptionError, match=r"has no column of numbers 'c'; it has a, b"):
        open_corpus(store, columns=["c"])


def test_a_series_is_found_by_its_name_alone(tmp_path: Path) -> None:
    corpus = open_corpus(write_csv(tmp_path / "ett.csv", 20))
    assert corpus.series_name(corpus.find("HUFL")) == "ett.csv:HUFL"
    with pytest.raises(OptionError, match=r"has no series 'HUFX'; it has ett.csv:HUFL, .* Did you mean 'ett.csv:HUFL'\?"):
        corpus.find("HUFX")


def test_a_tree_of_binary_folders_is_read_in_place_in_the_order_of_names(tmp_path: Path) -> None:
    series = walks([5, 30, 7, 12])
    write_folder(tmp_path / "data" / "b", series[2:])
    write_folder(tmp_path / "data" / "a", series[:2], num_files=3)
    corpus = open_corpus(tmp_path / "data")
    assert corpus.lengths.tolist() == [5, 30, 7, 12]
    assert corpus.num_points == 54
    for i, values in enumerate(series):
        assert corpus.series(i).tobytes() == values.tobytes()
    assert sorted(path.name for path in (tmp_path / "data").rglob("*")) == sorted(
        ["a", "b", *["meta.json"] * 2, "data-1-of-1.bin", "data-1-of-3.bin", "data-2-of-3.bin", "data-3-of-3.bin"]
    ), "nothing is written"


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", walks([5, 30]))
    os.truncate(folder / "data-1-of-1.bin", 100)
    with pytest.raises(SourceInvalid, match=r"data-1-of-1.bin is cut off: 100 bytes found, 140 expected"):
        open_corpus(tmp_path)


def test_a_file_is_packed_beside_itself_once_and_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps({"sequence": one}) + "\n" for one in ([1, 2, 3], [4, 5])))
    corpus = open_corpus(path)
    assert corpus.lengths.tolist() == [3, 2]
    assert corpus.series(0).dtype == np.int64
    first = (tmp_path / "x.jsonl.stoker" / "manifest.json").stat().st_ino
    open_corpus(path)
    assert (tmp_path / "x.jsonl.stoker" / "manifest.json").stat().st_ino == first
    path.write_text('{"sequence": [7, 8, 9, 10]}\n')
    assert open_corpus(path).series(0).tolist() == [7, 8, 9, 10]


def test_a_store_of_something_else_beside_a_file_is_not_replaced(tmp_path: Path) -> None:
    stoker.pack({"mine": [1.0]}, tmp_path / "x.jsonl.stoker")
    (tmp_path / "x.jsonl").write_text('{"sequence": [7, 8, 9, 10]}\n')
    with pytest.raises(stoker.StoreExists, match="holds a store already"):
        open_corpus(tmp_path / "x.jsonl")
    assert "mine" in stoker.open(tmp_path / "x.jsonl.stoker").schema


def test_what_is_none_of_these_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match="nowhere does not exist"):
        open_corpus(tmp_path / "nowhere")
    (tmp_path / "csv").mkdir()
    with pytest.raises(SourceNotFound, match=r"neither a store nor a Time-MoE folder.*stoker pack .*--wide"):
        open_corpus(tmp_path / "csv")
    with pytest.raises(OptionError, match="no column with one number a step"):
        open_corpus(stoker.Store.from_arrays(x=np.zeros((2, 3, 4))))


def test_the_fingerprint_tells_other_data(tmp_path: Path) -> None:
    found = {
        open_corpus(write_folder(tmp_path / str(number), walks(lengths), dtype=dtype)).fingerprint
        for number, (lengths, dtype) in enumerate([([5, 6], "float32"), ([6, 5], "float32"), ([5, 6], "float64")])
    }
    assert len(found) == 3
