"""Writes docs/configuration.md from the classes in stoker.experiment.config: `make reference`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import NODEFAULT
from msgspec.inspect import Field, StructType, type_info

from stoker.experiment.config import Config
from stoker.experiment.parse import docstrings, structs_of

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"
INTRO = """\
# Configuration

This page is generated from the source by `make reference`. Do not edit it by hand. `stoker train --fields` prints the same fields
with their types. [training.md](training.md#configuration-files) explains how a configuration is used.

A section that is a choice takes a name alone (`model: gru`) or a name with fields (`model: {name: gru, width: 64}`). "…" marks a
required field.
"""


def page() -> str:
    """The text of the page."""
    sections = _struct(type_info(Config))
    texts = docstrings(Config)
    parts = [INTRO]
    for field in sections.fields:
        default = "" if field.required else f" Default: `{_default(field)}`."
        parts.append(f"## {field.name}\n\n{texts[field.name]}{default}\n\n| field | default | |\n| --- | --- | --- |")
        parts[-1] += "".join(f"\n{row}" for row in _rows(field, (field.name,))) + "\n"
    return "\n".join(parts)


def _rows(field: Field, path: tuple[str, ...]) -> Iterator[str]:
    """A row for each choice of a section, and for each of its fields."""
    dotted = ".".join(path)
    for choice in structs_of(field.type):
        if choice.tag is not None:
            yield f"| `{dotted}: {choice.tag}` | | {_summary(choice.cls)} |"
        texts = docstrings(choice.cls)
        for one in choice.fields:
            yield f"| `{dotted}.{one.name}` | {'…' if one.required else f'`{_default(one)}`'} | {texts[one.name]} |"
            yield from _rows(one, (*path, one.name))


def _default(field: Field) -> str:
    """A default as a configuration file writes it; a choice is its name."""
    value: Any = field.default if field.default is not NODEFAULT else field.default_factory()
    if isinstance(value, msgspec.Struct):
        return str(value.__struct_config__.tag or "{}")
    plain = msgspec.to_builtins(value)
    return plain if isinstance(plain, str) else json.dumps(plain)


def _summary(record: type) -> str:
    return (record.__doc__ or "").split("\n")[0]


def _struct(info: object) -> StructType:
    if not isinstance(info, StructType):
        raise TypeError(f"{info} is not a record")
    return info


if __name__ == "__main__":
    PAGE.write_text(page())
