"""Types that packages share: arrays, and what the fields of structs may be, in words, with their documentation.

The trainer's settings, the config of `stoker train` and the settings of the recipes are structs. Their fields are declared once,
with a type that holds the limits and a docstring below; checks, error messages and manuals are made from that.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from dataclasses import is_dataclass
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar, get_type_hints

import msgspec
import numpy.typing as npt
from msgspec import Struct
from msgspec import inspect as types

from stoker.errors import OptionError

Array = npt.NDArray[Any]


LARGE = 2**31


def expected(info: types.Type, *, limits: bool = False, python: bool = False) -> str:
    """What a value may be, in words: those of a config, or of Python.

    The limits of large numbers are only in the way, unless a number is beyond them (`limits`).
    """
    if isinstance(info, types.Metadata):
        return (info.extra_json_schema or {}).get("description") or expected(info.type, limits=limits, python=python)
    if isinstance(info, types.UnionType):
        words = dict.fromkeys(expected(one, limits=limits, python=python) for one in info.types)
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
    if isinstance(info, types.ListType | types.VarTupleType):
        return f"a list{' that is not empty' if info.min_length else ''}, each {expected(info.item_type, limits=limits)}"
    if isinstance(info, types.TupleType):
        return f"a list of {len(info.item_types)}, each {expected(info.item_types[0])}"
    names: dict[type, str] = {types.BoolType: "true or false", types.NoneType: "null", types.DictType: "keys and their values"}
    if python:
        names |= {types.BoolType: "True, False", types.NoneType: "None"}
    return names.get(type(info), "a string")


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
        if isinstance(value, float):
            value = float(value)  # np.float64 is one
        try:
            if isinstance(value, float) and not math.isfinite(value):
                raise msgspec.ValidationError
            values[name] = msgspec.convert(value, hints[name])
        except msgspec.ValidationError:
            words = expected(info, limits=isinstance(value, int) and value >= LARGE, python=True)
            raise OptionError(f"{path}{name} is {value!r}; expected {words}.", parameter=f"{path}{name}") from None
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
        for one, text in pairwise(body):
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(text, ast.Expr):
                value: Any = ast.literal_eval(text.value)
                texts[one.target.id] = " ".join(str(value).split())
    return texts
