"""Store.where: the series that plain Python would choose, one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness import num_examples

from stoker.errors import OptionError
from stoker.store import expressions
from stoker.store.pack.api import pack
from stoker.store.store import Store


@settings(deadline=None, max_examples=num_examples(30))
@given(
    rows=st.lists(st.tuples(st.sampled_from(["DE", "AT", "ä b"]), st.integers(-3, 3), st.integers(0, 4)), min_size=1, max_size=12),
    part=st.integers(1, 5),
)
def test_series_are_chosen_as_by_a_loop(rows: list[tuple[str, int, int]], part: int) -> None:
    store = Store.from_arrays(
        lengths=[count for _, _, count in rows],
        x=np.zeros(sum(count for _, _, count in rows)),
        country=[country for country, _, _ in rows],
        age=np.array([[age, 0] for _, age, _ in rows])[:, 0],
    )
    if store.schema["age"].level != "series":  # as many steps as series: an array of numbers is then one of steps
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expressions, "_PART", part)
        found = store.where("country in ('DE', 'ä b') and age >= 0 or num_steps == 3")
    assert found.dtype == np.int64
    expected = [i for i, (country, age, count) in enumerate(rows) if (country != "AT" and age >= 0) or count == 3]
    assert found.tolist() == expected


def test_categories_times_and_keys_of_a_packed_store(tmp_path: Path) -> None:
    users = {
        "user": [1, 2, 3],
        "country": ["DE", None, "AT"],
        "born": np.array(["1999-01-01", "2005-01-01", "NaT"], dtype="datetime64[D]"),
    }
    store = pack({"user": [1, 2, 2, 3], "x": [1.0, 2.0, 3.0, 4.0]}, tmp_path / "out", series="user", metadata=users)
    assert store.where("country == 'DE'").tolist() == [0]
    assert store.where("isnull(country) or user == 3").tolist() == [1, 2]
    assert store.where("born < '2000-01-01'").tolist() == [0]
    assert store.where("year(born) >= 2000").tolist() == [1]


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("x > 1", r"uses 'x', which has one value per step .* stoker.pack\(where=…\)"),
        ("cuntry == 'DE'", r"uses 'cuntry', but <memory> has these columns per series: country, v, num_steps"),
        ("lag(num_steps) > 1", r"lag and diff need steps"),
        ("num_steps", r"expected a condition that is true or false"),
        ("v > 1", r"'v', which has 2 values per series; expected one"),
    ],
)
def test_what_series_do_not_have_is_refused(expression: str, text: str) -> None:
    store = Store.from_arrays(x=[[1.0], [2.0], [3.0]], country=["DE", "AT", "DE"], v=np.zeros((3, 2)))
    with pytest.raises(OptionError, match=text):
        store.where(expression)
