"""The plan: how rows are grouped, and what cannot be planned."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import stoker
from stoker.errors import BadValueError, OptionError, SourceInvalidError
from stoker.store import PackOptions, PackPlan, make_plan
from stoker.store.formats.discover import table_source


def plan(table: dict[str, Any], **options: Any) -> PackPlan:
    time = options.pop("time", None)
    return make_plan([table_source(table)], PackOptions(**options, times=None if time is None else stoker.Time(time)))


@pytest.mark.parametrize(
    ("columns", "options", "error", "message"),
    [
        ({"x": [1]}, {"series": "k"}, OptionError, "series= names 'k', but <dict> has the columns x"),
        ({"x": [1]}, {"time": "t"}, OptionError, "time= names 't'"),
        ({"x": [1]}, {"columns": ("y",)}, OptionError, "columns= names 'y'"),
        ({"x": [1]}, {"dtypes": {"y": "int8"}}, OptionError, "dtype= names 'y'"),
        ({"k": [1]}, {"series": "k"}, OptionError, "has no column left to pack beside k"),
        (
            {"k": [1.5], "x": [1]},
            {"series": "k"},
            BadValueError,
            "series='k' is double in <dict>; expected a string, an integer or",
        ),
        ({"k": [1], "x": [1]}, {"series": "k", "time": "k"}, OptionError, "time= names 'k'"),
        ({"t": ["noon"], "x": [1]}, {"time": "t"}, BadValueError, "the time column 't' of <dict> is a string that is not ISO 8601"),
        ({"t": [1], "x": [[1.0]]}, {"time": "t"}, OptionError, "time= names 't', which has one value per series"),
        (
            {"w": ["a"], "x": [1]},
            {"dtypes": {"w": "int8"}},
            BadValueError,
            "column 'w' of <dict> is a string, so it cannot become int8",
        ),
        ({"x": [[1.0]]}, {"wide": True}, OptionError, "wide=True needs tables with one number per cell"),
        ({"w": ["a"]}, {"wide": True}, OptionError, "wide=True found no numeric column in <dict>, only w"),
        (
            {"x": pa.array([{"a": 1}])},
            {},
            SourceInvalidError,
            "column 'x' of <dict> is struct<a: int64>, which a store cannot hold",
        ),
        ({"x": pa.array([b"1"])}, {}, SourceInvalidError, "column 'x' of <dict> is binary"),
        ({"x": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))}, {}, SourceInvalidError, "which a store cannot hold"),
        ({"caf\u00e9": [1], "cafe\u0301": [2]}, {}, SourceInvalidError, "has two columns named"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    columns: dict[str, Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        plan(columns, **options)
