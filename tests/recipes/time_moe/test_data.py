"""What `--data` may name, and the series that it becomes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.before.timemoe_dataset import TimeMoEDataset
from benchmarks.time_moe.folder import walks, write_folder
from tests.recipes.time_moe.authors import assert_samples_are_theirs
from tests.recipes.time_moe.waves import NAMES, make_waves, write_csv

import stoker
from stoker.errors import OptionError, SourceInvalidError
from stoker_recipes.time_moe import data as data_module
from stoker_recipes.time_moe.data import Flat, NotSeries, open_corpus, read_series
from stoker_recipes.time_moe.dataset import CompatSamples


def test_a_wide_store_has_one_series_per_column_under_its_name(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_csv(tmp_path / "csv" / name / "ett.csv", 50, seed=len(name))
    stoker.pack(str(tmp_path / "csv/**/*.csv"), tmp_path / "ett.stoker", wide=True)
    corpus = open_corpus(tmp_path / "ett.stoker")
    assert len(corpus) == 2 * len(NAMES)
    assert corpus.series_name(1).endswith(f":{NAMES[1]}")
    assert corpus.series(3).tobytes() == make_waves(50, seed=3)["OT"].tobytes()
    with pytest.raises(OptionError, match=r"has 2 series 'OT': .*Use the full name"):
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


def test_a_file_is_packed_beside_itself_once_and_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a\n1\n2\n3\n")
    corpus = open_corpus(path)
    assert corpus.lengths.tolist() == [3]
    assert corpus.series(0).dtype == np.int64
    first = (tmp_path / "x.csv.stoker" / "manifest.json").stat().st_ino
    open_corpus(path)
    assert (tmp_path / "x.csv.stoker" / "manifest.json").stat().st_ino == first
    path.write_text("a\n7\n8\n9\n10\n")
    assert open_corpus(path).series(0).tolist() == [7, 8, 9, 10]


def test_json_lines_of_tables_are_packed_and_a_document_is_refused(tmp_path: Path) -> None:
    rows = [{"a": 1, "b": 2.5}, {"a": 3, "b": 4.5}]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    corpus = open_corpus(tmp_path / "x.jsonl")
    assert [corpus.series(number).tolist() for number in range(len(corpus))] == [[1, 3], [2.5, 4.5]]
    assert (tmp_path / "x.jsonl.stoker").is_dir()
    (tmp_path / "x.json").write_text(json.dumps(rows))
    with pytest.raises(SourceInvalidError, match=r"x\.json is a JSON document\. Write one object per line"):
        open_corpus(tmp_path / "x.json")


def test_the_fingerprint_reports_other_data(tmp_path: Path) -> None:
    found = {
        open_corpus(write_folder(tmp_path / str(number), walks(lengths), dtype=dtype)).fingerprint
        for number, (lengths, dtype) in enumerate([([5, 6], "float32"), ([6, 5], "float32"), ([5, 6], "float64")])
    }
    assert len(found) == 3


def write_tree(tree: Path) -> Path:
    """Every kind of source that the authors' data set reads, one below another, under names that no order of creation has."""
    series = iter(walks([40, 9, 30, 17, 25, 60, 12, 33, 21, 50, 14]))
    write_folder(tree / "z", [next(series), next(series)], num_files=2)
    write_folder(tree / "m" / "deep", [next(series)])
    write_folder(tree / "z" / "inner", [next(series)])
    (tree / "b.jsonl").write_text(f"{json.dumps(next(series).tolist())}\n" + json.dumps({"sequence": list(range(18))}) + "\n")
    (tree / "m" / "a.json").write_text(json.dumps([next(series).tolist(), {"id": "x", "sequence": next(series).tolist()}]))
    (tree / "z" / "more.jsonl").write_text(json.dumps(next(series).tolist()) + "\n")
    np.save(tree / "a.npy", np.stack([next(series)[:14], next(series)[:14]]))
    (tree / "m" / ".json").write_text(json.dumps([next(series).tolist()]))
    (tree / "none.jsonl").write_text("")
    (tree / "m" / "none.json").write_text("[]")
    return tree


LEFT_OUT = ["none.jsonl (no series)", "m/none.json (no series)"]


@pytest.mark.parametrize("method", [None, "zero", "max"])
def test_a_tree_is_read_as_the_authors_read_it_in_the_order_of_names(tmp_path: Path, method: str | None) -> None:
    tree = write_tree(tmp_path / "tree")
    before = {path: path.stat().st_mtime_ns for path in tree.rglob("*")}
    told: list[str] = []
    corpus = open_corpus(tree, report=told.append)
    theirs = TimeMoEDataset(tree)
    assert len(corpus) == len(theirs) == 12
    assert corpus.lengths.tolist() == [theirs.num_points(number) for number in range(12)]
    assert_samples_are_theirs(tree, 8, method=method, corpus=corpus)
    assert told == [
        f"{tree}: left out 2 other files or folders ({', '.join(LEFT_OUT)}). "
        "Time-MoE reads binary folders, .json, .jsonl and .npy; pack the rest separately."
    ]
    assert {path: path.stat().st_mtime_ns for path in tree.rglob("*")} == before, "nothing is written"


@pytest.mark.promise("P2", control=True)
def test_negative_control_binary_folders_alone_are_half_of_the_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    series = walks([300, 17, 64, 65, 129, 40])
    write_folder(tmp_path / "bin", series)
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"sequence": one.tolist()}) + "\n" for one in series))
    both = len(CompatSamples(open_corpus(tmp_path), 32))
    walk = data_module._walk
    monkeypatch.setattr(data_module, "_walk", lambda tree, left_out: (path for path in walk(tree, left_out) if path.is_dir()))
    assert len(CompatSamples(open_corpus(tmp_path), 32)) * 2 == both == 2 * len(CompatSamples(open_corpus(tmp_path / "bin"), 32))


def test_series_of_integers_beside_floats_are_scaled_as_the_authors_scale_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Integers are divided in float64, floats in their own type: a file of both has no common one."""
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in ([3 * i % 17 for i in range(40)], [i / 7 for i in range(40)])))
    assert_samples_are_theirs(path, 8, method="zero")
    monkeypatch.setattr(data_module, "Flat", lambda *, own=None, **fields: Flat(own=None, **fields))
    with pytest.raises(AssertionError):
        assert_samples_are_theirs(path, 8, method="zero")


@pytest.mark.promise("P2")
def test_what_a_tree_holds_beside_series_is_reported(tmp_path: Path) -> None:
    write_folder(tmp_path / "bin", walks([5]))
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "x.pickle").write_bytes(b"")
    (tmp_path / "B.JSONL").write_text("[1, 2]\n")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "meta.json").write_text("{}")
    stoker.Store.from_arrays(x=[np.arange(5.0)]).save(tmp_path / "old.stoker")
    (tmp_path / "elsewhere").symlink_to(tmp_path / "half")
    told: list[str] = []
    assert open_corpus(tmp_path, report=told.append).lengths.tolist() == [5]
    (line,) = told
    for name in ("a.csv", "x.pickle", "B.JSONL", "half/meta.json", "old.stoker (a store)", "elsewhere (a link to a folder)"):
        assert name in line
    assert "left out 6 other files or folders" in line
    with pytest.warns(UserWarning, match="left out 6 other files"):
        open_corpus(tmp_path)


@pytest.mark.parametrize("name", ["x.pkl", "x.pickle"])
def test_a_pickle_is_refused_by_name(tmp_path: Path, name: str) -> None:
    write_folder(tmp_path / "bin", walks([5]))
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
    with pytest.raises(
        SourceInvalidError, match=rf"{name} is a pickle, which can run code and is never read\. Write its series as \.jsonl"
    ):
        open_corpus(tmp_path / name)
    if name == "x.pkl":  # the other one is not read by the authors either, and reported
        with pytest.raises(SourceInvalidError, match=r"x\.pkl is a pickle"):
            open_corpus(tmp_path)


# Files of series: each in its own type; what is not a series is one line that names the place


def write(path: Path, *elements: Any) -> Path:
    path.write_text(json.dumps(elements) if path.suffix == ".json" else "".join(json.dumps(one) + "\n" for one in elements))
    return path


def test_types_are_those_that_numpy_gives_each_list(tmp_path: Path) -> None:
    lists = [[1, 2], [1.5, 2], [2**62, 1], [2**63, 2**63], [], [float("nan"), 1]]
    found = read_series(write(tmp_path / "x.jsonl", *lists))
    assert [one.dtype for one in found.series] == [np.array(one).dtype for one in lists]
    assert found.own is not None
    assert read_series(write(tmp_path / "y.jsonl", [1, 2], [], [3])).own is None, "one type, so the column has it"


def test_missing_points_are_nan(tmp_path: Path) -> None:
    (values,) = read_series(write(tmp_path / "x.jsonl", [1, None, 3])).series
    np.testing.assert_array_equal(values, [1.0, np.nan, 3.0])
    assert open_corpus(tmp_path / "x.jsonl").find_nonfinite() == (0, 1)


def test_names_are_the_first_strings_where_every_series_has_one(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", {"sequence": [1, 2], "id": "a", "unit": "kW"}, {"id": "b", "sequence": [3, 4]})
    corpus = open_corpus(path)
    assert [corpus.series_name(number) for number in range(2)] == ["a", "b"]
    assert corpus.find("b") == 1
    assert read_series(write(tmp_path / "y.jsonl", {"sequence": [1], "id": "a"}, [2])).names is None


def test_integers_that_float64_rounds_are_reported(tmp_path: Path) -> None:
    told: list[str] = []
    open_corpus(write(tmp_path / "x.jsonl", [1.5, 2], [2**53, -(2**53)]), report=told.append)
    assert told == []
    open_corpus(write(tmp_path / "x.jsonl", [1.5, 2], [2**53 + 1, 0]), report=told.append)
    assert told == [
        f"{tmp_path}/x.jsonl: series 1 has integers beyond 2**53, which float64 rounds. Subtract a constant from them first."
    ]


NOT_SERIES: list[Any] = [
    {"target": [1]}, {}, "text", 7, None, {"sequence": "1, 2"}, [1, "2"], [True, False], [1.5, 2**70], [[1, 2], [3, 4]], [[1, 2], [3]],
    [1, [2]], [1, {"a": "b" * 10_000}],
]  # fmt: skip


@pytest.mark.parametrize("element", NOT_SERIES, ids=lambda element: str(element)[:20])
def test_what_is_not_a_series_is_one_line_that_names_its_place(tmp_path: Path, element: Any) -> None:
    with pytest.raises(SourceInvalidError, match=r"line 2 of .*x\.jsonl") as caught:
        read_series(write(tmp_path / "x.jsonl", [1, 2], element))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    values = element.get("sequence") if isinstance(element, dict) else element
    with pytest.raises(SourceInvalidError) as first:
        read_series(write(tmp_path / "x.jsonl", element))
    assert isinstance(first.value, NotSeries) == (not isinstance(values, list)), "a table in JSON, which is packed"
