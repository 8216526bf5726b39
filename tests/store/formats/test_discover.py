"""Finding sources: what is named is found in sorted order, and what cannot be meant is said with what was looked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from benchmarks.time_moe.folder import walks, write_folder

from stoker.errors import SourceEmptyError, SourceInvalidError, SourceNotFoundError
from stoker.store.formats.discover import find_sources
from stoker.store.opening import open_store
from stoker.store.pack.api import pack


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Names that sort in a way of their own, some of them deep."""
    for name in ("b.csv", "a.csv", "a10.csv", "a9.csv", "deep/z.csv", "deep/er/y.csv", "A.csv", "c.txt", "notes.md", "deep/readme"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"x\n{len(name)}\n")
    return tmp_path


def names(given: Any) -> list[str]:
    return [source.name for source in find_sources(given)]


def test_folders_are_read_in_sorted_order(folder: Path) -> None:
    assert names(folder) == ["A.csv", "a.csv", "a10.csv", "a9.csv", "b.csv", "c.txt", "deep/er/y.csv", "deep/z.csv"]


def test_the_order_is_not_that_of_the_file_system(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = names(folder)
    walk = os.walk

    def backwards(top: Any, *args: Any, **kwargs: Any) -> Any:
        for root, folders, files in walk(top, *args, **kwargs):
            folders.reverse()
            yield root, folders, sorted(files, reverse=True)

    monkeypatch.setattr(os, "walk", backwards)
    assert names(folder) == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.csv", ["A.csv", "a.csv", "a10.csv", "a9.csv", "b.csv"]),
        ("a?.csv", ["a9.csv"]),
        ("[ab].csv", ["a.csv", "b.csv"]),
        ("**/*.csv", ["A.csv", "a.csv", "a10.csv", "a9.csv", "b.csv", "deep/er/y.csv", "deep/z.csv"]),
        ("deep/*", ["er/y.csv", "z.csv"]),
        ("de*", ["er/y.csv", "z.csv"]),
    ],
)
def test_patterns(folder: Path, pattern: str, expected: list[str]) -> None:
    (folder / "deep/readme").unlink()
    assert names(str(folder / pattern)) == expected


def test_a_file_that_is_named_twice_is_read_once(folder: Path) -> None:
    for name in ("notes.md", "deep/readme"):
        (folder / name).unlink()
    assert names(str(folder / "**")) == names(folder)
    assert names([str(folder / "a.csv"), str(folder / "*.csv"), folder]) == ["a.csv", *(n for n in names(folder) if n != "a.csv")]


def test_inputs_keep_the_order_they_were_given_in(folder: Path) -> None:
    assert names([folder / "b.csv", folder / "deep", str(folder / "a*.csv")]) == [
        "b.csv",
        "deep/er/y.csv",
        "deep/z.csv",
        "a.csv",
        "a10.csv",
        "a9.csv",
    ]


def test_a_pattern_that_matches_nothing_is_said_with_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceNotFoundError) as caught:
        names("prices/*.csv")
    assert str(caught.value) == f"no file matches 'prices/*.csv' (looked in {tmp_path})."


def test_a_folder_without_data_is_said_with_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(SourceEmptyError, match=rf"folder {tmp_path} holds nothing to read: looked for .csv .*, but it is empty"):
        names(tmp_path)
    (tmp_path / "readme.md").write_text("hello")
    with pytest.raises(SourceEmptyError, match=r"but it holds 1 other files, like 'readme.md'"):
        names(tmp_path)


@pytest.mark.parametrize("name", ["data.xyz", "data", ".csv", "data.csv.zip", "data.tar"])
def test_an_unknown_suffix_is_said_with_the_known_ones(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x\n1\n")
    with pytest.raises(SourceInvalidError, match=r"has the suffix '[.a-z]*', which no reader knows. Known: .csv .tsv"):
        names(tmp_path / name)


def test_a_json_document_is_refused_with_how_to_read_it(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1]")
    with pytest.raises(
        SourceInvalidError, match=r"a\.json is a JSON document\. Write one object per line.*stoker\[sql\].*read_json"
    ):
        names(tmp_path / "a.json")


def test_an_empty_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "b.csv").touch()
    with pytest.raises(SourceEmptyError, match=r"b.csv is empty \(0 bytes\)"):
        names(tmp_path)


def test_a_compressed_binary_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(SourceInvalidError, match=r"is a compressed .parquet file, which cannot be read in parts"):
        names(tmp_path / "a.parquet.gz")


# Links and other things that are not plain files


def test_a_link_to_nowhere_is_said(folder: Path) -> None:
    (folder / "broken.csv").symlink_to(folder / "gone.csv")
    with pytest.raises(SourceInvalidError, match=r"broken.csv is a link to .*gone.csv, which does not exist"):
        names(folder)


def test_a_link_to_a_folder_is_not_passed_over_in_silence(folder: Path) -> None:
    (folder / "loop").symlink_to(folder)
    with pytest.raises(SourceInvalidError, match=r"loop is a link to a folder, which is not followed"):
        names(folder)
    assert names(folder / "loop" / "deep") == ["er/y.csv", "z.csv"]


def test_anything_but_a_plain_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.csv")
    with pytest.raises(SourceInvalidError, match=r"a.csv is not a plain file"):
        names(tmp_path)


def test_a_file_that_may_not_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # whoever runs the tests may be allowed everything
    with pytest.raises(SourceInvalidError, match=r"a.csv cannot be read: permission denied"):
        names(tmp_path)


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.csv")).write_text("x\n1\n")
    with pytest.raises(SourceInvalidError, match=r"udcff.csv' has a name that is not UTF-8. Rename it") as caught:
        pack(tmp_path, tmp_path / "out")
    str(caught.value).encode()


# Names in the manifest


def mixed(tmp_path: Path) -> Path:
    """Two kinds of sources, and what no reader knows, also within a folder that is one data set."""
    data = tmp_path / "data"
    write_folder(data / "set", walks([5, 3]), dtype="float64")
    (data / "x.jsonl").write_text('{"sequence": [1.5, 2, 3]}\n{"sequence": [4, 5.5]}\n')
    (data / "set" / "more.jsonl").write_text('{"sequence": [9.5]}\n')
    (data / "deep").mkdir()
    for name in ("model.pkl", "notes.md", "deep/notes.md"):
        (data / name).write_bytes(b"?")
    (data / os.fsdecode(b"caf\xe9.bak")).write_bytes(b"?")
    return data


@pytest.mark.promise("P2")
def test_what_is_left_out_of_a_folder_is_noted(tmp_path: Path) -> None:
    data = mixed(tmp_path)
    pack(data / "x.jsonl", data / "old.stoker")
    store = pack(data, data / "out.stoker")
    assert sorted(store.lengths.tolist()) == [2, 3, 3, 5], "both kinds of sources"
    assert store.manifest is not None
    left_out = "caf\\udce9.bak, notes.md, model.pkl, notes.md, more.jsonl"
    assert store.manifest.notes == [f"left out 5 other files or folders ({left_out})"]
    assert open_store(data / "out.stoker").manifest == store.manifest, "a name that is not Unicode does no harm"
    again = pack(data, data / "out.stoker", replace=True)
    assert again.manifest is not None
    assert again.manifest.notes == store.manifest.notes, "stores are results, and not among them"


@pytest.mark.promise("P2", control=True)
def test_negative_control_without_the_list_the_pack_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.store.pack.packer._unicode_names", lambda paths: ())
    store = pack(mixed(tmp_path), tmp_path / "x.stoker")
    assert store.manifest is not None
    assert store.manifest.notes == []


def test_a_folder_that_cannot_be_listed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = mixed(tmp_path)
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(SourceInvalidError, match=r"deep cannot be read: Permission denied\. Change its mode, or leave it out"):
        pack(data, tmp_path / "x.stoker")
