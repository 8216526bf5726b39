"""Which columns are computed as rows are read, which from sorted series, and which are read for expressions alone."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from stoker.errors import OptionError
from stoker.store.expressions import parse_expression
from stoker.store.pack.options import PackOptions, check_late, checked_result, early_names, late_derived, late_inputs, read_names

SCHEMA = pa.schema([("k", pa.string()), ("x", pa.float64()), ("n", pa.int64()), ("steps", pa.large_list(pa.float64()))])


def test_lags_functions_lists_and_what_uses_them_come_late() -> None:
    derive = {
        "a": "x + n",
        "b": "a * 2",
        "c": "lag(x)",
        "d": "c + n",
        "e": lambda columns: columns["x"],
        "f": "steps * 2",
        "g": "e + 1",
    }
    options = PackOptions(derive=derive)
    early = early_names(SCHEMA, options)
    assert early == ["a", "b"]
    changed = pa.schema([*SCHEMA, *((name, pa.float64()) for name in early)])
    late = late_derived(changed, options)
    assert list(late) == ["c", "d", "e", "f", "g"]
    assert late_inputs(late) == {"x", "c", "n", "steps", "e"}


def test_columns_that_only_expressions_use_are_hidden() -> None:
    options = PackOptions(columns=("n", "late"), series="k", where="steps2 > 0", derive={"late": "lag(x)"})
    schema = pa.schema([*SCHEMA, ("steps2", pa.int64()), ("unused", pa.int64())])
    assert read_names(schema, options) == (["n", "k", "x", "steps2"], {"x", "steps2"})
    assert read_names(schema, PackOptions(where="x > 0")) == (schema.names, frozenset())


def test_unknown_columns_and_strings_are_refused() -> None:
    expression = parse_expression("lag(y)", "derive={'a': …}")
    with pytest.raises(OptionError, match=r"uses 'y', but the file has the columns x"):
        check_late("a", expression, {"x": np.empty(0)}, "the file", key=None)
    with pytest.raises(OptionError, match=r"uses 'y', which holds one value per series"):
        check_late("a", expression, {"x": np.empty(0)}, "the file", key="y")
    check_late("a", expression, {"y": np.empty(0)}, "the file", key=None)
    with pytest.raises(OptionError, match="gives strings"):
        checked_result(expression, np.array(["a"]))
