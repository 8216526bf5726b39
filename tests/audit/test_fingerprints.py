"""Fingerprints of rows: equal content is equal, whatever batch, type of container or padding it came in."""

from __future__ import annotations

from typing import Any

import hypothesis
import numpy as np
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stoker.audit.fingerprints import combine, fingerprint, rows_of, rows_of_items

DTYPES = ["u1", "i2", "<i8", ">i4", "f2", "f4", "f8", "c8", "M8[ns]", "U3", "S4", "?"]


def words(batch: Any) -> list[int]:
    rows = rows_of(batch)
    return fingerprint(rows, list(rows.entries))[:, 0].tolist()


@given(data=st.data())
def test_a_row_is_hashed_as_its_slow_twin(data: st.DataObject) -> None:
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
    shape = data.draw(arrays.array_shapes(max_dims=3, max_side=4))
    array = data.draw(arrays.arrays(dtype, shape))
    little = array.astype(dtype.newbyteorder("<"))
    twin = [xxhash.xxh3_64_intdigest(np.asarray(row).tobytes().rstrip(b"\0")) for row in little]
    assert words({"x": array}) == twin
    assert words({"x": np.asfortranarray(array)}) == twin


@given(st.lists(st.lists(st.integers(1, 9), max_size=6), min_size=1, max_size=8), st.integers(0, 5))
def test_padding_packing_and_items_are_the_same(series: list[list[int]], extra: int) -> None:
    hypothesis.assume(sum(map(len, series)) != len(series))  # then nobody can say what is packed
    width = max(map(len, series)) + extra + 1
    padded = torch.tensor([[*one, *[0] * (width - len(one))] for one in series])
    packed = {
        "x": torch.tensor([value for one in series for value in one], dtype=torch.int64),
        "cu_seqlens": torch.tensor([0, *np.cumsum([len(one) for one in series])], dtype=torch.int32),
        "y": torch.arange(len(series)),
    }
    items = rows_of_items([{"x": np.array(one, dtype=np.int64)} for one in series])
    assert words(padded) == words(packed)
    assert words(padded) == fingerprint(items, ["x"])[:, 0].tolist()


def test_whole_samples_depend_on_every_entry_and_its_place() -> None:
    table = np.random.default_rng(0).integers(0, 2**63, (4, 3)).astype(np.uint64)
    assert len(set(combine(table).tolist())) == 4
    assert not set(combine(table).tolist()) & set(combine(table[:, ::-1]).tolist())
    for column in range(3):
        other = table.copy()
        other[0, column] ^= np.uint64(1)
        assert combine(other)[0] != combine(table)[0]
        assert (combine(other)[1:] == combine(table)[1:]).all()
