"""Reading and writing configs: YAML or JSON with strict keys becomes one frozen struct, and back.

    read_document   a file -> plain values, each with its line
    override        NAME=VALUE on top
    check           plain values -> a struct, or one error that says which value, where, and what was expected
    to_yaml         all values of a struct, as YAML that reads back as the same
    explain         the manual of the fields

PyYAML makes nodes, and words are read by the rules of YAML 1.2, where `1e-3` is a number and `no` a string. What could make a small
file mean something large or something else is refused: aliases, tags, several documents, duplicate keys, deep nesting. msgspec
converts and checks; a sentence is made of where it failed.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar, get_type_hints

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.inspect import DataclassType, Field, ListType, LiteralType, NoneType, StructType, Type, UnionType, type_info

from stoker._types import LARGE, docstrings, expected
from stoker.errors import ConfigError

CONFIG_NAME = "config.yaml"
"""The config with all its values, in the folder of a run."""
MAX_BYTES = 256 << 10
MAX_DEPTH = 16

Path_ = tuple[str | int, ...]
Place = Callable[[Any], str]
"""Names the file and the line of a mark of PyYAML."""

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
    """Read a file: JSON by its name, otherwise YAML.

    Args:
        path: The file.

    Returns:
        Plain values, and the line of each.

    Raises:
        ConfigError: It is not a file of keys and values. The message names the line.

    Example:
        >>> _ = Path("waves.yaml").write_text("epochs: 3\\n")
        >>> read_document(Path("waves.yaml")).tree
        {'epochs': 3}
    """
    name = str(path)
    if path.is_dir():
        raise ConfigError(f"{name} is a folder; expected a configuration, such as config.yaml.")
    if path.exists() and not path.is_file():
        raise ConfigError(
            f"{name} is a pipe or a device, which may never end; expected a file, or - for standard input.", path=path
        )
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

    try:
        return json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        raise ConfigError(f"{name} is nested deeper than {MAX_DEPTH} levels.") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name}:{error.lineno} is not JSON: {error.msg}.") from None
    except ValueError as error:  # a number of thousands of digits
        raise ConfigError(f"{name} is not JSON: {str(error).partition(';')[0]}.") from None


def parse_yaml(text: str, name: str, lines: dict[Path_, int] | None = None, *, of_file: bool = True) -> Any:
    """The value of a YAML text, an empty configuration if it has none; `lines` gets the line of each part.

    Errors name the line, unless the text is not `of_file` but the value of an option.
    """
    import yaml

    def place(mark: Any) -> str:
        return f"{name}:{mark.line + 1}" if of_file and mark else name

    try:
        loader = _loader()(text)
        loader.place = place
        node = loader.get_single_node()
        return {} if node is None else _value_of(node, (), place, {} if lines is None else lines)
    except yaml.MarkedYAMLError as error:
        problem = " ".join(" ".join(filter(None, (error.context, error.problem))).split())
        raise ConfigError(f"{place(error.problem_mark or error.context_mark)} is not YAML: {problem}.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is not YAML: {' '.join(str(error).split())}.") from None


@functools.cache
def _loader() -> Any:
    """The loader that refuses, before a node is made, what could mean much or something else."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Composes nodes without aliases and tags, down to a depth."""

        depth = 0
        place: Place

        def compose_node(self, parent: Any, index: Any) -> Any:
            """Compose one node, if the event that begins it is allowed."""
            event = self.peek_event()
            if isinstance(event, yaml.AliasEvent):
                _refuse(self.place, event, f"the alias *{event.anchor} is not read here. Write its value out")
            if event.tag is not None:
                _refuse(self.place, event, f"the tag {event.tag!r} is not read here. Leave it out: types are known")
            if self.depth > MAX_DEPTH:
                _refuse(self.place, event, f"values are nested deeper than {MAX_DEPTH} levels")
            self.depth += 1
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

    return Loader


def _value_of(node: Any, path: Path_, place: Place, lines: dict[Path_, int]) -> Any:
    """The value of a node."""
    lines.setdefault(path, node.start_mark.line + 1)
    if node.id == "scalar":
        return node.value if node.style else scalar(node.value)
    if node.id == "sequence":
        return [_value_of(item, (*path, i), place, lines) for i, item in enumerate(node.value)]
    members: dict[str, Any] = {}
    for key, value in node.value:
        if key.id != "scalar":
            _refuse(place, key, "a key is expected here, which is a plain word")
        here = (*path, key.value)
        if key.value in members:
            _refuse(place, key, f"{_dotted(here)} comes twice (first in line {lines[here]}). Remove one of them")
        lines[here] = key.start_mark.line + 1
        members[key.value] = _value_of(value, here, place, lines)
    return members


def _refuse(place: Place, part: Any, what: str) -> NoReturn:
    raise ConfigError(f"{place(part.start_mark)}: {what}.")


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
    """Convert a document to a struct.

    Args:
        document: What `read_document` returned, perhaps with values replaced by `override`.
        config: A struct of msgspec; its types hold the limits of values.

    Returns:
        The struct.

    Raises:
        ConfigError: A key is unknown, or a value is not what its field may be. The message names the file and the line.

    Example:
        >>> class Waves(msgspec.Struct):
        ...     epochs: int = 1
        >>> check(Document("waves.yaml", {"epochs": 3}), Waves).epochs
        3
    """
    tree = _in_full(document.tree, _struct(config))
    try:
        converted = msgspec.convert(tree, config)
    except msgspec.ValidationError as error:
        raise _sentence(error, document, tree, config) from None
    for path, part in _leaves(tree):
        if (isinstance(part, float) and not math.isfinite(part)) or (isinstance(part, str) and "\0" in part):
            raise _unexpected(document, tree, config, path)
    return converted


@functools.cache  # milliseconds each, and a check asks for every record of a configuration
def _struct(config: type) -> StructType | DataclassType:
    info = type_info(config)
    if not isinstance(info, StructType | DataclassType):
        raise TypeError(f"{config} is not a record")
    return info


def _in_full(value: Any, info: Type, default: str | None = None) -> Any:
    """A value in which every choice has its name and its keys."""
    for kind in _types(info):
        if isinstance(kind, ListType) and isinstance(value, list):
            return [_in_full(part, kind.item_type) for part in value]
    choices = structs_of(info)
    if any(choice.tag is not None for choice in choices):
        value = spelt_out(value)
        value = {"name": default, **value} if isinstance(value, dict) and default is not None else value
    fields = {field.name: field for field in _fields(choices, value)}
    if not isinstance(value, dict) or not fields:
        return value
    return {
        key: _in_full(part, fields[key].type, default_tag(fields[key])) if key in fields else part for key, part in value.items()
    }


def _fields(choices: Sequence[StructType], value: Any) -> Sequence[Field]:
    """The fields of a record, or of the choice that the value names."""
    tag = value.get("name") if isinstance(value, dict) else None
    return next((choice.fields for choice in choices if choice.tag is None or choice.tag == tag), ())


_FAILED = re.compile(
    r"(?:Object contains (unknown) field `([^`]*)`|Object (missing) required field `([^`]*)`|.*?)(?: - at .*`\$(.*)`)?", re.DOTALL
)
_KEY = re.compile(r"\.([^.\[]+)|\[(\d+)\]")


def _sentence(error: msgspec.ValidationError, document: Document, tree: Any, config: type) -> ConfigError:
    """What msgspec refused, in our words."""
    match = _FAILED.fullmatch(str(error))
    unknown, key, missing, name, place = match.groups() if match is not None else (None,) * 5
    path: Path_ = tuple(int(index) if index else key for key, index in _KEY.findall(place or ""))
    value, info = _at(tree, config, path)[1:]
    if unknown is not None and key is not None:
        siblings = [field.name for field in _fields(structs_of(info), value)]
        return _at_place(document, (*path, key), _unknown(config, (*path, key), siblings))
    if missing is not None and name is not None:
        field = next((field for field in _fields(structs_of(info), value) if field.name == name), None)
        what = expected(field.type) if field is not None else f"one of {', '.join(_tags(info))}"
        return _at_place(document, path, f"{_dotted((*path, name))} is missing; expected {what}.")
    while path and isinstance(path[-1], int):  # a list is shown as a whole
        path = path[:-1]
    return _unexpected(document, tree, config, path)


def _at(tree: Any, config: type, path: Path_) -> tuple[Path_, Any, Type]:
    """The path as far as it goes along fields, with the value there and its type."""
    info: Type = _struct(config)
    for depth, key in enumerate(path):
        if isinstance(key, int):
            found = [kind.item_type for kind in _types(info) if isinstance(kind, ListType)]
        else:
            found = [field.type for field in _fields(structs_of(info), tree) if field.name == key]
        if not found:
            return path[:depth], tree, info
        info, tree = found[0], tree[key]
    return path, tree, info


def _unexpected(document: Document, tree: Any, config: type, path: Path_) -> ConfigError:
    """The error for a value that is not what its field may be."""
    known, value, info = _at(tree, config, path)
    tags = _tags(info)
    if path[len(known) :] == ("name",) and tags:
        value, what, near = value["name"], f"one of {', '.join(tags)}", tags
    elif tags:
        path, what, near = known, f"a name: {', '.join(tags)}", []
    else:
        numbers = value if isinstance(value, list) else [value]
        path, near = known, _words(info)
        what = expected(info, limits=any(isinstance(part, int) and part >= LARGE for part in numbers))
    parts = [part for _, part in _leaves(value)]
    what += " that is finite" if any(isinstance(part, float) and not math.isfinite(part) for part in parts) else ""
    what += " without NUL" if any(isinstance(part, str) and "\0" in part for part in parts) else _nearest(value, near)
    shown = f"the list {value}" if isinstance(value, list) else describe(value)
    return _at_place(document, path, f"{_dotted(path)} is {shown[:200]}; expected {what}.")


def _at_place(document: Document, path: Path_, sentence: str) -> ConfigError:
    """The error for a value of a document, with its file or the option that set it as a field."""
    place = document.place(path)
    fields: dict[str, Any] = {"parameter": place} if place in document.options.values() else {"path": document.name}
    return ConfigError(f"{place}: {sentence}", **fields)


def _unknown(config: type, path: Path_, siblings: Sequence[str]) -> str:
    """The sentence for a key that is not known where it stands."""
    key, parent = str(path[-1]), [*map(str, path[:-1])]
    known = sorted({field.dotted for field in known_fields(config)})
    hint = f"expected one of {', '.join(siblings)}" if siblings else "nothing can be set here"
    if _dotted(path) in known:
        hint = f"it goes with another {parent[-1]} than the one that is set"
    elif close := difflib.get_close_matches(key, siblings, 1, 0.6):
        hint = f"did you mean {'.'.join([*parent, close[0]])}?"
    elif elsewhere := [name for name in known if name.split(".")[-1] == key]:
        hint = f"did you mean {' or '.join(elsewhere)}?"
    elif near := difflib.get_close_matches(key, [name.split(".")[-1] for name in known], 1, 0.75):
        hint = f"did you mean {next(name for name in known if name.split('.')[-1] == near[0])}?"
    return f"{_dotted(path)} is not known; {hint}{'' if hint.endswith('?') else '.'}"


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
    choices = structs_of(field.type)
    return str(choices[0].tag) if field.default is None and choices else None


def _tags(info: Type) -> list[str]:
    return [str(choice.tag) for choice in structs_of(info) if choice.tag is not None]


def _words(info: Type) -> list[str]:
    kinds = [kind for kind in _types(info) if isinstance(kind, LiteralType)]
    return [value for kind in kinds for value in kind.values if isinstance(value, str)]


def _nearest(value: object, words: Sequence[str]) -> str:
    close = difflib.get_close_matches(value, list(words), 1, 0.5) if isinstance(value, str) else []
    return f" (did you mean {close[0]}?)" if close else ""


def _leaves(value: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """All keys and values within a value, with their paths."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield path, key
            yield from _leaves(part, (*path, key))
    elif isinstance(value, list):
        for i, part in enumerate(value):
            yield from _leaves(part, (*path, i))
    else:
        yield path, value


def _dotted(path: Path_) -> str:
    return ".".join(map(str, path)) or "the configuration"


# Overrides: `--set data.batch_size=512`, typed like the file and named by as much of the path as is needed.

OPTION = "overrides"


def override(document: Document, assignments: Sequence[str], config: type) -> Document:
    """Set values of a document; later assignments win.

    Args:
        document: What `read_document` returned.
        assignments: Texts such as `epochs=5`; a name is a path like `train.epochs`, or the end of one that only one field has.
        config: The struct whose fields may be named.

    Returns:
        A new document.

    Raises:
        ConfigError: A name is not known, or could be several fields.

    Example:
        >>> class Waves(msgspec.Struct):
        ...     epochs: int = 1
        >>> override(Document("waves.yaml", {}), ["epochs=5"], Waves).tree
        {'epochs': 5}
    """
    known = known_paths(config)
    tree, options = copy.deepcopy(document.tree), dict(document.options)
    for assignment in assignments:
        name, sign, text = assignment.partition("=")
        name = name.strip()
        if not sign or not name:
            raise ConfigError(f"{OPTION} is {assignment!r}; expected NAME=VALUE, such as batch_size=512.", parameter=OPTION)
        path = find(name, known)
        if not text.strip():
            raise ConfigError(f"{OPTION} {name} has no value; expected NAME=VALUE; write null for none.", parameter=OPTION)
        section = tree
        for depth, key in enumerate(path[:-1], 1):
            inner = section.get(key)
            inner = spelt_out(inner) if (*path[:depth], "name") in known else inner  # a word is the name of a choice
            section[key] = inner if isinstance(inner, dict) else {}
            section = section[key]
        try:
            section[path[-1]] = parse_yaml(text, f"{OPTION} {name}", of_file=False)
        except ConfigError as error:
            raise ConfigError(str(error), parameter=OPTION) from None
        options[path] = OPTION
    return replace(document, tree=tree, options=options)


def read_assignments(assignments: Sequence[str], record: type) -> dict[str, Any]:
    """Return the fields of a struct or dataclass that `NAME=VALUE` set, checked by their types; other fields are not needed."""
    document = override(Document(OPTION, {}), assignments, record)
    hints = get_type_hints(record, include_extras=True)
    for name, value in document.tree.items():
        try:
            document.tree[name] = msgspec.convert(value, hints[name])
        except msgspec.ValidationError:
            raise _unexpected(document, document.tree, record, (name,)) from None
    return document.tree


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
        raise ConfigError(f"{option} {name} could be {' or '.join(map('.'.join, ends))}. Write it in full.", parameter=option)
    for stop in range(len(parts) - 1, 1, -1):  # below the options of a function of the user's own, any name is known
        if parts[stop - 1] == "options" and parts[:stop] in known:
            return parts
    names = {".".join(path[start:]): path for path in known for start in range(len(path))}
    close = difflib.get_close_matches(name, names, 1, 0.6)
    hint = f"did you mean {'.'.join(names[close[0]])}?" if close else "`stoker train --fields` shows all."
    raise ConfigError(f"{option} {name} is not known; {hint}", parameter=option)


# Writing: a configuration with all its values, as YAML that reads back as the same.


def to_tree(config: msgspec.Struct) -> dict[str, Any]:
    """Return plain values of all fields, as JSON has them.

    Args:
        config: A struct.

    Example:
        >>> class Waves(msgspec.Struct):
        ...     epochs: int = 1
        >>> to_tree(Waves())
        {'epochs': 1}
    """
    tree: dict[str, Any] = msgspec.to_builtins(config, builtin_types=())
    return tree


def to_yaml(config: msgspec.Struct) -> bytes:
    """Return all fields as YAML that reads back as the same.

    Args:
        config: A struct.

    Example:
        >>> class Waves(msgspec.Struct):
        ...     epochs: int = 1
        >>> to_yaml(Waves())
        b'epochs: 1\\n'
    """
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


def explain(record: type, indent: str = "") -> Iterator[str]:
    """A line for each field, in the form of the file: the key, its default, and what it means."""
    texts = docstrings(record)
    for one in _struct(record).fields:
        choices = structs_of(one.type)
        yield f"{indent}{one.name}: {_default(one)}".ljust(34) + f"# {texts.get(one.name, '')}"
        if not choices:
            yield " " * 34 + f"#   {expected(one.type)}{'; must be given' if one.required else ''}"
            continue
        for choice in choices:
            inner = indent + "    "
            if choice.tag is not None:
                yield f"{inner[:-2]}name: {choice.tag}".ljust(34) + f"# {(inspect.getdoc(choice.cls) or '').partition(chr(10))[0]}"
            yield from explain(choice.cls, inner)


def _default(one: Field) -> str:
    if structs_of(one.type):
        return "null" if any(isinstance(kind, NoneType) for kind in _types(one.type)) else default_tag(one) or ""
    value: Any = one.default_factory() if one.default_factory is not NODEFAULT else one.default
    if value is NODEFAULT or isinstance(value, Struct):
        return "…"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(list(value)) if isinstance(value, tuple) else str(value)
