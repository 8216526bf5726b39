"""The manual of the fields: what the sources say under each field, for `stoker train --fields`."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from msgspec import NODEFAULT, Struct
from msgspec.inspect import Field, NoneType, StructType, UnionType

from stoker.train.config.checking import default_tag, expected, structs_of


def docstrings(record: type) -> dict[str, str]:
    """The text under each field of a record."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(record)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    found: dict[str, str] = {}
    for field, text in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            value = ast.literal_eval(text.value)
            found[field.target.id] = " ".join(str(value).split())
    return found


def explain(config: StructType, indent: str = "") -> Iterator[str]:
    """A line for each field, in the form of the file: the key, its default, and what it means."""
    texts = docstrings(config.cls)
    for field in config.fields:
        choices = structs_of(field.type)
        yield f"{indent}{field.name}: {_default(field)}".ljust(34) + f"# {texts[field.name]}"
        if not choices:
            yield " " * 34 + f"#   {expected(field.type)}{_needed(field)}"
            continue
        for choice in choices:
            inner = indent + "    "
            if choice.tag is not None:
                yield f"{inner[:-2]}name: {choice.tag}".ljust(34) + f"# {inspect.getdoc(choice.cls)}"
            yield from explain(choice, inner)


def _default(field: Field) -> str:
    if structs_of(field.type):
        is_off = isinstance(field.type, UnionType) and any(isinstance(one, NoneType) for one in field.type.types)
        return "null" if is_off else default_tag(field) or ""
    value: Any = field.default_factory() if field.default_factory is not NODEFAULT else field.default
    if value is NODEFAULT or isinstance(value, Struct):
        return "…"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _needed(field: Field) -> str:
    return "; must be given" if field.required else ""
