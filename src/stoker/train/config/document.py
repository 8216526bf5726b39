"""The document: the text of a configuration as plain values, each with its line.

YAML is read event by event, by the rules of YAML 1.2, where `1e-3` is a number and `no` a text. What could make a small text
mean something large or something else is refused: aliases, tags, several documents, keys that come twice, deep nesting.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from stoker.errors import ConfigInvalid

MAX_BYTES = 256 << 10
MAX_DEPTH = 16

Path_ = tuple[str | int, ...]

_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,29})")
_FLOAT = re.compile(r"[-+]?([0-9]{1,40}\.[0-9]{0,60}|\.[0-9]{1,60})([eE][-+]?[0-9]{1,4})?|[-+]?[0-9]{1,40}[eE][-+]?[0-9]{1,4}")
_SPECIAL: Mapping[str, object] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", "+.inf", ".Inf", "+.Inf", ".INF", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}


@dataclass(frozen=True)
class Document:
    """Plain values, and where they stand."""

    name: str
    tree: dict[str, Any]
    lines: Mapping[Path_, int] = field(default_factory=dict)
    """The line of each value by its path; empty for JSON."""
    options: Mapping[Path_, str] = field(default_factory=dict)
    """Values that came from the command line, and by which option."""

    def place(self, path: Path_) -> str:
        """The file, and the line of a value as far as it is known; or the option that set it."""
        for stop in range(len(path), 0, -1):
            if path[:stop] in self.options:
                return self.options[path[:stop]]
            if path[:stop] in self.lines:
                return f"{self.name}:{self.lines[path[:stop]]}"
        return self.name


def read_document(path: Path) -> Document:
    """Read a file: JSON by its name, otherwise YAML."""
    name = str(path)
    if path.is_dir():
        raise ConfigInvalid(f"{name} is a folder; expected a configuration, such as config.yaml.")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigInvalid(f"{name} does not exist. `stoker train --fields` shows what a configuration may hold.") from None
    if len(data) > MAX_BYTES:
        raise ConfigInvalid(f"{name} has more than {MAX_BYTES:,} bytes, which no configuration needs.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigInvalid(f"{name} is not UTF-8 text (byte {error.start:,}).") from None
    lines: dict[Path_, int] = {}
    value = parse_json(text, name) if path.suffix == ".json" else parse_yaml(text, name, lines)
    if not isinstance(value, dict):
        raise ConfigInvalid(f"{name} holds {describe(value)}; expected keys and their values, such as `data:`.")
    return Document(name, value, lines)


def parse_json(text: str, name: str) -> Any:
    """The value of a JSON text."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ConfigInvalid(f"{name}: the key {key!r} comes twice. Remove one of them.")
            found[key] = value
        return found

    def whole(digits: str) -> int:
        if not _INT.fullmatch(digits):
            raise ConfigInvalid(f"{name}: a number of {len(digits):,} digits is not meant. Write a smaller one.")
        return int(digits)

    try:
        return json.loads(text, object_pairs_hook=unique, parse_int=whole)
    except RecursionError:
        raise ConfigInvalid(f"{name} is nested deeper than {MAX_DEPTH} levels.") from None
    except json.JSONDecodeError as error:
        raise ConfigInvalid(f"{name}:{error.lineno} is not JSON: {error.msg}.") from None


def parse_yaml(text: str, name: str, lines: dict[Path_, int] | None = None) -> Any:
    """The value of a YAML text; `lines` gets the line of each part."""
    import yaml

    try:
        return _Builder(name, yaml.parse(text, Loader=yaml.SafeLoader), {} if lines is None else lines).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        problem = " ".join(str(error.problem or error.context).split())
        raise ConfigInvalid(f"{name}{line} is not YAML: {problem}.") from None
    except yaml.YAMLError as error:
        raise ConfigInvalid(f"{name} is not YAML: {' '.join(str(error).split())}.") from None


def scalar(text: str) -> Any:
    """What a plain word means."""
    if text in _SPECIAL:
        return _SPECIAL[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def describe(value: object) -> str:
    """A value as a message shows it."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the text {value[:60]!r}"
    if isinstance(value, dict):
        return "keys and values"
    return "a list" if isinstance(value, list) else str(value)


class _Builder:
    """Makes values of the events of a YAML parser."""

    def __init__(self, name: str, events: Iterator[Any], lines: dict[Path_, int]) -> None:
        self._name = name
        self._events = events
        self._lines = lines

    def document(self) -> Any:
        """The value of the only document; an empty text is an empty configuration."""
        from yaml import events as kinds

        next(self._events)  # the start of the stream
        event = next(self._events)
        if isinstance(event, kinds.StreamEndEvent):
            return {}
        value = self._value(next(self._events), ())
        next(self._events)  # the end of the document
        event = next(self._events)
        if not isinstance(event, kinds.StreamEndEvent):
            self._refuse(event, "a second document begins here; a configuration is one. Remove the line `---`")
        return value

    def _value(self, event: Any, path: Path_) -> Any:
        from yaml import events as kinds

        self._lines.setdefault(path, event.start_mark.line + 1)
        if isinstance(event, kinds.AliasEvent):
            self._refuse(event, f"the alias *{event.anchor} is not read here. Write its value out")
        if event.tag is not None:
            self._refuse(event, f"the tag {event.tag!r} is not read here. Leave it out: types are known")
        if len(path) > MAX_DEPTH:
            self._refuse(event, f"values are nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, kinds.ScalarEvent):
            return scalar(event.value) if event.implicit[0] else event.value
        if isinstance(event, kinds.SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(event := next(self._events), kinds.SequenceEndEvent):
                items.append(self._value(event, (*path, len(items))))
            return items
        return self._mapping(path)

    def _mapping(self, path: Path_) -> dict[str, Any]:
        from yaml import events as kinds

        found: dict[str, Any] = {}
        while not isinstance(event := next(self._events), kinds.MappingEndEvent):
            if not isinstance(event, kinds.ScalarEvent) or event.tag is not None:
                self._refuse(event, "a key is expected here, which is a plain word")
            key = event.value
            if key in found:
                where = ".".join(map(str, (*path, key)))
                self._refuse(event, f"{where} comes twice (first in line {self._lines[*path, key]}). Remove one of them")
            self._lines[*path, key] = event.start_mark.line + 1
            found[key] = self._value(next(self._events), (*path, key))
        return found

    def _refuse(self, event: Any, what: str) -> NoReturn:
        raise ConfigInvalid(f"{self._name}:{event.start_mark.line + 1}: {what}.")
