"""A spec is understood in full or refused with the field that is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from benchmarks.tfa.bench_indicators import spec_of_55
from tests.recipes.tfa.indicators.specs import all_operators

from stoker.errors import OptionError
from stoker_recipes.tfa.indicators.spec import parse_spec

EMA = {"name": "a", "op": "EMA", "window": 20}


def test_a_spec_may_be_a_mapping_text_bytes_or_a_file(tmp_path: Path) -> None:
    content = spec_of_55()
    text = json.dumps(content)
    path = tmp_path / "features.json"
    path.write_text(text)
    whole = parse_spec(content)
    for given in (text, text.encode(), path, str(path), whole):
        assert parse_spec(given).names == whole.names
        assert parse_spec(given).content_hash == whole.content_hash


def test_features_without_a_name_get_that_of_sentios_python() -> None:
    features = [{"op": "EMA"}, {"op": "EMA", "window": 20}, {"op": "BOLLINGER_UPPER", "source": "hlc", "window": 5, "k": 2}]
    assert parse_spec({"features": features}, compat="sentio").names == ("EMA___", "EMA__20_", "BOLLINGER_UPPER_hlc_5_2")


def refused(change: Any) -> str:
    """The message for a spec; a mapping is merged into one feature."""
    content = change if "features" in change else {"features": [EMA, {"name": "b", "op": "EMA", **change}]}
    with pytest.raises(OptionError) as error:
        parse_spec(content)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"op": "EMAA"}, "the spec at $.features[1].op: found 'EMAA', expected an operator (did you mean 'EMA'?)."),
        ({"window": 2.5}, "the spec is not a spec of features: Expected int | null, got float - at $.features[1].window."),
        ({"k": 2.0}, "the spec at $.features[1].k: found 2, expected nothing: EMA takes window."),
        ({"name": 7}, "the spec is not a spec of features: Expected str | null, got int - at $.features[1].name."),
        ({"features": [{}]}, "the spec is not a spec of features: Object missing required field op - at $.features[0]."),
        (
            {"features": [{"op": "BOLLINGER_UPPER", "k": float("inf")}]},
            "the spec at $.features[0].k: found inf, expected a finite number.",
        ),
    ],
)
def test_a_wrong_field_is_named(change: Any, message: str) -> None:
    assert refused(change) == message


@pytest.mark.timeout(30)
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "spec.json")
    for path in (tmp_path / "spec.json", Path("/dev/zero")):
        with pytest.raises(OptionError, match=r"cannot be read as a spec: it is not a plain file\."):
            parse_spec(path)


def test_a_file_that_is_not_a_spec_is_named(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    with pytest.raises(OptionError, match=r"spec\.json cannot be read as a spec: No such file or directory\."):
        parse_spec(path)
    path.write_text("{")
    with pytest.raises(OptionError, match=r"spec\.json is not JSON: Input data was truncated\."):
        parse_spec(path)
    path.write_text("[1]")
    with pytest.raises(OptionError, match=r'spec\.json holds a list, but a spec is an object with "features"\.'):
        parse_spec(path)
    path.write_text('{"features": [{"op": "NOPE"}]}')
    with pytest.raises(OptionError, match=r"spec\.json at \$\.features\[0\]\.op"):
        parse_spec(path)
    with pytest.raises(OptionError, match="a spec is a mapping, a JSON string, or the path of a file; found int"):
        parse_spec(7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the spec is not JSON: "),
        ("features:\n  - op: EMA\n", "the spec is not JSON: "),
        ('{"features": [{"op": "EMA"}], "features": []}', "the spec has the field 'features' twice in one object."),
        ('{"features": ' + "[" * 100_000, "the spec is not JSON: "),
        ('{"features": [{"op": "EMA", "window": ' + "9" * 5000 + "}]}", "the spec "),
        ("a\0b", "a\0b cannot be read as a spec: "),
    ],
)
def test_a_string_that_is_not_a_spec_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(OptionError) as error:
        parse_spec(text)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_the_arithmetic_may_be_said_in_the_spec_or_beside_it() -> None:
    content = {**all_operators(), "compat": "sentio"}
    assert parse_spec(content).compat == "sentio"
    assert parse_spec(all_operators()).compat is None
    assert parse_spec(parse_spec(all_operators()), compat="sentio").compat == "sentio"
    with pytest.raises(OptionError, match="compat is 'talib'; expected 'sentio'"):
        parse_spec(content, compat="talib")
