"""NumPy and Arrow share values, bit for bit what pyarrow's own conversions give, and without importing pandas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stoker.store.arrow import fill_null, from_numpy, from_texts, to_numpy

DTYPES = ["?", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8"]


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_values_are_those_of_pyarrow(dtype: str, data: st.DataObject) -> None:
    values = data.draw(hnp.arrays(dtype, st.integers(0, 70)))
    shared = from_numpy(values)
    shared.validate(full=True)
    assert shared.type == pa.array(values).type
    assert to_numpy(shared).tobytes() == values.tobytes()
    start = data.draw(st.integers(0, len(values)))
    assert to_numpy(shared[start:]).tobytes() == values[start:].tobytes()
    assert to_numpy(pa.array(values)[start:]).tobytes() == values[start:].tobytes()


def test_numbers_are_shared() -> None:
    values = np.arange(10)
    assert np.shares_memory(to_numpy(from_numpy(values)), values)


@given(st.lists(st.text()))
def test_texts_are_those_of_pyarrow(texts: list[str]) -> None:
    shared = from_texts(texts)
    shared.validate(full=True)
    assert shared.equals(pa.array(texts, pa.large_string()))


PACK = """
import sys
import stoker
{how}
print("pandas" in sys.modules)
"""
HOWS = {
    "pack": "stoker.pack('{path}', '{path}.stoker', series='key', time='order', source_column='file')",
    "text keys": "stoker.pack('{path}', '{path}.stoker', series='name', time='order', sort=True)",
    "append": "stoker.pack('{path}', '{path}.stoker', series='name'); store = stoker.append('{path}.stoker', '{path}'); store.column('x')",
}


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_pack_does_not_import_pandas(tmp_path: Any, run_python: Any, suffix: str, how: str) -> None:
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pq

    columns = {"x": [1.0, None, 2.0], "on": [True, False, True], "kind": ["a", None, "b"], "count": [None, 2, 3]}
    table = pa.table({"key": [1, 1, 2], "name": ["b", "a", "b"], "order": [1, 2, 3], **columns})
    path = tmp_path / f"table.{suffix}"
    (pa_csv.write_csv if suffix == "csv" else pq.write_table)(table, path)
    assert run_python(PACK.format(how=HOWS[how].format(path=path))).strip() == "False"


@given(st.lists(st.none() | st.integers(-(2**53), 2**53)), st.sampled_from([pa.int64(), pa.float64(), pa.timestamp("us")]))
def test_nulls_are_filled_as_by_pyarrow(values: list[int | None], kind: pa.DataType) -> None:
    array = pa.array(values, pa.int64()).cast(kind)
    assert fill_null(array, -1).equals(array.fill_null(-1))
