"""Time-MoE's binary folders: packed, or mapped in place without a copy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from benchmarks.before.timemoe_dataset import BinaryDataset
from benchmarks.time_moe.folder import walks, write_folder
from tests.store.formats.reading import assert_projects, assert_resumes, assert_threads_agree, table_of

from stoker.errors import BadValueError, SourceEmptyError, SourceInvalidError, SourceTooLargeError
from stoker_recipes.time_moe import folders
from stoker_recipes.time_moe.folders import TimeMoeSource, is_time_moe, map_time_moe

Array = np.ndarray[Any, Any]


def write(
    folder: Path, values: Array, scales: list[dict[str, Any]], /, *, cuts: tuple[int, ...] = (), **changes: Any
) -> TimeMoeSource:
    """A folder as Time-MoE writes it, its values cut into files; `changes` replace keys of meta.json."""
    folder.mkdir(exist_ok=True)
    parts = np.split(values, cuts)
    names = [f"data-{i + 1}-of-{len(parts)}.bin" for i in range(len(parts))]
    for name, part in zip(names, parts, strict=True):
        (folder / name).write_bytes(part.tobytes())
    files = {name: len(part) for name, part in zip(names, parts, strict=True)}
    meta = {"num_sequences": len(scales), "dtype": values.dtype.name, "files": files, "scales": scales, **changes}
    (folder / "meta.json").write_text(json.dumps({key: value for key, value in meta.items() if value is not ...}))
    return TimeMoeSource(folder, folder.name)


def places(*lengths: int, **others: list[Any]) -> list[dict[str, Any]]:
    offsets = np.cumsum((0, *lengths))[:-1].tolist()
    rows = [{"offset": offset, "length": length} for offset, length in zip(offsets, lengths, strict=True)]
    for key, values in others.items():
        for row, value in zip(rows, values, strict=True):
            row[key] = value
    return rows


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_sequences_are_read_bit_for_bit_as_time_moe_reads_them(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 50, size=60)
    values = rng.normal(scale=100, size=int(lengths.sum())).astype(dtype)
    values[:4] = [np.nan, np.inf, -0.0, np.finfo(dtype).smallest_subnormal]
    scales = places(*lengths.tolist())
    for i, one in enumerate(scales):
        if i % 3:
            one["mean"], one["std"] = float(rng.normal()), float(rng.normal())
        elif i % 2:
            one["mean"] = 5.0  # alone it changes nothing
    rng.shuffle(scales)
    one = write(tmp_path / "set", values, scales, cuts=(10, 10, 700, 701))
    assert one.schema() == pa.schema([("sequence", pa.large_list(pa.from_numpy_dtype(np.dtype(dtype))))])
    found = table_of(one, chunk_bytes=500).column("sequence")
    original = BinaryDataset(tmp_path / "set")
    assert len(found) == len(original)
    for i, row in enumerate(found):
        expected = original[i]
        assert expected.dtype == np.dtype(dtype)
        assert np.asarray(row.values).tobytes() == expected.tobytes()


def test_files_are_ordered_by_number_and_not_by_name(tmp_path: Path) -> None:
    write(tmp_path / "set", np.arange(12, dtype="<i4"), places(12), cuts=tuple(range(1, 12)))
    meta = json.loads((tmp_path / "set" / "meta.json").read_text())
    meta["files"] = dict(sorted(meta["files"].items()))
    (tmp_path / "set" / "meta.json").write_text(json.dumps(meta))
    one = TimeMoeSource(tmp_path / "set", "set")
    assert one.schema().field("sequence").type == pa.large_list(pa.int32())
    assert table_of(one).column(0).to_pylist() == [list(range(12))]


def test_the_variant_with_a_placeholder_and_origins(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "data-1-of-placeholder.bin").write_bytes(np.arange(5, dtype="<f4").tobytes())
    scales = places(2, 3, file=["../raw/a.csv", "../raw/b.csv"], id=[7, 8])
    meta = {"num_sequences": 2, "dtype": "float32", "files": {"data-1-of-placeholder.bin": 5}, "scales": scales}
    (folder / "meta.json").write_text(json.dumps(meta))
    assert table_of(TimeMoeSource(folder, "set")).to_pylist() == [
        {"sequence": [0.0, 1.0], "file": "../raw/a.csv", "id": 7},
        {"sequence": [2.0, 3.0, 4.0], "file": "../raw/b.csv", "id": 8},
    ]


def test_reading_continues_behind_every_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_GROUP", 7)
    lengths = [i % 7 for i in range(80)]
    scales = places(*lengths, id=[f"s{i}" for i in range(80)])
    one = write(tmp_path / "set", np.arange(sum(lengths), dtype="<f4"), scales, cuts=(50, 100))
    assert_resumes(one, chunk_bytes=60)
    assert_threads_agree(one, chunk_bytes=60)
    assert_projects(one)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"num_sequences": 3}, SourceInvalidError, "describes 2 sequences, 3 expected"),
        ({"num_sequences": True}, SourceInvalidError, r"Expected `int`, got `bool` - at `\$.num_sequences`"),
        ({"dtype": "object"}, SourceInvalidError, "the dtype 'object'; expected one of float16"),
        ({"dtype": "float64"}, SourceInvalidError, "cut off: 20 bytes found, 40 expected"),
        ({"files": {"data-1-of-1.bin": -5}}, SourceInvalidError, r"Expected `int` >= 0 - at `\$.files"),
        ({"files": {"data-1-of-1.bin": 5, "data-01-of-1.bin": 5}}, SourceInvalidError, "a number of its own"),
        ({"files": {"data.bin": 5}}, SourceInvalidError, "expected names like"),
        ({"files": {"data-2-of-2.bin": 5}}, SourceInvalidError, "which is not in"),
        ({"files": {"../x-1-of-1.bin": 5}}, SourceInvalidError, "expected the plain name"),
        ({"num_sequences": 0, "scales": []}, SourceEmptyError, "describes no sequence"),
        ({"scales": [1, 2]}, SourceInvalidError, "row 1 of .* found an integer"),
        ({"scales": [{"offset": 0}, {"offset": 2}]}, SourceInvalidError, "integer 'length'"),
        ({"scales": [{"offset": 0, "length": 2}, {"offset": 2, "length": 4}]}, SourceInvalidError, "sequence 2 .* 4, but .* 5 el"),
        ({"scales": [{"offset": 0, "length": 2}, {"offset": -1, "length": 1}]}, SourceInvalidError, "sequence 2 of .* offset -1"),
        ({"scales": [{"offset": 2**62, "length": 2**62}] * 2}, SourceInvalidError, "sequence 1 of"),
        ({"scales": [{"offset": 0, "length": 1}, {"offset": 0, "length": "1"}]}, BadValueError, '"1" in row 2'),
        ({"scales": [{"offset": 0, "length": 1, "sequence": 1}] * 2}, SourceInvalidError, "a key 'sequence'"),
        ({"scales": [{"offset": 0, "length": 1, "id": 1}, {"offset": 0, "length": 1, "id": "x"}]}, BadValueError, '"x" in row 2'),
    ],
)
def test_odd_descriptions_are_named(tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        table_of(write(tmp_path / "set", np.arange(5, dtype="<f4"), places(2, 3), **changes))
    assert "set" in str(raised.value)


def test_a_type_that_changes_late_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_GROUP", 3)
    one = write(tmp_path / "set", np.arange(20, dtype="<f4"), places(*[1] * 20, id=[1] * 19 + [1.5]))
    with pytest.raises(BadValueError, match=r"sequence 20 of .* has 1\.5 under 'id', but those before it have int64"):
        table_of(one)


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    one = write(tmp_path / "set", np.arange(5, dtype="<f4"), places(2, 3))
    data = tmp_path / "set" / "data-1-of-1.bin"
    data.rename(tmp_path / "outside.bin")
    data.symlink_to("../outside.bin")
    with pytest.raises(SourceInvalidError, match="a link that leads out"):
        one.schema()
    data.unlink()
    (tmp_path / "outside.bin").rename(tmp_path / "set" / "inside.bin")
    data.symlink_to("inside.bin")
    assert table_of(TimeMoeSource(tmp_path / "set", "set")).num_rows == 2


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (b"", SourceEmptyError, "is empty"),
        (b"[1]", SourceInvalidError, "Expected `object`, got `array`"),
        (b'{"a": 1', SourceInvalidError, "truncated"),
        (b"\xff\xfe\x00", SourceInvalidError, "malformed"),
        (b'{"scales": ' + b"[" * 100_000, SourceInvalidError, "recursion"),
        (b'{"num_sequences": 0, "dtype": "float32", "files": {}, "scales": []} x', SourceInvalidError, "trailing characters"),
    ],
)
def test_odd_texts_are_named(tmp_path: Path, text: bytes, error: type[Exception], message: str) -> None:
    (tmp_path / "meta.json").write_bytes(text)
    with pytest.raises(error, match=message) as raised:
        table_of(TimeMoeSource(tmp_path, "set"))
    assert "meta.json" in str(raised.value)


# Time-MoE's folders in place: the values that Time-MoE reads, bit for bit, without a copy of what can be mapped


def values_of(folder: Path) -> list[np.ndarray[Any, Any]]:
    return [one["sequence"] for store in map_time_moe(folder) for one in store]


def assert_as_the_original(folder: Path) -> None:
    original = BinaryDataset(folder)
    found = values_of(folder)
    assert len(found) == len(original)
    for i, values in enumerate(found):
        assert values.dtype == original[i].dtype
        assert values.tobytes() == original[i].tobytes()


@pytest.mark.parametrize("num_files", [1, 2, 3, 7])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32"])
def test_series_are_those_that_time_moe_reads(tmp_path: Path, dtype: str, num_files: int) -> None:
    assert_as_the_original(write_folder(tmp_path / "set", walks([5, 1, 40, 17, 300, 2]), dtype=dtype, num_files=num_files))


def test_what_lies_in_one_file_is_mapped_and_only_what_spans_files_is_copied(tmp_path: Path) -> None:
    stores = map_time_moe(write_folder(tmp_path / "set", walks([10, 10, 10]), num_files=2))
    assert [len(store) for store in stores] == [1, 1, 1]
    is_mapped = []
    for store in stores:
        base: Any = store.column("sequence")
        while isinstance(base, np.ndarray) and base.base is not None:
            base = base.base
        is_mapped.append(not isinstance(base, np.ndarray))  # the owner is a map of a file
    assert is_mapped == [True, False, True]
    assert not any(store.column("sequence").flags.writeable for store in stores)


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "set", walks([10, 10]))
    data = folder / "data-1-of-1.bin"
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(SourceInvalidError, match=r"data-1-of-1.bin is cut off: 79 bytes found, 80 expected"):
        map_time_moe(folder)
    assert len(BinaryDataset(folder)[1]) == 10, "negative control: the original reads what is not there"


@pytest.mark.parametrize(("name", "value"), [("MAX_RANGES", 1), ("MEMORY_SHARE", 0.0)])
def test_what_cannot_be_mapped_is_to_be_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: float) -> None:
    folder = write_folder(tmp_path / "set", walks([10, 10, 10]), num_files=2)
    monkeypatch.setattr(folders, name, value)
    with pytest.raises(SourceTooLargeError, match=r"Pack it: stoker pack .*set set.stoker"):
        map_time_moe(folder)


def test_a_folder_of_any_bin_files_is_one_of_time_moe(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "set", walks([4, 9]))
    assert is_time_moe(folder)
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "data-1-of-1.bin").rename(folder / "part-1-of-1.bin")
    assert is_time_moe(folder), "as the authors see it: the name of the file does not matter"
    (folder / "meta.json").write_text(json.dumps({**meta, "files": {"part-1-of-1.bin": 13}}))
    assert [len(one) for one in values_of(folder)] == [4, 9]
    (folder / "part-1-of-1.bin").unlink()
    assert not is_time_moe(folder)
    assert not is_time_moe(tmp_path)


def test_series_that_are_scaled_back(tmp_path: Path) -> None:
    scales = [{}, {"mean": 3.5, "std": 0.1}, {"mean": -1.0, "std": 2.0}, {"mean": 9.0}, {}]
    assert_as_the_original(write_folder(tmp_path / "set", walks([8, 9, 10, 11, 12]), scales=scales, num_files=2))
