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
from tests.store.formats.reading import archive, chunks_of, saved, table_of

from stoker.errors import SourceChangedError, SourceInvalidError
from stoker.store.formats.numpy import NpySource, NpzSource

DTYPES = "|b1 |i1 |u1 <i2 >i2 <u2 <i4 >u4 <i8 >i8 <u8 <f2 >f2 <f4 >f4 <f8 >f8".split()


def source(folder: Path, array: np.ndarray[Any, Any] | bytes, *, wide: bool = False) -> NpySource:
    path = folder / "a.npy"
    if isinstance(array, bytes):
        path.write_bytes(array)
    else:
        np.save(path, array)
    return NpySource(path, "a.npy", wide=wide)


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


def test_times_are_times_and_nat_is_null(tmp_path: Path) -> None:
    one = source(tmp_path, np.array(["2020-01-01", "NaT"], dtype=">M8[ms]"))
    assert one.schema().field("value").type == pa.timestamp("ms")
    assert table_of(one).column(0).null_count == 1
    assert source(tmp_path, np.array([1], dtype="m8[us]")).schema().field("value").type == pa.duration("us")


def test_a_file_that_shrinks_while_it_is_read_is_named(tmp_path: Path) -> None:
    one = source(tmp_path, np.arange(100.0))
    schema = one.schema()
    (tmp_path / "a.npy").write_bytes(saved(np.arange(100.0))[:-100])
    with pytest.raises(SourceChangedError, match="changed while it was read") as caught:
        chunks_of(one, schema)
    assert caught.value.path == str(tmp_path / "a.npy")


# `.npz` archives


def npz_source(folder: Path, content: bytes | dict[str, Any], *, compressed: bool = False) -> NpzSource:
    path = folder / "a.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        (np.savez_compressed if compressed else np.savez)(path, **content)
    return NpzSource(path, "a.npz")


def test_arrays_of_one_axis_are_steps(tmp_path: Path) -> None:
    one = npz_source(tmp_path, {"x": np.array([1.5, np.nan], ">f4"), "y": np.array([True, False])})
    assert one.schema() == pa.schema([("x", pa.float32()), ("y", pa.bool_())])
    assert repr(table_of(one).to_pylist()) == "[{'x': 1.5, 'y': True}, {'x': nan, 'y': False}]"
    assert one.num_rows == 2


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_doubled_members_are_refused(tmp_path: Path) -> None:
    data = archive(("x.npy", saved(np.arange(4.0))), ("x.npy", saved(np.arange(4.0))))
    with pytest.raises(SourceInvalidError, match="twice"):
        npz_source(tmp_path, data).schema()


def test_a_directory_that_lost_an_array_is_refused(tmp_path: Path) -> None:
    data = archive(("x.npy", saved(np.arange(4.0))), ("y.npy", saved(np.arange(4.0))))
    end = bytearray(data[-22:])
    end[12:16] = (int.from_bytes(end[12:16], "little") // 2).to_bytes(4, "little")  # the size of the directory
    with zipfile.ZipFile(io.BytesIO(data[:-22] + end)) as lenient:
        assert lenient.namelist() == ["y.npy"]  # without the guard a column is lost
    with pytest.raises(SourceInvalidError, match="1 arrays found, 2 expected"):
        npz_source(tmp_path, data[:-22] + bytes(end)).schema()
