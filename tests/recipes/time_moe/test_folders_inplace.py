"""Time-MoE's folders in place: the values that Time-MoE reads, bit for bit, without a copy of what can be mapped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.before.timemoe_dataset import BinaryDataset
from benchmarks.time_moe.folder import walks, write_folder

from stoker.errors import SourceInvalidError, SourceTooLargeError
from stoker_recipes.time_moe import folders
from stoker_recipes.time_moe.folders import is_time_moe, map_time_moe


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


def test_sequences_beyond_the_end_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "set", walks([10, 10]))
    meta = json.loads((folder / "meta.json").read_text())
    meta["scales"][1]["length"] = 11
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(
        SourceInvalidError, match=r"sequence 2 of .*meta.json is at offset 10 with length 11, but the files hold 20"
    ):
        map_time_moe(folder)
