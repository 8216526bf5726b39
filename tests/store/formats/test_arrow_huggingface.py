"""Hugging Face `datasets` folders, made by `datasets` itself where it is installed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.store.formats.reading import assert_resumes, table_of

from stoker.errors import SourceEmptyError, SourceInvalidError
from stoker.store.formats.arrow import HuggingFaceSource

pytestmark = pytest.mark.filterwarnings("ignore")
ROWS: dict[str, list[Any]] = {
    "id": [f"é{i}" for i in range(50)],
    "target": [[i + 0.5] * (i % 4) for i in range(50)],
    "n": [None if i % 9 == 0 else i for i in range(50)],
}


def write(folder: Path, rows: dict[str, Any] = ROWS) -> HuggingFaceSource:
    """A folder in the form of `save_to_disk`, written without `datasets`."""
    folder.mkdir(exist_ok=True)
    name = "data-00000-of-00001.arrow"
    table = pa.table(rows)
    with pa.ipc.new_stream(folder / name, table.schema) as stream:
        stream.write_table(table, max_chunksize=7)
    state(folder, [name])
    return HuggingFaceSource(folder, folder.name)


def state(folder: Path, names: list[str], **others: Any) -> None:
    (folder / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": name} for name in names], "_split": None, **others})
    )


@pytest.mark.parametrize("num_shards", [1, 3])
def test_what_datasets_saves_is_read(tmp_path: Path, num_shards: int) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    saved = datasets.Dataset.from_dict(ROWS)
    saved.save_to_disk(tmp_path / "set", num_shards=num_shards)
    one = HuggingFaceSource(tmp_path / "set", "set")
    assert one.schema() == pa.schema([("id", pa.string()), ("target", pa.list_(pa.float64())), ("n", pa.int64())])
    assert table_of(one, chunk_bytes=200).to_pylist() == saved.to_list()
    assert_resumes(one, chunk_bytes=200)


def test_a_folder_of_splits_names_them(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    saved = datasets.Dataset.from_dict(ROWS)
    datasets.DatasetDict(train=saved, test=saved).save_to_disk(tmp_path / "set")
    with pytest.raises(SourceInvalidError, match=r"holds the splits 'train', 'test'.* Give one of them, like .*set/train"):
        HuggingFaceSource(tmp_path / "set", "set").schema()
    assert table_of(HuggingFaceSource(tmp_path / "set" / "train", "set")).num_rows == 50


@pytest.mark.parametrize(
    ("names", "others", "error", "message"),
    [
        ([], {}, SourceEmptyError, "names no data file"),
        (["../x.arrow"], {}, SourceInvalidError, "expected the plain name"),
        (["/etc/passwd"], {}, SourceInvalidError, "expected the plain name"),
        ([".."], {}, SourceInvalidError, "expected the plain name"),
        ([""], {}, SourceInvalidError, "expected the plain name"),
        (["missing.arrow"], {}, SourceInvalidError, "which is not in"),
        (["x.arrow"], {"_indices_files": [{"filename": "i.arrow"}]}, SourceInvalidError, "flatten_indices"),
        (["x.arrow"], {"_indices_data_files": [{"filename": "i.arrow"}]}, SourceInvalidError, "flatten_indices"),
        (["x.arrow"], {"_data_files": 5}, SourceInvalidError, "not what save_to_disk writes"),
    ],
)
def test_odd_states_are_named(
    tmp_path: Path, names: list[str], others: dict[str, Any], error: type[Exception], message: str
) -> None:
    state(tmp_path, names, **others)
    with pytest.raises(error, match=message) as raised:
        HuggingFaceSource(tmp_path, "set").schema()
    assert "state.json" in str(raised.value)


def test_links_out_of_the_folder_and_folders_are_refused(tmp_path: Path) -> None:
    one = write(tmp_path / "set")
    data = tmp_path / "set" / "data-00000-of-00001.arrow"
    data.rename(tmp_path / "outside.arrow")
    data.symlink_to("../outside.arrow")
    with pytest.raises(SourceInvalidError, match="a link that leads out"):
        one.schema()
    data.unlink()
    data.mkdir()
    with pytest.raises(SourceInvalidError, match="is not a plain file"):
        one.schema()


def test_a_stream_cut_between_batches_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "set")
    data = tmp_path / "set" / "data-00000-of-00001.arrow"
    os.truncate(data, data.stat().st_size - 8)
    assert len(pa.ipc.open_stream(data).read_all()) == 50  # Arrow itself takes it for whole: this is the control
    with pytest.raises(SourceInvalidError, match="no end mark"):
        HuggingFaceSource(tmp_path / "set", "set").schema()
