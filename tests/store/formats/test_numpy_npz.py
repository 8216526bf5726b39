"""`.npz` archives."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.store.formats.reading import assert_projects, assert_resumes, assert_threads_agree, table_of

from stoker.errors import SourceEmptyError, SourceInvalidError
from stoker.store.formats.numpy import NpzSource


def source(folder: Path, content: bytes | dict[str, Any], *, compressed: bool = False) -> NpzSource:
    path = folder / "a.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        (np.savez_compressed if compressed else np.savez)(path, **content)
    return NpzSource(path, "a.npz")


def member(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def archive(*members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as made:
        for name, data in members:
            made.writestr(name, data)
    return file.getvalue()


def test_arrays_of_one_axis_are_steps(tmp_path: Path) -> None:
    one = source(tmp_path, {"x": np.array([1.5, np.nan], ">f4"), "y": np.array([True, False])})
    assert one.schema() == pa.schema([("x", pa.float32()), ("y", pa.bool_())])
    assert repr(table_of(one).to_pylist()) == "[{'x': 1.5, 'y': True}, {'x': nan, 'y': False}]"
    assert one.num_rows == 2


def test_beside_two_axes_one_axis_is_a_value_a_series(tmp_path: Path) -> None:
    one = source(tmp_path, {"x": np.arange(6).reshape(2, 3), "label": np.array([7, 8])})
    assert one.schema() == pa.schema([("x", pa.large_list(pa.int64())), ("label", pa.int64())])
    assert table_of(one).to_pylist() == [{"x": [0, 1, 2], "label": 7}, {"x": [3, 4, 5], "label": 8}]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
def test_reading_continues_behind_every_chunk(tmp_path: Path, compressed: bool, order: Any) -> None:
    x = np.asarray(np.random.default_rng(0).normal(size=(50, 3)), order=order)
    one = source(tmp_path, {"x": x, "é": np.arange(50, dtype=">i2")}, compressed=compressed)
    assert_resumes(one, chunk_bytes=200)
    assert_threads_agree(one, chunk_bytes=200)
    assert_projects(one)
    assert np.array_equal(np.array(table_of(one).column("x").to_pylist()), x)


def bomb() -> bytes:
    """A member that unpacks to far more than its array."""
    return archive(("x.npy", member(np.zeros(4)) + bytes(50_000_000)), method=zipfile.ZIP_DEFLATED)


def damaged_checksum() -> bytes:
    data = bytearray(archive(("x.npy", member(np.arange(4.0)))))
    place = data.index(np.float64(3.0).tobytes())
    data[place] ^= 1
    return bytes(data)


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", SourceEmptyError, "is empty"),
        (b"PK\x05\x06" + bytes(18), SourceEmptyError, "holds no array"),
        (b"not a zip", SourceInvalidError, "not a .npz archive"),
        (archive(("x.npy", member(np.arange(4.0))))[:-30], SourceInvalidError, "not a .npz archive"),
        (damaged_checksum(), SourceInvalidError, "CRC"),
        (bomb(), SourceInvalidError, "longer than declared: 50,000,160 bytes found, 160 expected"),
        (
            archive(("x.npy", member(np.arange(4.0))[:-8])),
            SourceInvalidError,
            "'x.npy' in .* is cut off: 152 bytes found, 160 expected",
        ),
        (
            archive(("x.npy", member(np.arange(4.0))), ("y.npy", member(np.arange(5.0)))),
            SourceInvalidError,
            "different first axes: x \\(4,\\), y",
        ),
        (
            archive(("x.npy", member(np.arange(4.0))), ("readme.txt", b"hello")),
            SourceInvalidError,
            "'readme.txt' in .* is not a plain or deflated",
        ),
        (archive(("x.npy", member(np.arange(4.0))), method=zipfile.ZIP_LZMA), SourceInvalidError, "not a plain or deflated"),
        (archive(("x.npy", member(np.array(1.0)))), SourceInvalidError, "0 axes"),
        (archive(("x.npy", member(np.array(["a"])))), SourceInvalidError, "strings"),
        (archive(("x.npy", b"")), SourceInvalidError, "'x.npy' in .* is not a .npy file"),
    ],
    ids=[f"case{number}" for number in range(13)],  # not the bytes: an archive holds the time it was made at
)
def test_odd_files_are_named(tmp_path: Path, content: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        table_of(source(tmp_path, content))
    assert "a.npz" in str(raised.value)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_doubled_members_are_refused(tmp_path: Path) -> None:
    data = archive(("x.npy", member(np.arange(4.0))), ("x.npy", member(np.arange(4.0))))
    with pytest.raises(SourceInvalidError, match="twice"):
        source(tmp_path, data).schema()


def test_a_directory_that_lost_an_array_is_refused(tmp_path: Path) -> None:
    data = archive(("x.npy", member(np.arange(4.0))), ("y.npy", member(np.arange(4.0))))
    end = bytearray(data[-22:])
    end[12:16] = (int.from_bytes(end[12:16], "little") // 2).to_bytes(4, "little")  # the size of the directory
    with zipfile.ZipFile(io.BytesIO(data[:-22] + end)) as lenient:
        assert lenient.namelist() == ["y.npy"]  # without the guard a column is lost
    with pytest.raises(SourceInvalidError, match="1 arrays found, 2 expected"):
        source(tmp_path, data[:-22] + bytes(end)).schema()
