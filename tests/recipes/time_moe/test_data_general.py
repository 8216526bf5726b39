"""Files of series: each in its own type; what is not a series is one line that names the place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import SourceInvalidError
from stoker_recipes.time_moe.data import NotSeries, open_corpus, read_series


def write(path: Path, *elements: Any) -> Path:
    path.write_text(json.dumps(elements) if path.suffix == ".json" else "".join(json.dumps(one) + "\n" for one in elements))
    return path


def test_types_are_those_that_numpy_gives_each_list(tmp_path: Path) -> None:
    lists = [[1, 2], [1.5, 2], [2**62, 1], [2**63, 2**63], [], [float("nan"), 1]]
    found = read_series(write(tmp_path / "x.jsonl", *lists))
    assert [one.dtype for one in found.series] == [np.array(one).dtype for one in lists]
    assert found.own is not None
    assert read_series(write(tmp_path / "y.jsonl", [1, 2], [], [3])).own is None, "one type, so the column has it"


def test_missing_points_are_nan(tmp_path: Path) -> None:
    (values,) = read_series(write(tmp_path / "x.jsonl", [1, None, 3])).series
    np.testing.assert_array_equal(values, [1.0, np.nan, 3.0])
    assert open_corpus(tmp_path / "x.jsonl").find_nonfinite() == (0, 1)


def test_names_are_the_first_strings_where_every_series_has_one(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", {"sequence": [1, 2], "id": "a", "unit": "kW"}, {"id": "b", "sequence": [3, 4]})
    corpus = open_corpus(path)
    assert [corpus.series_name(number) for number in range(2)] == ["a", "b"]
    assert corpus.find("b") == 1
    assert read_series(write(tmp_path / "y.jsonl", {"sequence": [1], "id": "a"}, [2])).names is None


def test_integers_that_float64_rounds_are_reported(tmp_path: Path) -> None:
    told: list[str] = []
    open_corpus(write(tmp_path / "x.jsonl", [1.5, 2], [2**53, -(2**53)]), report=told.append)
    assert told == []
    open_corpus(write(tmp_path / "x.jsonl", [1.5, 2], [2**53 + 1, 0]), report=told.append)
    assert told == [
        f"{tmp_path}/x.jsonl: series 1 has integers beyond 2**53, which float64 rounds. Subtract a constant from them first."
    ]


@pytest.mark.parametrize(
    ("element", "message"),
    [
        ({"target": [1]}, "line 2 of .*x.jsonl has no 'sequence'; it has 'target'"),
        ({}, "has no 'sequence'; it has no key"),
        ("text", "is a JSON string; expected a list of numbers"),
        (7, "is a JSON number; expected a list of numbers"),
        (None, "is a JSON null; expected"),
        ({"sequence": "1, 2"}, "is a JSON string; expected a list of numbers"),
        ([1, "2"], r'has "2" at point 2; expected numbers'),
        ([True, False], "has true at point 1; expected numbers"),
        ([1.5, 2**70], "has 1180591620717411303424 at point 2; .*Write larger ones as floats"),
        ([[1, 2], [3, 4]], "holds lists within its list; expected one number per point"),
        ([[1, 2], [3]], "holds lists within its list"),
        ([1, [2]], "holds lists within its list"),
        ([1, {"a": "b" * 10_000}], "has .* at point 2; expected numbers"),
    ],
)
def test_what_is_not_a_series_is_one_line(tmp_path: Path, element: Any, message: str) -> None:
    with pytest.raises(SourceInvalidError, match=message) as caught:
        read_series(write(tmp_path / "x.jsonl", [1, 2], element))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    values = element.get("sequence") if isinstance(element, dict) else element
    with pytest.raises(SourceInvalidError) as first:
        read_series(write(tmp_path / "x.jsonl", element))
    assert isinstance(first.value, NotSeries) == (not isinstance(values, list)), "a table in JSON, which is packed"
