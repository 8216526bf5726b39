"""`.npy` and `.npz`: bits come out as they are, and nothing is unpickled."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.store.formats.reading import assert_projects, assert_resumes, assert_threads_agree, chunks_of, table_of

from stoker.errors import BadValueError, SourceChangedError, SourceEmptyError, SourceInvalidError
from stoker.store.formats.numpy import NpySource, NpzSource

DTYPES = "|b1 |i1 |u1 <i2 >i2 <u2 <i4 >u4 <i8 >i8 <u8 <f2 >f2 <f4 >f4 <f8 >f8".split()


def source(folder: Path, array: np.ndarray[Any, Any] | bytes, *, wide: bool = False) -> NpySource:
    path = folder / "a.npy"
    if isinstance(array, bytes):
        path.write_bytes(array)
    else:
        np.save(path, array)
    return NpySource(path, "a.npy", wide=wide)


def saved(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def flat(table: pa.Table, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The values of the one column in native byte order."""
    array = table.column(0).combine_chunks()
    array = array.flatten() if pa.types.is_large_list(array.type) else array
    return np.asarray(array.to_numpy(zero_copy_only=False)).astype(dtype.newbyteorder("="))


@hypothesis.given(
    data=st.data(), dtype=st.sampled_from(DTYPES), fortran=st.booleans(), chunk_bytes=st.sampled_from([1, 40, 1 << 20])
)
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
def test_every_bit_comes_out(tmp_path: Path, data: st.DataObject, dtype: str, fortran: bool, chunk_bytes: int) -> None:
    shape = data.draw(arrays.array_shapes(max_dims=2, max_side=6))
    array = data.draw(arrays.arrays(dtype, shape))
    one = source(tmp_path, np.asfortranarray(array) if fortran else array)
    found = flat(table_of(one, chunk_bytes=chunk_bytes), array.dtype)
    assert found.tobytes() == array.astype(array.dtype.newbyteorder("=")).tobytes()


def test_one_axis_is_steps_and_two_are_series(tmp_path: Path) -> None:
    assert source(tmp_path, np.arange(3)).schema() == pa.schema([("value", pa.int64())])
    two = source(tmp_path, np.arange(6, dtype="<f4").reshape(2, 3))
    assert two.schema() == pa.schema([("value", pa.large_list(pa.float32()))])
    assert table_of(two).column(0).to_pylist() == [[0, 1, 2], [3, 4, 5]]
    assert two.num_rows == 2


@pytest.mark.parametrize("order", ["C", "F"])
def test_wide_makes_columns(tmp_path: Path, order: Any) -> None:
    one = source(tmp_path, np.array([[1, 2, 3], [4, 5, 6]], order=order), wide=True)
    assert one.schema() == pa.schema([(f"c{i}", pa.int64()) for i in range(3)])
    assert table_of(one, chunk_bytes=1).to_pylist() == [{"c0": 1, "c1": 2, "c2": 3}, {"c0": 4, "c1": 5, "c2": 6}]
    some = pa.schema([("c2", pa.int64()), ("c0", pa.int64())])
    assert chunks_of(one, some)[0].table.to_pylist() == [{"c2": 3, "c0": 1}, {"c2": 6, "c0": 4}]
    assert_resumes(source(tmp_path, np.asarray(np.arange(60).reshape(20, 3), order=order), wide=True), chunk_bytes=100)


@pytest.mark.parametrize(
    "array", [np.arange(100.0), np.arange(100.0).reshape(20, 5), np.asfortranarray(np.arange(100.0).reshape(20, 5))]
)
def test_reading_continues_behind_every_chunk(tmp_path: Path, array: np.ndarray[Any, Any]) -> None:
    one = source(tmp_path, array)
    assert_resumes(one, chunk_bytes=100)
    assert_threads_agree(one, chunk_bytes=100)
    assert_projects(one)


def test_times_are_times_and_nat_is_null(tmp_path: Path) -> None:
    one = source(tmp_path, np.array(["2020-01-01", "NaT"], dtype=">M8[ms]"))
    assert one.schema().field("value").type == pa.timestamp("ms")
    assert table_of(one).column(0).null_count == 1
    assert source(tmp_path, np.array([1], dtype="m8[us]")).schema().field("value").type == pa.duration("us")


@pytest.mark.parametrize(
    ("array", "what"),
    [
        (np.array(["a"]), "strings"),
        (np.array([1j]), "complex"),
        (np.zeros(1, dtype=[("a", "<f4")]), "records"),
        (np.zeros(1, dtype=np.longdouble), "values that are not plain numbers"),
        (np.array(["2020"], dtype="M8[D]"), "s, ms, us or ns"),
        (np.float64(1.5), "0 axes"),
        (np.zeros((1, 1, 1)), "3 axes"),
    ],
)
def test_other_arrays_are_refused(tmp_path: Path, array: Any, what: str) -> None:
    with pytest.raises(SourceInvalidError, match=what):
        source(tmp_path, array).schema()


def header(text: str, version: tuple[int, int] = (1, 0), length: int | None = None) -> bytes:
    size = len(text) if length is None else length
    return b"\x93NUMPY" + bytes(version) + size.to_bytes(2 if version == (1, 0) else 4, "little") + text.encode("latin1")


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", SourceEmptyError, "is empty"),
        (b"\x93NUMPY", SourceInvalidError, "is not a"),
        (b"a,b\n1,2\n", SourceInvalidError, "it begins with b'a,b"),
        (header("{}", (9, 0)), SourceInvalidError, "version 9.0"),
        (header("{}", length=60000)[:40], SourceInvalidError, "ends inside its header"),
        (header("{}", (2, 0), length=2**31), SourceInvalidError, "declares a header of"),
        (header("{}"), SourceInvalidError, "damaged .npy header"),
        (header("__import__('os').getcwd()\n"), SourceInvalidError, "damaged .npy header"),
        (header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}\n"), SourceInvalidError, "shape"),
        (header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({2**70},)}}\n"), SourceInvalidError, "cut off"),
        (header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({10**18}, 0)}}\n"), SourceEmptyError, "holds no value"),
        (header("{'descr': ('<f8', (2,)), 'fortran_order': False, 'shape': (1,)}\n"), SourceInvalidError, "a.npy"),
        (saved(np.arange(4.0))[:-1], SourceInvalidError, "is cut off: 159 bytes found, 160 expected"),
        (saved(np.arange(4.0)) + b"x", SourceInvalidError, "longer than declared: 161 bytes found, 160 expected"),
        (saved(np.array([True]))[:-1] + b"\x02", BadValueError, "neither 0 nor 1"),
    ],
)
def test_odd_files_are_named(tmp_path: Path, content: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        table_of(source(tmp_path, content))
    assert "a.npy" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_shrinks_while_it_is_read_is_named(tmp_path: Path) -> None:
    one = source(tmp_path, np.arange(100.0))
    schema = one.schema()
    (tmp_path / "a.npy").write_bytes(saved(np.arange(100.0))[:-100])
    with pytest.raises(SourceChangedError, match="changed while it was read"):
        chunks_of(one, schema)


# `.npz` archives


def npz_source(folder: Path, content: bytes | dict[str, Any], *, compressed: bool = False) -> NpzSource:
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
    one = npz_source(tmp_path, {"x": np.array([1.5, np.nan], ">f4"), "y": np.array([True, False])})
    assert one.schema() == pa.schema([("x", pa.float32()), ("y", pa.bool_())])
    assert repr(table_of(one).to_pylist()) == "[{'x': 1.5, 'y': True}, {'x': nan, 'y': False}]"
    assert one.num_rows == 2


def test_beside_two_axes_one_axis_is_a_value_a_series(tmp_path: Path) -> None:
    one = npz_source(tmp_path, {"x": np.arange(6).reshape(2, 3), "label": np.array([7, 8])})
    assert one.schema() == pa.schema([("x", pa.large_list(pa.int64())), ("label", pa.int64())])
    assert table_of(one).to_pylist() == [{"x": [0, 1, 2], "label": 7}, {"x": [3, 4, 5], "label": 8}]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
def test_reading_continues_behind_every_chunk_of_npz(tmp_path: Path, compressed: bool, order: Any) -> None:
    x = np.asarray(np.random.default_rng(0).normal(size=(50, 3)), order=order)
    one = npz_source(tmp_path, {"x": x, "é": np.arange(50, dtype=">i2")}, compressed=compressed)
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
def test_odd_files_are_named_of_npz(tmp_path: Path, content: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        table_of(npz_source(tmp_path, content))
    assert "a.npz" in str(raised.value)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_doubled_members_are_refused(tmp_path: Path) -> None:
    data = archive(("x.npy", member(np.arange(4.0))), ("x.npy", member(np.arange(4.0))))
    with pytest.raises(SourceInvalidError, match="twice"):
        npz_source(tmp_path, data).schema()


def test_a_directory_that_lost_an_array_is_refused(tmp_path: Path) -> None:
    data = archive(("x.npy", member(np.arange(4.0))), ("y.npy", member(np.arange(4.0))))
    end = bytearray(data[-22:])
    end[12:16] = (int.from_bytes(end[12:16], "little") // 2).to_bytes(4, "little")  # the size of the directory
    with zipfile.ZipFile(io.BytesIO(data[:-22] + end)) as lenient:
        assert lenient.namelist() == ["y.npy"]  # without the guard a column is lost
    with pytest.raises(SourceInvalidError, match="1 arrays found, 2 expected"):
        npz_source(tmp_path, data[:-22] + bytes(end)).schema()
