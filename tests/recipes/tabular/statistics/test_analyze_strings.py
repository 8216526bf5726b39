"""Texts that hold numbers or dates, as pandas reads them with the steps of mostlyai-engine (which originals/ has itself)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from tests.harness import num_examples

from stoker.errors import OptionError, SourceInvalidError
from stoker_recipes.tabular import analyze
from stoker_recipes.tabular.statistics import analyze as texts_module
from stoker_recipes.tabular.statistics.analyze import parse_number

NUMBER = r"(-?[0-9]*[\.]?[0-9]+(?:[eE][+\-]?\d+)?)"
TEXTS = st.lists(
    st.sampled_from(["1", "x3", "-4.50", "1e3", "", "1,000", "$12", "1.2.3", ".5", "5.", "-", "n/a", "-0", "1e-330", "1e400"])
    | st.integers(-(2**70), 2**70).map(str)
    | st.floats(allow_nan=False, allow_infinity=False).map(repr)
    | st.text("0123456789.-eE+", max_size=30),
    min_size=1,
    max_size=40,
)


def read_by_pandas(texts: list[Any]) -> pd.Series:
    return pd.to_numeric(pd.Series(texts, dtype=object).astype(str).str.extract(NUMBER, expand=False), errors="coerce")


@given(TEXTS)
@settings(max_examples=num_examples(200))
def test_numbers_have_the_bits_of_pandas(texts: list[str]) -> None:
    found = np.array([np.nan if (one := parse_number(text)) is None else one[1] for text in texts])
    expected = read_by_pandas([*texts, "0.5"]).to_numpy(dtype=np.float64)[:-1]  # one with decimals, so that all are floats
    assert np.where(np.isnan(found), np.nan, found).tobytes() == np.where(np.isnan(expected), np.nan, expected).tobytes()


def test_negative_control_the_nearest_float_is_another() -> None:
    text = "0.1234567890123456789"
    found = parse_number(text)
    assert found is not None
    assert found[1] == read_by_pandas([text])[0] != float(text)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_a_column_is_that_of_its_numbers(kind: pa.DataType) -> None:
    texts = pa.chunked_array([pa.array(["12", "x"]).cast(kind), pa.array([None, "$7.5"]).cast(kind)])
    expected = analyze({"x": pa.array([12.0, None, None, 7.5]), "who": [1, 1, 2, 2]}, key="who")
    assert analyze({"x": texts, "who": [1, 1, 2, 2]}, kinds={"x": "number"}, key="who") == expected
    whole = analyze({"x": pa.array(["3", "4"]).cast(kind)}, kinds={"x": "number"})
    assert whole == analyze({"x": [3, 4]})


def test_files_are_read_for_the_type_first(tmp_path: Path) -> None:
    """The last file alone says that all are floats."""
    for i, text in enumerate(["a,1", "b,2", "c,n/a 3.5"]):
        (tmp_path / f"{i}.csv").write_text(f"name,x\nq,x9\n{text}\n")
    found = analyze(str(tmp_path / "*.csv"), kinds={"x": "number"})
    assert found["x"] == analyze({"x": [9.0, 1.0, 9.0, 2.0, 9.0, 3.5]})["x"]
    with pytest.raises(OptionError, match=r"holds strings, whose format depends on the whole column"):
        analyze(str(tmp_path / "*.csv"), kinds={"x": "date"})


def test_dates_of_a_table_in_memory() -> None:
    texts = ["1/3/2020", None, "13/2/2020", "no date"]
    found: Any = analyze({"x": texts}, kinds={"x": "date"})["x"]
    assert (found.min, found.max, found.num_null) == ("2020-02-13", "2020-03-01", 2)  # days first, as the second says
    later: Any = analyze({"x": pa.chunked_array([["1/3/2020"], ["13/2/2020"]])}, kinds={"x": "date"})["x"]
    assert later.max == "2020-03-01"


@pytest.mark.promise("P11", control=True)
@pytest.mark.parametrize(("values", "kind"), [(["12", "$7.5"], "number"), (["1/3/2020"], "date")])
def test_negative_control_columns_that_are_not_converted_are_refused(
    monkeypatch: pytest.MonkeyPatch, values: list[str], kind: Any
) -> None:
    assert analyze({"x": values}, kinds={"x": kind})["x"].num_values == len(values)
    monkeypatch.setattr(texts_module, "_readers", lambda *given, **options: {})
    with pytest.raises((OptionError, SourceInvalidError)):
        analyze({"x": values}, kinds={"x": kind})
