"""Types that packages share: arrays, and what the fields of structs may be, in words, with their documentation.

The trainer's settings, the config of `stoker train` and the settings of the recipes are structs. Their fields are declared once,
with a type that holds the limits and a docstring below; checks, error messages and manuals are made from that.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct
from msgspec import inspect as types

from stoker.errors import OptionError

Array = npt.NDArray[Any]


Count = Annotated[int, Meta(ge=1)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
LARGE = 2**31


def expected(info: types.Type, *, limits: bool = False, python: bool = False) -> str:
    """What a value may be, in words: those of a config, or of Python.

    The limits of large numbers are only in the way, unless a number is beyond them (`limits`).
    """
    if isinstance(info, types.Metadata):
        return (info.extra_json_schema or {}).get("description") or expected(info.type, limits=limits, python=python)
    if isinstance(info, types.UnionType):
        words = dict.fromkeys(expected(part, limits=limits, python=python) for part in info.types)
        return ", or ".join(words) if any("," in word for word in words) else " or ".join(words)
    if isinstance(info, types.LiteralType):
        values = ", ".join(repr(value) if python else str(value) for value in info.values)
        return values if len(info.values) < 2 else f"one of {values}"
    if isinstance(info, types.IntType | types.FloatType):
        kind = "an integer" if isinstance(info, types.IntType) else "a number"
        bounds = {"from": info.ge, "above": info.gt, "up to": info.le, "below": info.lt}
        shown = {word: bound for word, bound in bounds.items() if bound is not None and (limits or bound < LARGE)}
        texts = {word: f"{bound:,}" if bound < 2**53 else f"2**{math.log2(bound):g}" for word, bound in shown.items()}
        return " ".join([kind, *(f"{word} {text}" for word, text in texts.items())])
    if isinstance(info, types.StructType):
        return f"keys such as {', '.join(field.name for field in info.fields[:3])}" if info.tag is None else str(info.tag)
    if isinstance(info, types.ListType | types.SetType | types.VarTupleType):
        return f"a list{' that is not empty' if info.min_length else ''}, each {expected(info.item_type, limits=limits)}"
    if isinstance(info, types.TupleType):
        return f"a list of {len(info.item_types)}, each {expected(info.item_types[0])}"
    names: dict[type, str] = {types.BoolType: "true or false", types.NoneType: "null", types.DictType: "keys and their values"}
    if python:
        names |= {types.BoolType: "True, False", types.NoneType: "None"}
    return names.get(type(info), "a string")


def converted(name: str, value: Any, kind: Any, *, of: str = "") -> Any:
    """Return the value of an option as its type says; numbers of NumPy become those of Python.

    Args:
        name: The option.
        value: What it was given.
        kind: Its type, such as `Annotated[int, Meta(ge=1)] | None`.
        of: What comes before the name in the message, such as "Shuffle: ".

    Raises:
        OptionError: The value is of another type, or beyond its limits.
    """
    plain = value.item() if isinstance(value, np.generic) else value
    try:
        if isinstance(plain, float) and not math.isfinite(plain):
            raise msgspec.ValidationError
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError:
        words = expected(types.type_info(kind), limits=isinstance(plain, int) and plain >= LARGE, python=True)
        raise OptionError(f"{of}{name} is {value!r}; expected {words}.", parameter=name) from None


def check_fields(record: Any) -> None:
    """Check and convert the fields of a frozen dataclass or struct that are plain values; for its `__post_init__`."""
    kind_of_record: Any = type(record)
    for name, kind in _plain_fields(kind_of_record).items():
        value = converted(name, getattr(record, name), kind, of=f"{type(record).__name__}: ")
        if not isinstance(record, Struct):
            object.__setattr__(record, name, value)


class CheckedFields:
    """A base of frozen dataclasses whose fields are checked."""

    def __post_init__(self) -> None:
        check_fields(self)


@cache
def _plain_fields(record: Any) -> dict[str, Any]:
    names = record.__struct_fields__ if issubclass(record, Struct) else [field.name for field in fields(record) if field.init]
    hints = get_type_hints(record, include_extras=True)
    return {name: hints[name] for name in names if _is_plain(hints[name])}


def _is_plain(kind: Any) -> bool:
    if get_origin(kind) in (Union, UnionType):
        return all(map(_is_plain, get_args(kind)))
    if get_origin(kind) is Annotated:
        return _is_plain(get_args(kind)[0])
    return get_origin(kind) is Literal or kind in (bool, int, float, str, NoneType)


S = TypeVar("S", bound=Struct)


def checked(settings: S, *, path: str = "") -> S:
    """The settings with values of their types: a struct made in Python may hold anything.

    Raises:
        OptionError: A value is of another type, or beyond its limits. The message names the field as it was given, after `path`.
    """
    values: dict[str, Any] = {}
    fields, hints = _schema(type(settings))
    for name, info in fields.items():
        value = getattr(settings, name)
        if isinstance(info, types.StructType):
            if not isinstance(value, info.cls):
                raise OptionError(f"{path}{name} is {value!r}; expected {info.cls.__name__}(…).", parameter=f"{path}{name}")
            values[name] = checked(value, path=f"{path}{name}.")
            continue
        values[name] = converted(f"{path}{name}", value, hints[name])
    return msgspec.structs.replace(settings, **values)


@cache
def _schema(record: type) -> tuple[dict[str, types.Type], dict[str, Any]]:
    """Types and annotations of the fields by name; reading them takes longer than a step of a small model."""
    fields = {field.name: field.type for field in types.type_info(record).fields}  # type: ignore[attr-defined]
    return fields, get_type_hints(record, include_extras=True)


def docstrings(record: type) -> dict[str, str]:
    """Return the text under each field of a struct or dataclass, those of its base classes first."""
    texts: dict[str, str] = {}
    for kind in reversed(record.__mro__):
        if kind in (object, Struct) or not (issubclass(kind, Struct) or is_dataclass(kind)):
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for statement, text in pairwise(body):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and isinstance(text, ast.Expr):
                value: Any = ast.literal_eval(text.value)
                texts[statement.target.id] = " ".join(str(value).split())
    return texts
