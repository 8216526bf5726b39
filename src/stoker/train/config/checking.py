"""Checking: plain values become a `Config`, or one line that says which value, where, and what was expected."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, NoReturn, TypeVar, get_type_hints

import msgspec
from msgspec import NODEFAULT
from msgspec.inspect import (
    BoolType,
    DictType,
    Field,
    FloatType,
    IntType,
    ListType,
    LiteralType,
    NoneType,
    StructType,
    TupleType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

from stoker.errors import ConfigInvalid
from stoker.train.config.document import Document, Path_, describe

T = TypeVar("T", bound=msgspec.Struct)
OWN = "own"
LARGE = 2**31


class Known(NamedTuple):
    """One field that a configuration may have."""

    path: tuple[str, ...]
    field: Field
    owner: type

    @property
    def dotted(self) -> str:
        """As it is written."""
        return ".".join(self.path)


def known_fields(config: type) -> Iterator[Known]:
    """All fields, of all choices; a field that several choices have comes once for each."""
    yield from _known(_struct(config), ())


def _known(info: StructType, path: tuple[str, ...]) -> Iterator[Known]:
    for field in info.fields:
        here = (*path, field.name)
        yield Known(here, field, info.cls)
        for choice in structs_of(field.type):
            yield from _known(choice, here)


def structs_of(info: Type) -> list[StructType]:
    """The records that a value may be."""
    types = info.types if isinstance(info, UnionType) else (info,)
    return [one for one in types if isinstance(one, StructType)]


def check(document: Document, config: type[T]) -> T:
    """The configuration that a document means."""
    whole = _Check(document, sorted({one.dotted for one in known_fields(config)}))
    tree = whole.struct(document.tree, _struct(config), ())
    try:
        return msgspec.convert(tree, config)
    except msgspec.ValidationError as error:  # a rule that the walk does not know
        raise ConfigInvalid(f"{document.name}: {error}.") from error


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
        item = _record_of_list(field.type)
        if item is not None and isinstance(value, list):
            return [self.struct(one, item, (*path, i)) for i, one in enumerate(value)]
        choices = structs_of(field.type)
        if not choices:
            return self._plain(value, field.type, hint, path)
        if value is None and isinstance(field.type, UnionType) and any(isinstance(one, NoneType) for one in field.type.types):
            return None
        if len(choices) == 1 and choices[0].tag_field is None:
            return self.struct(value, choices[0], path)
        return self._choice(value, choices, default_tag(field), path)

    def _choice(self, value: Any, choices: list[StructType], default: str | None, path: Path_) -> dict[str, Any]:
        tags = {str(choice.tag): choice for choice in choices}
        value = spelt_out(value)
        if not isinstance(value, dict):
            self._expected(value, path, f"a name: {', '.join(tags)}")
        name = value.get("name", default)
        if name is None:
            self._missing((*path, "name"), f"one of {', '.join(tags)}")
        if not isinstance(name, str) or name not in tags:
            self._expected(name, (*path, "name"), f"one of {', '.join(tags)}{_nearest(name, tags)}")
        return {"name": name, **self.struct(value, tags[name], path)}

    def _plain(self, value: Any, info: Type, hint: Any, path: Path_) -> Any:
        for part in _numbers(value):
            if not math.isfinite(part):
                self._expected(part, path, f"{expected(info)} that is finite")
        if any("\0" in text for text in _texts(value)):
            self._expected(value, path, f"{expected(info)} without NUL")
        try:
            msgspec.convert(value, hint)
        except msgspec.ValidationError:
            is_large = any(isinstance(part, int) and part >= LARGE for part in (value if isinstance(value, list) else [value]))
            self._expected(value, path, f"{expected(info, limits=is_large)}{_nearest(value, _words(info))}")
        return value

    def _missing(self, path: Path_, what: str) -> NoReturn:
        raise ConfigInvalid(f"{self._document.place(path[:-1])}: {_dotted(path)} is missing; expected {what}.")

    def _expected(self, value: object, path: Path_, what: str) -> NoReturn:
        where = self._document.place(path)
        found = f"the list {value}" if isinstance(value, list) else describe(value)
        raise ConfigInvalid(f"{where}: {_dotted(path)} is {found[:200]}; expected {what}.")

    def _unknown(self, path: Path_, siblings: list[str]) -> NoReturn:
        key = str(path[-1])
        parent = [*map(str, path[:-1])]
        close = difflib.get_close_matches(key, siblings, 1, 0.6)
        elsewhere = [one for one in self._known if one.split(".")[-1] == key]
        hint = f"expected one of {', '.join(siblings)}" if siblings else "nothing can be set here"
        if close:
            hint = f"did you mean {'.'.join([*parent, close[0]])}?"
        elif elsewhere:
            hint = f"did you mean {' or '.join(elsewhere)}?"
        elif near := difflib.get_close_matches(key, [one.split(".")[-1] for one in self._known], 1, 0.75):
            hint = f"did you mean {next(one for one in self._known if one.split('.')[-1] == near[0])}?"
        end = "" if hint.endswith("?") else "."
        raise ConfigInvalid(f"{self._document.place(path)}: {_dotted(path)} is not known; {hint}{end}")


def _record_of_list(info: Type) -> StructType | None:
    """The record that each part of a list is."""
    types = info.types if isinstance(info, UnionType) else (info,)
    items = [one.item_type for one in types if isinstance(one, ListType)]
    return items[0] if items and isinstance(items[0], StructType) else None


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


def expected(info: Type, *, limits: bool = False) -> str:
    """What a value may be, in words; with the `limits` of large numbers only where one is beyond them."""
    if isinstance(info, UnionType):
        words = dict.fromkeys(expected(one, limits=limits) for one in info.types)
        return ", or ".join(words) if any("," in word for word in words) else " or ".join(words)
    if isinstance(info, LiteralType):
        return ", ".join(map(str, info.values)) if len(info.values) < 2 else "one of " + ", ".join(map(str, info.values))
    if isinstance(info, IntType | FloatType):
        kind = "a whole number" if isinstance(info, IntType) else "a number"
        bounds = {"from": info.ge, "above": info.gt, "up to": info.le, "below": info.lt}
        told = {word: bound for word, bound in bounds.items() if bound is not None and (limits or bound < LARGE)}
        return " ".join([kind, *(f"{word} {_short(bound)}" for word, bound in told.items())])
    if isinstance(info, StructType):
        return f"keys such as {', '.join(field.name for field in info.fields[:3])}" if info.tag is None else str(info.tag)
    if isinstance(info, ListType | VarTupleType):
        return f"a list, each {expected(info.item_type, limits=limits)}"
    if isinstance(info, TupleType):
        return f"a list of {len(info.item_types)}, each {expected(info.item_types[0])}"
    names: dict[type, str] = {BoolType: "true or false", NoneType: "null", DictType: "keys and their values"}
    return names.get(type(info), "a text")


def _short(bound: float) -> str:
    return f"{bound:,}" if bound < 2**53 else f"2**{math.log2(bound):g}"


def _words(info: Type) -> list[str]:
    if isinstance(info, UnionType):
        return [word for one in info.types for word in _words(one)]
    return [value for value in info.values if isinstance(value, str)] if isinstance(info, LiteralType) else []


def _nearest(value: object, words: Mapping[str, Any] | list[str]) -> str:
    close = difflib.get_close_matches(value, list(words), 1, 0.5) if isinstance(value, str) else []
    return f" (did you mean {close[0]}?)" if close else ""


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _numbers(part)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for part in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _texts(part)


def _dotted(path: Path_) -> str:
    return ".".join(map(str, path)) or "the configuration"
