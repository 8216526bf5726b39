"""What a text means, and what is refused: nothing in a file can become code, or much larger than it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.errors import ConfigError
from stoker.experiment.parse import parse_yaml, read_document, scalar


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),  # a text by the rules of YAML 1.1
        ("1E5", 1e5),
        ("3.", 3.0),
        (".5", 0.5),
        ("-0.25e+2", -25.0),
        ("12", 12),
        ("-7", -7),
        ("0", 0),
        ("true", True),
        ("~", None),
        ("", None),
        ("no", "no"),
        ("on", "on"),
        ("1_000", "1_000"),
        ("017", "017"),
        ("12:30", "12:30"),
        ("2020-01-01", "2020-01-01"),
        ("0x1f", "0x1f"),
        ("fp16", "fp16"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_plain_words(text: str, value: object) -> None:
    found = scalar(text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb:\n  c: 2\n  c: 3\n", "f:4: b.c comes twice (first in line 3). Remove one of them."),
        ("a: &x [1]\nb: *x\n", "f:2: the alias *x is not read here. Write its value out."),
        (
            "a: !!python/object/apply:os.system [ls]\n",
            "f:1: the tag 'tag:yaml.org,2002:python/object/apply:os.system' is not read here.",
        ),
        ("a: !!str 3\n", "f:1: the tag"),
        ("a: 1\n---\nb: 2\n", "f:2 is not YAML: expected a single document in the stream but found another document."),
        ("? [1, 2]\n: 3\n", "f:1: a key is expected here, which is a plain word."),
        ("*x : 3\n", "f:1: the alias *x is not read here."),
        ("a: b: c\n", "f:1 is not YAML: mapping values are not allowed here."),
        ("a: [1\n", "f:2 is not YAML:"),
        ("a: \x00\n", "f is not YAML: unacceptable character"),
        ("[" * 200, "f:1: values are nested deeper than 16 levels."),
        ("a: {" * 200, "f:1"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "f")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_bomb_of_aliases_is_refused_before_it_unfolds() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    with pytest.raises(ConfigError, match="f:2: the alias"):
        parse_yaml("\n".join(lines), "f")


def test_json_and_yaml_mean_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": {"b": [1, 2.5, "x", null, true]}}')
    (tmp_path / "a.yaml").write_text("a:\n  b: [1, 2.5, x, null, true]\n")
    assert read_document(tmp_path / "a.json").tree == read_document(tmp_path / "a.yaml").tree


def test_places_are_those_of_the_file_or_of_the_option(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a:\n  b: 1\n  c: [1,\n      2]\n")
    document = read_document(tmp_path / "a.yaml")
    assert document.place(("a", "b")).endswith("a.yaml:2")
    assert document.place(("a", "c", 1)).endswith("a.yaml:4")
    assert document.place(("a", "unknown")).endswith("a.yaml:1")
    assert document.place(()).endswith("a.yaml")


def test_a_pipe_or_a_device_is_refused_without_reading_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "c.yaml")  # opening it would wait for a writer
    for path in (tmp_path / "c.yaml", Path("/dev/zero")):
        with pytest.raises(ConfigError) as error:
            read_document(path)
        assert error.value.path == str(path)
