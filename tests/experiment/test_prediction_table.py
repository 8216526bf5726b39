"""Times of predicted steps: those of the data, and behind it."""

from __future__ import annotations

import tempfile

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness import num_examples

import stoker
from stoker.experiment.prediction_table import step_times


@pytest.mark.promise("P27")
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    unit=st.sampled_from(["s", "ms", "ns"]),
    freq=st.sampled_from([None, "1h", "1mo"]),
)
@settings(max_examples=num_examples(40), deadline=None)
def test_times_behind_the_data_follow_the_frequency_or_the_last_distance(lengths: list[int], unit: str, freq: str | None) -> None:
    first = np.datetime64("2024-01-31T06", unit)
    months = np.array(
        ["2024-01-31T06", "2024-02-29T06", "2024-03-31T06", "2024-04-30T06", "2024-05-31T06", "2024-06-30T06", "2024-07-31T06"]
    )
    times = [months[:n].astype(f"M8[{unit}]") if freq == "1mo" else first + np.arange(n) * np.timedelta64(1, "h") for n in lengths]
    with tempfile.TemporaryDirectory() as folder:
        table = {"s": np.repeat(np.arange(len(lengths)), lengths), "t": pa.array(np.concatenate(times)), "x": np.ones(sum(lengths))}
        store = stoker.pack(table, f"{folder}/a.stoker", series="s", time="t")
        series, steps = np.arange(len(lengths)), np.array(lengths)
        found = step_times(store, "t", series, steps, freq=freq)
        inside = step_times(store, "t", series, steps - 1, freq=freq)
    assert [np.datetime64(one.value, unit) for one in inside] == [one[-1] for one in times]
    for number, count in enumerate(lengths):
        if freq is None and count == 1:
            assert not found[number].is_valid
        else:
            wanted = months[count].astype(f"M8[{unit}]") if freq == "1mo" else times[number][-1] + np.timedelta64(1, "h")
            assert np.datetime64(found[number].value, unit) == wanted
