"""Store.where: the series that plain Python would choose, one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness import num_examples

from stoker import Store, pack
from stoker.errors import OptionError


@pytest.mark.promise("P25")
@settings(deadline=None, max_examples=num_examples(30))
@given(
    rows=st.lists(st.tuples(st.sampled_from(["DE", "AT", "ä b"]), st.integers(-3, 3), st.integers(0, 4)), min_size=1, max_size=12)
)
def test_series_are_chosen_as_by_a_loop(rows: list[tuple[str, int, int]]) -> None:
    store = Store.from_arrays(
        lengths=[count for _, _, count in rows],
        x=np.zeros(sum(count for _, _, count in rows)),
        country=[country for country, _, _ in rows],
        age=np.array([[age, 0] for _, age, _ in rows])[:, 0],
    )
    if store.schema["age"].level != "series":  # as many steps as series: an array of numbers is then one of steps
        return
    found = store.where("country in ('DE', 'ä b') and age >= 0 or num_steps == 3")
    assert found.dtype == np.int64
    expected = [i for i, (country, age, count) in enumerate(rows) if (country != "AT" and age >= 0) or count == 3]
    assert found.tolist() == expected


def users(folder: Path) -> Store:
    """A store of three users, with facts of each; some are missing."""
    table = {
        "user": [1, 2, 3],
        "x": [[1.0], [2.0, 3.0], [4.0]],
        "country": pa.array(["DE", None, "AT"]).dictionary_encode(),
        "born": pa.array(["1999-01-01", "2005-01-01", None]).cast(pa.date32()),
        "weight": [0.5, None, 2.0],
        "shoe size": [40, 41, 42],
    }
    return pack(table, folder / "users", series="user")


@pytest.mark.parametrize(
    ("condition", "chosen"),
    [
        ("country == 'DE'", [0]),
        ("country != 'DE'", [1, 2]),
        ("country == None or user == 3", [1, 2]),
        ("country != None and not user == 3", [0]),
        ("country not in ['DE', 'AT']", [1]),
        ("born < '2000-01-01'", [0]),
        ("'2000-01-01' <= born", [1]),
        ("weight > 0", [0, 2]),
        ("weight == None", [1]),
        ("1 < user <= 3", [1, 2]),
        ("user % 2 == 1 and -user < 0", [0, 2]),
        ("`shoe size` / 2 > 20", [1, 2]),
        ("True", [0, 1, 2]),
    ],
)
def test_categories_times_and_missing_values_of_a_packed_store(tmp_path: Path, condition: str, chosen: list[int]) -> None:
    assert users(tmp_path).where(condition).tolist() == chosen


@pytest.mark.promise("P25")
@pytest.mark.parametrize(
    ("condition", "text"),
    [
        ("x > 1", r"uses 'x', which has one value per step .* To leave out rows, pack with sql="),
        ("cuntry == 'DE'", r"uses 'cuntry', which <memory> does not have; .*: country, v, num_steps"),
        ("num_steps", r"uses 'num_steps' as a condition, but it gives int64"),
        ("v > 1", r"'v', which has 2 values per series; expected one"),
        ("country > 1", r"cannot be computed: .* is compared with strings"),
        ("num_steps + 'a' > 1", r"cannot be computed: an operation gets types that it does not take"),
        ("num_steps in 3", r"compares with '3'; `in` takes a list"),
        ("num_steps is 3", r"compares with '3'; `in` takes a list"),
        ("num_steps >", r"it is not a valid condition"),
        ("", r"expected a condition of 1 to 2,000 characters"),
        ("num_steps > 1 " * 200, r"expected a condition of 1 to 2,000 characters"),
        ("(" * 300 + "num_steps" + ")" * 300 + " > 1", r"it is not a valid condition"),
        ("__import__('os').system('true') == 0", r"uses '__import__', which <memory> does not have"),
        ("num_steps.real > 1", r"uses 'num_steps.real'; expected comparisons"),
        ("(lambda: 1)() == 1", r"uses '\(lambda: 1\)\(\)'; expected comparisons"),
        ("[num_steps for a in (1,)] == 1", r"uses 'a', which <memory> does not have"),
        ("num_steps ** 9 ** 9 > 1", r"uses 'num_steps \*\* 9 \*\* 9'; expected comparisons"),
    ],
)
def test_invalid_conditions_are_refused(condition: str, text: str) -> None:
    store = Store.from_arrays(x=[[1.0], [2.0], [3.0]], country=["DE", "AT", "DE"], v=np.zeros((3, 2)))
    with pytest.raises(OptionError, match=text):
        store.where(condition)


def test_a_condition_over_no_series_is_checked_too() -> None:
    store = Store.from_arrays(x=np.empty(0), lengths=[])
    assert store.where("num_steps > 1").tolist() == []
    with pytest.raises(OptionError, match="as a condition"):
        store.where("num_steps")
