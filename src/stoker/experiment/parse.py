"""Reading and writing configs: YAML or JSON with strict keys becomes one frozen struct, and back.

    read_document   a file -> plain values, each with its line
    override        NAME=VALUE on top
    check           plain values -> a struct, or one error that says which value, where, and what was expected
    to_yaml         all values of a struct, as YAML that reads back as the same
    explain         the manual of the fields

YAML is read event by event, by the rules of YAML 1.2, where `1e-3` is a number and `no` a string. What could make a small file
mean something large or something else is refused: aliases, tags, several documents, duplicate keys, deep nesting.

The struct is a parameter: `Config` for `stoker train`, the settings of recipes for theirs. Nothing here imports torch.
"""

from __future__ import annotations

import copy
import difflib
import functools
import inspect
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar, get_type_hints

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.inspect import Field, ListType, LiteralType, NoneType, StructType, Type, UnionType, type_info

from stoker._types import LARGE, docstrings, expected
from stoker.errors import ConfigError

CONFIG_NAME = "config.yaml"
"""The config with all its values, in the folder of a run."""
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
    """Values that replace those of the file, and by which option they came."""

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
        raise ConfigError(f"{name} is a folder; expected a configuration, such as config.yaml.")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"{name} does not exist. `stoker train --fields` shows what a configuration may hold.") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{name} has more than {MAX_BYTES:,} bytes; a config is smaller.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not UTF-8 text (byte {error.start:,}).") from None
    lines: dict[Path_, int] = {}
    value = parse_json(text, name) if path.suffix == ".json" else parse_yaml(text, name, lines)
    if not isinstance(value, dict):
        raise ConfigError(f"{name} holds {describe(value)}; expected keys and their values, such as `data:`.")
    return Document(name, value, lines)


def parse_json(text: str, name: str) -> Any:
    """The value of a JSON text."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ConfigError(f"{name}: the key {key!r} comes twice. Remove one of them.")
            found[key] = value
        return found

    def whole(digits: str) -> int:
        if not _INT.fullmatch(digits):
            raise ConfigError(f"{name}: a number of {len(digits):,} digits is too large.")
        return int(digits)

    try:
        return json.loads(text, object_pairs_hook=unique, parse_int=whole)
    except RecursionError:
        raise ConfigError(f"{name} is nested deeper than {MAX_DEPTH} levels.") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name}:{error.lineno} is not JSON: {error.msg}.") from None


def parse_yaml(text: str, name: str, lines: dict[Path_, int] | None = None) -> Any:
    """The value of a YAML text; `lines` gets the line of each part."""
    import yaml

    try:
        return _Builder(name, yaml.parse(text, Loader=yaml.SafeLoader), {} if lines is None else lines).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        problem = " ".join(str(error.problem or error.context).split())
        raise ConfigError(f"{name}{line} is not YAML: {problem}.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is not YAML: {' '.join(str(error).split())}.") from None


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
        return f"the string {value[:60]!r}"
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
        next(self._events)  # the start of the stream
        if _kind(next(self._events)) == "StreamEnd":
            return {}
        value = self._value(next(self._events), ())
        next(self._events)  # the end of the document
        event = next(self._events)
        if _kind(event) != "StreamEnd":
            self._refuse(event, "a second document begins here; a configuration is one. Remove the line `---`")
        return value

    def _value(self, event: Any, path: Path_) -> Any:
        self._lines.setdefault(path, event.start_mark.line + 1)
        kind = _kind(event)
        if kind == "Alias":
            self._refuse(event, f"the alias *{event.anchor} is not read here. Write its value out")
        if event.tag is not None:
            self._refuse(event, f"the tag {event.tag!r} is not read here. Leave it out: types are known")
        if len(path) > MAX_DEPTH:
            self._refuse(event, f"values are nested deeper than {MAX_DEPTH} levels")
        if kind == "Scalar":
            return scalar(event.value) if event.implicit[0] else event.value
        if kind == "SequenceStart":
            items: list[Any] = []
            while _kind(event := next(self._events)) != "SequenceEnd":
                items.append(self._value(event, (*path, len(items))))
            return items
        found: dict[str, Any] = {}
        while _kind(event := next(self._events)) != "MappingEnd":
            if _kind(event) != "Scalar" or event.tag is not None:
                self._refuse(event, "a key is expected here, which is a plain word")
            here = (*path, event.value)
            if event.value in found:
                self._refuse(event, f"{_dotted(here)} comes twice (first in line {self._lines[here]}). Remove one of them")
            self._lines[here] = event.start_mark.line + 1
            found[event.value] = self._value(next(self._events), here)
        return found

    def _refuse(self, event: Any, what: str) -> NoReturn:
        raise ConfigError(f"{self._name}:{event.start_mark.line + 1}: {what}.")


def _kind(event: Any) -> str:
    return type(event).__name__.removesuffix("Event")


# Checking: plain values become a `Config`, or one line that says which value, where, and what was expected.

T = TypeVar("T", bound=msgspec.Struct)
OWN = "own"


class Known(NamedTuple):
    """One field that a configuration may have."""

    path: tuple[str, ...]
    field: Field
    owner: type

    @property
    def dotted(self) -> str:
        """As it is written."""
        return ".".join(self.path)


def known_fields(config: type, path: tuple[str, ...] = ()) -> Iterator[Known]:
    """All fields, of all choices; a field that several choices have comes once for each."""
    for one in _struct(config).fields:
        here = (*path, one.name)
        yield Known(here, one, config)
        for choice in structs_of(one.type):
            yield from known_fields(choice.cls, here)


def structs_of(info: Type) -> list[StructType]:
    """The records that a value may be."""
    return [one for one in _types(info) if isinstance(one, StructType)]


def _types(info: Type) -> tuple[Type, ...]:
    return info.types if isinstance(info, UnionType) else (info,)


def check(document: Document, config: type[T]) -> T:
    """The configuration that a document means."""
    whole = _Check(document, sorted({one.dotted for one in known_fields(config)}))
    tree = whole.struct(document.tree, _struct(config), ())
    try:
        return msgspec.convert(tree, config)
    except msgspec.ValidationError as error:  # a rule that the walk does not know
        raise ConfigError(f"{document.name}: {error}.") from error


@functools.cache  # milliseconds each, and a check asks for every record of a configuration
def _struct(config: type) -> StructType:
    info = type_info(config)
    if not isinstance(info, StructType):
        raise TypeError(f"{config} is not a record")
    return info


class _Check:
    """One walk over a document, along the fields that it may have."""

    def __init__(self, document: Document, known: list[str]) -> None:
        self._document = document
        self._known = known

    def struct(self, value: Any, info: StructType, path: Path_) -> dict[str, Any]:
        """A record with every key known and every value of its type."""
        if not isinstance(value, dict):
            self._expected(value, path, f"keys such as {', '.join(field.name for field in info.fields[:3])}")
        fields = {field.name: field for field in info.fields}
        for key in value:
            if key not in fields and key != info.tag_field:
                self._unknown((*path, key), list(fields))
        missing = [name for name, field in fields.items() if field.required and name not in value]
        if missing:
            self._missing((*path, missing[0]), expected(fields[missing[0]].type))
        hints = get_type_hints(info.cls, include_extras=True)
        checked = {key: self._field(value[key], field, hints[key], (*path, key)) for key, field in fields.items() if key in value}
        return {**value, **checked}

    def _field(self, value: Any, field: Field, hint: Any, path: Path_) -> Any:
        types, choices = _types(field.type), structs_of(field.type)
        for one in types:
            if isinstance(one, ListType) and isinstance(one.item_type, StructType) and isinstance(value, list):
                return [self.struct(part, one.item_type, (*path, i)) for i, part in enumerate(value)]
        if not choices:
            return self._plain(value, field.type, hint, path)
        if value is None and any(isinstance(one, NoneType) for one in types):
            return None
        if len(choices) == 1 and choices[0].tag_field is None:
            is_plain = not isinstance(value, dict) and any(not isinstance(one, StructType | NoneType) for one in types)
            return self._plain(value, field.type, hint, path) if is_plain else self.struct(value, choices[0], path)
        tags = {str(choice.tag): choice for choice in choices}
        value = spelt_out(value)
        if not isinstance(value, dict):
            self._expected(value, path, f"a name: {', '.join(tags)}")
        name = value.get("name", default_tag(field))
        if name is None:
            self._missing((*path, "name"), f"one of {', '.join(tags)}")
        if not isinstance(name, str) or name not in tags:
            self._expected(name, (*path, "name"), f"one of {', '.join(tags)}{_nearest(name, tags)}")
        return {"name": name, **self.struct(value, tags[name], path)}

    def _plain(self, value: Any, info: Type, hint: Any, path: Path_) -> Any:
        for part in _leaves(value):
            if isinstance(part, float) and not math.isfinite(part):
                self._expected(part, path, f"{expected(info)} that is finite")
            if isinstance(part, str) and "\0" in part:
                self._expected(value, path, f"{expected(info)} without NUL")
        try:
            msgspec.convert(value, hint)
        except msgspec.ValidationError:
            is_large = any(isinstance(part, int) and part >= LARGE for part in (value if isinstance(value, list) else [value]))
            self._expected(value, path, f"{expected(info, limits=is_large)}{_nearest(value, _words(info))}")
        return value

    def _missing(self, path: Path_, what: str) -> NoReturn:
        raise ConfigError(f"{self._document.place(path[:-1])}: {_dotted(path)} is missing; expected {what}.")

    def _expected(self, value: object, path: Path_, what: str) -> NoReturn:
        where = self._document.place(path)
        found = f"the list {value}" if isinstance(value, list) else describe(value)
        raise ConfigError(f"{where}: {_dotted(path)} is {found[:200]}; expected {what}.")

    def _unknown(self, path: Path_, siblings: list[str]) -> NoReturn:
        key = str(path[-1])
        parent = [*map(str, path[:-1])]
        close = difflib.get_close_matches(key, siblings, 1, 0.6)
        elsewhere = [one for one in self._known if one.split(".")[-1] == key]
        hint = f"expected one of {', '.join(siblings)}" if siblings else "nothing can be set here"
        if _dotted(path) in self._known:
            hint = f"it goes with another {parent[-1]} than the one that is set"
        elif close:
            hint = f"did you mean {'.'.join([*parent, close[0]])}?"
        elif elsewhere:
            hint = f"did you mean {' or '.join(elsewhere)}?"
        elif near := difflib.get_close_matches(key, [one.split(".")[-1] for one in self._known], 1, 0.75):
            hint = f"did you mean {next(one for one in self._known if one.split('.')[-1] == near[0])}?"
        end = "" if hint.endswith("?") else "."
        raise ConfigError(f"{self._document.place(path)}: {_dotted(path)} is not known; {hint}{end}")


def spelt_out(value: Any) -> Any:
    """A choice that is only a name, or a function of the user's own, with its keys."""
    if isinstance(value, str):
        value = {"name": value}
    if isinstance(value, dict) and isinstance(value.get("name"), str) and ".py:" in value["name"]:
        return {**value, "name": OWN, "function": value["name"]}
    return value


def default_tag(field: Field) -> str | None:
    """The choice that a field has where none is named."""
    if field.default is not NODEFAULT and isinstance(field.default, msgspec.Struct):
        return str(field.default.__struct_config__.tag)
    # A section that may be left out, but is there, is of its first kind.
    return str(structs_of(field.type)[0].tag) if field.default is None else None


def _words(info: Type) -> list[str]:
    kinds = [one for one in _types(info) if isinstance(one, LiteralType)]
    return [value for kind in kinds for value in kind.values if isinstance(value, str)]


def _nearest(value: object, words: Mapping[str, Any] | list[str]) -> str:
    close = difflib.get_close_matches(value, list(words), 1, 0.5) if isinstance(value, str) else []
    return f" (did you mean {close[0]}?)" if close else ""


def _leaves(value: Any) -> Iterator[Any]:
    """All keys and values within a value."""
    if isinstance(value, list | dict):
        for part in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _leaves(part)
    else:
        yield value


def _dotted(path: Path_) -> str:
    return ".".join(map(str, path)) or "the configuration"


# Overrides: `--set data.batch_size=512`, typed like the file and named by as much of the path as is needed.

OPTION = "overrides"


def override(document: Document, assignments: Sequence[str], config: type) -> Document:
    """The document with some values set; later assignments win."""
    known = known_paths(config)
    tree, options = copy.deepcopy(document.tree), dict(document.options)
    for assignment in assignments:
        name, sign, text = assignment.partition("=")
        if not sign:
            raise ConfigError(f"{OPTION} is {assignment!r}; expected NAME=VALUE, such as batch_size=512.")
        path = find(name.strip(), known)
        section = tree
        for depth, key in enumerate(path[:-1], 1):
            inner = section.get(key)
            inner = spelt_out(inner) if (*path[:depth], "name") in known else inner  # a word is the name of a choice
            section[key] = inner if isinstance(inner, dict) else {}
            section = section[key]
        section[path[-1]] = parse_yaml(text, f"{OPTION} {name.strip()}")
        options[path] = OPTION
    return replace(document, tree=tree, options=options)


def known_paths(config: type) -> list[tuple[str, ...]]:
    """All that can be set: fields, and the names of choices."""
    found: set[tuple[str, ...]] = set()
    for one in known_fields(config):
        found.add(one.path)
        if any(choice.tag is not None for choice in structs_of(one.field.type)):
            found.add((*one.path, "name"))
    return sorted(found)


IN_FULL = (("data", "cache"),)
"""Sections whose fields are always written in full: `folder` alone is that of the run."""


def find(name: str, known: Sequence[tuple[str, ...]], *, option: str = OPTION) -> tuple[str, ...]:
    """The path that is meant by a whole path, or by an end of it that only one has."""
    parts = tuple(name.split("."))
    if parts in known:
        return parts
    ends = [path for path in known if path[-len(parts) :] == parts and path[:-1] not in IN_FULL]
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise ConfigError(f"{option} {name} could be {' or '.join(map('.'.join, ends))}. Write it in full.")
    for stop in range(len(parts) - 1, 1, -1):  # below the options of a function of the user's own, any name is known
        if parts[stop - 1] == "options" and parts[:stop] in known:
            return parts
    names = {".".join(path[start:]): path for path in known for start in range(len(path))}
    close = difflib.get_close_matches(name, names, 1, 0.6)
    hint = f"did you mean {'.'.join(names[close[0]])}?" if close else "`stoker train --fields` shows all."
    raise ConfigError(f"{option} {name} is not known; {hint}")


# Writing: a configuration with all its values, as YAML that reads back as the same.


def to_tree(config: msgspec.Struct) -> dict[str, Any]:
    """Plain values of all fields, as JSON has them."""
    tree: dict[str, Any] = msgspec.to_builtins(config, builtin_types=())
    return tree


def to_yaml(config: msgspec.Struct) -> bytes:
    """All fields as YAML."""
    import yaml

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        """Quotes every text that would be read as something else."""

    def text(dumper: Any, value: str) -> Any:
        style = None if value.isprintable() and scalar(value) == value else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    Dumper.ignore_aliases = lambda *_: True
    dumped: str = yaml.dump(to_tree(config), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)
    return dumped.encode()


# The manual of the fields: what the sources say under each field, for `stoker train --fields`.


def explain(config: StructType, indent: str = "") -> Iterator[str]:
    """A line for each field, in the form of the file: the key, its default, and what it means."""
    texts = docstrings(config.cls)
    for one in config.fields:
        choices = structs_of(one.type)
        yield f"{indent}{one.name}: {_default(one)}".ljust(34) + f"# {texts[one.name]}"
        if not choices:
            yield " " * 34 + f"#   {expected(one.type)}{'; must be given' if one.required else ''}"
            continue
        for choice in choices:
            inner = indent + "    "
            if choice.tag is not None:
                yield f"{inner[:-2]}name: {choice.tag}".ljust(34) + f"# {(inspect.getdoc(choice.cls) or '').partition(chr(10))[0]}"
            yield from explain(choice, inner)


def _default(one: Field) -> str:
    if structs_of(one.type):
        return "null" if any(isinstance(kind, NoneType) for kind in _types(one.type)) else default_tag(one) or ""
    value: Any = one.default_factory() if one.default_factory is not NODEFAULT else one.default
    if value is NODEFAULT or isinstance(value, Struct):
        return "…"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(list(value)) if isinstance(value, tuple) else str(value)
